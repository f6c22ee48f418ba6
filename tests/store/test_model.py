"""The real scripts against a model: whatever happens, in whatever order, nothing is lost, doubled or
out of order. MODEL_EXAMPLES=1000 looks for longer."""

import asyncio
import itertools
import os
from collections import Counter
from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from redis import Redis

from routemaster.store.deliveries import MAIN, Delivery, Settlement
from routemaster.store.link import Link
from routemaster.store.publish import Limits, Stored
from tests.bus import Store
from tests.store.model import Event, Lane, Model
from tests.store.room import Room, lines_of, name_of, read_batch, request, settled, url_for

LONG_MS = 1_000_000
TURN_MS = 2 * LONG_MS
LIMITS = Limits(window_ms=10**12, max_keys=10**6, max_log_bytes=2**30)
DATABASE = 2
SUBSCRIBERS, TOPICS, WORKERS = ("ann", "bob"), ("orders", "rides"), ("w", "v")
URLS = [url_for(lane, 6) for lane in range(6)]  # every lane of 2 and of 3
SLOTS = [f"{worker}.{n}" for worker in WORKERS for n in range(2)]
_T = TypeVar("_T")
_numbers = itertools.count(1)

requests = st.lists(
    st.tuples(
        st.sampled_from(TOPICS), st.lists(st.sampled_from(URLS), min_size=1, max_size=7), st.booleans()
    ),
    min_size=1,
    max_size=3,
)
outcomes = st.sampled_from(["delivered", "delivered", "delivered", "failed", "failed and rests"])


