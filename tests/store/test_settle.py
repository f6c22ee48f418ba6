"""Settling: how deliveries end, and what the slots do next."""

import msgspec
import pytest

from routemaster.store.deliveries import Delivery
from tests.store.room import HOUR_MS, Room, lines, lines_of, settled


async def start(room: Room, events: int = 3, **options: int) -> tuple[str, Delivery]:
    """A subscriber with so many batches of one event, the first in the air."""
    lane = await room.subscribe("billing", "orders", **{"timeout": 0, "max": 1, **options})
    await room.publish("orders", events)
    return lane, await room.take()


# Delivered


async def test_a_delivered_batch_is_gone_and_counted(room: Room):
    lane, delivery = await start(room)
    await room.deliver(delivery)
    assert room.redis.exists(room.key(f"batch:{delivery.batch}")) == 0
    assert room.redis.zscore(room.key("batches:index"), delivery.batch) is None
    assert room.queued(lane) == lines("orders", 2, 3)
    assert room.gauges("billing") == (2, 2)
    assert room.counter("delivered:billing") == 1
    assert room.fields(f"lane:{lane}") == {"sequence": "3"}


async def test_the_last_delivery_leaves_no_job_and_no_batch(room: Room):
    _, delivery = await start(room, 1)
    result = await room.deliver(delivery, room.uids())
    assert (result.next_look_ms, result.taken) == (-1, {})
    left = {name for name in room.dump() if name.startswith(("batch:", "batches:ready", "jobs:"))}
    assert left == {"jobs:pending:index:main"}  # slots that may be busy: scrub cleans it
    assert room.gauges("billing") == (0, 0)


async def test_a_slot_gets_its_next_batch_with_the_answer(room: Room):
    lane, delivery = await start(room)
    fence = room.uids()
    result = await room.deliver(delivery, fence)
    following = result.taken["w.0"]
    assert isinstance(following, Delivery)
    assert (following.fence, following.sequence, following.attempt) == (fence, 2, 1)
    assert lines_of(following) == lines("orders", 2, 2)
    assert room.pending() == {"w.0": lane}
    assert room.fields(f"lane:{lane}")["fence"] == fence


async def test_what_came_meanwhile_waits_for_its_own_deadline(room: Room):
    lane = await room.subscribe("billing", "orders", timeout=60_000, max=2)
    await room.publish("orders", 2)
    delivery = await room.take()
    await room.publish("orders", first=3)
    assert room.pending() == {"w.0": lane}
    result = await room.deliver(delivery, room.uids())
    assert result.taken == {}
    assert result.next_look_ms == pytest.approx(60_000, abs=10_000)
    assert room.scheduled() == {lane: pytest.approx(60_000, abs=10_000)}


async def test_a_busy_lane_goes_behind_the_others(room: Room):
    lane, delivery = await start(room)
    other = await room.subscribe("audit", "rides", timeout=0, max=1)
    await room.publish("rides", 2)
    result = await room.deliver(delivery, room.uids())
    taken = result.taken["w.0"]
    assert isinstance(taken, Delivery)
    assert taken.lane == other
    assert room.instant() == [lane]
    result = await room.deliver(taken, room.uids())
    following = result.taken["w.0"]
    assert isinstance(following, Delivery)
    assert following.lane == lane


async def test_a_scheduled_job_that_is_due_is_not_forgotten_by_busy_slots(room: Room):
    lane, delivery = await start(room, 50)
    other = await room.subscribe("audit", "rides", timeout=60_000)
    await room.publish("rides")
    room.let_pass(60_000)
    seen = []
    for _ in range(4):
        result = await room.deliver(delivery, room.uids())
        delivery = result.taken["w.0"]
        assert isinstance(delivery, Delivery)
        seen.append(delivery.lane)
    assert other in seen
    assert seen.count(lane) == 3


@pytest.mark.parametrize("slots", [1, 2, 3])
async def test_with_more_busy_lanes_than_slots_every_lane_gets_its_turns(room: Room, slots: int):
    names = [f"s{n}" for n in range(5)]
    for name in names:
        await room.subscribe(name, "orders", timeout=0, max=1)
    await room.publish("orders", 10)
    in_air = await room.acquire(*[f"w.{n}" for n in range(slots)])
    turns = [delivery.subscriber for delivery in in_air]
    while in_air:
        result = await room.settle(*[settled(delivery, room.uids()) for delivery in in_air])
        in_air = [job for job in result.taken.values() if isinstance(job, Delivery)]
        turns += [delivery.subscriber for delivery in in_air]
    assert {name: turns.count(name) for name in names} == dict.fromkeys(names, 10)
    for at in range(0, 50 - 2 * len(names), len(names)):
        served = turns[at : at + len(names) + slots]
        assert set(served) == set(names)


