"""`routemaster publish`: one event by its flags, or all of a file or of standard input."""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from routemaster.cli.nouns import AsJson
from routemaster.cli.place import STDIN, Place, at_bus
from routemaster.errors import RoutemasterError, SettingError

PATIENCE_S = 60.0


@at_bus("--bus")
def publish(
    place: Place,
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", help="Where to; it is claimed if nobody publishes to it yet.")
    ],
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE|-", help="Events, one JSON object a line or a JSON array; - for standard input."
        ),
    ] = None,
    type: Annotated[
        Literal["create", "update", "delete", "noop"] | None,
        typer.Option(help="What happened to the entity."),
    ] = None,
    url: Annotated[
        list[str] | None, typer.Option("--url", metavar="URL", help="The entity. (The bus is --bus here.)")
    ] = None,
    data: Annotated[str | None, typer.Option(metavar="JSON", help="An object that goes along.")] = None,
    environment: Annotated[str | None, typer.Option(help="Where it happened. (default: default)")] = None,
    id: Annotated[
        str | None,
        typer.Option("--id", help="Its own id: the same id is stored once, however often it is sent."),
    ] = None,
    timestamp: Annotated[
        int | None, typer.Option(min=0, help="When it happened, in ms since 1970. (default: now)")
    ] = None,
    patience_s: Annotated[
        float,
        typer.Option("--patience", min=0, max=86_400, help="Seconds to go on trying while the bus is away."),
    ] = PATIENCE_S,
    as_json: AsJson = False,
) -> None:
    """Publish one event, or those of a file, in order. Prints the id of the one, or how many were taken.

    A file goes in bulks, as it is read; from a pipe, events go as they come. It
    stops at the first bad event and names its line: all before that are
    published, none from there on. While the bus is away they are sent again,
    which is safe for events that have an id: others may be stored twice.

    \b
    Examples:
      routemaster publish orders --type create --url https://shop.example/orders/1
      routemaster publish orders --type update \\
        --url https://shop.example/orders/1 --data '{"total": 5}' --id o1-2
      routemaster publish orders events.ndjson
      my-export | routemaster publish orders - --bus https://bus.example
    """
    fields = {
        "type": type,
        "url": url[0] if url else None,
        "data": data,
        "environment": environment,
        "id": id,
        "timestamp": timestamp,
    }
    given = [name for name, value in fields.items() if value is not None]
    if url and len(url) > 1:
        raise SettingError("--url", " ".join(url), "one: the entity's; the bus is named by --bus")
    if file is None:
        for name in ("type", "url"):
            if fields[name] is None:
                expected = "of one event: --type and --url; or a file of events (- for standard input)"
                raise SettingError(f"--{name}", "", expected)
        _publish_one(place, topic, fields, patience_s, as_json)
    elif given:
        flags = ", ".join(f"--{name}" for name in given)
        raise SettingError("FILE", file, f"either a file of events or one by its flags ({flags})")
    else:
        _publish_file(place, topic, file, patience_s, as_json)


def _publish_one(place: Place, topic: str, fields: dict[str, Any], patience_s: float, as_json: bool) -> None:
    import msgspec

    from routemaster.cli import output
    from routemaster.cli.bulk import Publishing
    from routemaster.cli.connect import as_client
    from routemaster.cli.session import path

    event = {name: value for name, value in fields.items() if value is not None}
    if "data" in event:
        try:
            event["data"] = msgspec.Raw(event["data"].encode())
            msgspec.json.decode(event["data"])
        except (msgspec.DecodeError, UnicodeError) as error:
            raise SettingError("--data", fields["data"], f"a JSON object ({error})") from None
    session = as_client(place)
    publishing = Publishing(session, path("topics", topic), "", patience_s=patience_s, tell=output.note)
    answer = publishing.post(msgspec.json.encode(event), has_ids="id" in event)
    if answer.status >= 300:
        raise session.error(answer)
    uid = answer.headers.get("routemaster-event-id", "")
    if as_json:
        output.write_json({"id": uid, "topic": topic})
    else:
        output.write(uid)


def _publish_file(place: Place, topic: str, file: str, patience_s: float, as_json: bool) -> None:
    from routemaster.cli import output
    from routemaster.cli.bulk import Publishing
    from routemaster.cli.connect import as_client
    from routemaster.cli.event_file import read
    from routemaster.cli.session import path

    if STDIN == file == place.token:
        raise SettingError("--token", STDIN, "another way: events come from standard input")
    name = "standard input" if file == STDIN else file
    with _opened(file) as (fd, size), _progress(size) as progress:
        session = as_client(place)
        publishing = Publishing(
            session, path("topics", topic), name, patience_s=patience_s, tell=output.note, progress=progress
        )
        try:
            publishing.run(read(fd))
        except (RoutemasterError, KeyboardInterrupt) as error:
            _tell_how_far(publishing, error)
            raise
        except OSError as error:
            raise SettingError("FILE", name, f"a file that can be read ({error.strerror})") from None
    if as_json:
        output.write_json(
            {"accepted": publishing.accepted, "requests": publishing.requests, "retries": publishing.retries}
        )
    else:
        output.write(f"{publishing.accepted:,} events published")


def _tell_how_far(publishing: Any, error: BaseException) -> None:
    from routemaster.cli import output
    from routemaster.errors import BusAway

    done = f"{publishing.accepted:,} events were published"
    if isinstance(error, RoutemasterError) and not isinstance(error, BusAway):
        rest = f", and none from line {publishing.line} on"
    elif publishing.line:
        rest = f"; those from line {publishing.line} on may be or not"
    else:
        rest = ", and no more"
    output.note(done + rest)


@contextmanager
def _opened(file: str) -> Generator[tuple[int, int | None]]:
    """A file's descriptor, and its size where that is known."""
    if file == STDIN:
        yield 0, None
        return
    try:
        opened = Path(file).open("rb")  # noqa: SIM115 (closed below)
    except OSError as error:
        raise SettingError("FILE", file, f"a file that can be read ({error.strerror})") from None
    with opened:
        yield opened.fileno(), Path(file).stat().st_size or None


def _unseen(_events: int, _bytes: int) -> None:
    """Progress that nobody watches."""


@contextmanager
def _progress(size: int | None) -> Generator[Any]:
    """A bar on standard error, where that is a terminal; gone when it is done."""
    if not sys.stderr.isatty():
        yield _unseen
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.fields[events]:,} events"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("", total=size, events=0)
        taken = 0

        def advance(events: int, length: int) -> None:
            nonlocal taken
            taken += events
            shown.update(task, advance=length, events=taken)

        yield advance
