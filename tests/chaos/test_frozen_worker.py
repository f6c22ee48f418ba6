"""A worker that stands still for longer than its lease, and comes back with what is no longer its own."""

from collections.abc import Iterator

import pytest

from routemaster.store.script import Script
from tests.bus import Bus
from tests.chaos import books, jobs
from tests.chaos.conftest import QUICK
from tests.chaos.jobs import until_scrubbed
from tests.chaos.ledger import sequence_of
from tests.chaos.load import freeze_while_busy, loaded, slots_of
from tests.chaos.proxy import Proxy, Where, running_proxy, split_chunks
from tests.conftest import MakeBus
from tests.receiver import Inbox, Receiver, Reply
from tests.until import until

pytestmark = pytest.mark.chaos


@pytest.fixture
def gate(receiver: Receiver) -> Iterator[Proxy]:
    """In front of the subscriber: what a worker sent can be held up on its way."""
    host, port = receiver.url.removeprefix("http://").split(":")
    with running_proxy(Where(host=host, port=int(port)), split_chunks) as gate:
        yield gate


def url(n: int) -> str:
    return f"https://example.com/{n}"


def account(bus: Bus, subscriber: str) -> dict[str, int]:
    """What the store has counted of one subscriber's deliveries."""
    counters = bus.redis.hgetall(bus.key("counters"))
    counted = {k: int(counters.get(f"{k}:{subscriber}".encode(), 0)) for k in ("delivered", "failed")}
    health = int(bus.redis.hget(bus.key(f"subscriber:{subscriber}"), "health_points"))
    return {**counted, "records": int(bus.redis.get(bus.key("log:deliveries:seq")) or 0), "health": health}


@pytest.fixture
def bus(make_bus: MakeBus, store_proxy: Proxy) -> Bus:
    """One worker, which reaches the store through the proxy."""
    bus = make_bus(workers=0, **QUICK)
    bus.add_worker(redis_url=store_proxy.url)
    bus.start()
    return bus


def add_patient_worker(bus: Bus) -> None:
    """One that waits long for an answer, so that a batch of it can stay in the air."""
    bus.add_worker(delivery_timeout_ms=20_000, lease_ms=30_000)
    bus.start()


def test_a_late_copy_can_be_told_and_changes_nothing(bus: Bus, store_proxy: Proxy, gate: Proxy, inbox: Inbox):
    publisher, subscriber = bus.client(), bus.client()
    topic = bus.topic()
    subscriber.subscribe(gate.url + inbox.path, topic, timeout=0, max=1)
    inbox.answer_next(200, 200, Reply(hangs=True))
    held = gate.hold_request(b"routemaster-attempt: 1\r\n")
    publisher.publish_many(topic, [url(n) for n in range(1, 5)])
    held.until()
    bus.worker.freeze()
    add_patient_worker(bus)
    until_taken_over(bus, "worker-1")
    inbox.until_deliveries(3)
    assert inbox.urls == [url(1), url(2), url(3)]
    assert [delivery.attempt for delivery in inbox.deliveries] == [2, 1, 1]

    held.release()
    *taken, late = inbox.until_deliveries(4)
    assert (late.id, late.body, late.attempt) == (taken[0].id, taken[0].body, 1)
    assert [sequence_of(delivery)[2] for delivery in (*taken, late)] == [1, 2, 3, 1]
    assert {sequence_of(delivery)[:2] for delivery in (*taken, late)} == {sequence_of(late)[:2]}

    # The third is in the air when the frozen worker comes back and settles the first.
    before = account(bus, subscriber.id), lane_of(bus)
    settled = store_proxy.watch("settle")
    bus.worker.thaw()
    settled.until()
    assert (account(bus, subscriber.id), lane_of(bus)) == before
    inbox.release()
    inbox.until_deliveries(5)
    books.until_drained(bus.redis, bus.namespace)
    assert account(bus, subscriber.id) == {"delivered": 4, "failed": 0, "records": 4, "health": 100}
    assert inbox.deliveries[4].urls == [url(4)]
    assert sequence_of(inbox.deliveries[4])[2] == 4
    assert jobs.disorder(bus.redis, bus.namespace) == []


def test_a_late_acknowledgement_changes_nothing(bus: Bus, store_proxy: Proxy, inbox: Inbox):
    """The subscriber has answered 200, and the store hears of it when another worker has sent it again."""
    publisher, subscriber = bus.client(), bus.client()
    topic = bus.topic()
    subscriber.subscribe(inbox.url, topic, timeout=0, max=1)
    held = store_proxy.hold_request(Script("settle").sha.encode())
    settled = store_proxy.watch("settle")
    publisher.publish_many(topic, [url(n) for n in range(1, 4)])
    held.until()
    inbox.answer_next(200, Reply(hangs=True))
    bus.worker.freeze()  # or it would ask again
    add_patient_worker(bus)
    until_taken_over(bus, "worker-1")
    inbox.until_deliveries(3)
    assert inbox.urls == [url(1), url(1), url(2)]
    assert [delivery.attempt for delivery in inbox.deliveries] == [1, 2, 1]
    assert inbox.deliveries[0].id == inbox.deliveries[1].id
    assert inbox.deliveries[0].body == inbox.deliveries[1].body

    # The second is in the air when the first is acknowledged again.
    before = account(bus, subscriber.id), lane_of(bus)
    held.release()
    settled.until()
    assert (account(bus, subscriber.id), lane_of(bus)) == before
    bus.worker.thaw()
    inbox.release()
    publisher.publish_many(topic, [url(n) for n in range(4, 10)])
    until(lambda: account(bus, subscriber.id)["delivered"] == 9, "the lane to go on")
    books.until_drained(bus.redis, bus.namespace)
    assert list(dict.fromkeys(inbox.urls)) == [url(n) for n in range(1, 10)]
    assert jobs.disorder(bus.redis, bus.namespace) == []


def lane_of(bus: Bus) -> dict[bytes, bytes]:
    """The one lane there is."""
    (key,) = bus.redis.keys(bus.key("lane:*"))
    return bus.redis.hgetall(key)


def test_frozen_under_load(make_bus: MakeBus, receiver: Receiver, seed: int, chaos_seconds: float):
    bus = make_bus(workers=2, **QUICK)
    with loaded(bus, receiver, seed) as load:
        for n in range(max(1, round(chaos_seconds / 15))):
            load.until_it_moves()
            frozen = bus.workers[n % 2]
            freeze_while_busy(bus, frozen)
            load.ledger.note(f"{frozen.name} stands still")
            until_taken_over(bus, frozen.name)
            load.until_it_moves()
            load.ledger.note(f"{frozen.name} goes on")
            frozen.thaw()
            load.until_it_moves()
            load.check_jobs()
        load.finish()
    assert "Traceback" not in bus.log


def until_taken_over(bus: Bus, worker: str) -> None:
    taken = f"the lanes of {worker} to be taken back"
    until_scrubbed(bus.redis, bus.namespace, lambda: not slots_of(bus, worker), taken)
