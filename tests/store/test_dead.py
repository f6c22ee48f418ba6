"""Dead letters: batches that were given up; looking at them, sending them again, deleting them."""

from typing import Any

import pytest

from routemaster.store.deliveries import Delivery
from routemaster.store.script import Script
from tests.store.room import HOUR_MS, LEASE_MS, Room, line, lines, lines_of, request, settled, url_for


async def start(room: Room, events: int = 3, attempts: int = 1, **options: int) -> str:
    """A subscriber with so many batches of one event, which get so many attempts."""
    options = {"timeout": 0, "max": 1, **options}
    lane = await room.subscribe("billing", "orders", max_attempts=attempts, **options)
    if events:
        await room.publish("orders", events)
    return lane


async def kill(room: Room, batches: int) -> list[str]:
    """The next so many batches die."""
    dead = []
    for _ in range(batches):
        delivery = await room.take()
        await room.die(delivery)
        dead.append(delivery.batch)
    return dead


def body(*numbers: int) -> bytes:
    return b"[" + b",\n".join(line("orders", number) for number in numbers) + b"]"


# Dying


async def test_a_batch_dies_with_its_last_attempt(room: Room):
    lane = await start(room, attempts=3)
    for attempt in (1, 2):
        delivery = await room.take()
        assert delivery.attempt == attempt
        await room.fail(delivery, 0)
        assert await room.dead_letters("billing") == []
    delivery = await room.take()
    await room.die(delivery, "timeout", 0)
    (dead,) = await room.dead_letters("billing")
    assert (dead.id, dead.body) == (delivery.batch, body(1))
    assert (dead.detail.attempts, dead.detail.why, dead.detail.code) == (3, "timeout", 0)
    assert dead.created_at <= dead.died_at
    assert room.queued(lane) == lines("orders", 2, 3)
    assert (room.gauges("billing"), room.dead_events("billing")) == ((2, 2), 1)
    assert (room.counter("failed:billing"), room.counter("delivered:billing")) == (3, 0)


async def test_the_next_batch_goes_at_once(room: Room):
    """The one that died made the lane rest; what comes after has done nothing wrong."""
    lane = await start(room, attempts=2)
    await room.fail(await room.take(), 0)
    dead = await room.take()
    result = await room.settle(settled(dead, room.uids(), HOUR_MS, "status"))
    following = result.taken["w.0"]
    assert isinstance(following, Delivery)
    assert (lines_of(following), following.attempt) == ([line("orders", 2)], 1)
    assert set(room.fields(f"lane:{lane}")) == {"sequence", "fence", "batch", "slot", "lease", "source"}


async def test_the_last_batch_leaves_no_job(room: Room):
    await start(room, 1)
    await kill(room, 1)
    assert (room.indexed(), room.instant(), room.scheduled(), room.pending()) == (set(), [], {}, {})


async def test_without_a_limit_nothing_dies(room: Room):
    await room.subscribe("billing", "orders", timeout=0)
    await room.publish("orders")
    for _ in range(30):
        await room.fail(await room.take(), 0)
    assert await room.dead_letters("billing") == []
    assert room.gauges("billing") == (1, 1)


async def test_a_lower_limit_holds_for_what_failed_before(room: Room):
    await start(room, 1, attempts=10)
    for _ in range(4):
        await room.fail(await room.take(), 0)
    await room.subscribe("billing", "orders", timeout=0, max=1, max_attempts=2)
    await kill(room, 1)
    assert (await room.dead_letters("billing"))[0].detail.attempts == 5


async def test_a_call_that_is_sent_again_buries_once(room: Room):
    await start(room, 2)
    settlement = settled(await room.take(), room.uids(), 0, "status", b'{"code":500}')
    first = await room.settle(settlement)
    before = room.dump()
    again = await room.settle(settlement)
    assert again.taken == first.taken
    assert room.dump() == before
    assert room.dead_events("billing") == 1


async def test_a_dead_worker_uses_up_the_last_attempt(room: Room):
    lane = await start(room, 2)
    delivery = await room.take()
    room.let_pass(LEASE_MS)
    assert await room.scrub() == ["w.0"]
    (dead,) = await room.dead_letters("billing")
    assert (dead.id, dead.detail.why, dead.detail.attempts) == (delivery.batch, "scrubbed", 1)
    assert (room.instant(), room.pending()) == ([lane], {})
    await room.deliver(delivery)  # an old fence by now
    assert room.dead_events("billing") == 1
    assert lines_of(await room.take()) == [line("orders", 2)]


