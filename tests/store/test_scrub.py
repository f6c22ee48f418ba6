"""Scrubbing: what slots that went silent held is given to others."""

import asyncio

import pytest

from routemaster.settings import load
from routemaster.store.deliveries import AUX, AuxJob
from routemaster.store.figures import Reader
from routemaster.worker.aux import Aux
from routemaster.worker.monitor import Monitor
from tests.store.room import LEASE_MS, Room
from tests.until import until_async

SILENCE_MS = 15_000


async def start(room: Room, worker: str = "w") -> str:
    """A lane whose first batch is in the air at a worker that just beat."""
    lane = await room.subscribe("billing", "orders", timeout=0, max=1)
    await room.publish("orders", 3)
    await room.deliveries.beat(worker)
    await room.take(f"{worker}.0")
    return lane


async def test_a_living_worker_keeps_its_jobs(room: Room):
    await start(room)
    before = room.dump()
    assert await room.scrub() == []
    room.let_pass(SILENCE_MS - 5_000)
    assert await room.scrub() == []
    assert room.dump()["jobs:pending:main:w.0"] == before["jobs:pending:main:w.0"]


async def test_a_dead_workers_lane_is_ready_again(room: Room):
    lane = await start(room)
    room.let_pass(SILENCE_MS + 1_000)
    assert await room.scrub() == ["w.0"]
    assert (room.instant(), room.pending(), room.scheduled()) == ([lane], {}, {})
    assert room.fields(f"lane:{lane}") == {"sequence": "3"}
    again = await room.take("v.0")
    assert (again.sequence, again.attempt) == (1, 2)


async def test_a_worker_that_never_beat_is_dead(room: Room):
    lane = await room.subscribe("billing", "orders", timeout=0)
    await room.publish("orders")
    await room.take("unknown.0")
    assert await room.scrub() == ["unknown.0"]
    assert room.instant() == [lane]


async def test_workers_names_may_hold_dots(room: Room):
    await start(room, worker="host.example.com-17")
    assert await room.scrub() == []


async def test_an_ended_lease_is_taken_back_where_the_worker_lives(room: Room):
    lane = await start(room)
    room.let_pass(LEASE_MS + 1_000)
    await room.deliveries.beat("w")
    assert await room.scrub() == ["w.0"]
    assert room.instant() == [lane]


async def test_from_the_third_attempt_on_a_lane_rests(room: Room):
    """A batch that kills its worker must not do so in a tight loop."""
    lane = await room.subscribe("billing", "orders", timeout=0, max=1)
    await room.publish("orders", 3)
    for attempt, rest_ms in ((1, 0), (2, 0), (3, 2_000), (4, 4_000), (5, 8_000)):
        delivery = await room.take(f"w{attempt}.0")
        assert delivery.attempt == attempt
        assert await room.scrub() == [f"w{attempt}.0"]
        if rest_ms:
            assert room.scheduled() == {lane: pytest.approx(rest_ms, abs=1_500)}
            assert room.fields(f"lane:{lane}")["why"] == "scrubbed"
            assert await room.acquire("v.0") == []
            room.let_pass(rest_ms)
        else:
            assert room.instant() == [lane]


async def test_the_rest_has_an_upper_bound(room: Room):
    lane = await start(room)
    room.redis.lset(room.key(f"batch:{room.ready(lane)[0].bid}"), 2, 60)
    room.let_pass(SILENCE_MS + 1_000)
    await room.scrub()
    assert room.scheduled() == {lane: pytest.approx(300_000, abs=10_000)}


async def test_slots_that_hold_nothing_are_forgotten(room: Room):
    lane = await room.subscribe("billing", "orders", timeout=0)
    await room.publish("orders")
    await room.deliver(await room.take())
    assert room.members("jobs:pending:index:main") == {"w.0"}
    assert await room.scrub() == []
    assert room.members("jobs:pending:index:main") == set()
    assert room.indexed() == set()
    assert room.queued(lane) == []


