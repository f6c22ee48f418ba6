"""After everything was delivered the store holds nothing that belonged to a delivery."""

import random

import pytest

from tests.bus import Bus
from tests.chaos import books, jobs
from tests.chaos.jobs import until_scrubbed
from tests.chaos.load import loaded
from tests.receiver import Receiver, Reply
from tests.until import until

pytestmark = pytest.mark.chaos


def gauges(bus: Bus) -> dict[str, int]:
    """Events and batches that are queued, all subscribers together."""
    return {
        kind: sum(int(n) for n in bus.redis.hvals(bus.key(f"batches:gauges:{kind}")))
        for kind in ("event", "batch")
    }


def test_nothing_is_left(chaos_bus: Bus, receiver: Receiver, seed: int, rounds: int, dice: random.Random):
    """Also of a subscriber that fails and whose lanes change, and of one that leaves."""
    bus = chaos_bus
    with loaded(bus, receiver, seed) as load:
        topics = [topic for publisher in load.publishers for topic in publisher.topics]
        inbox, other = receiver.inbox("changing"), receiver.inbox("leaving")
        changing, leaving = bus.client("changing"), bus.client("leaving")
        for n in range(rounds):
            inbox.answer_next(*(dice.choice([Reply(), Reply(500)]) for _ in range(6)))
            changing.subscribe(inbox.url, *topics, timeout=0, max=3, parallelism=1 + n % 3)
            if n == 0:
                load.ledger.expect("changing", inbox, topics, parallelism=3)
            leaving.subscribe(other.url, *topics, timeout=0, max=2)
            load.until_it_moves()
            load.ledger.note(f"worker-{n % 2 + 1} is killed")
            bus.workers[n % 2].restart()
            load.check_jobs()
            assert leaving.delete("/subscriber").status == 204
        load.finish()
    until_scrubbed(bus.redis, bus.namespace, lambda: not books.leftovers(bus.redis, bus.namespace), "an end")
    assert gauges(bus) == {"event": 0, "batch": 0}
    for key in ("batches:index", "jobs:index:main", "jobs:scheduled:main", "jobs:instant:main"):
        assert not bus.redis.exists(bus.key(key))
    for pattern in ("batch:*", "batches:ready:*", "batches:current:*", "jobs:pending:main:*", "draining:*"):
        assert bus.redis.keys(bus.key(pattern)) == []
    assert bus.redis.keys(bus.key(f"*{leaving.id}*")) == []


def test_jobs_are_neither_lost_nor_doubled(
    chaos_bus: Bus, receiver: Receiver, seed: int, rounds: int, dice: random.Random
):
    """Looked at again and again, while workers come and go."""
    bus = chaos_bus
    with loaded(bus, receiver, seed) as load:
        for _ in range(rounds):
            before = load.ledger.acknowledgements
            dice.choice(bus.workers).restart()

            def in_order(enough: int = before + 50) -> bool:
                assert jobs.disorder(bus.redis, bus.namespace) == []
                return load.ledger.acknowledgements >= enough

            until(in_order, "50 more requests")
        load.finish()
    assert jobs.disorder(bus.redis, bus.namespace) == []
