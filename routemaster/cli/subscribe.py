"""`routemaster subscribe` and `unsubscribe`: a client's own push subscriptions.

Secrets come from files, standard input or the environment. The uuid, which deliveries bear as their password,
is kept where the subscription is there already, and made where it is not: nobody needs to write it down.
"""

import math
import os
import secrets
from pathlib import Path
from typing import Annotated, Any

import typer

from routemaster.cli.consent import Yes, ask
from routemaster.cli.nouns import AsJson
from routemaster.cli.place import Place, at_bus
from routemaster.errors import SettingError
from routemaster.settings import PREFIX

MAX_SECRET = 10_000

Name = Annotated[
    str | None,
    typer.Option(
        "--name", help="Which of your subscriptions: you may have several. (default: the one without a name)"
    ),
]


@at_bus()
def subscribe(
    place: Place,
    callback: Annotated[str, typer.Option(metavar="URL", help="Where batches are posted to.")],
    topics: Annotated[
        list[str] | None, typer.Option("--topic", metavar="TOPIC", help="A topic; again for more.")
    ] = None,
    match: Annotated[
        list[str] | None,
        typer.Option(
            "--match", metavar="REGEX", help="A pattern (RE2) over environment:topic:type; again for more."
        ),
    ] = None,
    name: Name = None,
    uuid: Annotated[
        str | None,
        typer.Option(
            metavar="UUID|-",
            help="What deliveries bear as user and password; - reads it from standard input. It is seen by"
            " `ps` if it stands here. (default: as before, or a new one, which is printed)",
        ),
    ] = None,
    timeout: Annotated[
        int | None,
        typer.Option(
            min=0, max=3_600_000, help="Send a batch this many ms after its first event. (default 500)"
        ),
    ] = None,
    most: Annotated[int | None, typer.Option("--max", min=1, help="Events in a batch. (default 100)")] = None,
    parallelism: Annotated[
        int | None,
        typer.Option(
            min=1, max=64, help="Lanes; with more than 1, order is kept per entity URL. (default 1)"
        ),
    ] = None,
    max_rate: Annotated[
        float | None, typer.Option(help="Deliveries a second. (default: as fast as they go)")
    ] = None,
    max_attempts: Annotated[
        int | None,
        typer.Option(min=1, help="After as many, a batch goes to the dead letters. (default: never)"),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", metavar="'NAME: VALUE'", help="Goes with each delivery; again for more."),
    ] = None,
    header_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE|-", help="Headers, one a line: for those that `ps` should not show."),
    ] = None,
    signing_secret: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE|-",
            help="A file with the secret to sign deliveries with: whsec_ and the base64 of 24 to 64 random"
            f" bytes. (default ${PREFIX}SIGNING_SECRET, or as before)",
        ),
    ] = None,
    unsigned: Annotated[bool, typer.Option("--unsigned", help="Sign no longer.")] = False,
    paused: Annotated[
        bool | None,
        typer.Option("--paused/--not-paused", help="Queue up, and send nothing until it is resumed."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Subscribe to topics: batches of their events are posted to the callback until it acknowledges them.

    Doing it again replaces the topics and all options; only the secret, the uuid
    and whether it is paused stay as they are unless they are given.

    \b
    Examples:
      routemaster subscribe --topic orders --callback https://shop.example/events
      routemaster subscribe --name audit --match ':(delete|noop)$' --callback https://a.example
      echo "whsec_$(openssl rand -base64 32)" | routemaster subscribe --topic a \\
        --callback https://shop.example/events --signing-secret -
    """
    from routemaster.cli import output
    from routemaster.cli.connect import as_client

    if not topics and not match:
        raise SettingError("--topic", "", "at least one, or a --match")
    if max_rate is not None and not math.isfinite(max_rate):
        raise SettingError("--max-rate", str(max_rate), "a number")
    _one_stdin(
        {
            "--token": place.token,
            "--uuid": uuid,
            "--header-file": header_file,
            "--signing-secret": signing_secret,
        }
    )
    body: dict[str, Any] = {
        "callback": callback,
        "topics": topics or [],
        "match": match or None,
        "name": name,
        "timeout": timeout,
        "max": most,
        "parallelism": parallelism,
        "max_rate": max_rate,
        "max_attempts": max_attempts,
        "headers": _headers(header or [], header_file) or None,
        "signing_secret": _signing_secret(signing_secret, unsigned),
        "paused": paused,
    }
    given = _read("--uuid", Path("-")) if uuid == "-" else uuid
    session = as_client(place)
    before = None if given else _uuid_before(session, name)
    body["uuid"] = given or before or secrets.token_hex(16)
    session.do("POST", "/subscription", body)
    is_new = not (given or before)
    if as_json:
        output.write_json({"name": name, "callback": callback, "uuid": body["uuid"] if is_new else None})
    elif is_new:
        output.show(output.fields({"uuid": body["uuid"]}))
        output.note("deliveries bear the uuid as user and password (HTTP Basic)")


@at_bus()
def unsubscribe(
    place: Place,
    topics: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="TOPIC", help="Take this topic off the list; again for more."),
    ] = None,
    name: Name = None,
    yes: Yes = False,
) -> None:
    """End a subscription with all that is queued for it, or take topics off its list.

    \b
    Examples:
      routemaster unsubscribe --topic stock
      routemaster unsubscribe --name audit --yes
    """
    from urllib.parse import quote

    from routemaster.cli.subscription import find

    found = find(place, None, name)
    for topic in topics or []:
        found.session.do("DELETE", found.path(f"/topics/{quote(topic, safe='')}"))
    if not topics:
        which = f"the subscription {name}" if name else "your subscription"
        ask(f"End {which}, and delete what is queued for it?", yes)
        found.session.do("DELETE", found.path())


def _uuid_before(session: Any, name: str | None) -> str | None:
    """The uuid of the subscription that is there: it is shown to its owner, and to nobody else but root."""
    rows = session.get("/subscriptions", list[dict[str, Any]])
    own = [row["uuid"] for row in rows if row["uuid"] and row.get("name") == name]
    return own[0] if len(own) == 1 else None


def _headers(given: list[str], path: Path | None) -> dict[str, str]:
    lines = [("--header", line) for line in given]
    if path is not None:
        lines += [(str(path), line) for line in _read("--header-file", path).splitlines() if line.strip()]
    headers: dict[str, str] = {}
    for source, line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise SettingError(source, "…", "'NAME: VALUE' (the value itself is not shown)")
        headers[name.strip()] = value.strip()
    return headers


def _signing_secret(path: Path | None, unsigned: bool) -> str | None:
    """The secret; empty for none from now on, None to leave it as it is."""
    if unsigned and path is not None:
        raise SettingError("--unsigned", "", "either it or --signing-secret")
    if unsigned:
        return ""
    if path is not None:
        return _read("--signing-secret", path)
    return os.environ.get(PREFIX + "SIGNING_SECRET", "").strip() or None


def _one_stdin(flags: dict[str, str | Path | None]) -> None:
    readers = [name for name, value in flags.items() if value is not None and str(value) == "-"]
    if len(readers) > 1:
        raise SettingError(readers[1], "-", f"another source: {readers[0]} reads standard input")


def _read(name: str, path: Path) -> str:
    try:
        if str(path) == "-":
            with open(0, "rb", closefd=False) as stdin:
                text = stdin.read(MAX_SECRET).decode()
        else:
            with path.open("rb") as file:
                text = file.read(MAX_SECRET).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise SettingError(name, str(path), f"a file that can be read ({reason})") from None
    if not text.strip():
        raise SettingError(name, str(path), "a file that is not empty")
    return text.strip()
