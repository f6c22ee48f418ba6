"""`routemaster dead`: batches that were given up after max_attempts: looking, sending again, deleting.

Of one's own subscription, or with --subscriber of anybody's for root.
"""

from typing import Annotated, Any

import typer

from routemaster.cli.consent import Yes, ask
from routemaster.cli.exits import ASKS
from routemaster.cli.nouns import AsJson, TakesIds, noun
from routemaster.cli.place import Place, at_bus

app = noun("Look at dead letters, send them again, or delete them. (`dead` alone lists them)", lists=True)

Subscriber = Annotated[
    str | None,
    typer.Option(
        "--subscriber", metavar="ID", help="Anybody's subscription (root key); without it, your own."
    ),
]
Name = Annotated[
    str | None,
    typer.Option("--name", help="Which of your own subscriptions; without it, the one without a name."),
]


@app.command("list", epilog=ASKS)
@at_bus()
def list_dead(
    place: Place,
    subscriber: Subscriber = None,
    name: Name = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="How many at the most.")] = 100,
    as_json: AsJson = False,
) -> None:
    """List the batches that were given up, longest dead first.

    \b
    Examples:
      routemaster dead list
      routemaster dead list --subscriber shop--0a1b2c3d4e5f --json
    """
    from routemaster.cli import output
    from routemaster.cli.subscription import find

    found = find(place, subscriber, name)
    rows = found.session.get(found.path("/dead", limit=limit), list[dict[str, Any]])
    if as_json:
        output.write_json(rows)
        return
    table = output.table("batch", "died", "why", right=("events", "attempts", "code"))
    for row in rows:
        table.add_row(
            output.cell(row["id"]),
            output.cell(output.moment(row["died_at"])),
            output.cell(row["why"]),
            output.cell(len(row["events"])),
            output.cell(row["attempts"]),
            output.cell(row["code"] or None),
        )
    output.show(table)


@app.command(cls=TakesIds, epilog=ASKS)
@at_bus()
def retry(
    place: Place,
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="BATCH", help="Which ones; without any, all.")
    ] = None,
    subscriber: Subscriber = None,
    name: Name = None,
    as_json: AsJson = False,
) -> None:
    """Queue dead batches again: those named, or all.

    \b
    Examples:
      routemaster dead retry
      routemaster dead retry -P6jNL3X34Nn2Dj----5 --subscriber shop--0a1b2c3d4e5f
    """
    from routemaster.cli.subscription import find

    found = find(place, subscriber, name)
    done = found.session.post(found.path("/dead/retry"), {"ids": ids or None}, dict[str, int])
    _tell(done, "retried", "queued again", as_json)


@app.command(epilog=ASKS)
@at_bus()
def delete(
    place: Place,
    subscriber: Subscriber = None,
    name: Name = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete all dead batches of a subscription for good.

    \b
    Examples:
      routemaster dead delete
      routemaster dead delete --subscriber shop--0a1b2c3d4e5f --yes
    """
    from routemaster.cli.subscription import find

    found = find(place, subscriber, name)
    ask(f"Delete all dead letters of {subscriber or 'your subscription'}?", yes)
    done = found.session.parse(found.session.do("DELETE", found.path("/dead")), dict[str, int])
    _tell(done, "deleted", "deleted", as_json)


def _tell(done: dict[str, int], count: str, word: str, as_json: bool) -> None:
    from routemaster.cli import output

    if as_json:
        output.write_json(done)
    else:
        output.write(f"{done[count]:,} {word}")
