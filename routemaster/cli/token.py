"""`routemaster token`: clients, their tokens, and what they may publish and read. For root.

A token is printed once, when it is made, and on standard output alone. No command takes a token as an
argument, where others would see it.
"""

import re
from typing import Annotated, Any, Literal

import typer

from routemaster.cli.consent import Yes, ask
from routemaster.cli.exits import ASKS
from routemaster.cli.nouns import AsJson, noun
from routemaster.cli.place import STDIN, Place, at_bus
from routemaster.errors import Refused, SettingError

app = noun("Make, list, rotate and delete tokens, and limit what they may do. (root key)")

Publish = Annotated[
    list[str] | None,
    typer.Option(
        "--publish", metavar="GLOB", help="A topic it may publish to, such as 'orders_*'; again for more."
    ),
]
Read = Annotated[
    list[str] | None,
    typer.Option(
        "--read",
        metavar="GLOB",
        help="An address it may read (environment:topic:type), such as '*:orders:*'; again for more.",
    ),
]
PublishNothing = Annotated[bool, typer.Option("--publish-nothing", help="It may publish to no topic.")]
ReadNothing = Annotated[bool, typer.Option("--read-nothing", help="It may read nothing.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the token alone, for scripts.")]
Client = Annotated[
    str,
    typer.Argument(metavar="CLIENT", help="A client's id (name--…), or its name where it is the only one."),
]
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}


@app.command(epilog=ASKS)
@at_bus()
def create(
    place: Place,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="What the client is called in lists and metrics.")
    ],
    role: Annotated[
        Literal["client", "monitor"],
        typer.Option(help="client publishes, subscribes and monitors; monitor only monitors."),
    ] = "client",
    publish: Publish = None,
    read: Read = None,
    publish_nothing: PublishNothing = False,
    read_nothing: ReadNothing = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Make a client and its token, which is printed this once.

    \b
    Examples:
      routemaster token create shop
      routemaster token create shop --publish 'orders*' --read-nothing
      TOKEN=$(routemaster token create grafana --role monitor --quiet)
    """
    from routemaster.cli.connect import as_root

    grants = _grants(publish, read, publish_nothing, read_nothing)
    body = {"name": name, "role": role, "grants": grants}
    _print_token(as_root(place).post("/api_tokens", body, dict[str, Any]), quiet, as_json)


@app.command("list", epilog=ASKS)
@at_bus()
def list_tokens(place: Place, as_json: AsJson = False) -> None:
    """List all clients, with what they may do. Their tokens are not shown, nor kept anywhere.

    \b
    Examples:
      routemaster token list
      routemaster token list --json | jq -r '.[].token'
    """
    from routemaster.cli import output
    from routemaster.cli.connect import as_root

    rows = _clients(as_root(place))
    if as_json:
        output.write_json(rows)
        return
    table = output.table("client", "name", "role", "publishes", "reads")
    for row in rows:
        grants: dict[str, list[str] | None] = row["grants"] or {}
        table.add_row(
            *(output.cell(row[column]) for column in ("token", "name", "role")),
            *(output.cell(_globs(grants.get(right))) for right in ("publish", "read")),
        )
    output.show(table)


@app.command(epilog=ASKS)
@at_bus()
def rotate(
    place: Place,
    client: Client,
    grace: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="How long the old tokens go on: seconds, or such as 30s, 10m, 2h, 7d."
        ),
    ] = "0",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Give a client a new token, which is printed this once. It keeps its topics and subscriptions.

    \b
    Examples:
      routemaster token rotate shop --grace 1h
      routemaster token rotate shop--0a1b2c3d4e5f --quiet
    """
    from routemaster.cli.connect import as_root
    from routemaster.cli.session import path

    seconds = _seconds(grace)
    session = as_root(place)
    where = path("api_tokens", _id_of(session, client), "rotate")
    _print_token(session.post(where, {"grace_s": seconds}, dict[str, Any]), quiet, as_json)


