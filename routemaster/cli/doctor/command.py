"""The command: runs all checks that apply, each on its own, and prints what they found."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from routemaster.cli.nouns import AsJson
from routemaster.cli.place import Place, at_bus

if TYPE_CHECKING:
    from routemaster.cli.doctor.finding import Finding
    from routemaster.settings import Settings
    from routemaster.store_url import StoreUrl

STYLES = {"ok": "green", "info": "dim", "warning": "yellow", "problem": "red bold"}


@at_bus()
def doctor(
    place: Place,
    host: Annotated[
        str | None, typer.Option(help="Address that the bus is to listen on. (default 127.0.0.1)")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="Port that the bus is to listen on. (default 7080)")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check whether a bus can run here, and whether the one that is meant does well; say what to do.

    Looks at Python and the packages, the folder, port, disk, clock and limits,
    the store and its settings, the certificate, and at the bus that runs, here or
    at --url. It changes nothing. Each line is ok, a warning, a problem, or for
    information.

    \b
    Examples:
      routemaster doctor
      routemaster doctor --json | jq '.[] | select(.verdict != "ok")'
      ROUTEMASTER_REDIS_URL=redis://store:6379 routemaster doctor
      routemaster doctor --url https://bus.example --token-file token
    """
    from routemaster.cli import output
    from routemaster.cli.exits import FAILED

    findings = list(_examine(place, host, port))
    if as_json:
        output.write_json(findings)
    else:
        _print(findings)
    if any(finding.verdict == "problem" for finding in findings):
        raise typer.Exit(FAILED)


def _examine(place: Place, host: str | None, port: int | None) -> "Iterator[Finding]":
    import os

    from routemaster.cli.doctor import here, machine
    from routemaster.cli.folder import find
    from routemaster.cli.place import folder_of
    from routemaster.settings import PREFIX

    environ = dict(os.environ)
    if host is not None:
        environ[PREFIX + "HOST"] = host
    if port is not None:
        environ[PREFIX + "PORT"] = str(port)
    loaded, trouble = _settings(environ)
    yield from _safely("python", machine.python)
    yield from _safely("packages", machine.packages)
    yield from trouble
    yield from _safely("limits", lambda: machine.limits(loaded.worker_threads))
    yield from _safely("clock", machine.clock)
    store_url = loaded.redis_url if environ.get(PREFIX + "REDIS_URL") else None
    is_remote = place.url is not None or (place.folder is None and bool(environ.get(PREFIX + "URL")))
    folder: Path = folder_of(place)
    if not is_remote:
        bus = find(folder)
        yield from _safely("folder", lambda: here.folder(folder))
        yield from _safely("port", lambda: here.port(loaded, bus))
        yield from _safely("tls", lambda: here.tls(loaded))
        if not store_url:
            yield from _safely("disk", lambda: here.disk(folder))
            yield from _safely("store program", here.embedded_store)
            store_url = bus.store_url if bus and bus.runs else None
    if store_url and not any(finding.verdict == "problem" for finding in trouble):
        yield from _safely("store", lambda: _ask_store(store_url, loaded))
    if is_remote or ((bus := find(folder)) and bus.runs):
        yield from _safely("bus", lambda: _ask_bus(place))
    yield from _safely("pipeline", machine.pipeline)


def _settings(environ: dict[str, str]) -> "tuple[Settings, list[Finding]]":
    """The settings, or the defaults and what is wrong with those that were given."""
    from routemaster import settings
    from routemaster.cli.doctor.finding import Finding
    from routemaster.errors import SettingError

    try:
        loaded = settings.load(environ)
    except SettingError as error:
        return settings.Settings(), [Finding("settings", "problem", str(error), f"correct {error.name}")]
    given = sorted(name for name in environ if name.startswith(settings.PREFIX))
    return loaded, [Finding("settings", "ok", ", ".join(given) or "none are set: the defaults hold")]


def _ask_store(url: "StoreUrl | str", settings: "Settings") -> "Iterator[Finding]":
    import asyncio

    from routemaster.cli.doctor import store

    return iter(asyncio.run(store.check(url, settings)))


def _ask_bus(place: Place) -> "Iterator[Finding]":
    import contextlib

    from routemaster.cli.connect import as_reader
    from routemaster.cli.doctor.finding import Finding
    from routemaster.errors import BusAway, RoutemasterError, SettingError

    try:
        session = as_reader(place)
        with contextlib.closing(session):
            session.do("GET", "/pulse")
    except BusAway as error:
        yield Finding("bus", "problem", str(error), "look at what it says, and at the findings above")
    except SettingError as error:
        yield Finding("bus", "warning", str(error), "without a credential it cannot be asked")
    except RoutemasterError as error:
        yield Finding("bus", "problem", str(error), "give it a credential that it knows")
    else:
        yield Finding("bus", "ok", f"serves at {session.url}, and reaches its store")


def _safely(check: str, look: "Callable[[], Iterator[Finding]]") -> "Iterator[Finding]":
    """A check that breaks is a finding too; the others go on."""
    from routemaster.cli.doctor.finding import Finding

    try:
        yield from look()
    except Exception as error:
        yield Finding(
            check, "problem", f"it could not be checked: {type(error).__name__}: {error}", "tell us"
        )


def _print(findings: "list[Finding]") -> None:
    from rich.text import Text

    from routemaster.cli import output

    lines: list[Text] = []
    for finding in findings:
        lines.append(
            Text.assemble(
                (f"{finding.verdict:8} ", STYLES[finding.verdict]),
                (f"{finding.check}: ", "bold"),
                output.printable(finding.seen),
            )
        )
        if finding.advice and finding.verdict != "ok":
            lines.append(Text(f"{'':9}→ {output.printable(finding.advice)}"))
    counts = {verdict: sum(finding.verdict == verdict for finding in findings) for verdict in STYLES}
    lines.append(Text(f"{counts['problem']} problems, {counts['warning']} warnings"))
    output.show(Text("\n").join(lines))