async def test_a_worker_that_comes_back_does_not_send_what_had_its_last_attempt(room: Room):
    """A batch that kills its worker would be taken again at every start, and never die."""
    await start(room, 2, attempts=2)
    lost = await room.take()
    again = await room.take()  # the same slot with another fence
    assert (again.batch, again.attempt) == (lost.batch, 2)
    following = await room.take()
    assert (lines_of(following), following.attempt) == ([line("orders", 2)], 1)
    (dead,) = await room.dead_letters("billing")
    assert (dead.id, dead.detail.attempts, dead.detail.why) == (lost.batch, 2, "scrubbed")
    await room.deliver(again)
    assert (room.gauges("billing"), room.dead_events("billing")) == ((1, 1), 1)


async def test_asking_again_for_a_lost_reply_is_no_attempt(room: Room):
    await start(room, 1)
    fence = room.uids()
    first = await room.deliveries.acquire("main", {"w.0": fence})
    assert (await room.deliveries.acquire("main", {"w.0": fence})).taken == first.taken
    assert await room.dead_letters("billing") == []


# Listing


async def test_they_are_listed_longest_dead_first(room: Room):
    await start(room, 5)
    killed = []
    for _ in range(4):
        killed += await kill(room, 1)
        room.let_pass(1000)
    assert [dead.id for dead in await room.dead_letters("billing")] == killed
    assert [dead.id for dead in await room.dead_letters("billing", 2)] == killed[:2]


async def test_nobody_elses_are_listed(room: Room):
    await start(room)
    await kill(room, 1)
    await room.subscribe("audit", "orders")
    assert await room.dead_letters("audit") == []
    assert await room.dead.show("nobody", 10) is None


# Retrying


async def test_retried_ones_go_to_the_end_of_their_lane_as_if_they_were_new(room: Room):
    lane = await start(room, 4)
    killed = await kill(room, 2)
    assert await room.dead.retry("billing", None) == 2
    assert await room.dead_letters("billing") == []
    assert (room.gauges("billing"), room.dead_events("billing")) == ((4, 4), 0)
    assert room.queued(lane) == [*lines("orders", 3, 4), *lines("orders", 1, 2)]
    assert [(batch.bid, batch.attempts, batch.sequence) for batch in room.ready(lane)[2:]] == [
        (killed[0], 0, 5),
        (killed[1], 0, 6),
    ]
    seen = []
    while in_air := await room.acquire("w.0"):
        seen.append((in_air[0].sequence, in_air[0].attempt, *lines_of(in_air[0])))
        await room.deliver(in_air[0])
    assert seen == [(n, 1, line("orders", event)) for n, event in enumerate((3, 4, 1, 2), 3)]


async def test_only_those_named_are_retried_in_the_order_given(room: Room):
    lane = await start(room, 4)
    killed = await kill(room, 4)
    wanted = [killed[3], "a" * 20, killed[1], killed[3]]
    assert await room.dead.retry("billing", wanted) == 2
    assert [batch.bid for batch in room.ready(lane)] == [killed[3], killed[1]]
    assert [dead.id for dead in await room.dead_letters("billing")] == [killed[0], killed[2]]
    assert await room.dead.retry("billing", wanted) == 0  # the same call again: its reply was lost
    assert [batch.bid for batch in room.ready(lane)] == [killed[3], killed[1]]


async def test_an_empty_list_of_ids_retries_none(room: Room):
    await start(room, 2)
    await kill(room, 2)
    assert await room.dead.retry("billing", []) == 0
    assert len(await room.dead_letters("billing")) == 2
    assert await room.dead.retry("nobody", []) is None
    assert await room.dead.retry("nobody", None) is None


async def test_a_batch_that_is_alive_or_anothers_cannot_be_retried(room: Room):
    lane = await start(room, 2)
    await kill(room, 1)
    alive = room.ready(lane)[0].bid
    await room.subscribe("audit", "orders", max_attempts=1)
    before = room.dump()
    (theirs,) = [dead.id for dead in await room.dead_letters("billing")]
    assert await room.dead.retry("audit", [theirs, alive]) == 0
    assert room.dump() == before


