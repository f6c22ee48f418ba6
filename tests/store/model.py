"""What the store should hold, in plain Python: the model that the real scripts are compared with.

Time goes in turns: whatever has a deadline, a lease or a rest reaches its end with the next turn.
"""

import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Event:
    line: bytes
    url: str


@dataclass(eq=False)
class Batch:
    events: list[Event]
    opened_in: int
    generation: int
    sequence: int | None = None
    attempts: int = 0
    was_dead: bool = False  # it comes behind newer ones then

    @property
    def lines(self) -> list[bytes]:
        return [event.line for event in self.events]


@dataclass
class Flight:
    """A batch in the air."""

    slot: str
    fence: str
    batch: Batch
    turn: int


@dataclass(eq=False)
class Lane:
    name: str
    set: int
    ready: list[Batch] = field(default_factory=list)
    current: Batch | None = None
    flight: Flight | None = None
    rests_in: int | None = None
    sequence: int = 0

    @property
    def batches(self) -> list[Batch]:
        return self.ready + ([self.current] if self.current else [])

    def seal(self) -> None:
        assert self.current
        self.sequence += 1
        self.current.sequence = self.sequence
        self.ready.append(self.current)
        self.current = None

    def split(self, most: int) -> None:
        """What is current and holds more than `most` becomes batches of that size."""
        while self.current and len(self.current.events) > most:
            batch = self.current
            rest = Batch(batch.events[most:], batch.opened_in, batch.generation)
            del batch.events[most:]
            self.seal()
            self.current = rest

    def remove(self, batch: Batch) -> None:
        if batch is self.current:
            self.current = None
        else:
            self.ready.remove(batch)


@dataclass(eq=False)
class Subscriber:
    id: str
    incarnation: str
    max: int = 1
    is_patient: bool = False  # whether an open batch waits for the next turn
    topics: frozenset[str] = frozenset()
    health: int = 100
    max_attempts: int | None = None
    paused: bool = False
    dead: list[Lane] = field(default_factory=list)  # one for each batch: the lane that it was in, alone
    sets: dict[int, list[Lane]] = field(default_factory=dict)  # the last one takes new events
    arrived: dict[str, list[bytes]] = field(default_factory=dict)

    @property
    def lanes(self) -> list[Lane]:
        return [lane for lanes in self.sets.values() for lane in lanes]

    @property
    def newest(self) -> int:
        return max(self.sets)

    def waits(self, lane: Lane) -> bool:
        return any(number < lane.set for number in self.sets)

    def lane_for(self, url: str) -> Lane:
        lanes = self.sets[self.newest]
        return lanes[zlib.crc32(url.encode()) % len(lanes)]

    def new_set(self, number: int, parallelism: int) -> None:
        names = [f"{self.id}#{self.incarnation}.{number}.{n}" for n in range(parallelism)]
        self.sets[number] = [Lane(name, number) for name in names]
        self.forget_empty_sets()

    def forget_empty_sets(self) -> None:
        """An older set ends with its last batch."""
        for number in sorted(self.sets)[:-1]:
            if not any(lane.batches for lane in self.sets[number]):
                del self.sets[number]