# Failed


async def test_a_failed_batch_stays_the_first_and_its_lane_rests(room: Room):
    lane, delivery = await start(room)
    before = room.queued(lane)
    await room.fail(delivery, 60_000)
    assert room.queued(lane) == before
    state = room.fields(f"lane:{lane}")
    assert set(state) == {"sequence", "not_before", "why"}
    assert state["why"] == "status"
    assert room.scheduled() == {lane: pytest.approx(60_000, abs=10_000)}
    assert (room.instant(), room.pending()) == ([], {})
    assert room.gauges("billing") == (3, 3)
    assert (room.counter("failed:billing"), room.counter("delivered:billing")) == (1, 0)
    assert await room.acquire("w.1") == []
    room.let_pass(60_000)
    again = await room.take("w.1")
    assert (again.batch, again.sequence, again.attempt) == (delivery.batch, 1, 2)


async def test_a_success_ends_the_rest(room: Room):
    lane, delivery = await start(room)
    await room.fail(delivery, 0)
    await room.deliver(await room.take())
    assert room.fields(f"lane:{lane}") == {"sequence": "3"}


async def test_a_failed_slot_takes_another_lane_meanwhile(room: Room):
    lane, delivery = await start(room)
    other = await room.subscribe("audit", "rides", timeout=0)
    await room.publish("rides")
    result = await room.fail(delivery, HOUR_MS, room.uids())
    taken = result.taken["w.0"]
    assert isinstance(taken, Delivery)
    assert taken.lane == other
    assert list(room.scheduled()) == [lane]


# Health


@pytest.mark.parametrize(
    ("health", "outcomes", "expected"),
    [
        (100, "+", 100),
        (100, "-", 98),
        (99, "+", 100),
        (50, "+", 51),
        (50, "-", 48),
        (1, "-", 0),
        (0, "-", 0),
        (0, "+", 1),
        (10, "--+-+", 6),
    ],
)
async def test_health_rises_by_one_and_falls_by_two_within_0_and_100(
    room: Room, health: int, outcomes: str, expected: int
):
    _, delivery = await start(room, len(outcomes) + 1)
    room.redis.hset(room.key("subscriber:billing"), "health_points", health)
    for outcome in outcomes:
        fence = room.uids()
        result = await (room.deliver(delivery, fence) if outcome == "+" else room.fail(delivery, 0, fence))
        following = result.taken["w.0"]
        assert isinstance(following, Delivery)
        delivery = following
    assert room.fields("subscriber:billing")["health_points"] == str(expected)
    assert delivery.health_points == expected


async def test_health_counts_every_delivery_of_one_call(room: Room):
    await room.subscribe("billing", "orders", timeout=0, max=1, parallelism=8)
    await room.publish("orders", 40)
    in_air = await room.acquire(*[f"w.{n}" for n in range(4)])
    assert len(in_air) == 4
    await room.settle(
        *[settled(delivery, "", HOUR_MS, "status") for delivery in in_air[:3]], settled(in_air[3])
    )
    assert room.fields("subscriber:billing")["health_points"] == "95"


# Only the holder of a fence


async def change_nothing(room: Room, *deliveries: Delivery) -> None:
    before = room.dump()
    await room.settle(*[settled(delivery) for delivery in deliveries])
    await room.settle(*[settled(delivery, "", 1000, "status") for delivery in deliveries])
    assert room.dump() == before


async def test_an_old_fence_changes_nothing(room: Room):
    _, old = await start(room)
    await room.deliver(old)
    await change_nothing(room, old)
    new = await room.take("w.1")
    await change_nothing(room, old)
    assert new.sequence == 2


async def test_a_slot_that_lost_its_lane_to_another_changes_nothing(room: Room):
    lane, old = await start(room)
    room.let_pass(HOUR_MS)
    assert await room.scrub() == ["w.0"]
    new = await room.take("w.1")
    assert (new.batch, new.attempt) == (old.batch, 2)
    await change_nothing(room, old)
    assert room.pending() == {"w.1": lane}
    await room.deliver(new)
    assert room.counter("delivered:billing") == 1


