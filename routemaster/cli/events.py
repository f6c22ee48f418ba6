"""`routemaster events`: where one event came from, and what became of it for each subscriber."""

from typing import Annotated, Any

import typer

from routemaster.cli.exits import ASKS
from routemaster.cli.nouns import AsJson, TakesIds, noun
from routemaster.cli.place import Place, at_bus

TIMES = ("t", "received_at")

app = noun("Trace an event.")


@app.command(cls=TakesIds, epilog=ASKS)
@at_bus()
def show(
    place: Place,
    event: Annotated[
        str, typer.Argument(metavar="ID", help="The id that publishing answered with, or deliveries have.")
    ],
    as_json: AsJson = False,
) -> None:
    """Show where one event came from, whom it was routed to, and every attempt to deliver it.

    \b
    Examples:
      routemaster events show -P6jNL3X34Nn2Dj----5
      routemaster events show -P6jNL3X34Nn2Dj----5 --json | jq '.subscribers'
    """
    from routemaster.cli import output
    from routemaster.cli.connect import as_reader
    from routemaster.cli.session import path

    found = as_reader(place).get(path("events", event), dict[str, Any])
    if as_json:
        output.write_json(found)
        return
    routed: list[dict[str, Any]] = found.pop("subscribers", None) or []
    looked_at: dict[str, int | None] = found.pop("attempts_looked_at", None) or {}
    output.show(output.fields({name: _field(name, value) for name, value in found.items()}))
    output.write("")
    if routed:
        output.show(_table(routed))
    else:
        output.write("It was routed to nobody.")
    for bound, words in (("since", "before"), ("until", "after")):
        if at := looked_at.get(bound):
            output.note(f"attempts {words} {output.moment(at)} were not looked at")


def _field(name: str, value: Any) -> Any:
    """Numbers of an event are names (1,234 would not be found again), or times."""
    if isinstance(value, int) and not isinstance(value, bool):
        from routemaster.cli import output

        return output.moment(value) if name in TIMES else str(value)
    return value


def _table(routed: list[dict[str, Any]]) -> Any:
    from routemaster.cli import output

    table = output.table(
        "subscriber", "state", "batch", "attempt", "at", "status", "why", right=("code", "ms")
    )
    for row in routed:
        who = [output.cell(row.get(column)) for column in ("subscriber", "state", "batch")]
        attempts: list[dict[str, Any]] = row.get("attempts") or [{}]
        for attempt in attempts:
            table.add_row(*who, *_attempt(attempt))
            who = [output.cell(" ")] * 3
    return table


def _attempt(attempt: dict[str, Any]) -> list[Any]:
    from routemaster.cli import output

    return [
        output.cell(attempt.get("attempt")),
        output.cell(output.moment(attempt.get("at"))),
        *(output.cell(attempt.get(column)) for column in ("status", "why")),
        output.cell(attempt.get("code") or None),
        output.cell(attempt.get("ms")),
    ]
