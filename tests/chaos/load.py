"""A bus under load: publishers that write down what they were told, and subscribers of several tempers.

Publishers call in turn every web process there is, one request at a time, so that the order of what was
acknowledged is known. Those with keys ask again until they are answered; the others go on with the next.
"""

import contextlib
import http.client
import itertools
import random
import threading
from collections.abc import Iterator
from typing import Any, Protocol

from redis import Redis

from tests.bus import Process
from tests.chaos import books, jobs
from tests.chaos.ledger import Ledger, Name, Published
from tests.receiver import Inbox, Receiver, Reply
from tests.until import until
from tests.wire import Address, Caller

ENTITIES = 12
PACE_S = (0.002, 0.012)
LANES = 4
RECOVERY_S = 30.0


class AnyBus(Protocol):
    """What a load needs of a bus."""

    namespace: str

    @property
    def redis(self) -> Redis: ...
    @property
    def addresses(self) -> list[Address]: ...
    def client(self, name: str) -> Caller: ...
    def topic(self, name: str) -> str: ...


class Publisher(threading.Thread):
    """Publishes until it is stopped: single events and bulks of up to `most`."""

    def __init__(
        self,
        ledger: Ledger,
        name: str,
        callers: list[Caller],
        topics: list[str],
        *,
        seed: int,
        most: int = 1,
        keyed: bool = False,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._ledger = ledger
        self._callers = itertools.cycle(callers)
        self._random = random.Random(seed)
        self._most = most
        self._keyed = keyed
        self._numbers = itertools.count(1)
        self._stopping = threading.Event()
        self._given_up = False
        self.topics = topics
        self.crashed: BaseException | None = None
        self.odd_answers: list[str] = []

    def stop(self) -> None:
        self._stopping.set()

    def give_up(self) -> None:
        """Stop, and ask no more for what is not answered."""
        self._given_up = True
        self.stop()

    def run(self) -> None:
        try:
            while not self._stopping.wait(self._random.uniform(*PACE_S)):
                self._publish(self._next())
        except BaseException as error:
            self.crashed = error

    def _next(self) -> list[Published]:
        topic = self._random.choice(self.topics)
        size = self._random.randint(1, self._most)
        names = [Name(self.name, next(self._numbers)) for _ in range(size)]
        return [Published(name, topic, self._url()) for name in names]

    def _url(self) -> str:
        return f"https://example.com/{self.name}/{self._random.randrange(ENTITIES)}"

    def _publish(self, events: list[Published]) -> None:
        bodies = [self._body(event) for event in events]
        while True:
            self._ledger.sent(events)
            why = self._ask(events, bodies if len(bodies) > 1 else bodies[0])
            if why is None:
                return
            self._ledger.unknown(events, why)
            # One that asks again goes on until it is told: it knows of nothing that is in doubt.
            if not self._keyed or self._given_up:
                return

    def _ask(self, events: list[Published], body: Any) -> str | None:
        """Why nobody knows what became of them; None when they were taken."""
        caller = next(self._callers)
        try:
            answer = caller.post(f"/topics/{events[0].topic}", body)
        except (OSError, http.client.HTTPException) as error:
            self._stopping.wait(0.02)
            return f"no answer ({type(error).__name__})"
        if answer.status == 200:
            self._ledger.acknowledged(events, answer.headers.get("routemaster-event-id"))
            return None
        if answer.status != 503:
            self.odd_answers.append(f"{answer.status} {answer.body!r}")
        return f"answered {answer.status}"

    def _body(self, event: Published) -> dict[str, Any]:
        data = {"by": event.name.by, "n": event.name.number}
        body: dict[str, Any] = {"type": "update", "url": event.url, "data": data}
        if self._keyed:
            body["id"] = f"{event.name.by}-{event.name.number}"
        return body


class Load:
    """Three publishers with five topics between them, four subscribers; the ledger has seen it all."""

    def __init__(self, bus: AnyBus, receiver: Receiver, seed: int) -> None:
        self.bus = bus
        self.ledger = Ledger()
        self._random = random.Random(seed)
        self._receiver = receiver
        self._clients: list[Caller] = []
        topics = [bus.topic(name) for name in ("a", "b", "c", "d", "e")]
        self.publishers = [
            self._publisher("singles", topics[:1]),
            self._publisher("bulks", topics[1:3], most=20),
            self._publisher("keyed", topics[3:], most=4, keyed=True),
        ]
        self.steady = self._subscriber("steady", topics, timeout=0, max=10)
        self.slow = self._subscriber("slow", topics[:4], timeout=50, max=60)
        self.slow.answer(200, delay_s=0.03)
        self.flaky = self._subscriber("flaky", topics[1:], timeout=20, max=40)
        self.flaky.answer_next(*self._moods(5_000))
        self.lanes = self._subscriber("lanes", topics, timeout=0, max=5, parallelism=LANES)

    def start(self) -> None:
        for publisher in self.publishers:
            publisher.start()

    def until_it_moves(self, requests: int = 40, deliveries: int = 3) -> None:
        """Every publisher's word is taken again, and something new has come to every subscriber."""
        before, enough = self.ledger.deliveries, self.ledger.acknowledgements + requests

        def moves() -> bool:
            return self.ledger.acknowledgements >= enough and all(
                now >= then + deliveries for now, then in zip(self.ledger.deliveries, before, strict=True)
            )

        try:
            until(moves, f"{requests} requests and {deliveries} deliveries to each", RECOVERY_S)
        except AssertionError as error:
            state = f"acknowledged {self.ledger.acknowledgements} of {enough}, had {before}"
            raise AssertionError(f"{error}: {state}, has {self.ledger.deliveries}") from None

    def check_jobs(self) -> None:
        assert jobs.disorder(self.bus.redis, self.bus.namespace) == []

    def finish(self) -> None:
        """Stop publishing, let everything arrive, and check every promise."""
        self.stop()
        assert [publisher.crashed for publisher in self.publishers] == [None] * len(self.publishers)
        assert [answer for publisher in self.publishers for answer in publisher.odd_answers] == []
        self.ledger.until_all_arrived()
        books.until_drained(self.bus.redis, self.bus.namespace)
        self.ledger.check()
        topics = [topic for publisher in self.publishers for topic in publisher.topics]
        assert books.unbalanced(self.bus.redis, self.bus.namespace, topics, self.ledger.arrived_ids) == []

    def stop(self) -> None:
        for publisher in self.publishers:
            publisher.stop()
        for publisher in self.publishers:
            if publisher.ident is not None:
                publisher.join(RECOVERY_S)
                assert not publisher.is_alive(), f"{publisher.name} is not answered"

    def close(self) -> None:
        for publisher in self.publishers:
            publisher.give_up()
        for caller in self._clients:
            caller.close()

    def _publisher(self, name: str, topics: list[str], most: int = 1, keyed: bool = False) -> Publisher:
        client = self.bus.client(name)
        callers = [client.at(address) for address in self.bus.addresses]
        self._clients += [client, *callers]
        seed = self._random.randrange(2**32)
        return Publisher(self.ledger, name, callers, topics, seed=seed, most=most, keyed=keyed)

    def _subscriber(self, name: str, topics: list[str], **wanted: int) -> Inbox:
        inbox = self._receiver.inbox(name)
        client = self.bus.client(name)
        self._clients.append(client)
        client.subscribe(inbox.url, *topics, **wanted)
        self.ledger.expect(name, inbox, topics, wanted.get("parallelism", 1))
        return inbox

    def _moods(self, count: int) -> list[Reply]:
        bad = [Reply(500), Reply(503), Reply(hangs_up=True), Reply(429), Reply(200, delay_s=0.1)]
        return [self._random.choice(bad) if self._random.random() < 0.2 else Reply() for _ in range(count)]


@contextlib.contextmanager
def loaded(bus: AnyBus, receiver: Receiver, seed: int) -> Iterator[Load]:
    """A bus under load; what was not finished is only stopped."""
    load = Load(bus, receiver, seed)
    try:
        load.start()
        yield load
    finally:
        load.close()


def slots_of(bus: AnyBus, worker: str) -> list[bytes]:
    """Slots of a worker that have a job."""
    return bus.redis.keys(f"{bus.namespace}jobs:pending:main:{worker}.*")


def freeze_while_busy(bus: AnyBus, worker: Process) -> None:
    """Stop a worker at a moment at which it has something in the air."""

    def is_caught() -> bool:
        worker.freeze()
        if slots_of(bus, worker.name):
            return True
        worker.thaw()
        return False

    until(is_caught, f"{worker.name} to be busy")
