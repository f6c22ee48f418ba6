"""How a snapshot is shown: as a screen, or as one plain line where there is no terminal. Pure.

The screen reads from top to bottom as an event goes: publishers, what flows, subscribers, and a sentence
on what is to be seen just now. Each block is a function of the snapshot; the chart takes the height
that the others leave.
"""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from routemaster.cli.demo.snapshot import Snapshot, SubscriberRow

WIDE, WIDEST = 100, 108  # from WIDE on there is room for the topics of each subscriber
RIGHT_WIDTHS = (6, 8, 7, 7)
FIXED_LINES = 14  # those of all blocks but rows and charts
LEAST_CHART, MOST_CHART = 1, 4
FULL_HEALTH = 100
STEPS = " ▁▂▃▄▅▆▇█"
PUBLISHED, DELIVERED = "cyan", "green"


def draw(snapshot: Snapshot, width: int, height: int) -> RenderableType:
    inner = min(width, WIDEST) - 2
    chart_height = height - FIXED_LINES - len(snapshot.publishers) - len(snapshot.subscribers)
    blocks = (
        _title(snapshot, inner),
        "",
        _publishers(snapshot, inner),
        "",
        _flow(snapshot, inner, max(LEAST_CHART, min(MOST_CHART, chart_height))),
        "",
        _subscribers(snapshot, inner),
        "",
        _totals(snapshot),
        "",
        _sentence(snapshot),
        Text("p50 and p99: from publish to arrival.  Ctrl-C stops it and prints the account.", style="dim"),
    )
    return Padding(Group(*blocks), (0, 1), expand=False)


def line(snapshot: Snapshot) -> str:
    """The same, for a log."""
    each = "  ".join(
        f"{row.name}: health {row.health}, queue {row.queued:,}, p99 {_ms(row.p99_ms)}"
        for row in snapshot.subscribers
    )
    published, delivered = _last(snapshot.published_rates), _last(snapshot.delivered_rates)
    return (
        f"{snapshot.elapsed_s:3.0f} s  published {published:,.0f}/s  delivered {delivered:,.0f}/s  | {each}"
    )


def _title(snapshot: Snapshot, width: int) -> RenderableType:
    left = Text.assemble(("Routemaster", "bold"), ("  two publishers, one bus, three subscribers", "dim"))
    if snapshot.phase == "publishing":
        right = f"{min(snapshot.elapsed_s, snapshot.seconds):.0f} s of {snapshot.seconds:.0f}"
    else:
        right = "emptying the queues"
    top = Table.grid(expand=False)
    top.add_column(width=width - len(right), no_wrap=True)
    top.add_column(justify="right", no_wrap=True)
    top.add_row(left, Text(right, style="dim"))
    share = min(1.0, snapshot.elapsed_s / snapshot.seconds) if snapshot.phase == "publishing" else 1.0
    done = round(share * width)
    return Group(top, Text.assemble(("━" * done, "blue"), ("─" * (width - done), "bright_black")))


def _publishers(snapshot: Snapshot, width: int) -> Table:
    """In the columns of the subscribers below, so that like stands under like."""
    left = ["publisher", "topic", "manner"] + ([""] if width >= WIDE else [])
    table = _table(width, left, ["", "events/s", "", ""])
    for row in snapshot.publishers:
        cells: list[RenderableType] = [_name(row.name, PUBLISHED), row.topic, Text(row.manner, style="dim")]
        cells += [""] * (len(left) - len(cells))
        table.add_row(*cells, "", f"{row.rate:,.0f}", "", "")
    return table


def _flow(snapshot: Snapshot, width: int, height: int) -> Table:
    """Two charts side by side, each with its newest value above it."""
    each = (width - 4) // 2
    table = Table.grid(padding=(0, 4, 0, 0))
    table.add_column(width=each, no_wrap=True)
    table.add_column(width=each, no_wrap=True)
    shown = (
        ("published", snapshot.published_rates, PUBLISHED),
        ("delivered", snapshot.delivered_rates, DELIVERED),
    )
    table.add_row(
        *(
            Text.assemble((f"{label} ", "dim"), (f"{_last(rates):,.0f}/s", f"bold {colour}"))
            for label, rates, colour in shown
        )
    )
    table.add_row(*(Text("\n".join(chart(rates, each, height)), style=colour) for _, rates, colour in shown))
    return table