class Bus(RuleBasedStateMachine):
    """Rules act on the store and on the model alike; the invariant compares them."""

    runner: asyncio.Runner
    link: Link
    redis: Redis

    def __init__(self) -> None:
        super().__init__()
        self.redis.flushdb()
        self.room = self.do(self._room())
        self.model = Model()
        self.lost: list[Delivery] = []  # deliveries whose fence is no longer good
        self.in_air: dict[str, Delivery] = {}
        self.events = itertools.count(1)
        self.owner = dict(zip(TOPICS, ("shop", "taxi"), strict=True))

    async def _room(self) -> Room:
        return Room(self.link, self.redis, f"model{next(_numbers)}:")

    def do(self, work: Coroutine[Any, Any, _T]) -> _T:
        return self.runner.run(work)

    # The registry

    @initialize()
    def begin(self) -> None:
        self.subscribe("ann", frozenset(TOPICS), 2, False, 1, None)

    @rule(
        id=st.sampled_from(SUBSCRIBERS),
        topics=st.frozensets(st.sampled_from(TOPICS), min_size=1),
        most=st.integers(1, 4),
        patient=st.booleans(),
        lanes=st.integers(1, 3),
        attempts=st.sampled_from([None, 1, 2]),
    )
    def subscribe(
        self, id: str, topics: frozenset[str], most: int, patient: bool, lanes: int, attempts: int | None
    ) -> None:
        timeout, allowed = LONG_MS if patient else 0, attempts or ""
        self.do(
            self.room.subscribe(
                id, *topics, max=most, timeout=timeout, parallelism=lanes, max_attempts=allowed
            )
        )
        incarnation = self.room.fields(f"subscriber:{id}")["incarnation"]
        self.model.subscribe(id, incarnation, topics, most, patient, lanes, attempts)

    @rule(lanes=st.integers(1, 3), id=st.sampled_from(SUBSCRIBERS))
    def change_parallelism(self, id: str, lanes: int) -> None:
        sub = self.model.subscribers.get(id)
        if sub:
            self.subscribe(id, sub.topics, sub.max, sub.is_patient, lanes, sub.max_attempts)

    @rule(id=st.sampled_from(SUBSCRIBERS), paused=st.booleans(), twice=st.booleans())
    def pause(self, id: str, paused: bool, twice: bool) -> None:
        sub = self.model.subscribers.get(id)
        for _ in range(1 + twice):
            assert self.do(self.room.registry.pause(id, paused=paused)) == (sub is not None)
        if sub:
            sub.paused = paused

    @rule(id=st.sampled_from(SUBSCRIBERS))
    def unsubscribe(self, id: str) -> None:
        known = id in self.model.subscribers
        assert self.do(self.room.registry.unsubscribe(id)) == known
        if known:
            flights = [slot for slot, (sub, _) in self.model.flights().items() if sub.id == id]
            self.lost += [self.in_air.pop(slot) for slot in flights]
            self.model.unsubscribe(id)

    # Dead letters

    @precondition(lambda self: self.model.dead())
    @rule(id=st.sampled_from(SUBSCRIBERS), data=st.data(), twice=st.booleans())
    def retry(self, id: str, data: st.DataObject, twice: bool) -> None:
        sub = self.model.subscribers.get(id)
        if sub is None:
            return
        listed = self.do(self.room.dead_letters(id))
        tombs = {dead.id: self._tomb(id, dead.body) for dead in listed}
        assert len(tombs) == len(sub.dead)
        wanted = data.draw(st.one_of(st.none(), st.lists(st.sampled_from([*tombs, "a" * 20]), unique=True)))
        ids = [*tombs] if wanted is None else [id for id in wanted if id in tombs]
        assert self.do(self.room.dead.retry(id, wanted)) == len(ids)
        if twice:
            assert self.do(self.room.dead.retry(id, wanted)) == 0
        for bid in ids:
            self.model.retry(sub, tombs[bid])

    def _tomb(self, id: str, body: bytes) -> Lane:
        (found,) = (
            tomb
            for _, tomb, batch in self.model.dead()
            if tomb in self.model.subscribers[id].dead and b",\n".join(batch.lines) == body[1:-1]
        )
        return found

    @precondition(lambda self: self.model.dead())
    @rule(id=st.sampled_from(SUBSCRIBERS), twice=st.booleans())
    def delete_dead(self, id: str, twice: bool) -> None:
        sub = self.model.subscribers.get(id)
        if sub:
            assert self.do(self.room.dead.delete(id)) == len(sub.dead)
            self.model.delete_dead(sub)
            if twice:
                assert self.do(self.room.dead.delete(id)) == 0

    @precondition(lambda self: self.model.purging)
    @rule()
    def purge(self) -> None:
        self.do(self.room.purge_all())
        self.model.purge()

    # Publishing

    @rule(wanted=requests, twice=st.booleans())
    def publish(self, wanted: list[tuple[str, list[str], bool]], twice: bool) -> None:
        made = []
        for topic, urls, keyed in wanted:
            first = next(self.events)
            for _ in urls[1:]:
                next(self.events)
            keys = [f"k{first + n}" for n in range(len(urls))] if keyed else None
            made.append(
                request(topic, len(urls), first=first, urls=urls, keys=keys, client=self.owner[topic])
            )
            if keys:
                self.model.keys |= {key: made[-1].uids[n] for n, key in enumerate(keys)}
        self._send(made, {}, twice)

    @precondition(lambda self: self.model.keys)
    @rule(data=st.data(), size=st.integers(1, 6), twice=st.booleans())
    def publish_again(self, data: st.DataObject, size: int, twice: bool) -> None:
        """Some events are there already, by their keys."""
        known = sorted(self.model.keys)
        keys = data.draw(st.lists(st.one_of(st.none(), st.sampled_from(known)), min_size=size, max_size=size))
        keys = [key if key is None or key not in keys[:n] else None for n, key in enumerate(keys)]
        urls = data.draw(st.lists(st.sampled_from(URLS), min_size=size, max_size=size))
        first = next(self.events)
        for _ in urls[1:]:
            next(self.events)
        repeated = {n: self.model.keys[key] for n, key in enumerate(keys) if key is not None}
        self._send(
            [request("orders", size, first=first, urls=urls, keys=keys, client="shop")], repeated, twice
        )

    def _send(self, made: list[Any], repeated: dict[int, str], twice: bool) -> None:
        flush = self.do(self.room.web.flush(*made))
        assert self.do(self.room.web.send(flush, LIMITS)) == Stored(repeated)
        if twice:
            assert self.do(self.room.web.send(flush, LIMITS)) == Stored(repeated)
        at = 0
        for publish in made:
            events = [Event(*pair) for pair in zip(publish.lines, publish.urls, strict=True)]
            self.model.publish(
                publish.topic, [event for n, event in enumerate(events, at) if n not in repeated]
            )
            at += len(events)

    @rule()
    def start_store_anew(self) -> None:
        if self.redis.exists(self.room.key("log:events:generations")):
            self.room.start_store_anew()
            self.model.generation += 1

    # Delivering

    @rule(slots=st.sets(st.sampled_from(SLOTS), min_size=1), twice=st.booleans())
    def acquire(self, slots: set[str], twice: bool) -> None:
        """A slot that is busy asks too: its process was started anew."""
        fences = {slot: self.room.uids() for slot in sorted(slots)}
        acquired = self.do(self.room.deliveries.acquire(MAIN, fences))
        if twice:
            again = self.do(self.room.deliveries.acquire(MAIN, fences))
            if len(acquired.taken) == len(slots):
                assert again.taken == acquired.taken
            else:  # a slot that had got none may get one now
                assert [job for job in again.taken if job in acquired.taken] == acquired.taken
            acquired = again
        expected = {}
        for slot in fences:
            if slot in self.in_air:
                self.lost.append(self.in_air.pop(slot))
                sub, lane = self.model.flights()[slot]
                assert lane.flight
                batch, lane.flight = lane.flight.batch, None
                if not self.model.bury_if_spent(sub, lane, batch) and not sub.paused:
                    expected[slot] = lane.name
        taken = {job.slot: job for job in acquired.taken if isinstance(job, Delivery)}
        assert {slot: taken[slot].lane for slot in expected} == expected
        self._took(taken, idle=len(slots) - len(taken), next_look_ms=acquired.next_look_ms)

    def _took(self, taken: dict[str, Delivery], idle: int, next_look_ms: int) -> None:
        for slot, delivery in taken.items():
            assert slot not in self.in_air
            sub, lane = self.model.find(delivery.lane)
            batch = self.model.take(sub, lane, slot, delivery.fence)
            assert lines_of(delivery) == batch.lines
            assert (delivery.attempt, delivery.sequence) == (batch.attempts, batch.sequence)
            assert (delivery.events, delivery.health_points) == (len(batch.events), sub.health)
            self.in_air[slot] = delivery
        if idle and next_look_ms != 0:
            assert [lane.name for sub, lane in self.model.lanes() if self.model.is_due(sub, lane)] == []

    @precondition(lambda self: self.in_air)
    @rule(data=st.data(), leaves=st.booleans(), twice=st.booleans())
    def settle(self, data: st.DataObject, leaves: bool, twice: bool) -> None:
        slots = data.draw(st.sets(st.sampled_from(sorted(self.in_air)), min_size=1))
        settlements: list[Settlement] = []
        for slot in sorted(slots):
            outcome = data.draw(outcomes)
            delivery = self.in_air.pop(slot)
            delay_ms = {"delivered": None, "failed": 0, "failed and rests": LONG_MS}[outcome]
            settlements.append(settled(delivery, "" if leaves else self.room.uids(), delay_ms, "status"))
            sub, lane = self.model.flights()[slot]
            self.model.settle(sub, lane, outcome == "delivered", outcome == "failed and rests")
            self.lost.append(delivery)
        result = self.do(self.room.settle(*settlements))
        if twice:
            again = self.do(self.room.settle(*settlements))
            for slot, job in result.taken.items():
                assert again.taken[slot] == job
            result = again
        taken = {slot: job for slot, job in result.taken.items() if isinstance(job, Delivery)}
        self._took(taken, idle=0 if leaves else len(slots) - len(taken), next_look_ms=result.next_look_ms)

    @precondition(lambda self: self.lost)
    @rule(data=st.data(), delivered=st.booleans())
    def settle_with_an_old_fence(self, data: st.DataObject, delivered: bool) -> None:
        old = data.draw(st.sampled_from(self.lost))
        before = self.room.dump()
        self.do(self.room.deliver(old) if delivered else self.room.fail(old, 0))
        after = self.room.dump()
        moved = {"jobs:scheduled:main", "jobs:instant:main"}  # what is due joins the line with every call
        assert {name for name in before | after if before.get(name) != after.get(name)} <= moved

    # Time and trouble

    @rule(worker=st.sampled_from(WORKERS))
    def beat(self, worker: str) -> None:
        self.do(self.room.deliveries.beat(worker))
        self.model.beats[worker] = self.model.turn

    @rule()
    def let_time_pass(self) -> None:
        self.room.let_pass(TURN_MS)
        self.model.turn += 1

    @rule()
    def scrub(self) -> None:
        lost = self.model.scrub()
        found = self.do(
            self.room.deliveries.scrub(MAIN, silence_ms=15_000, least_ms=LONG_MS, most_ms=LONG_MS)
        )
        assert set(found) == lost
        self.lost += [self.in_air.pop(slot) for slot in lost]

    @rule(most=st.integers(1, 4))
    def drop(self, most: int) -> None:
        oldest = [bid.decode() for bid in self.redis.zrange(self.room.key("batches:index"), 0, -1)]
        flying = {delivery.batch for delivery in self.in_air.values()}
        wanted = [self.room.batch(bid) for bid in oldest if bid not in flying][:most]
        assert self.do(self.room.drop(most)) == (len(wanted), sum(batch.events for batch in wanted))
        everything = self.model.queued() + self.model.dead()
        for gone in wanted:
            found = [row for row in everything if row[1].name == gone.lane and row[2].lines == gone.lines]
            self.model.drop(*found[0])

    # What must be true after every step

    @invariant()
    def the_store_is_as_the_model_says(self) -> None:
        dump = self.room.dump()
        batches = {
            name.removeprefix("batch:"): read_batch(name.removeprefix("batch:"), value)
            for name, value in dump.items()
            if name.startswith("batch:")
        }
        self._compare_lanes(dump, batches)
        self._compare_jobs(dump)
        self._compare_numbers(dump, batches)

    def _compare_lanes(self, dump: dict[str, Any], batches: dict[str, Any]) -> None:
        model = self.model
        for sub, lane in model.lanes():
            bids = [bid.decode() for bid in dump.get(f"batches:ready:{lane.name}", [])]
            current = [bid.decode() for bid in dump.get(f"batches:current:{lane.name}", ())]
            assert [batches[bid].lines for bid in bids] == [batch.lines for batch in lane.ready]
            assert [batches[bid].sequence for bid in bids] == [batch.sequence for batch in lane.ready]
            assert [batches[bid].attempts for bid in bids] == [batch.attempts for batch in lane.ready]
            expected = [lane.current.lines] if lane.current else []
            assert [batches[bid].lines for bid in current] == expected
            state = dump.get(f"lane:{lane.name}", {})
            flight = lane.flight
            assert (state.get("fence") or b"").decode() == (flight.fence if flight else "")
            assert (state.get("slot") or b"").decode() == (flight.slot if flight else "")
            if flight:
                assert state["batch"].decode() == bids[0]
                assert flight.batch is lane.ready[0]
            assert ("waiting" in state) == sub.waits(lane), lane.name
        for sub in model.subscribers.values():
            left = {n: sum(len(lane.batches) for lane in sub.sets[n]) for n in sorted(sub.sets)[:-1]}
            found = dump.get(f"draining:{sub.id}#{sub.incarnation}", {})
            assert {int(n): int(count) for n, count in found.items() if n.isdigit()} == left
            for arrived in sub.arrived.values():
                numbers = [msgspec.json.decode(line)["n"] for line in arrived]
                assert numbers == sorted(set(numbers)), "an entity's events came twice or out of order"

    def _compare_jobs(self, dump: dict[str, Any]) -> None:
        model = self.model
        instant = [name_of(job) for job in dump.get("jobs:instant:main", [])]
        scheduled = self.room.scheduled()
        pending = {
            name.removeprefix("jobs:pending:main:"): [name_of(job) for job in value]
            for name, value in dump.items()
            if name.startswith("jobs:pending:main:")
        }
        filed = Counter([*instant, *scheduled, *itertools.chain(*pending.values())])
        index = {name_of(job) for job in dump.get("jobs:index:main", ())}
        assert filed == Counter(index), "a job is lost, or in two states"
        assert pending == {slot: [lane.name] for slot, (_, lane) in model.flights().items()}
        assert all(wait_ms <= LONG_MS for wait_ms in scheduled.values())
        for sub, lane in model.lanes():
            if sub.waits(lane):
                assert lane.name not in index
            elif lane.batches and not sub.paused:
                assert lane.name in index
            if model.is_due(sub, lane):
                assert lane.name in instant or scheduled[lane.name] <= 0
        assert not index & {lane.name for _, lane in model.purging}

    def _compare_numbers(self, dump: dict[str, Any], batches: dict[str, Any]) -> None:
        model = self.model
        queued, dead = model.queued(), model.dead()
        everything = queued + dead
        found = Counter((batch.lane, *batch.lines) for batch in batches.values())
        assert found == Counter((lane.name, *batch.lines) for _, lane, batch in everything)
        assert set(dump.get("batches:index", {})) == set(batches)
        for id, sub in model.subscribers.items():
            tombs = dump.get(f"batches:dead:{id}#{sub.incarnation}", {})
            assert Counter((batches[bid].lane, *batches[bid].lines) for bid in tombs) == Counter(
                (tomb.name, *tomb.ready[0].lines) for tomb in sub.dead
            )
            assert set(dump.get(f"batches:dead:why:{id}#{sub.incarnation}", {})) == set(tombs)
        weights = {
            "batch": (queued, lambda batch: 1),
            "event": (queued, lambda batch: len(batch.events)),
            "dead": (dead, lambda batch: len(batch.events)),
        }
        for gauge, (of, weigh) in weights.items():
            expected: Counter[str] = Counter()
            for id, _, batch in of:
                expected[id] += weigh(batch)
            gauges = {id: int(n) for id, n in dump.get(f"batches:gauges:{gauge}", {}).items() if int(n)}
            assert gauges == expected
        counters = {name: int(n) for name, n in dump.get("counters", {}).items() if int(n)}
        assert counters == {name: n for name, n in model.counters.items() if n}
        accepted = sum(n for name, n in model.counters.items() if name.startswith("accepted:"))
        assert int(dump.get("log:events:seq", 0)) == accepted
        for id, sub in model.subscribers.items():
            assert int(dump[f"subscriber:{id}"]["health_points"]) == sub.health

    def teardown(self) -> None:
        """Let it run dry: everything that is left arrives."""
        if not self.model.subscribers and not self.model.purging:
            return
        for id in list(self.model.subscribers):
            self.pause(id, False, twice=False)
        for _ in range(1000):
            if not any(lane.batches for _, lane in self.model.lanes()):
                break
            self.let_time_pass()
            self.scrub()
            self.acquire(set(SLOTS), twice=False)
            while self.in_air:
                settlements = [
                    settled(delivery, self.room.uids()) for _, delivery in sorted(self.in_air.items())
                ]
                self.in_air.clear()
                for _, lane in self.model.flights().values():
                    self.model.settle(self.model.find(lane.name)[0], lane, True, False)
                result = self.do(self.room.settle(*settlements))
                taken = {slot: job for slot, job in result.taken.items() if isinstance(job, Delivery)}
                self._took(taken, idle=len(settlements) - len(taken), next_look_ms=result.next_look_ms)
        self.purge()
        self.the_store_is_as_the_model_says()
        for id in list(self.model.subscribers):
            self.delete_dead(id, twice=False)
        self.the_store_is_as_the_model_says()
        counters = self.model.counters
        for id in SUBSCRIBERS:
            ways_out = sum(counters[f"{way}:{id}"] for way in ("delivered", "dropped", "purged"))
            assert counters[f"routed:{id}"] == ways_out
        left = [name.split(":")[0] for name in self.room.dump()]
        assert not {"batch", "draining", "purge"} & set(left)


@pytest.mark.timeout(600)
def test_nothing_is_lost_doubled_or_out_of_order(store: Store):
    examples = int(os.environ.get("MODEL_EXAMPLES", "120"))
    with asyncio.Runner() as runner:
        link = Link(f"{store.url}?db={DATABASE}")
        runner.get_loop().call_soon(link.open)
        redis = Redis(unix_socket_path=store.redis.get_connection_kwargs()["path"], db=DATABASE)
        machine = type("Bus", (Bus,), {"runner": runner, "link": link, "redis": redis})
        try:
            run_state_machine_as_test(
                machine,
                settings=settings(
                    deadline=None,
                    max_examples=examples,
                    stateful_step_count=50,
                    suppress_health_check=list(HealthCheck),
                ),
            )
        finally:
            redis.flushdb()
            redis.close()
            runner.run(link.close())
