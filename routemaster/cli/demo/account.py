"""The account at the end: plain values from the ledger, what is wrong with them, and how they read."""

import msgspec
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from routemaster.cli.demo.cast import PUBLISHERS, SUBSCRIBERS
from routemaster.cli.demo.ledger import Ledger, key_of, quantile

NAMED = 2  # missing events that are called by name
NEXT = """\
  make up     a bus of your own, on port 7080; it says how to create a token
  README.md   what it guarantees, and the rest of the calls
  publish     curl -u "$TOKEN:" localhost:7080/topics/orders \\
                -d '{"type": "create", "url": "https://shop.example/orders/1"}'"""


class PublisherAccount(msgspec.Struct, frozen=True):
    name: str
    topic: str
    published: int
    acknowledged: int


class SubscriberAccount(msgspec.Struct, frozen=True):
    name: str
    manner: str
    expected: int
    delivered: int
    batches: int
    refused: int
    retried: int
    duplicates: int
    out_of_order: int
    lost: int
    p50_ms: float | None
    p99_ms: float | None


class Account(msgspec.Struct, frozen=True):
    ok: bool
    wrong: list[str]  # what keeps it from being ok, in words
    first_delivery_s: float | None  # since the start of the bus
    published: int
    acknowledged: int
    delivered: int
    retried: int
    duplicates: int
    out_of_order: int
    lost: int
    publishers: list[PublisherAccount]
    subscribers: list[SubscriberAccount]


def settle(ledger: Ledger, *, started_at: float, trouble: str) -> Account:
    """Compare what was acknowledged with what arrived. `trouble` is what went wrong around it, if any."""
    publishers = [
        PublisherAccount(part.name, part.topic, len(page.sent_at), len(page.acknowledged))
        for part in PUBLISHERS
        for page in [ledger.published[part.topic]]
    ]
    subscribers = [_subscriber(ledger, part.name, part.manner) for part in SUBSCRIBERS]
    first = ledger.first_arrival_at
    wrong = [trouble] if trouble else []
    wrong += _wrong(ledger)
    return Account(
        ok=not wrong,
        wrong=wrong,
        first_delivery_s=None if first is None else round(first - started_at, 2),
        published=sum(row.published for row in publishers),
        acknowledged=sum(row.acknowledged for row in publishers),
        delivered=sum(row.delivered for row in subscribers),
        retried=sum(row.retried for row in subscribers),
        duplicates=sum(row.duplicates for row in subscribers),
        out_of_order=sum(row.out_of_order for row in subscribers),
        lost=sum(row.lost for row in subscribers),
        publishers=publishers,
        subscribers=subscribers,
    )


def _subscriber(ledger: Ledger, name: str, manner: str) -> SubscriberAccount:
    page = ledger.received[name]
    return SubscriberAccount(
        name=name,
        manner=manner,
        expected=sum(len(ledger.published[topic].acknowledged) for topic in page.topics),
        delivered=page.delivered,
        batches=page.taken,
        refused=page.refused,
        retried=page.retried,
        duplicates=page.duplicates,
        out_of_order=page.out_of_order,
        lost=len(ledger.missing(name)),
        p50_ms=_ms(quantile(page.latencies_s, 0.50)),
        p99_ms=_ms(quantile(page.latencies_s, 0.99)),
    )


def _wrong(ledger: Ledger) -> list[str]:
    found = [f"topic {name}: {page.trouble}" for name, page in ledger.published.items() if page.trouble]
    if not any(page.acknowledged for page in ledger.published.values()):
        found.append("no event was published")
    for name, page in ledger.received.items():
        if missing := ledger.missing(name):
            some = ", ".join(map(key_of, missing[:NAMED])) + (" …" if len(missing) > NAMED else "")
            found.append(f"{name} lacks {len(missing):,} acknowledged events: {some}")
        if page.out_of_order:
            found.append(f"{name} got {page.out_of_order:,} events out of order")
        if page.changed:
            found.append(f"{name} got {page.changed:,} batches again with other events in them")
        if page.unknown:
            found.append(f"{name} got {page.unknown:,} events that nobody published")
    return found


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)


def draw(account: Account) -> RenderableType:
    head = Text("The account, from what publishers and subscribers wrote down themselves", style="bold")
    return Group(
        "",
        Padding(Group(head, "", _publishers(account), "", _subscribers(account), ""), (0, 1), expand=False),
        _verdict(account),
        "",
        Text(" Where to go next", style="bold"),
        Text(NEXT),
        "",
    )


def _publishers(account: Account) -> Table:
    table = _table("publisher", "topic", right=("published", "acknowledged"))
    for row in account.publishers:
        table.add_row(row.name, row.topic, f"{row.published:,}", f"{row.acknowledged:,}")
    return table


def _subscribers(account: Account) -> Table:
    numbers = ("expected", "delivered", "retried", "duplicates", "out of order", "lost")
    table = _table("subscriber", right=numbers)
    for row in account.subscribers:
        good, bad = ("green", "red bold")
        table.add_row(
            row.name,
            f"{row.expected:,}",
            f"{row.delivered:,}",
            f"{row.retried:,}",
            f"{row.duplicates:,}",
            Text(f"{row.out_of_order:,}", style=bad if row.out_of_order else good),
            Text(f"{row.lost:,}", style=bad if row.lost else good),
        )
    return table


def _table(*left: str, right: tuple[str, ...]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in left:
        table.add_column(name, no_wrap=True)
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _verdict(account: Account) -> Text:
    if account.ok:
        good = " ✓ Nothing lost: every event reached every subscriber of its topic, in order."
        return Text(good, style="green")
    return Text("\n".join(f" ✗ {reason}" for reason in account.wrong), style="red")