def _subscribers(snapshot: Snapshot, width: int) -> Table:
    left = ["subscriber", *(["topics"] if width >= WIDE else []), "manner", "health"]
    table = _table(width, left, ["queue", "events/s", "p50", "p99"])
    for row in snapshot.subscribers:
        cells: list[RenderableType] = [_name(row.name, _colour(row))]
        if width >= WIDE:
            cells.append(", ".join(row.topics))
        cells += [_manner(row), health_bar(row.health, _health_width(width) - 4)]
        table.add_row(*cells, f"{row.queued:,}", f"{row.rate:,.0f}", _ms(row.p50_ms), _ms(row.p99_ms))
    return table


def _totals(snapshot: Snapshot) -> Text:
    shown = (
        ("published", f"{snapshot.acknowledged:,}", "bold"),
        ("delivered", f"{snapshot.delivered:,}", "bold"),
        ("retried", f"{snapshot.retried:,}", "bold"),
        ("out of order", f"{snapshot.out_of_order:,}", "bold red" if snapshot.out_of_order else "bold"),
    )
    return Text("   ").join(
        Text.assemble((f"{name} ", "dim"), (value, style)) for name, value, style in shown
    )


def _sentence(snapshot: Snapshot) -> Text:
    """What there is to see just now, for one who has never seen it."""
    if snapshot.phase == "emptying":
        return Text("The publishers have stopped. What is still queued is being delivered.")
    for row in snapshot.subscribers:
        if row.is_refusing:
            return Text(
                f"{row.name} fails: its batches wait in order and are sent again. Nobody else notices."
            )
    for row in snapshot.subscribers:
        if row.health < FULL_HEALTH:
            return Text(f"{row.name} answers again: it gets what waited, in order, and its health returns.")
    for row in snapshot.subscribers:
        if row.queued >= 150:
            return Text(f"{row.name} is slow: events queue for it, and for it alone.")
    return Text("Every event goes to every subscriber of its topic, in batches, in the order of publishing.")


def chart(values: Sequence[float], width: int, height: int) -> list[str]:
    """The newest values as columns of blocks, from the top line down; the highest of them fills it."""
    shown = [0.0] * (width - len(values)) + list(values[-width:])
    most = max([*shown, 1.0])
    levels = [round(value / most * height * 8) for value in shown]
    return [
        "".join(STEPS[max(0, min(8, level - 8 * row))] for level in levels)
        for row in range(height - 1, -1, -1)
    ]


def health_bar(health: int, width: int) -> Text:
    full = round(health / FULL_HEALTH * width)
    colour = _health_colour(health)
    return Text.assemble(
        ("━" * full, colour), ("─" * (width - full), "bright_black"), (f" {health:3}", colour)
    )


def _health_colour(health: int) -> str:
    return "green" if health >= 80 else "yellow" if health >= 50 else "red"


def _colour(row: SubscriberRow) -> str:
    return "red" if row.is_refusing else _health_colour(row.health)


def _name(name: str, colour: str) -> Text:
    return Text.assemble(("● ", colour), (name, "bold"))


def _manner(row: SubscriberRow) -> Text:
    return Text("answers 500", style="red") if row.is_refusing else Text(row.manner, style="dim")


def _table(width: int, left: list[str], right: list[str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for name, column in zip(left, (*_left_widths(width), _health_width(width)), strict=True):
        table.add_column(name, width=column, no_wrap=True)
    for name, column in zip(right, RIGHT_WIDTHS, strict=True):
        table.add_column(name, width=column, justify="right", no_wrap=True)
    return table


def _left_widths(width: int) -> tuple[int, ...]:
    return (12, 15, 18) if width >= WIDE else (10, 14)


def _health_width(width: int) -> int:
    """What the other columns leave, and the space after each of them."""
    others = (*_left_widths(width), *RIGHT_WIDTHS)
    return max(10, width - sum(others) - len(others))


def _last(rates: Sequence[float]) -> float:
    return rates[-1] if rates else 0.0


def _ms(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.0f} ms" if value < 1000 else f"{value / 1000:.1f} s"
