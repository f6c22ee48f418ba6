"""Acquiring: from waiting jobs to batches in the air."""

import pytest

from routemaster.store.deliveries import AUX, MAIN, AuxJob
from tests.store.room import HOUR_MS, LEASE_MS, Room, lines, lines_of, request, url_for


async def test_a_slot_gets_all_that_a_delivery_needs(room: Room):
    lane = await room.subscribe("billing", "orders", timeout=0, max=3, callback="https://billing.example/in")
    await room.publish("elsewhere", 10)
    await room.publish("orders", 2)
    fence = room.uids()
    acquired = await room.deliveries.acquire(MAIN, {"w.0": fence})
    (delivery,) = acquired.taken
    (batch,) = room.ready(lane)
    assert delivery._asdict() == {
        "slot": "w.0",
        "fence": fence,
        "lane": lane,
        "batch": batch.bid,
        "attempt": 1,
        "generation": batch.generation,
        "sequence": 1,
        "is_replay": False,
        "created_at": batch.created_at,
        "events": 2,
        "callback": "https://billing.example/in",
        "uuid": "secret",
        "timeout_ms": 0,
        "health_points": 100,
        "format": "",
        "headers": b"",
        "secrets": b"",
        "runs": delivery.runs,
    }
    assert lines_of(delivery) == lines("orders", 1, 2)
    assert (delivery.subscriber, delivery.first_seq, delivery.last_seq) == ("billing", 11, 12)
    assert acquired.next_look_ms == -1


async def test_what_is_taken_is_in_the_air(room: Room):
    lane = await room.subscribe("billing", "orders", timeout=0)
    await room.publish("orders")
    delivery = await room.take()
    assert room.pending() == {"w.0": lane}
    assert (room.instant(), room.scheduled(), room.indexed()) == ([], {}, {lane})
    assert room.members("jobs:pending:index:main") == {"w.0"}
    state = room.fields(f"lane:{lane}")
    assert {name: state[name] for name in ("fence", "batch", "slot", "source", "sequence")} == {
        "fence": delivery.fence,
        "batch": delivery.batch,
        "slot": "w.0",
        "source": "ready",
        "sequence": "1",
    }
    attempted = int(room.fields("subscriber:billing")["last_attempted_at"])
    assert int(state["lease"]) == attempted + LEASE_MS


async def test_a_batch_is_sealed_when_it_is_taken(room: Room):
    """The same id never carries other events."""
    lane = await room.subscribe("billing", "orders", timeout=0)
    await room.publish("orders")
    delivery = await room.take()
    await room.publish("orders", first=2)
    assert lines_of(delivery) == lines("orders", 1, 1)
    await room.fail(delivery, 0)
    again = await room.take()
    assert (again.batch, again.attempt, lines_of(again)) == (delivery.batch, 2, lines("orders", 1, 1))
    assert room.queued(lane) == lines("orders", 1, 2)


async def test_a_lane_has_one_batch_in_the_air(room: Room):
    await room.subscribe("billing", "orders", timeout=0, max=1)
    await room.publish("orders", 5)
    assert len(await room.acquire("w.0", "w.1", "w.2")) == 1
    assert await room.acquire("w.3") == []
    await room.publish("orders", first=6)
    assert await room.acquire("w.3") == []


async def test_batches_come_in_order(room: Room):
    await room.subscribe("billing", "orders", timeout=0, max=2)
    await room.publish("orders", 5)
    seen = []
    for sequence in (1, 2, 3):
        delivery = await room.take()
        assert delivery.sequence == sequence
        seen += lines_of(delivery)
        await room.deliver(delivery)
    assert seen == lines("orders", 1, 5)


# Scheduled -> due


async def test_a_batch_that_is_not_due_stays(room: Room):
    lane = await room.subscribe("billing", "orders", timeout=60_000)
    await room.publish("orders")
    before = room.dump()
    acquired = await room.deliveries.acquire(MAIN, {"w.0": room.uids()})
    assert acquired.taken == []
    assert acquired.next_look_ms == pytest.approx(60_000, abs=10_000)
    assert room.dump() == before
    room.let_pass(60_000)
    assert (await room.take()).lane == lane