@app.command(epilog=ASKS)
@at_bus()
def grant(
    place: Place,
    client: Client,
    publish: Publish = None,
    read: Read = None,
    publish_nothing: PublishNothing = False,
    read_nothing: ReadNothing = False,
    everything: Annotated[bool, typer.Option("--all", help="It may publish and read everything.")] = False,
) -> None:
    """Replace what a client may publish and read. What is not limited here is allowed.

    \b
    Examples:
      routemaster token grant shop --publish 'orders*' --read '*:prices:*'
      routemaster token grant shop --all
    """
    from routemaster.cli.connect import as_root
    from routemaster.cli.session import path

    grants = _grants(publish, read, publish_nothing, read_nothing)
    if everything == (grants is not None):
        raise SettingError("--all", "", "it, or what the client may --publish and --read")
    session = as_root(place)
    session.do("PATCH", path("api_tokens", _id_of(session, client)), {"grants": grants})


@app.command(epilog=ASKS)
@at_bus()
def delete(
    place: Place,
    client: Annotated[
        str,
        typer.Argument(
            metavar="CLIENT|-",
            help="A client's id, or its name where it is the only one; - reads a token from standard input,"
            " and deletes that one alone where the client has others.",
        ),
    ],
    yes: Yes = False,
) -> None:
    """Delete a client with its subscriptions and what is queued for them; its topics become unclaimed.

    From the answer on, none of its tokens is let through anywhere.

    \b
    Examples:
      routemaster token delete shop--0a1b2c3d4e5f
      routemaster token delete - --yes < old-token
    """
    from routemaster.cli.connect import as_root
    from routemaster.cli.credentials import EXPECTED, piped
    from routemaster.cli.session import path
    from routemaster.settings import TOKEN

    if client == STDIN:
        if place.token == STDIN:
            raise SettingError("--token", "-", "another way: the token to delete comes from standard input")
        secret = piped()
        if not TOKEN.fullmatch(secret):
            raise SettingError("standard input", "…", EXPECTED)
        if not yes:
            raise SettingError("--yes", "", "to be given where nobody can be asked")
        as_root(place).do("DELETE", path("api_tokens", secret))
        return
    session = as_root(place)
    found = _id_of(session, client)
    ask(f"Delete {found}, its subscriptions and what is queued for them?", yes)
    session.do("DELETE", path("api_tokens", found))


def _print_token(made: dict[str, Any], quiet: bool, as_json: bool) -> None:
    from routemaster.cli import output

    if as_json:
        output.write_json(made)
    elif quiet:
        output.write(made["token"])
    else:
        output.show(output.fields({"client": made["client"], "token": made["token"]}))
        output.note("the token is shown this once")


def _clients(session: Any) -> list[dict[str, Any]]:
    answer = session.do("GET", "/api_tokens")
    return [] if answer.status == 204 else session.parse(answer, list[dict[str, Any]])


def _id_of(session: Any, client: str) -> str:
    """The id of a client that is given by it or by its name. Nothing that was given is repeated: it might
    be a token."""
    found = [row["token"] for row in _clients(session) if client in (row["token"], row["name"])]
    if client in found:
        return client
    if len(found) > 1:
        raise SettingError("CLIENT", client, f"one of the ids that bear this name: {', '.join(found)}")
    if not found:
        raise Refused("there is no client of this id or name; `routemaster token list` shows them")
    return found[0]


def _grants(
    publish: list[str] | None, read: list[str] | None, publish_nothing: bool, read_nothing: bool
) -> dict[str, list[str] | None] | None:
    """What was asked for; None where nothing is limited."""
    for flag, globs, nothing in (("publish", publish, publish_nothing), ("read", read, read_nothing)):
        if globs and nothing:
            raise SettingError(f"--{flag}-nothing", "", f"either it or --{flag}")
    if not (publish or read or publish_nothing or read_nothing):
        return None
    return {
        "publish": [] if publish_nothing else publish or None,
        "read": [] if read_nothing else read or None,
    }


def _globs(globs: list[str] | None) -> str:
    if globs is None:
        return "everything"
    return ", ".join(globs) or "nothing"


def _seconds(text: str) -> int:
    match = re.fullmatch(r"([0-9]{1,9})([smhd]?)", text.strip().lower())
    if match is None:
        raise SettingError("--grace", text, "seconds, or a number with s, m, h or d")
    return int(match[1]) * _UNITS[match[2]]
