"""Unsubscribing, and purging what was queued."""

from routemaster.store.deliveries import AUX, AuxJob
from tests.store.room import HOUR_MS, Room, lines, lines_of, request, url_for


async def test_a_subscription_ends_in_both_directions(room: Room):
    await room.subscribe("billing", "orders", "rides")
    await room.subscribe("audit", "orders")
    before = room.epoch()
    assert await room.registry.unsubscribe("billing")
    assert room.members("subscribers") == {"audit"}
    assert room.members("subscribers:orders") == {"audit"}
    assert room.members("subscribers:rides") == set()
    assert not [name for name in room.dump() if name.endswith(":billing")]
    assert room.epoch() != before
    assert room.members("topics") == {"orders", "rides"}


async def test_what_is_not_there_cannot_end(room: Room):
    await room.subscribe("billing", "orders")
    before = room.dump()
    assert not await room.registry.unsubscribe("nobody")
    assert not await room.registry.unsubscribe("nobody", "orders")
    assert not await room.registry.unsubscribe("billing", "rides")
    assert room.dump() == before


async def test_one_topic_is_taken_off_and_what_is_queued_stays(room: Room):
    lane = await room.subscribe("billing", "orders", "rides", timeout=0)
    await room.publish("orders", 2)
    before = room.epoch()
    assert await room.registry.unsubscribe("billing", "orders")
    assert room.members("topics:billing") == {"rides"}
    assert room.members("subscribers:orders") == set()
    assert room.epoch() != before
    assert lines_of(await room.take()) == lines("orders", 1, 2)
    await room.publish("orders", first=3)
    assert room.queued(lane) == lines("orders", 1, 2)
    assert await room.registry.unsubscribe("billing", "rides")
    assert room.members("subscribers") == {"billing"}


async def test_jobs_go_at_once_in_whatever_state_they_are(room: Room):
    await room.subscribe("pending", "orders", timeout=0)
    await room.publish("orders")
    await room.take()
    await room.subscribe("instant", "orders", timeout=0)
    await room.subscribe("scheduled", "orders", timeout=HOUR_MS)
    await room.publish("orders", first=2)
    for name in ("pending", "instant", "scheduled"):
        assert await room.registry.unsubscribe(name)
    assert (room.indexed(), room.instant(), room.scheduled(), room.pending()) == (set(), [], {}, {})
    assert await room.acquire("v.0", "v.1", "v.2") == []


async def test_another_subscribers_jobs_stay(room: Room):
    await room.subscribe("gone", "orders", timeout=0)
    await room.publish("orders")
    gone = await room.take()
    other = await room.subscribe("audit", "orders", timeout=0, max=1)
    await room.publish("orders", 2, first=2)
    kept = await room.take("w.1")
    assert await room.registry.unsubscribe("gone")
    assert room.pending() == {"w.1": other}
    await room.deliver(gone)
    assert (await room.deliver(kept, room.uids())).taken["w.1"].lane == other  # type: ignore[union-attr]


# Purging


async def purge_job(room: Room, slot: str = "w.aux") -> None:
    acquired = await room.deliveries.acquire(AUX, {slot: room.uids()})
    assert acquired.taken == [AuxJob(slot, "purge")]


async def test_batches_are_purged_in_steps_by_an_auxiliary_job(room: Room):
    await room.subscribe("billing", "orders", max=1)
    await room.publish("orders", 1200)
    await room.registry.unsubscribe("billing")
    assert room.instant(AUX) == ["purge"]
    await purge_job(room)
    assert room.gauges("billing") == (1200, 1200)
    assert await room.upkeep.purge()
    assert room.gauges("billing") == (700, 700)
    assert await room.upkeep.purge()
    assert not await room.upkeep.purge()
    await room.upkeep.finish("w.aux")
    assert room.counter("purged:billing") == 1200
    left = [name for name in room.dump() if name.startswith(("batch", "lane:", "purge", "draining:"))]
    assert left == []
    assert room.indexed(AUX) == set()


