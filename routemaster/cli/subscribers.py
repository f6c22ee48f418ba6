"""`routemaster subscribers`: all subscriptions and how they do, and operating one.

Operating one is root's where its id is given; without an id, it is one's own.
"""

from typing import Annotated, Any

import typer

from routemaster.cli.exits import ASKS, FAILED
from routemaster.cli.nouns import AsJson, noun
from routemaster.cli.place import Place, at_bus
from routemaster.errors import Refused

app = noun(
    "List subscriptions, look at one, pause, resume or test it. (`subscribers` alone lists them)", lists=True
)

Which = Annotated[
    str | None,
    typer.Argument(
        metavar="SUBSCRIBER", help="Its id, as the list has it (root key); without one, your own."
    ),
]
Name = Annotated[
    str | None,
    typer.Option("--name", help="Which of your own subscriptions; without it, the one without a name."),
]
TEST_S = 60.0


@app.command("list", epilog=ASKS)
@at_bus()
def list_subscribers(place: Place, as_json: AsJson = False) -> None:
    """List all subscriptions: how much is queued for each, how old that is, and how they do.

    \b
    Examples:
      routemaster subscribers
      routemaster subscribers list --json | jq '.[].events.queued'
    """
    from routemaster.cli import output
    from routemaster.cli.connect import as_reader

    rows = as_reader(place).get("/subscriptions", list[dict[str, Any]])
    if as_json:
        output.write_json(rows)
        return
    table = output.table("subscriber", "listens to", "state", right=("health", "queued", "oldest", "dead"))
    for row in rows:
        events = row["events"]
        table.add_row(
            output.cell(row["subscriber"]),
            output.cell(" ".join([*row["topics"], *(row.get("match") or [])])),
            output.cell(state_of(row)),
            output.cell(row["health_points"]),
            output.cell(events["queued"]),
            output.cell(output.age(events["oldest"])),
            output.cell(events.get("dead")),
        )
    output.show(table)


@app.command(epilog=ASKS)
@at_bus()
def show(
    place: Place,
    subscriber: Annotated[str, typer.Argument(metavar="SUBSCRIBER", help="Its id, as the list has it.")],
    as_json: AsJson = False,
) -> None:
    """Show all there is to know of one subscription. What is secret is shown to its owner and root.

    \b
    Examples:
      routemaster subscribers show shop--0a1b2c3d4e5f
      routemaster subscribers show shop--0a1b2c3d4e5f.invoices --json
    """
    from routemaster.cli import output
    from routemaster.cli.connect import as_reader

    rows = as_reader(place).get("/subscriptions", list[dict[str, Any]])
    found = [row for row in rows if row["subscriber"] == subscriber]
    if not found:
        raise Refused(f"there is no subscription {subscriber!r}; `routemaster subscribers` lists them")
    (row,) = found
    if as_json:
        output.write_json(row)
        return
    pairs = {name: value for name, value in row.items() if name != "events"} | row["events"]
    pairs |= {"state": state_of(row)}
    for name in ("topics", "match"):
        pairs[name] = " ".join(pairs.get(name) or [])
    for name in ("oldest", "last_attempted_at", "retry_at"):
        pairs[name] = output.moment(pairs.get(name))
    output.show(output.fields(pairs))


@app.command(epilog=ASKS)
@at_bus()
def pause(place: Place, subscriber: Which = None, name: Name = None) -> None:
    """Send nothing to a subscription until it is resumed; its events queue up.

    \b
    Examples:
      routemaster subscribers pause shop--0a1b2c3d4e5f
      routemaster subscribers pause --name invoices
    """
    from routemaster.cli.subscription import find

    found = find(place, subscriber, name)
    found.session.do("POST", found.path("/pause"))


@app.command(epilog=ASKS)
@at_bus()
def resume(place: Place, subscriber: Which = None, name: Name = None) -> None:
    """Go on sending to a subscription that was paused.

    \b
    Examples:
      routemaster subscribers resume shop--0a1b2c3d4e5f
      routemaster subscribers resume --name invoices
    """
    from routemaster.cli.subscription import find

    found = find(place, subscriber, name)
    found.session.do("POST", found.path("/resume"))


@app.command(epilog=ASKS)
@at_bus()
def test(place: Place, subscriber: Which = None, name: Name = None, as_json: AsJson = False) -> None:
    """Send one noop event to a subscription's callback now, and tell what it answered.

    Fails (1) when the callback does not take it.

    \b
    Examples:
      routemaster subscribers test shop--0a1b2c3d4e5f
      routemaster subscribers test --name invoices --json
    """
    from routemaster.cli import output
    from routemaster.cli.subscription import find

    found = find(place, subscriber, name)
    tried = found.session.post(found.path("/test"), None, dict[str, Any], answer_s=TEST_S)
    if as_json:
        output.write_json(tried)
    else:
        came = f"the callback answered {tried['code']}" if tried["code"] else "the callback gave no answer"
        why = f": {tried['why']}" if tried["why"] and not tried["delivered"] else ""
        output.write(output.printable(f"{came} in {output.span(tried['ms'])}{why}"))
    if not tried["delivered"]:
        raise typer.Exit(FAILED)


def state_of(row: dict[str, Any]) -> str:
    """How it does, in a few words."""

    if row["paused"]:
        return "paused"
    if row["retry_at"]:
        return f"rests: {row['why']}" if row["why"] else "rests"
    return "sends" if row["events"]["queued"] else "idle"