class Model:
    def __init__(self) -> None:
        self.turn = 0
        self.generation = 0
        self.subscribers: dict[str, Subscriber] = {}
        self.purging: list[tuple[str, Lane]] = []
        self.purging_dead: list[tuple[str, Lane]] = []
        self.counters: Counter[str] = Counter()
        self.beats: dict[str, int] = {}
        self.keys: dict[str, str] = {}

    # Changes

    def subscribe(
        self,
        id: str,
        incarnation: str,
        topics: frozenset[str],
        most: int,
        patient: bool,
        lanes: int,
        attempts: int | None,
    ) -> None:
        sub = self.subscribers.get(id)
        if sub is None:
            sub = self.subscribers[id] = Subscriber(id, incarnation)
            sub.new_set(1, lanes)
        for lane in sub.sets[sub.newest]:
            lane.split(most)
        sub.topics, sub.max, sub.is_patient, sub.max_attempts = topics, most, patient, attempts
        if len(sub.sets[sub.newest]) != lanes:
            for lane in sub.sets[sub.newest]:
                if lane.current:
                    lane.seal()
            sub.new_set(sub.newest + 1, lanes)

    def unsubscribe(self, id: str) -> None:
        sub = self.subscribers.pop(id)
        self.purging += [(id, lane) for lane in sub.lanes]
        self.purging_dead += [(id, lane) for lane in sub.dead]

    def purge(self) -> None:
        for id, lane in self.purging + self.purging_dead:
            self.counters[f"purged:{id}"] += sum(len(batch.events) for batch in lane.batches)
        self.purging, self.purging_dead = [], []

    def publish(self, topic: str, events: list[Event]) -> None:
        """One topic's events of a flush; lanes are filled in the order of the flush."""
        self.counters[f"accepted:{topic}"] += len(events)
        for sub in self.subscribers.values():
            if topic in sub.topics:
                self.counters[f"routed:{sub.id}"] += len(events)
                for event in events:
                    self._put(sub, sub.lane_for(event.url), event)

    def _put(self, sub: Subscriber, lane: Lane, event: Event) -> None:
        current = lane.current
        if current and (len(current.events) >= sub.max or current.generation != self.generation):
            lane.seal()
        if lane.current is None:
            lane.current = Batch([], self.turn, self.generation)
        lane.current.events.append(event)
        if len(lane.current.events) >= sub.max:
            lane.seal()

    def take(self, sub: Subscriber, lane: Lane, slot: str, fence: str) -> Batch:
        """The batch that a slot must get when it gets this lane."""
        assert self.is_due(sub, lane), f"{lane.name} has nothing to send now"
        if not lane.ready:
            lane.seal()
        batch = lane.ready[0]
        batch.attempts += 1
        lane.flight = Flight(slot, fence, batch, self.turn)
        for event in batch.events if batch.attempts == 1 and not batch.was_dead else ():
            sub.arrived.setdefault(event.url, []).append(event.line)
        return batch

    def settle(self, sub: Subscriber, lane: Lane, delivered: bool, rests: bool) -> None:
        assert lane.flight
        batch, lane.flight, lane.rests_in = lane.flight.batch, None, None
        if delivered:
            lane.remove(batch)
            sub.health = min(100, sub.health + 1)
            self.counters[f"delivered:{sub.id}"] += len(batch.events)
            sub.forget_empty_sets()
        else:
            sub.health = max(0, sub.health - 2)
            self.counters[f"failed:{sub.id}"] += 1
            if not self.bury_if_spent(sub, lane, batch):
                lane.rests_in = self.turn if rests else None

    def bury_if_spent(self, sub: Subscriber, lane: Lane, batch: Batch) -> bool:
        if sub.max_attempts is None or batch.attempts < sub.max_attempts:
            return False
        lane.rests_in = None
        lane.remove(batch)
        self.counters[f"dead:{sub.id}"] += len(batch.events)
        sub.dead.append(Lane(lane.name, lane.set, [batch]))
        sub.forget_empty_sets()
        return True

    def retry(self, sub: Subscriber, tomb: Lane) -> None:
        """A dead batch goes to the end of its lane, or of the first one where its set is no more."""
        sub.dead.remove(tomb)
        (batch,) = tomb.ready
        lanes = sub.sets[sub.newest]
        lane = next((lane for lane in lanes if lane.name == tomb.name), lanes[0])
        lane.sequence += 1
        batch.sequence, batch.attempts, batch.was_dead = lane.sequence, 0, True
        lane.ready.append(batch)

    def delete_dead(self, sub: Subscriber) -> int:
        deleted = sum(len(tomb.ready[0].events) for tomb in sub.dead)
        self.counters[f"purged:{sub.id}"] += deleted
        sub.dead = []
        return deleted

    def scrub(self) -> set[str]:
        """The slots that lose their job."""
        lost = set()
        for sub, lane in list(self.lanes()):
            flight = lane.flight
            if flight and (self.is_dead(flight.slot) or flight.turn < self.turn):
                lost.add(flight.slot)
                lane.flight = None
                if not self.bury_if_spent(sub, lane, flight.batch) and flight.batch.attempts >= 3:
                    lane.rests_in = self.turn
        return lost

    def drop(self, id: str, lane: Lane, batch: Batch) -> None:
        lane.remove(batch)
        self.counters[f"dropped:{id}"] += len(batch.events)
        if id in self.subscribers:
            sub = self.subscribers[id]
            sub.forget_empty_sets()
            sub.dead = [tomb for tomb in sub.dead if tomb.ready]

    # What is true

    def lanes(self) -> Iterator[tuple[Subscriber, Lane]]:
        for sub in self.subscribers.values():
            for lane in sub.lanes:
                yield sub, lane

    def find(self, name: str) -> tuple[Subscriber, Lane]:
        return next((sub, lane) for sub, lane in self.lanes() if lane.name == name)

    def is_dead(self, slot: str) -> bool:
        return self.beats.get(slot.rsplit(".", 1)[0], -1) < self.turn

    def is_due(self, sub: Subscriber, lane: Lane) -> bool:
        if lane.flight or sub.paused or sub.waits(lane) or lane.rests_in == self.turn:
            return False
        if lane.ready:
            return True
        current = lane.current
        if current is None:
            return False
        return not sub.is_patient or current.opened_in < self.turn or len(current.events) >= sub.max

    def flights(self) -> dict[str, tuple[Subscriber, Lane]]:
        return {lane.flight.slot: (sub, lane) for sub, lane in self.lanes() if lane.flight}

    def queued(self) -> list[tuple[str, Lane, Batch]]:
        """Every batch that is in a lane, also of ended subscriptions."""
        live = [(sub.id, lane) for sub, lane in self.lanes()]
        return [(id, lane, batch) for id, lane in live + self.purging for batch in lane.batches]

    def dead(self) -> list[tuple[str, Lane, Batch]]:
        live = [(sub.id, tomb) for sub in self.subscribers.values() for tomb in sub.dead]
        return [(id, tomb, batch) for id, tomb in live + self.purging_dead for batch in tomb.ready]