async def test_due_jobs_come_in_the_order_of_their_deadlines(room: Room):
    for name, timeout in (("third", 60_000), ("first", 20_000), ("second", 40_000)):
        await room.subscribe(name, "orders", timeout=timeout)
    await room.publish("orders")
    room.let_pass(HOUR_MS)
    taken = await room.acquire("w.0", "w.1", "w.2")
    assert [(delivery.slot, delivery.subscriber) for delivery in taken] == [
        ("w.0", "first"),
        ("w.1", "second"),
        ("w.2", "third"),
    ]


async def test_more_due_jobs_than_slots_wait_in_line(room: Room):
    for n in range(3):
        await room.subscribe(f"s{n}", "orders", timeout=1000 * (n + 1))
    await room.publish("orders")
    room.let_pass(HOUR_MS)
    acquired = await room.deliveries.acquire(MAIN, {"w.0": room.uids()})
    assert [job.subscriber for job in acquired.taken] == ["s0"]
    assert acquired.next_look_ms == 0
    assert [d.subscriber for d in await room.acquire("w.1", "w.2")] == ["s1", "s2"]


async def test_a_longer_timeout_holds_for_what_is_not_sealed(room: Room):
    lane = await room.subscribe("billing", "orders", timeout=60_000)
    await room.publish("orders")
    await room.subscribe("billing", "orders", timeout=120_000)
    room.let_pass(90_000)
    assert await room.acquire("w.0") == []
    assert room.scheduled() == {lane: pytest.approx(30_000, abs=10_000)}
    room.let_pass(30_000)
    assert len(await room.acquire("w.0")) == 1


@pytest.mark.parametrize("change", [{"timeout": 0}, {"max": 2}], ids=["timeout", "max"])
async def test_a_change_that_makes_a_batch_due_is_seen_at_once(room: Room, change: dict[str, int]):
    lane = await room.subscribe("billing", "orders", timeout=HOUR_MS, max=10)
    await room.publish("orders", 2)
    assert await room.acquire("w.0") == []
    await room.subscribe("billing", "orders", **{"timeout": HOUR_MS, "max": 10, **change})
    assert (await room.take()).lane == lane


async def test_a_lane_that_rests_is_not_served(room: Room):
    lane = await room.subscribe("billing", "orders", timeout=0, max=1)
    await room.publish("orders", 2)
    await room.fail(await room.take(), 60_000)
    await room.subscribe("billing", "orders", timeout=1, max=1)  # which looks at every lane again
    assert room.instant() == [lane]
    assert await room.acquire("w.0") == []
    assert room.scheduled() == {lane: pytest.approx(60_000, abs=10_000)}
    room.let_pass(60_000)
    assert (await room.take()).attempt == 2


async def test_a_job_whose_lane_is_empty_is_retired(room: Room):
    await room.subscribe("billing", "orders", timeout=0)
    await room.publish("orders")
    assert await room.drop(10) == (1, 1)
    assert await room.acquire("w.0") == []
    assert (room.indexed(), room.instant(), room.scheduled(), room.pending()) == (set(), [], {}, {})


async def test_a_crowd_of_stale_jobs_does_not_hide_a_good_one(room: Room):
    """A call looks at so many jobs; if all of them were for nothing it says to look again at once."""
    lanes = 150
    await room.subscribe("empty", "orders", timeout=0, parallelism=lanes)
    await room.web.publish(request("orders", lanes, urls=[url_for(n, lanes) for n in range(lanes)]))
    await room.drop(lanes)
    good = await room.subscribe("billing", "rides", timeout=0)
    await room.publish("rides")
    first = await room.deliveries.acquire(MAIN, {"w.0": room.uids()})
    assert (first.taken, first.next_look_ms) == ([], 0)
    assert (await room.take()).lane == good


# Lost replies


async def test_the_same_slot_and_fence_get_the_same_answer(room: Room):
    await room.subscribe("billing", "orders", timeout=0, max=1)
    await room.subscribe("audit", "orders", timeout=0, max=1)
    await room.publish("orders", 2)
    fences = {"w.0": room.uids(), "w.1": room.uids()}
    first = await room.deliveries.acquire(MAIN, fences)
    before = room.dump()
    second = await room.deliveries.acquire(MAIN, fences)
    assert second == first
    assert room.dump() == before
    assert [job.attempt for job in second.taken] == [1, 1]


async def test_a_slot_that_got_nothing_may_get_something_when_it_asks_again(room: Room):
    await room.subscribe("billing", "orders", timeout=0)
    fences = {"w.0": room.uids()}
    assert (await room.deliveries.acquire(MAIN, fences)).taken == []
    await room.publish("orders")
    assert len((await room.deliveries.acquire(MAIN, fences)).taken) == 1


