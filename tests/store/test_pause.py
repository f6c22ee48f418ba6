"""Pausing: nothing is taken, nothing is counted, nothing is lost; resuming finds every lane."""

import pytest

from tests.store.room import HOUR_MS, Room, line, lines, lines_of, request, url_for


async def pause(room: Room) -> None:
    assert await room.registry.pause("billing", paused=True)


async def resume(room: Room) -> None:
    assert await room.registry.pause("billing", paused=False)


async def test_nothing_is_taken_and_no_attempt_counted(room: Room):
    lane = await room.subscribe("billing", "orders", timeout=0, max=1)
    await room.publish("orders", 2)
    await pause(room)
    for _ in range(3):
        assert await room.acquire("w.0") == []
    assert (room.indexed(), room.instant(), room.scheduled()) == (set(), [], {})
    assert [batch.attempts for batch in room.ready(lane)] == [0, 0]
    await room.publish("orders", first=3)
    assert await room.acquire("w.0") == []
    assert room.gauges("billing") == (3, 3)
    await resume(room)
    delivery = await room.take()
    assert (lines_of(delivery), delivery.attempt) == ([line("orders", 1)], 1)


async def test_what_is_not_there_cannot_be_paused(room: Room):
    before = room.dump()
    assert not await room.registry.pause("nobody", paused=True)
    assert not await room.registry.pause("nobody", paused=False)
    assert room.dump() == before


async def test_each_call_again_changes_nothing_more(room: Room):
    await room.subscribe("billing", "orders", timeout=0, max=1)
    await room.publish("orders", 2)
    await pause(room)
    before = room.dump()
    await pause(room)
    assert room.dump() == before
    assert await room.acquire("w.0") == []
    await resume(room)
    before = room.dump()
    await resume(room)
    assert room.dump() == before


async def test_routing_does_not_change_so_the_epoch_stays(room: Room):
    await room.subscribe("billing", "orders")
    before = room.epoch()
    await pause(room)
    await resume(room)
    assert room.epoch() == before


@pytest.mark.parametrize("delay_ms", [None, 0])
async def test_what_is_in_the_air_is_settled_and_nothing_follows(room: Room, delay_ms: int | None):
    await room.subscribe("billing", "orders", timeout=0, max=1)
    await room.publish("orders", 2)
    delivery = await room.take()
    await pause(room)
    settle = room.deliver(delivery, room.uids()) if delay_ms is None else room.fail(delivery, 0, room.uids())
    assert (await settle).taken == {}
    assert await room.acquire("w.0") == []
    assert room.indexed() == set()
    await resume(room)
    expected = 2 if delay_ms is None else 1
    assert lines_of(await room.take()) == [line("orders", expected)]


async def test_paused_and_resumed_while_in_the_air_it_stays_one(room: Room):
    await room.subscribe("billing", "orders", timeout=0, max=1)
    await room.publish("orders", 2)
    delivery = await room.take()
    await pause(room)
    await resume(room)
    assert await room.acquire("v.0") == []
    await room.deliver(delivery)
    assert lines_of(await room.take("v.0")) == [line("orders", 2)]


async def test_every_lane_goes_on(room: Room):
    await room.subscribe("billing", "orders", timeout=0, max=1, parallelism=4)
    await room.web.publish(request("orders", 4, urls=[url_for(n, 4) for n in range(4)]))
    await pause(room)
    assert await room.acquire("w.0", "w.1", "w.2", "w.3") == []
    await resume(room)
    taken = await room.acquire("w.0", "w.1", "w.2", "w.3")
    assert {delivery.lane for delivery in taken} == {room.lane("billing", n) for n in range(4)}


async def test_deadlines_and_rests_hold_over_a_pause(room: Room):
    lane = await room.subscribe("billing", "orders", timeout=HOUR_MS, max=10, parallelism=2)
    await room.web.publish(request("orders", 1, urls=[url_for(0, 2)]))
    other = room.lane("billing", 1)
    await room.web.publish(request("orders", 10, first=2, urls=[url_for(1, 2)] * 10))
    await room.fail(await room.take(), 60_000)
    await pause(room)
    room.redis.delete(room.key("jobs:scheduled:main"), room.key("jobs:index:main"))  # as if all had looked
    await resume(room)
    assert room.instant() == []
    assert room.scheduled() == {
        lane: pytest.approx(HOUR_MS, abs=10_000),
        other: pytest.approx(60_000, abs=10_000),
    }


async def test_paused_over_a_change_of_parallelism(room: Room):
    old = await room.subscribe("billing", "orders", timeout=0, max=2)
    await room.publish("orders", 3)
    await pause(room)
    await room.subscribe("billing", "orders", timeout=0, max=2, parallelism=2)
    await room.publish("orders", first=4)
    assert await room.acquire("w.0", "w.1") == []
    assert room.indexed() == set()
    await resume(room)
    seen = []
    while in_air := await room.acquire("w.0", "w.1"):
        for delivery in in_air:
            seen += lines_of(delivery)
            await room.deliver(delivery)
    assert seen == lines("orders", 1, 4)
    assert not [name for name in room.dump() if name in (f"lane:{old}", "draining:billing")]


async def test_a_set_that_is_released_while_paused_goes_on_when_resumed(room: Room):
    await room.subscribe("billing", "orders", timeout=0, max=1)
    await room.publish("orders")
    delivery = await room.take()
    await room.subscribe("billing", "orders", timeout=0, max=1, parallelism=2)
    await room.web.publish(request("orders", 2, first=2, urls=[url_for(0, 2), url_for(1, 2)]))
    await pause(room)
    await room.deliver(delivery)  # the old set is empty now
    assert await room.acquire("w.0", "w.1") == []
    await resume(room)
    assert len(await room.acquire("w.0", "w.1")) == 2


async def test_a_change_keeps_the_pause_and_one_can_begin_paused(room: Room):
    await room.subscribe("billing", "orders", timeout=0, paused="1")
    assert (await room.registry.subscribers())[0].paused
    await room.subscribe("billing", "orders", timeout=1)
    await room.publish("orders")
    room.let_pass(1000)
    assert await room.acquire("w.0") == []
    await resume(room)
    assert not (await room.registry.subscribers())[0].paused
    assert len(await room.acquire("w.0")) == 1


async def test_dead_letters_that_are_retried_wait_as_well(room: Room):
    await room.subscribe("billing", "orders", timeout=0, max=1, max_attempts=1)
    await room.publish("orders")
    await room.die(await room.take())
    await pause(room)
    assert await room.dead.retry("billing", None) == 1
    assert await room.acquire("w.0") == []
    await resume(room)
    assert lines_of(await room.take()) == [line("orders", 1)]
