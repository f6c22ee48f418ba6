"""Autodrop: the oldest batches go, never one in the air, and what went is recorded."""

import msgspec

from tests.store.room import HOUR_MS, Room, lines, lines_of, request, url_for


def drops(room: Room) -> list:
    return [msgspec.json.decode(item) for item in room.items("drops")]


async def test_the_oldest_go_first_over_all_subscribers(room: Room):
    one = await room.subscribe("one", "orders", max=2)
    await room.publish("orders", 2)
    room.let_pass(1000)
    two = await room.subscribe("two", "rides", max=2)
    await room.publish("rides", 2)
    room.let_pass(1000)
    await room.publish("orders", 2, first=3)
    assert await room.drop(1) == (1, 2)
    assert (room.queued(one), room.queued(two)) == (lines("orders", 3, 4), lines("rides", 1, 2))
    assert await room.drop(1) == (1, 2)
    assert (room.queued(one), room.queued(two)) == (lines("orders", 3, 4), [])
    assert room.gauges("one") == (1, 2)
    assert room.gauges("two") == (0, 0)
    assert (room.counter("dropped:one"), room.counter("dropped:two")) == (2, 2)


async def test_what_is_in_the_air_stays(room: Room):
    await room.subscribe("billing", "orders", timeout=0, max=1)
    await room.publish("orders", 3)
    delivery = await room.take()
    assert await room.drop(10) == (2, 2)
    assert room.gauges("billing") == (1, 1)
    assert await room.drop(10) == (0, 0)  # so that whoever makes room stops
    await room.deliver(delivery)
    assert room.counter("delivered:billing") == 1
    assert room.indexed() == set()


async def test_a_current_batch_may_go_too_and_the_lane_goes_on(room: Room):
    lane = await room.subscribe("billing", "orders", max=10, timeout=60_000)
    await room.publish("orders", 3)
    assert await room.drop(1) == (1, 3)
    assert room.current(lane) is None
    await room.publish("orders", 2, first=4)
    room.let_pass(60_000)
    delivery = await room.take()
    assert lines_of(delivery) == lines("orders", 4, 5)
    assert delivery.sequence == 1


async def test_records_name_every_event(room: Room):
    lane = await room.subscribe("billing", "orders", max=10)
    await room.publish("orders", 2)
    await room.publish("orders", 3, first=3)  # follows on: one run
    await room.publish("elsewhere", 4)
    await room.publish("orders", 1, first=6)
    generation = room.items("log:events:generations")[0][:20]
    await room.drop(1)
    assert drops(room) == [[lane, generation, 6, [1, 5, 10, 1]]]


async def test_records_of_single_events_of_a_lane(room: Room):
    await room.subscribe("billing", "orders", parallelism=2, max=10)
    urls = [url_for(n, 2) for n in (0, 1, 1, 0, 0)]
    await room.web.publish(request("orders", 5, urls=urls))
    await room.drop(10)
    found = {lane.rsplit(".", 1)[1]: (events, runs) for lane, _, events, runs in drops(room)}
    assert found == {"0": (3, [1, 1, 4, 2]), "1": (2, [2, 2])}


async def test_only_so_many_records_are_kept(room: Room):
    await room.subscribe("billing", "orders", max=1)
    await room.publish("orders", 6)
    await room.drop(4, keep=3)
    assert [runs for _, _, _, runs in drops(room)] == [[2, 1], [3, 1], [4, 1]]
    await room.drop(4, keep=3)
    assert [runs for _, _, _, runs in drops(room)] == [[4, 1], [5, 1], [6, 1]]


async def test_an_index_entry_whose_batch_is_gone_is_cleared(room: Room):
    room.redis.zadd(room.key("batches:index"), {"nothing": 1})
    assert await room.drop(5) == (0, 0)
    assert room.redis.exists(room.key("batches:index")) == 0


async def test_batches_in_the_air_do_not_shield_younger_ones(room: Room):
    """However many of the oldest are in the air, a call that could drop something does."""
    await room.subscribe("billing", "orders", timeout=0, parallelism=3, max=1)
    await room.web.publish(request("orders", 3, urls=[url_for(n, 3) for n in range(3)]))
    assert len(await room.acquire("w.0", "w.1", "w.2")) == 3
    room.let_pass(1000)
    await room.publish("orders", first=4)
    assert await room.drop(2) == (1, 1)
    assert room.gauges("billing") == (3, 3)


async def test_drops_go_on_until_nothing_is_left(room: Room):
    await room.subscribe("billing", "orders", max=1, timeout=0)
    await room.publish("orders", 1100)
    held = await room.take()
    dropped = []
    while (step := await room.upkeep.drop())[0]:
        dropped.append(step)
        assert len(dropped) < 10
    assert sum(events for _, events in dropped) == 1099
    assert room.gauges("billing") == (1, 1)
    assert [batch.bid for batch in room.ready(held.lane)] == [held.batch]


async def test_what_an_ended_subscription_left_may_be_dropped_before_it_is_purged(room: Room):
    await room.subscribe("billing", "orders", max=1)
    await room.publish("orders", 3)
    await room.registry.unsubscribe("billing")
    assert await room.drop(2) == (2, 2)
    await room.purge_all()
    assert (room.counter("dropped:billing"), room.counter("purged:billing")) == (2, 1)
    assert room.gauges("billing") == (0, 0)
    assert [name for name in room.dump() if name.startswith(("batch", "lane:", "purge"))] == []


async def test_order_is_kept_around_what_was_dropped(room: Room):
    await room.subscribe("billing", "orders", timeout=0, max=2)
    await room.publish("orders", 4)
    held = await room.take()
    await room.drop(2)
    await room.publish("orders", 2, first=5)
    await room.fail(held, HOUR_MS)
    room.let_pass(HOUR_MS)
    again = await room.take()
    assert lines_of(again) == lines("orders", 1, 2)
    await room.deliver(again)
    following = await room.take()
    assert (lines_of(following), following.sequence) == (lines("orders", 5, 6), 3)


async def test_what_lacks_is_told_by_the_limit_and_the_margin(room: Room):
    used = int(room.redis.info("memory")["used_memory"])
    limit = 100 * used
    assert await room.upkeep.lacking_bytes(limit, used) < 0
    assert await room.upkeep.lacking_bytes(2 * used, limit) < 0  # the margin is at most an eighth
    assert await room.upkeep.lacking_bytes(used + used // 20, limit) > 0
    assert await room.upkeep.lacking_bytes(4 * used, used // 2, margins=8) > 0