async def test_a_retried_one_does_not_wait_for_a_deadline_that_another_batch_has(room: Room):
    lane = await start(room, 1)
    await kill(room, 1)
    await room.subscribe("billing", "orders", timeout=HOUR_MS, max=10, max_attempts=1)
    await room.publish("orders", first=2)
    assert room.scheduled() == {lane: pytest.approx(HOUR_MS, abs=10_000)}
    assert await room.dead.retry("billing", None) == 1
    assert lines_of(await room.take()) == [line("orders", 1)]


async def test_a_lane_that_rests_goes_on_resting(room: Room):
    lane = await start(room, 1)
    await kill(room, 1)
    await room.subscribe("billing", "orders", timeout=0, max=1, max_attempts=5)
    await room.publish("orders", first=2)
    await room.fail(await room.take(), 60_000)
    assert await room.dead.retry("billing", None) == 1
    assert room.instant() == []
    assert room.scheduled() == {lane: pytest.approx(60_000, abs=10_000)}


async def test_one_that_dies_again_is_there_again(room: Room):
    await start(room, 1)
    (killed,) = await kill(room, 1)
    for _ in range(3):
        assert await room.dead.retry("billing", None) == 1
        assert await kill(room, 1) == [killed]
    (dead,) = await room.dead_letters("billing")
    assert (dead.id, dead.detail.attempts) == (killed, 1)
    assert room.dead_events("billing") == 1


async def test_many_are_retried_and_deleted_in_steps(room: Room):
    await start(room, 450)
    await kill(room, 450)
    assert await room.dead.retry("billing", None) == 450
    assert room.gauges("billing") == (450, 450)
    await kill(room, 450)
    assert await room.dead.delete("billing") == 450
    assert (room.gauges("billing"), room.dead_events("billing")) == ((0, 0), 0)