async def test_what_was_taken_back_is_forgotten_the_next_time(room: Room):
    await start(room)
    room.let_pass(SILENCE_MS + 1_000)
    assert await room.scrub() == ["w.0"]
    assert await room.scrub() == []
    assert room.members("jobs:pending:index:main") == set()


async def test_taking_back_wakes_the_workers(room: Room):
    await start(room)
    room.let_pass(SILENCE_MS + 1_000)
    with room.redis.pubsub() as ears:
        ears.subscribe(room.key("wake:main"))
        assert ears.get_message(timeout=5)
        await room.scrub()
        message = ears.get_message(timeout=5)
    assert message
    assert message["data"] == b"0"


async def test_only_the_dead_lose_their_jobs(room: Room):
    for name in ("dead", "living"):
        await room.subscribe(name, "orders", timeout=0)
    await room.publish("orders")
    await room.acquire("dead.0", "living.0")
    await room.deliveries.beat("living")
    assert await room.scrub() == ["dead.0"]
    assert set(room.pending()) == {"living.0"}


async def test_a_dead_workers_auxiliary_job_is_ready_again(room: Room):
    await room.upkeep.tick("trim")
    await room.deliveries.acquire(AUX, {"w.aux": room.uids()})
    await room.deliveries.beat("w")
    assert await room.scrub(AUX) == []
    room.let_pass(SILENCE_MS + 1_000)
    assert await room.scrub(AUX) == ["w.aux"]
    assert (room.instant(AUX), room.pending(AUX), room.indexed(AUX)) == (["trim"], {}, {"trim"})
    assert (await room.deliveries.acquire(AUX, {"v.aux": room.uids()})).taken == [AuxJob("v.aux", "trim")]


async def test_a_late_finish_of_a_job_that_was_taken_back_changes_nothing(room: Room):
    await room.upkeep.tick("trim")
    await room.deliveries.acquire(AUX, {"w.aux": room.uids()})
    await room.scrub(AUX)
    await room.deliveries.acquire(AUX, {"v.aux": room.uids()})
    before = room.dump()
    await room.upkeep.finish("w.aux")
    assert room.dump() == before


async def test_workers_that_have_been_silent_for_long_are_forgotten(room: Room):
    await room.deliveries.beat("old")
    room.let_pass(120_000)
    await room.deliveries.beat("new")
    await room.upkeep.forget_workers(180_000)
    assert set(room.fields("workers")) == {"old", "new"}
    await room.upkeep.forget_workers(60_000)
    assert set(room.fields("workers")) == {"new"}
    await room.upkeep.forget_workers(60_000)
    assert set(room.fields("workers")) == {"new"}


async def test_busy_slots_are_counted(room: Room):
    assert await room.upkeep.busy_slots("main") == 0
    await start(room)
    assert await room.upkeep.busy_slots("main") == 1


async def test_a_scrub_that_died_with_its_worker_does_not_stop_all_scrubbing(room: Room):
    """The job is unique and pending at the dead: nobody could enqueue another."""
    lane = await start(room, worker="dead")
    await room.upkeep.tick("scrub")
    assert (await room.deliveries.acquire(AUX, {"dead.aux": room.uids()})).taken == [
        AuxJob("dead.aux", "scrub")
    ]
    room.let_pass(SILENCE_MS + 1_000)
    await room.deliveries.beat("v")
    aux = Aux(load({}), "v", room.deliveries, room.upkeep, Monitor(Reader(room.link, room.ns, 0), []))
    tasks = [
        asyncio.create_task(aux.run()),
        asyncio.create_task(aux.tick("scrub", 0.01, aux._is_any_busy)),
    ]

    def is_back() -> bool:
        aux.look_in(0)  # in place of a wake-up
        return room.instant() == [lane]

    try:
        await until_async(is_back, "the dead worker's lane", deadline_s=5)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
