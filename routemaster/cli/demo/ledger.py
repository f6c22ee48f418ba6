"""What publishers and subscribers write down themselves. The account is made from this alone.

An event is known by its topic and its number there: a publisher numbers from 0 and sends one request
after the other, so numbers are also the order in which every subscriber must see a topic. A publisher
writes an event down before it sends it, and again once the bus acknowledged it; a subscriber writes
down each batch that arrives, and whether it took it.
"""

import time
from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

RECENT_S = 5.0

Event = tuple[str, int]  # topic, number


def key_of(event: Event) -> str:
    """The idempotency key that an event is published under, and delivered with."""
    return f"{event[0]}-{event[1]:06}"


def event_of(key: str) -> Event:
    topic, _, number = key.rpartition("-")
    return (topic, int(number)) if number.isdecimal() else (key, -1)


def quantile(values: Sequence[float], share: float) -> float | None:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


@dataclass
class Published:
    """One topic, as its publisher knows it."""

    sent_at: list[float] = field(default_factory=list[float])
    acknowledged: set[int] = field(default_factory=set[int])
    trouble: str = ""  # why an event was given up


@dataclass
class Received:
    """What one subscriber got."""

    topics: tuple[str, ...]
    arrived: dict[str, set[int]] = field(init=False)
    newest: dict[str, int] = field(init=False)
    batches: dict[str, int] = field(default_factory=dict[str, int])  # batch -> hash of what it held
    taken: int = 0
    refused: int = 0
    retried: int = 0
    changed: int = 0  # batches that came again with other events
    duplicates: int = 0
    out_of_order: int = 0
    unknown: int = 0  # events that nobody published
    is_refusing: bool = False
    latencies_s: "array[float]" = field(default_factory=lambda: array("d"))
    recent: deque[tuple[float, float]] = field(default_factory=deque[tuple[float, float]])

    def __post_init__(self) -> None:
        self.arrived = {topic: set() for topic in self.topics}
        self.newest = dict.fromkeys(self.topics, -1)

    @property
    def delivered(self) -> int:
        return sum(len(numbers) for numbers in self.arrived.values())

    def recent_latencies_s(self) -> list[float]:
        """Those of the last seconds, from publish to arrival."""
        while self.recent and self.recent[0][0] < time.monotonic() - RECENT_S:
            self.recent.popleft()
        return [latency for _, latency in self.recent]


class Ledger:
    def __init__(self, topics: Sequence[str], subscriptions: Mapping[str, tuple[str, ...]]) -> None:
        self.published = {topic: Published() for topic in topics}
        self.received = {name: Received(topics) for name, topics in subscriptions.items()}
        self.first_arrival_at: float | None = None

    def send(self, topic: str, count: int) -> list[Event]:
        """Number so many new events that are about to be sent."""
        page = self.published[topic]
        first = len(page.sent_at)
        page.sent_at += [time.monotonic()] * count
        return [(topic, number) for number in range(first, first + count)]

    def acknowledge(self, events: Sequence[Event]) -> None:
        for topic, number in events:
            self.published[topic].acknowledged.add(number)

    def arrive(self, subscriber: str, batch: str, events: Sequence[Event], *, taken: bool) -> None:
        """Note a batch that a subscriber got, and whether it took it or answered that it failed."""
        page, now = self.received[subscriber], time.monotonic()
        held = hash(tuple(events))
        if batch in page.batches:
            page.retried += 1
            page.changed += page.batches[batch] != held
        page.batches[batch] = held
        page.is_refusing = not taken
        if not taken:
            page.refused += 1
            return
        page.taken += 1
        self.first_arrival_at = self.first_arrival_at or now
        for event in events:
            self._take(page, event, now)

    def _take(self, page: Received, event: Event, now: float) -> None:
        topic, number = event
        arrived = page.arrived.get(topic)
        if arrived is None or not 0 <= number < len(self.published[topic].sent_at):
            page.unknown += 1
            return
        if number in arrived:
            page.duplicates += 1
            return
        page.out_of_order += number < page.newest[topic]
        page.newest[topic] = max(number, page.newest[topic])
        arrived.add(number)
        latency_s = now - self.published[topic].sent_at[number]
        page.latencies_s.append(latency_s)
        page.recent.append((now, latency_s))

    def missing(self, subscriber: str) -> list[Event]:
        """What was acknowledged, and this subscriber of its topic has not got."""
        arrived = self.received[subscriber].arrived
        return [
            (topic, number)
            for topic, numbers in arrived.items()
            for number in sorted(self.published[topic].acknowledged - numbers)
        ]