async def test_every_lane_and_set_is_purged(room: Room):
    await room.subscribe("billing", "orders", max=2, parallelism=3)
    urls = [url_for(n, 3) for n in range(3)]
    await room.web.publish(request("orders", 3, urls=urls))
    await room.subscribe("billing", "orders", max=2, parallelism=2)
    await room.publish("orders", 5, first=4)
    await room.subscribe("billing", "orders", max=2, parallelism=1)
    await room.publish("orders", 2, first=9)
    await room.registry.unsubscribe("billing")
    await room.purge_all()
    assert room.counter("purged:billing") == 10
    left = [name for name in room.dump() if name.startswith(("batch", "lane:", "purge", "draining:"))]
    assert left == []


async def test_a_batch_in_the_air_is_purged_too(room: Room):
    await room.subscribe("billing", "orders", timeout=0, max=1)
    await room.publish("orders", 2)
    delivery = await room.take()
    await room.registry.unsubscribe("billing")
    await room.purge_all()
    assert room.redis.exists(room.key(f"batch:{delivery.batch}")) == 0
    assert room.gauges("billing") == (0, 0)
    assert room.counter("purged:billing") == 2


async def test_a_namesake_that_subscribes_meanwhile_is_not_disturbed(room: Room):
    await room.subscribe("billing", "orders", max=1, parallelism=2)
    await room.publish("orders", 6)
    await room.subscribe("billing", "orders", max=1, parallelism=1)  # with a set that drains
    await room.publish("orders", 2, first=7)
    await room.registry.unsubscribe("billing")
    lane = await room.subscribe("billing", "orders", timeout=0, max=2)
    await room.publish("orders", 3, first=100)
    delivery = await room.take()
    assert lines_of(delivery) == lines("orders", 100, 101)
    before = {name: value for name, value in room.dump().items() if lane in name}
    await room.purge_all()
    assert {name: value for name, value in room.dump().items() if lane in name} == before
    assert room.gauges("billing") == (2, 3)
    assert room.counter("purged:billing") == 8
    await room.deliver(delivery)
    room.let_pass(HOUR_MS)
    assert lines_of(await room.take()) == lines("orders", 102, 102)


async def test_a_namesakes_change_of_parallelism_is_not_released_by_the_purge(room: Room):
    await room.subscribe("billing", "orders", max=1)
    await room.publish("orders", 4)
    await room.registry.unsubscribe("billing")
    await room.subscribe("billing", "orders", timeout=0, max=1)
    await room.publish("orders", first=100)
    await room.subscribe("billing", "orders", timeout=0, max=1, parallelism=2)
    await room.publish("orders", first=101)
    await room.purge_all()
    (delivery,) = await room.acquire("w.0", "w.1")
    assert lines_of(delivery) == lines("orders", 100, 100)


async def test_whoever_ends_after_the_purges_last_step_is_purged_too(room: Room):
    """The job is unique: while it is pending, another subscription's end cannot enqueue it."""
    for name in ("first", "second"):
        await room.subscribe(name, "orders")
    await room.publish("orders")
    await room.registry.unsubscribe("first")
    await purge_job(room)
    assert not await room.upkeep.purge()
    await room.registry.unsubscribe("second")
    await room.upkeep.finish("w.aux")
    await purge_job(room)
    assert not await room.upkeep.purge()
    await room.upkeep.finish("w.aux")
    assert room.indexed(AUX) == set()
    assert room.gauges("second") == (0, 0)
    assert [name for name in room.dump() if name.startswith(("batch", "purge"))] == []


async def test_purging_nothing_changes_nothing(room: Room):
    await room.subscribe("billing", "orders")
    await room.publish("orders")
    before = room.dump()
    assert not await room.upkeep.purge()
    assert room.dump() == before
