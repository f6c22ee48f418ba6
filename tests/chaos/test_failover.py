"""Failover under load: real sentinels, a primary that is killed or frozen while everything runs."""

from collections.abc import Iterator

import pytest

from tests.bus import Bus, running_bus
from tests.chaos import books
from tests.chaos.conftest import QUICK
from tests.chaos.load import loaded
from tests.failover import Guarded, guarded_store
from tests.receiver import Receiver
from tests.until import until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    """With so many replicas that two failovers need not wait for those that were harmed to be back."""
    with guarded_store(replicas=3) as store:
        yield store


@pytest.fixture(scope="module")
def guarded_bus(guarded: Guarded) -> Iterator[Bus]:
    with running_bus(guarded, web=2, workers=2, redis_replicas=1, **QUICK) as bus:
        yield bus
        assert "Traceback" not in bus.log, bus.log


def test_nothing_acknowledged_is_lost_when_the_primary_is_killed(
    guarded: Guarded, guarded_bus: Bus, receiver: Receiver, seed: int
):
    with loaded(guarded_bus, receiver, seed) as load:
        load.until_it_moves()
        old = guarded.primary
        load.ledger.note(f"{old.process.name} is killed")
        old.process.kill()
        guarded.until_replaced(old)
        load.ledger.note(f"{guarded.primary.process.name} is the primary")
        load.until_it_moves()
        old.start()
        load.check_jobs()
        load.finish()


def test_nothing_acknowledged_is_lost_when_the_primary_stands_still_and_wakes_up_as_an_old_one(
    guarded: Guarded, guarded_bus: Bus, receiver: Receiver, seed: int
):
    with loaded(guarded_bus, receiver, seed) as load:
        load.until_it_moves()
        old = guarded.primary
        load.ledger.note(f"{old.process.name} is frozen")
        old.process.freeze()
        try:
            guarded.until_replaced(old)
            load.ledger.note(f"{guarded.primary.process.name} is the primary")
            load.until_it_moves()
        finally:
            old.process.thaw()
        load.ledger.note(f"{old.process.name} goes on, and thinks that it is the primary")
        load.until_it_moves()
        load.finish()
    assert guarded.primary is not old


def test_what_no_replica_has_is_acknowledged_only_where_none_was_asked_for():
    """And is lost with the primary: what ROUTEMASTER_REDIS_REPLICAS is for."""
    with (
        guarded_store(replicas=1, sentinels=1) as store,
        running_bus(store, workers=0, redis_replicas=1) as careful,
        running_bus(store, workers=0) as quick,
    ):
        topics = {bus: bus.topic() for bus in (careful, quick)}
        clients = {bus: bus.client("publisher") for bus in (careful, quick)}
        answers: dict[Bus, list[int]] = {careful: [], quick: []}

        def publish(bus: Bus) -> int:
            event = {"type": "update", "url": "https://example.com/1", "data": {"n": len(answers[bus])}}
            answers[bus].append(clients[bus].post(f"/topics/{topics[bus]}", event).status)
            return answers[bus][-1]

        assert (publish(careful), publish(quick)) == (200, 200)
        old = store.primary
        [replica] = [one for one in store.servers if one is not old]
        replica.process.freeze()
        store.redis.client_kill_filter(_type="replica")  # else it would find all that was sent meanwhile
        try:
            assert (publish(careful), publish(quick)) == (503, 200)
            old.process.kill()
        finally:
            replica.process.thaw()
        store.until_replaced(old)
        until(lambda: publish(quick) == 200, "publishing to go on without replicas")
        assert publish(careful) == 503  # until there is a replica again
        for bus in (careful, quick):
            stored = {event["data"]["n"] for event in books.logged(store.redis, bus.namespace)}
            acknowledged = {n for n, status in enumerate(answers[bus]) if status == 200}
            assert acknowledged - stored == (set() if bus is careful else {1})