async def test_another_fence_takes_the_job_anew(room: Room):
    """Its process died and came back under the same name."""
    lane = await room.subscribe("billing", "orders", timeout=0, max=1)
    await room.publish("orders", 2)
    first = await room.take()
    second = await room.take()
    assert (second.batch, second.lane, second.attempt) == (first.batch, lane, 2)
    assert second.fence != first.fence
    assert room.fields(f"lane:{lane}")["fence"] == second.fence
    assert room.pending() == {"w.0": lane}
    assert room.instant() == []


async def test_a_process_that_comes_back_takes_its_own_jobs_before_others(room: Room):
    await room.subscribe("billing", "orders", timeout=0)
    await room.publish("orders")
    mine = await room.take()
    await room.subscribe("audit", "rides", timeout=0)
    await room.publish("rides")
    assert (await room.take()).batch == mine.batch


# The auxiliary queue


async def test_auxiliary_jobs_are_unique_and_run_one_at_a_time_by_slot(room: Room):
    await room.upkeep.tick("scrub", "trim")
    await room.upkeep.tick("scrub")
    assert room.instant(AUX) == ["scrub", "trim"]
    fence = room.uids()
    acquired = await room.deliveries.acquire(AUX, {"w.aux": fence})
    assert acquired.taken == [AuxJob("w.aux", "scrub")]
    await room.upkeep.tick("scrub")
    assert room.instant(AUX) == ["trim"]
    assert room.indexed(AUX) == {"scrub", "trim"}
    assert (await room.deliveries.acquire(AUX, {"w.aux": fence})).taken == acquired.taken  # a lost reply
    assert room.pending(AUX) == {"w.aux": "scrub"}


async def test_a_finished_job_is_gone_and_may_come_again(room: Room):
    await room.upkeep.tick("scrub")
    await room.deliveries.acquire(AUX, {"w.aux": room.uids()})
    await room.upkeep.finish("w.aux")
    assert (room.indexed(AUX), room.pending(AUX), room.instant(AUX)) == (set(), {}, [])
    await room.upkeep.tick("scrub")
    assert room.instant(AUX) == ["scrub"]


async def test_a_job_that_asks_for_it_is_tried_again_later(room: Room):
    await room.upkeep.tick("scrub")
    await room.deliveries.acquire(AUX, {"w.aux": room.uids()})
    await room.upkeep.finish("w.aux", 60_000)
    assert room.scheduled(AUX) == {"scrub": pytest.approx(60_000, abs=10_000)}
    assert (room.indexed(AUX), room.pending(AUX)) == ({"scrub"}, {})
    assert (await room.deliveries.acquire(AUX, {"w.aux": room.uids()})).taken == []
    room.let_pass(60_000)
    assert (await room.deliveries.acquire(AUX, {"w.aux": room.uids()})).taken == [AuxJob("w.aux", "scrub")]


async def test_a_finish_that_is_sent_again_changes_nothing(room: Room):
    await room.upkeep.tick("scrub")
    await room.deliveries.acquire(AUX, {"w.aux": room.uids()})
    await room.upkeep.finish("w.aux")
    before = room.dump()
    await room.upkeep.finish("w.aux")
    await room.upkeep.finish("w.aux", 1000)
    assert room.dump() == before


async def test_queues_do_not_mix(room: Room):
    await room.subscribe("billing", "orders", timeout=0)
    await room.publish("orders")
    await room.upkeep.tick("scrub")
    assert [type(job) for job in (await room.deliveries.acquire(AUX, {"w.aux": room.uids()})).taken] == [
        AuxJob
    ]
    assert len(await room.acquire("w.0", "w.1")) == 1


async def test_a_heartbeat_says_when_to_look(room: Room):
    assert await room.deliveries.beat("w") == (-1, -1)
    await room.subscribe("billing", "orders", timeout=60_000)
    await room.publish("orders")
    assert await room.deliveries.beat("w") == (pytest.approx(60_000, abs=10_000), -1)
    room.let_pass(60_000)
    assert await room.deliveries.beat("w") == (0, -1)
    await room.take()
    assert await room.deliveries.beat("w") == (-1, -1)
    seconds, _ = room.redis.time()
    assert abs(int(room.fields("workers")["w"]) - seconds * 1000) < 10_000
