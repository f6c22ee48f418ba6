"""An account that is kept outside the bus: what publishers were told, and what came to subscribers.

It shares nothing with the bus but HTTP. Every event carries its publisher's name and number in its data,
so that an event that was stored twice shows as two event ids under one name. `check` states what the bus
promises; a broken promise is shown with the history of its event.
"""

import threading
import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.receiver import Delivery, Inbox
from tests.until import until

SHOWN = 4  # histories in one failure
DRAIN_S = 40.0


class Name(NamedTuple):
    """Which event: the publisher's name and how many it had sent."""

    by: str
    number: int


@dataclass
class Published:
    name: Name
    topic: str
    url: str
    acknowledged: bool = False  # answered 200; otherwise nobody knows
    id: str | None = None  # what the answer said
    history: list[tuple[float, str]] = field(default_factory=list)


@dataclass
class Arrivals:
    """One subscriber's deliveries, read in the order in which they came."""

    name: str
    inbox: Inbox
    topics: frozenset[str]
    parallelism: int
    since: float
    first: dict[Name, int] = field(default_factory=dict)  # event -> its place among first arrivals
    ids: dict[Name, set[str]] = field(default_factory=dict)
    batches: dict[str, Delivery] = field(default_factory=dict)  # webhook-id -> its first arrival
    batch_of: dict[str, str] = field(default_factory=dict)  # event id -> webhook-id
    problems: list[tuple[str, Name | None]] = field(default_factory=list)
    last_in_lane: dict[str, int] = field(default_factory=dict)
    read: int = 0

    def catch_up(self) -> None:
        deliveries = self.inbox.deliveries
        while self.read < len(deliveries):
            self._take(deliveries[self.read])
            self.read += 1

    def is_owed(self, event: Published) -> bool:
        """Whether the event, if it is in, is for this subscriber: it was sent after they had come."""
        return event.topic in self.topics and event.history[0][0] >= self.since

    def _take(self, delivery: Delivery) -> None:
        events = delivery.events
        known = self.batches.get(delivery.id)
        if known is not None:
            if known.body != delivery.body:
                self._wrong(f"{delivery.id} carried other events before", events[0])
            if sequence_of(known) != sequence_of(delivery):
                self._wrong(f"{delivery.id} had another sequence before", events[0])
            return
        self.batches[delivery.id] = delivery
        lane, _, number = sequence_of(delivery)
        if number != self.last_in_lane.get(lane, 0) + 1:
            self._wrong(f"batch {number} of {lane} came after {self.last_in_lane.get(lane, 0)}", events[0])
        self.last_in_lane[lane] = number
        for event in events:
            name = name_of(event)
            if self.batch_of.setdefault(event["id"], delivery.id) != delivery.id:
                self._wrong(f"{event['id']} is in two batches", event)
            self.ids.setdefault(name, set()).add(event["id"])
            self.first.setdefault(name, len(self.first))

    def _wrong(self, text: str, event: dict[str, Any]) -> None:
        self.problems.append((f"{self.name}: {text}", name_of(event)))