async def test_a_fence_is_good_for_its_own_batch_only(room: Room):
    _, delivery = await start(room)
    (other,) = [batch.bid for batch in room.ready(delivery.lane)[1:2]]
    await change_nothing(room, delivery._replace(batch=other))


async def test_a_namesake_that_was_thought_dead_does_not_take_its_successors_job(room: Room):
    """A frozen process and the one that was started in its place share names of slots."""
    _, old = await start(room)
    new = await room.take()  # the same slot, by its successor
    before = room.dump()
    await room.settle(settled(old, room.uids()))
    assert room.dump() == before
    await room.deliver(new)
    assert room.counter("delivered:billing") == 1


async def test_a_settlement_that_is_sent_again_gets_the_same_answer(room: Room):
    _, delivery = await start(room)
    await room.subscribe("audit", "rides", timeout=0, max=1)
    await room.publish("rides", 5)
    other = await room.take("w.1")
    settlements = [settled(delivery, room.uids()), settled(other, room.uids(), HOUR_MS, "status")]
    first = await room.settle(*settlements)
    before = room.dump()
    second = await room.settle(*settlements)
    assert second.taken == first.taken
    assert set(second.taken) == {"w.0"}
    assert room.dump() == before
    assert room.counter("delivered:billing") == 1
    assert room.counter("failed:audit") == 1


async def test_a_late_settlement_after_the_subscription_ended_recreates_nothing(room: Room):
    _, delivery = await start(room)
    await room.registry.unsubscribe("billing")
    await change_nothing(room, delivery)
    await room.purge_all()
    await change_nothing(room, delivery)
    assert not [name for name in room.dump() if name.startswith(("lane:", "batch:", "batches:"))]


async def test_nor_when_its_namesake_subscribed_anew(room: Room):
    _, delivery = await start(room)
    await room.registry.unsubscribe("billing")
    lane = await room.subscribe("billing", "orders", timeout=0, max=1)
    await room.publish("orders", 2, first=50)
    await change_nothing(room, delivery)
    new = await room.take()
    assert (new.lane, lines_of(new)) == (lane, lines("orders", 50, 50))
    await change_nothing(room, delivery)


# Leaving


async def test_a_worker_that_leaves_takes_nothing_more(room: Room):
    lane, delivery = await start(room)
    result = await room.deliver(delivery, "")
    assert (result.taken, result.next_look_ms) == ({}, 0)
    assert room.instant() == [lane]
    assert room.pending() == {}


async def test_what_a_leaving_worker_left_wakes_the_others(room: Room):
    _, delivery = await start(room)
    with room.redis.pubsub() as ears:
        ears.subscribe(room.key("wake:main"))
        assert ears.get_message(timeout=5)
        await room.deliver(delivery, "")
        message = ears.get_message(timeout=5)
    assert message
    assert message["data"] == b"0"


# The log of deliveries


async def test_deliveries_are_logged_together(room: Room):
    _, delivery = await start(room)
    await room.subscribe("audit", "rides", timeout=0, max=1)
    await room.publish("rides", 5)
    other = await room.take("w.1")
    await room.settle(settled(delivery, record=b'{"a":1}'), settled(other, "", 0, "status", b'{"b":2}'))
    await room.settle(settled(delivery, record=b'{"again":1}'))  # old: no record
    await room.settle(settled(await room.take("w.2"), record=b'{"c":3}'))
    blocks = room.blocks("deliveries")
    assert [(id, block["f"], block["n"], block["e"]) for id, block in blocks] == [
        ("2-0", "1", "2", '{"a":1},\n{"b":2}'),
        ("3-0", "3", "1", '{"c":3}'),
    ]
    for _, block in blocks:
        assert set(block) == set("gfnrbcse")
        assert (msgspec.json.decode(block["c"]), msgspec.json.decode(block["s"])) == ({}, [])
        assert block["g"] == room.items("log:deliveries:generations")[0].split(" ")[0]
        seconds, _ = room.redis.time()
        assert abs(int(block["r"]) - seconds * 1000) < 10_000
    assert room.redis.get(room.key("log:deliveries:seq")) == b"3"
