"""When the store's memory is full: 503 with Retry-After, and nothing is half stored."""

import struct
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.bus import Bus, running_bus, running_store
from tests.receiver import Inbox, Receiver
from tests.web.problem import is_problem
from tests.wire import Caller

NOWHERE = "http://127.0.0.1:9/"
EVENT = {"type": "create", "url": "https://example.com/1", "data": {"text": "x" * 3000}}
MAX_BYTES = 16 * 2**20


class Full(NamedTuple):
    bus: Bus
    publisher: Caller
    subscriber: Caller
    other: Caller
    inbox: Inbox
    topic: str
    taken: int

    def in_store(self, topic: str) -> tuple[bytes | None, bytes | None]:
        """A topic's publisher and count, asked of the store itself."""
        key = self.bus.key(f"topic:{topic}")
        return self.bus.redis.hget(key, "publisher"), self.bus.redis.hget(key, "counter")


@pytest.fixture(scope="module")
def full(receiver: Receiver) -> Iterator[Full]:
    """A bus that was published to until it refused, and how many events it took."""
    inbox = receiver.inbox()
    with running_store(MAX_BYTES) as store, running_bus(store, workers=0) as bus:
        publisher, subscriber, other, topic = bus.client(), bus.client(), bus.client(), bus.topic()
        subscriber.subscribe(inbox.url, topic, timeout=0)
        other.subscribe(NOWHERE, bus.topic())
        taken = 0
        while publisher.post(f"/topics/{topic}", [EVENT] * 100).status == 200:
            taken += 100
        while publisher.post(f"/topics/{topic}", EVENT).status == 200:
            taken += 1
        yield Full(bus, publisher, subscriber, other, inbox, topic, taken)
        assert "Traceback" not in bus.log, bus.log


def test_publishing_is_refused_with_503(full: Full):
    assert full.taken >= 100
    for body in (EVENT, [EVENT] * 10, {**EVENT, "id": "keyed"}):
        answer = full.publisher.post(f"/topics/{full.topic}", body)
        assert is_problem(answer, 503)
        assert int(answer.headers["retry-after"]) >= 1


def test_what_is_stored_is_what_was_answered_200(full: Full):
    bus, taken = full.bus, full.taken
    assert full.in_store(full.topic) == (full.publisher.id.encode(), str(taken).encode())
    assert bus.accepted() == taken
    blocks = bus.redis.xrange(bus.key("log:events"))
    assert sum(int(block[b"n"]) for _, block in blocks) == taken
    assert bus.redis.hget(bus.key("batches:gauges:event"), full.subscriber.id) == str(taken).encode()
    header, run_head = 6, struct.Struct(">QI")
    batches = [bus.redis.lrange(key, header, -1) for key in bus.redis.scan_iter(bus.key("batch:*"))]
    assert sum(run_head.unpack_from(run)[1] for runs in batches for run in runs) == taken


def test_a_new_topic_is_not_half_claimed(full: Full):
    topic = full.bus.topic()
    assert is_problem(full.publisher.post(f"/topics/{topic}", EVENT), 503)
    assert full.in_store(topic) == (None, None)
    assert not full.bus.redis.sismember(full.bus.key("topics"), topic)


def test_other_writes_are_refused_alike(full: Full):
    bus = full.bus
    assert is_problem(bus.root.post("/api_tokens", {"name": "new"}), 503)
    wanted = {"topics": [bus.topic()], "callback": NOWHERE, "uuid": "u"}
    assert is_problem(full.publisher.post("/subscription", wanted), 503)
    assert bus.redis.hlen(bus.key("clients")) == 3
    assert bus.redis.scard(bus.key("subscribers")) == 2


def test_monitoring_goes_on(full: Full):
    """When memory is full is when somebody looks."""
    root = full.bus.root
    assert len(root.get("/api_tokens").json) == 3
    topics, subscriptions = root.get("/topics"), root.get("/subscriptions")
    assert (topics.status, subscriptions.status) == (200, 200)
    assert full.bus.owner_and_events(full.topic) == (full.publisher.id, full.taken)
    assert full.bus.subscriber(full.subscriber)["events"]["queued"] == full.taken


def test_what_frees_memory_is_not_refused(full: Full):
    """Nor is what comes after it: the registry has changed, and every process has to read it."""
    assert full.other.delete("/subscriber").status == 204
    assert len(full.bus.root.get("/api_tokens").json) == 3
    other = f"/api_tokens/{full.other.id}"
    assert full.bus.root.call("PATCH", other, {"grants": {"publish": []}}).status == 204
    assert full.bus.root.post(f"{other}/rotate", {}).status == 201  # a token that leaked can be replaced
    assert is_problem(full.other.get("/pulse"), 401)
    assert full.bus.root.delete(other).status == 204
    assert full.publisher.get("/pulse").status == 204
    assert is_problem(full.publisher.post(f"/topics/{full.topic}", EVENT), 503)


def test_delivering_goes_on_and_makes_room(full: Full):
    full.bus.add_worker(redis_min_free="1m")
    full.bus.start()
    full.inbox.until_events(full.taken)
    assert full.inbox.urls == [EVENT["url"]] * full.taken
    keyed = full.publisher.post(f"/topics/{full.topic}", {**EVENT, "id": "keyed"})
    assert keyed.status == 200  # the refused one did not use its id up
    assert full.in_store(full.topic) == (full.publisher.id.encode(), str(full.taken + 1).encode())
