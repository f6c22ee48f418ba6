"""The command: a screen on a terminal, text or JSON once elsewhere."""

from typing import TYPE_CHECKING, Annotated

import typer

from routemaster.cli.nouns import AsJson
from routemaster.cli.place import Place, at_bus

if TYPE_CHECKING:
    from rich.console import Console

    from routemaster.cli.status.snapshot import Snapshot
    from routemaster.cli.status.watch import Watch

EVERY_S = 1.0


@at_bus()
def status(
    place: Place,
    as_json: AsJson = False,
    once: Annotated[bool, typer.Option("--once", help="Print it once, also on a terminal.")] = False,
) -> None:
    """Watch a bus: rates, queues, health, latency, workers and the store, anew each second.

    Ctrl-C leaves. Without a terminal, or with --once or --json, it is printed
    once, with rates over a second.

    \b
    Examples:
      routemaster status
      routemaster status --url https://bus.example --token-file monitor-token
      routemaster status --json | jq '.queued'
    """
    import time

    from rich.console import Console

    from routemaster.cli import output
    from routemaster.cli.connect import as_reader
    from routemaster.cli.status import screen
    from routemaster.cli.status.watch import Watch

    watch = Watch(as_reader(place))
    console = Console(highlight=False)
    first = watch.look()
    if output.is_terminal() and not (as_json or once or console.is_dumb_terminal):
        _watch(watch, first, console)
        return
    time.sleep(max(0.0, EVERY_S - first.over_s))
    snapshot = watch.look()
    if as_json:
        output.write_json(snapshot)
    else:
        output.show(screen.draw(snapshot, width=console.width if output.is_terminal() else output.UNCUT))


def _watch(watch: "Watch", snapshot: "Snapshot", console: "Console") -> None:
    """Until Ctrl-C. While the bus is away, what was seen last stays, and why there is nothing newer."""
    import contextlib
    import signal
    import time

    from rich.live import Live

    from routemaster.cli.status import screen
    from routemaster.errors import BusAway

    trouble = ""

    def leave(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)  # through the screen's end, so that the terminal is as it was

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGHUP, leave)
    with (
        contextlib.suppress(KeyboardInterrupt),
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        while True:
            width, height = console.size
            live.update(screen.draw(snapshot, width=width, height=height, trouble=trouble), refresh=True)
            time.sleep(EVERY_S)
            try:
                snapshot, trouble = watch.look(), ""
            except BusAway as error:
                trouble = str(error)