class Ledger:
    def __init__(self) -> None:
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._events: dict[Name, Published] = {}
        self._notes: list[tuple[float, str]] = []
        self._arrivals: list[Arrivals] = []
        self.acknowledgements = 0  # requests that were answered 200
        self.unknown_answers: list[str] = []

    # What happens

    def expect(self, name: str, inbox: Inbox, topics: list[str], parallelism: int = 1) -> None:
        """From now on a subscriber gets everything of these topics."""
        self._arrivals.append(Arrivals(name, inbox, frozenset(topics), parallelism, self._now()))

    def note(self, text: str) -> None:
        """Something that was done to the bus."""
        with self._lock:
            self._notes.append((self._now(), text))

    def sent(self, events: list[Published]) -> None:
        with self._lock:
            for event in events:
                self._events.setdefault(event.name, event)
                event.history.append((self._now(), f"sent to {event.topic}"))

    def acknowledged(self, events: list[Published], id: str | None = None) -> None:
        with self._lock:
            self.acknowledgements += 1
            for event in events:
                event.acknowledged = True
                event.id = id
                event.history.append((self._now(), "answered 200"))

    def unknown(self, events: list[Published], why: str) -> None:
        with self._lock:
            self.unknown_answers.append(why)
            for event in events:
                event.history.append((self._now(), why))

    # What has come of it

    @property
    def published(self) -> list[Published]:
        with self._lock:
            return list(self._events.values())

    @property
    def deliveries(self) -> list[int]:
        """How many each subscriber has had."""
        return [len(arrivals.inbox.deliveries) for arrivals in self._arrivals]

    def until_all_arrived(self, deadline_s: float = DRAIN_S) -> None:
        """Every acknowledged event is at every subscriber of its topic. Publishers have stopped."""
        for arrivals in self._arrivals:
            due = [e.name for e in self.published if e.acknowledged and arrivals.is_owed(e)]
            at = 0

            def have_come(arrivals: Arrivals = arrivals, due: list[Name] = due) -> bool:
                nonlocal at
                arrivals.catch_up()
                while at < len(due) and due[at] in arrivals.first:
                    at += 1
                return at == len(due)

            try:
                until(have_come, f"all events at {arrivals.name}", deadline_s)
            except AssertionError as error:
                missing = [name for name in due if name not in arrivals.first]
                text = f"{error}: {len(missing)} of {len(due)} are missing"
                raise AssertionError(self._shown([(text, name) for name in missing])) from None

    @property
    def arrived_ids(self) -> dict[Name, str]:
        """Every event that came to anybody."""
        return {name: min(ids) for arrivals in self._arrivals for name, ids in arrivals.ids.items()}

    def arrivals(self, name: str) -> Arrivals:
        return next(arrivals for arrivals in self._arrivals if arrivals.name == name)

    def check(self) -> None:
        """Raise with every promise that was broken. Nothing is on its way any more."""
        problems: list[tuple[str, Name | None]] = []
        for arrivals in self._arrivals:
            arrivals.catch_up()
            problems += arrivals.problems
            problems += self._missing(arrivals)
            problems += self._out_of_order(arrivals)
        problems += self._stored_twice()
        problems += self._in_part()
        assert not problems, self._shown(problems)

    # Promises

    def _missing(self, arrivals: Arrivals) -> list[tuple[str, Name | None]]:
        return [
            (f"{arrivals.name}: it was acknowledged and did not come", event.name)
            for event in self.published
            if event.acknowledged and arrivals.is_owed(event) and event.name not in arrivals.first
        ]

    def _out_of_order(self, arrivals: Arrivals) -> list[tuple[str, Name | None]]:
        """One lane keeps the order of each publisher, several that of each publisher's entity. Only what
        was acknowledged has an order: who was not told that an event is in may send the next anyway."""
        problems: list[tuple[str, Name | None]] = []
        last: dict[tuple[str, str], Name] = {}
        for name in arrivals.first:
            event = self._events.get(name)
            if event is None:
                problems.append((f"{arrivals.name}: nobody has published it", name))
            elif event.acknowledged:
                stream = (name.by, event.url if arrivals.parallelism > 1 else "")
                before = last.get(stream)
                if before is not None and before.number > name.number:
                    problems.append((f"{arrivals.name}: it came after {before}", name))
                last[stream] = max(before, name) if before else name
        return problems

    def _stored_twice(self) -> list[tuple[str, Name | None]]:
        """One event id for each event, whoever received it, and the one that its publisher was told."""
        ids: dict[Name, set[str]] = {}
        for arrivals in self._arrivals:
            for name, found in arrivals.ids.items():
                ids.setdefault(name, set()).update(found)
        problems: list[tuple[str, Name | None]] = []
        for name, found in ids.items():
            event = self._events.get(name)
            if len(found) > 1:
                problems.append((f"it was stored {len(found)} times: {sorted(found)}", name))
            if event is not None and event.id is not None and event.id not in found:
                problems.append((f"its publisher was told {event.id}", name))
        return problems

    def _in_part(self) -> list[tuple[str, Name | None]]:
        """What came to one subscriber of a topic came to all, whatever its publisher was told."""
        problems: list[tuple[str, Name | None]] = []
        for event in self.published:
            owed = [arrivals for arrivals in self._arrivals if arrivals.is_owed(event)]
            have = [arrivals.name for arrivals in owed if event.name in arrivals.first]
            if not event.acknowledged and have and len(have) < len(owed):
                problems.append((f"it came only to {', '.join(have)}", event.name))
        return problems

    # Histories

    def _shown(self, problems: list[tuple[str, Name | None]]) -> str:
        lines = [f"{len(problems)} broken promises in {len(self._events)} events"]
        for text, name in problems[:SHOWN]:
            lines += ["", text]
            if name is not None:
                lines += self._history(name)
        return "\n".join(lines)

    def _history(self, name: Name) -> list[str]:
        event = self._events.get(name)
        rows = list(event.history) if event else []
        for arrivals in self._arrivals:
            for delivery in list(arrivals.inbox.deliveries):
                ids = [e["id"] for e in delivery.events if name_of(e) == name]
                if ids:
                    text = (
                        f"at {arrivals.name} as {', '.join(ids)} in {delivery.id}"
                        f" (attempt {delivery.attempt}, {delivery.headers['routemaster-sequence']})"
                    )
                    rows.append((delivery.arrived_at - self._began, text))
        if rows:
            first, last = min(rows)[0] - 1, max(rows)[0] + 1
            rows += [(at, f"    {text}") for at, text in self._notes if first <= at <= last]
        return [f"  {name.by} {name.number}", *(f"  {at:8.3f}  {text}" for at, text in sorted(rows))]

    def _now(self) -> float:
        return time.monotonic() - self._began


def name_of(event: dict[str, Any]) -> Name:
    return Name(event["data"]["by"], event["data"]["n"])


def sequence_of(delivery: Delivery) -> tuple[str, str, int]:
    """Lane, generation and number of a batch, as its receiver can read them."""
    lane, generation, number = delivery.headers["routemaster-sequence"].rsplit("/", 2)
    return lane, generation, int(number)
