"""How a snapshot is shown: what needs to be seen first stands first. Pure.

Where there is a height, the longest queues and the busiest topics are shown, and how many more there are.
"""

from collections.abc import Callable
from typing import TypeVar

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from routemaster.cli import output
from routemaster.cli.status.snapshot import Snapshot, Subscriber

FULL_HEALTH = 100
FIXED_LINES = 12  # all but rows
NARROW = 90
_Row = TypeVar("_Row")


def draw(snapshot: Snapshot, *, width: int, height: int | None = None, trouble: str = "") -> RenderableType:
    """`trouble` is why there is nothing newer."""
    room = None if height is None else max(2, height - FIXED_LINES)
    topics = len(snapshot.topics)
    below = None if room is None else max(1, room - max(room * 2 // 3, room - topics))
    above = None if room is None else max(1, room - min(below or 0, topics))
    return Group(
        *_head(snapshot, trouble),
        "",
        *_subscribers(snapshot, above, width),
        "",
        *_topics(snapshot, below),
    )


def _head(snapshot: Snapshot, trouble: str) -> list[Text]:
    title = Text.assemble(
        ("Routemaster", "bold"), f" at {snapshot.url}  ", (output.moment(snapshot.at), "dim")
    )
    return [
        title,
        Text(output.printable(trouble), style="red bold", no_wrap=True, overflow="ellipsis")
        if trouble
        else Text("serves", style="green"),
        _pairs(
            ("accepted", f"{snapshot.accepted_rate:,.1f}/s", ""),
            ("delivered", f"{snapshot.delivered_rate:,.1f}/s", ""),
            ("failed", f"{snapshot.failed_rate:,.1f}/s", "yellow" if snapshot.failed_rate else ""),
            ("latency", _latency(snapshot), ""),
        ),
        _pairs(
            ("queued", f"{snapshot.queued:,}", ""),
            ("oldest", output.age(snapshot.oldest, snapshot.at), ""),
            ("dead", f"{snapshot.dead:,}", "red" if snapshot.dead else ""),
        ),
        _pairs(*_workers(snapshot), ("store", _store(snapshot), "")),
    ]


def _workers(snapshot: Snapshot) -> list[tuple[str, str, str]]:
    workers = snapshot.workers
    if workers is None:
        return [("workers", output.NOTHING, "")]
    return [
        ("workers", f"{workers.alive}", "" if workers.alive else "red bold"),
        ("in the air", f"{workers.working:,}", ""),
        ("wait for a slot", f"{workers.ready:,}", ""),
    ]


def _latency(snapshot: Snapshot) -> str:
    if snapshot.latency is None:
        return output.NOTHING
    return f"p50 {output.span(snapshot.latency.p50_ms)}, p99 {output.span(snapshot.latency.p99_ms)}"


def _store(snapshot: Snapshot) -> str:
    store = snapshot.store
    if store is None:
        return output.NOTHING
    limit = f" of {output.size(store.max_bytes)}" if store.max_bytes else ""
    return output.size(store.used_bytes) + limit


def _pairs(*pairs: tuple[str, str, str]) -> Text:
    return Text("   ").join(
        Text.assemble((f"{name} ", "dim"), (value, style or "bold")) for name, value, style in pairs
    )


def _subscribers(snapshot: Snapshot, room: int | None, width: int) -> list[RenderableType]:
    rows, more = _most(
        snapshot.subscribers, room, lambda row: (-row.queued, row.health_points, row.subscriber)
    )
    numbers = ("health", "queued", "oldest", "dead", "delivered/s")
    table = _table(("subscriber", "state"), numbers if width >= NARROW else numbers[:3], room is not None)
    for row in rows:
        cells = [
            _health(row),
            output.cell(row.queued),
            output.cell(output.age(row.oldest, snapshot.at)),
            output.cell(row.dead, "red" if row.dead else ""),
            output.cell(f"{row.rate:,.1f}"),
        ]
        table.add_row(output.cell(row.subscriber), _state(row), *cells[: len(table.columns) - 2])
    return [table, *more]


def _topics(snapshot: Snapshot, room: int | None) -> list[RenderableType]:
    rows, more = _most(snapshot.topics, room, lambda row: (-row.rate, -row.events, row.name))
    table = _table(("topic", "publisher"), ("events", "events/s"), room is not None)
    for row in rows:
        table.add_row(
            *(output.cell(value) for value in (row.name, row.publisher, row.events, f"{row.rate:,.1f}"))
        )
    return [table, *more]


def _most(
    rows: list[_Row], room: int | None, order: Callable[[_Row], tuple[float | str, ...]]
) -> tuple[list[_Row], list[RenderableType]]:
    """The rows that come first, and a line on the others."""
    ordered = sorted(rows, key=order)
    if room is None or len(ordered) <= room:
        return ordered, []
    return ordered[: room - 1], [Text(f"… and {len(ordered) - room + 1:,} more", style="dim")]


def _table(left: tuple[str, ...], right: tuple[str, ...], on_screen: bool) -> Table:
    table = output.table(*left, right=right)
    for column in table.columns[: len(left)]:
        column.no_wrap = on_screen
        column.overflow = "ellipsis" if on_screen else "fold"
    return table


def _state(row: Subscriber) -> Text:
    styles = {"idle": "dim", "sends": "", "paused": "yellow"}
    return output.cell(row.state, styles.get(row.state, "red"))


def _health(row: Subscriber) -> Text:
    points = row.health_points
    return output.cell(points, "green" if points >= 80 else "yellow" if points >= 50 else "red")