async def test_what_dies_while_all_are_retried_is_left_alone(room: Room, monkeypatch: pytest.MonkeyPatch):
    """Else a subscriber that fails at once would keep the call going for ever."""
    lane = await start(room, 3)
    await kill(room, 3)
    room.let_pass(60_000)  # long dead, when the call is made
    run, calls = room.link.run, 0

    async def run_and_kill(script: Script, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        reply = await run(script, *args)
        for _ in range(int(reply[0])):
            await room.die(await room.take())
        return reply

    monkeypatch.setattr("routemaster.store.dead.STEP", 1)
    monkeypatch.setattr(
        room.link,
        "run",
        lambda script, *args: (
            run_and_kill(script, *args) if script.name == "retry_dead" else run(script, *args)
        ),
    )
    assert await room.dead.retry("billing", None) >= 3
    assert 4 <= calls <= 10
    assert room.queued(lane) == []
    assert len(await room.dead_letters("billing")) == 3


# Deleting


async def test_deleted_ones_are_gone_and_counted(room: Room):
    lane = await start(room, 3)
    killed = await kill(room, 2)
    assert await room.dead.delete("billing") == 2
    assert await room.dead_letters("billing") == []
    assert (room.counter("purged:billing"), room.dead_events("billing")) == (2, 0)
    for bid in killed:
        assert room.redis.exists(room.key(f"batch:{bid}")) == 0
        assert room.redis.zscore(room.key("batches:index"), bid) is None
    assert room.queued(lane) == lines("orders", 3, 3)
    assert await room.dead.delete("billing") == 0
    assert await room.dead.delete("nobody") is None


async def test_they_are_purged_with_their_subscription(room: Room):
    await start(room, 4)
    await kill(room, 3)
    await room.registry.unsubscribe("billing")
    await room.purge_all()
    assert room.counter("purged:billing") == 4
    left = {name for name in room.dump() if name.startswith(("batch", "purge", "lane:", "draining:"))}
    assert left <= {"batches:gauges:event", "batches:gauges:batch", "batches:gauges:dead"}
    assert all(room.fields(name) == {} for name in left)


async def test_a_namesake_does_not_get_them(room: Room):
    await start(room, 3)
    await kill(room, 2)
    await room.registry.unsubscribe("billing")
    await start(room, 0)
    await room.publish("orders", 1, first=10)
    await kill(room, 1)
    assert [dead.body for dead in await room.dead_letters("billing")] == [body(10)]
    await room.purge_all()
    assert [dead.body for dead in await room.dead_letters("billing")] == [body(10)]
    assert room.dead_events("billing") == 1
    assert room.counter("purged:billing") == 3


# Autodrop


async def test_they_are_dropped_like_others_by_age(room: Room):
    lane = await start(room, 1)
    await kill(room, 1)
    room.let_pass(1000)
    await room.publish("orders", first=2)
    assert await room.drop(1) == (1, 1)
    assert await room.dead_letters("billing") == []
    assert (room.counter("dropped:billing"), room.dead_events("billing")) == (1, 0)
    assert room.queued(lane) == [line("orders", 2)]
    assert room.gauges("billing") == (1, 1)
    assert await room.drop(1) == (1, 1)
    assert (room.gauges("billing"), room.dead_events("billing")) == ((0, 0), 0)


# Sets of lanes


async def change(room: Room, parallelism: int) -> None:
    await room.subscribe("billing", "orders", timeout=0, max=1, max_attempts=1, parallelism=parallelism)


async def test_a_set_whose_last_batch_dies_lets_the_next_start(room: Room):
    await start(room, 2)
    await change(room, 2)
    await room.web.publish(request("orders", 2, first=3, urls=[url_for(0, 2), url_for(1, 2)]))
    await kill(room, 2)
    taken = await room.acquire("v.0", "v.1")
    assert sorted(lines_of(delivery)[0] for delivery in taken) == lines("orders", 3, 4)
    assert not [name for name in room.dump() if name.startswith("draining:")]


async def test_one_of_a_set_that_is_no_more_goes_to_the_first_lane_there_is(room: Room):
    old = await start(room, 1, parallelism=3)
    (killed,) = await kill(room, 1)
    await change(room, 2)
    assert await room.dead.retry("billing", None) == 1
    lane = room.lane("billing", 0)
    assert lane != old
    assert [batch.lane for batch in room.ready(lane)] == [lane]
    delivery = await room.take()
    assert (delivery.batch, delivery.lane, delivery.sequence) == (killed, lane, 1)
    await room.deliver(delivery)
    assert room.gauges("billing") == (0, 0)
    assert not [name for name in room.dump() if name.startswith(("draining:", f"lane:{old}"))]


async def test_one_of_a_set_that_still_drains_waits_with_the_new_set(room: Room):
    old = await start(room, 2)
    (killed,) = await kill(room, 1)
    await change(room, 2)
    assert await room.dead.retry("billing", [killed]) == 1
    assert room.indexed() == {old}
    first = await room.take()
    assert lines_of(first) == [line("orders", 2)]
    assert await room.acquire("v.0") == []
    await room.deliver(first)
    assert lines_of(await room.take()) == [line("orders", 1)]


async def test_in_their_own_set_they_go_back_to_their_own_lane(room: Room):
    await start(room, 0, parallelism=2)
    await room.web.publish(request("orders", 1, urls=[url_for(1, 2)]))
    await kill(room, 1)
    assert await room.dead.retry("billing", None) == 1
    assert room.queued(room.lane("billing", 1)) == [line("orders", 1)]


async def test_dropping_a_dead_one_of_a_draining_set_releases_nothing_early(room: Room):
    await start(room, 2)
    await kill(room, 1)
    await change(room, 2)
    await room.publish("orders", first=3)
    assert await room.drop(1) == (1, 1)  # the dead one is the oldest
    assert len(await room.acquire("v.0", "v.1")) == 1
    assert room.fields(f"draining:{room.lane('billing').split('.')[0]}") == {"1": "1", "1:lanes": "1"}


async def test_monitoring_counts_their_events(room: Room):
    await room.subscribe("billing", "orders", timeout=0, max=3, max_attempts=1)
    await room.publish("orders", 5)
    await kill(room, 1)
    (row,) = await room.registry.subscribers()
    assert (row.dead, row.queued, row.failed, row.max_attempts) == (3, 2, 1, 1)
