"""`routemaster topics`: what there is, who publishes to it, and deleting one."""

from typing import Annotated, Any

import typer

from routemaster.cli.consent import Yes, ask
from routemaster.cli.exits import ASKS
from routemaster.cli.nouns import AsJson, noun
from routemaster.cli.place import Place, at_bus

app = noun("List topics, or delete one. (`topics` alone lists them)", lists=True)


@app.command("list", epilog=ASKS)
@at_bus()
def list_topics(place: Place, as_json: AsJson = False) -> None:
    """List all topics: who publishes to each, and how many events there have been.

    \b
    Examples:
      routemaster topics
      routemaster topics list --json | jq -r '.[].name'
    """
    from routemaster.cli import output
    from routemaster.cli.connect import as_reader

    rows = as_reader(place).get("/topics", list[dict[str, Any]])
    if as_json:
        output.write_json(rows)
        return
    table = output.table("topic", "publisher", right=("events",))
    for row in rows:
        table.add_row(*(output.cell(row[column]) for column in ("name", "publisher", "events")))
    output.show(table)


@app.command(epilog=ASKS)
@at_bus()
def delete(
    place: Place,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Its name.")],
    yes: Yes = False,
) -> None:
    """Delete a topic: its subscribers are unsubscribed, what is queued stays. (its publisher, or root)

    \b
    Examples:
      routemaster topics delete orders
      ROUTEMASTER_TOKEN=… routemaster topics delete orders --yes
    """
    from routemaster.cli.connect import as_reader
    from routemaster.cli.session import path

    session = as_reader(place)
    ask(f"Delete the topic {topic}, and take it from all subscriptions?", yes)
    session.do("DELETE", path("topics", topic))
