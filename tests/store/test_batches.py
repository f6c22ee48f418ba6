"""Batches: how they fill and are sealed, and how they are written."""

import struct

import pytest

from tests.store.room import HOUR_MS, Room, line, lines, request, url_for


async def test_a_batch_is_written_as_documented(room: Room):
    lane = await room.subscribe("billing", "orders")
    await room.publish("elsewhere", 4)  # so that seqs are not indexes
    await room.publish("orders", 3)
    await room.publish("orders", 2, first=4)
    (bid,) = room.members(f"batches:current:{lane}")
    items = room.redis.lrange(room.key(f"batch:{bid}"), 0, -1)
    generation = room.items("log:events:generations")[0][:20].encode()
    created_at = int(items[1])
    assert items == [
        lane.encode(),
        b"%d" % created_at,
        b"0",
        generation,
        b"",
        b"5",
        struct.pack(">QI", 5, 3) + b",\n".join(lines("orders", 1, 3)),
        struct.pack(">QI", 8, 2) + b",\n".join(lines("orders", 4, 5)),
    ]
    assert room.redis.zscore(room.key("batches:index"), bid) == created_at
    seconds, _ = room.redis.time()
    assert abs(created_at - seconds * 1000) < 60_000


async def test_a_batch_takes_events_until_it_is_full_and_is_then_sealed(room: Room):
    lane = await room.subscribe("billing", "orders", max=3)
    for number in (1, 2):
        await room.publish("orders", first=number)
        assert room.ready(lane) == []
    await room.publish("orders", first=3)
    (batch,) = room.ready(lane)
    assert (batch.events, batch.sequence, batch.lines) == (3, 1, lines("orders", 1, 3))
    assert room.current(lane) is None
    await room.publish("orders", first=4)
    current = room.current(lane)
    assert current
    assert (current.bid != batch.bid, current.sequence, current.lines) == (True, None, [line("orders", 4)])
    assert room.ready(lane) == [batch]


async def test_one_flush_may_fill_several_batches(room: Room):
    lane = await room.subscribe("billing", "orders", max=4)
    await room.publish("orders", 2)
    await room.publish("orders", 9, first=3)
    assert [batch.lines for batch in room.ready(lane)] == [lines("orders", 1, 4), lines("orders", 5, 8)]
    assert [batch.sequence for batch in room.ready(lane)] == [1, 2]
    assert [batch.runs for batch in room.ready(lane)] == [[(1, 2), (3, 2)], [(5, 4)]]
    current = room.current(lane)
    assert current
    assert current.lines == lines("orders", 9, 11)
    assert room.gauges("billing") == (3, 11)


@pytest.mark.parametrize("max_events", [1, 2, 3, 7, 20, 21, 100])
async def test_one_at_a_time_and_in_bulk_give_the_same_batches(room: Room, max_events: int):
    one = await room.subscribe("one", "single", max=max_events)
    all_in = await room.subscribe("bulk", "bulk", max=max_events)
    for number in range(1, 21):
        await room.publish("single", first=number)
    await room.publish("bulk", 20)

    def shape(lane: str) -> list[tuple[int, int | None, int]]:
        current = room.current(lane)
        batches = room.ready(lane) + ([current] if current else [])
        return [(batch.events, batch.sequence, len(batch.lines)) for batch in batches]

    assert shape(one) == shape(all_in)
    assert room.queued(one) == lines("single", 1, 20)
    assert room.queued(all_in) == lines("bulk", 1, 20)
    assert room.gauges("one") == room.gauges("bulk")


async def test_batch_ids_are_never_used_twice(room: Room):
    lane = await room.subscribe("billing", "orders", max=1)
    await room.publish("orders", 70)  # more than one digit of the counter
    await room.publish("orders", 70, first=71)
    bids = room.items(f"batches:ready:{lane}")
    assert len(set(bids)) == 140
    assert {len(bid) for bid in bids} == {20}
    assert bids == sorted(bids)


async def test_a_smaller_max_holds_for_what_is_not_sealed(room: Room):
    lane = await room.subscribe("billing", "orders", max=10)
    await room.publish("orders", 5)
    await room.subscribe("billing", "orders", max=3)
    await room.publish("orders", first=6)
    assert [batch.lines for batch in room.ready(lane)] == [lines("orders", 1, 3), lines("orders", 4, 6)]
    assert room.queued(lane) == lines("orders", 1, 6)


async def test_a_generation_seals_what_an_older_one_began(room: Room):
    lane = await room.subscribe("billing", "orders", max=10)
    await room.publish("orders", 2)
    old = room.current(lane)
    assert old
    room.start_store_anew()
    await room.publish("orders", 2, first=3)
    (sealed,) = room.ready(lane)
    assert sealed == old._replace(sequence=1)
    new = room.current(lane)
    assert new
    assert new.generation > old.generation
    assert new.lines == lines("orders", 3, 4)
    assert room.gauges("billing") == (2, 4)
    assert room.instant() == [lane]  # what is sealed does not wait for its deadline


async def test_lanes_get_just_their_own_runs(room: Room):
    """Two topics, one subscriber of both, one of each, in one flush with turns between topics."""
    both = await room.subscribe("both", "orders", "rides")
    orders = await room.subscribe("orders-only", "orders", max=2)
    rides = await room.subscribe("rides-only", "rides")
    await room.web.publish(
        request("orders", 2),
        request("rides", 3),
        request("orders", 1, first=3),
        request("nobody", 5),
        request("rides", 1, first=4),
    )
    order = [*lines("orders", 1, 2), *lines("rides", 1, 3), line("orders", 3), line("rides", 4)]
    assert room.queued(both) == order
    assert room.queued(orders) == lines("orders", 1, 3)
    assert room.queued(rides) == lines("rides", 1, 4)
    current = room.current(both)
    assert current
    assert current.runs == [(1, 6), (12, 1)]  # one run for what follows on, though topics change


async def test_parallel_lanes_share_the_events_by_their_url(room: Room):
    await room.subscribe("billing", "orders", parallelism=3, max=100)
    urls = [url_for(n, 3, nth) for nth in (0, 1) for n in (0, 1, 2)]
    await room.web.publish(request("orders", 6, urls=urls))
    assert [room.queued(room.lane("billing", n)) for n in range(3)] == [
        [line("orders", 1 + n), line("orders", 4 + n)] for n in range(3)
    ]
    assert room.gauges("billing") == (3, 6)


# Jobs that come with them


async def test_a_new_batch_schedules_its_lane_for_its_deadline(room: Room):
    lane = await room.subscribe("billing", "orders", timeout=60_000)
    await room.publish("orders")
    assert room.scheduled() == {lane: pytest.approx(60_000, abs=10_000)}
    before = room.dump()["jobs:scheduled:main"]
    await room.publish("orders", first=2)
    assert room.dump()["jobs:scheduled:main"] == before  # later events do not put it off
    assert (room.instant(), room.indexed()) == ([], {lane})


async def test_no_timeout_is_no_wait(room: Room):
    lane = await room.subscribe("billing", "orders", timeout=0)
    await room.publish("orders", 2)
    assert (room.instant(), room.scheduled(), room.indexed()) == ([lane], {}, {lane})


async def test_a_batch_that_fills_does_not_wait_for_its_deadline(room: Room):
    """Timeout one hour, max 50: one event, then 49 more."""
    lane = await room.subscribe("billing", "orders", timeout=HOUR_MS, max=50)
    await room.publish("orders")
    assert room.instant() == []
    await room.publish("orders", 49, first=2)
    assert (room.instant(), room.scheduled()) == ([lane], {})
    assert (await room.take()).events == 50


async def test_a_lane_that_rests_is_not_hastened_by_a_full_batch(room: Room):
    lane = await room.subscribe("billing", "orders", timeout=0, max=2)
    await room.publish("orders", 2)
    await room.fail(await room.take(), 60_000)
    await room.publish("orders", 4, first=3)
    assert room.instant() == []
    assert room.scheduled() == {lane: pytest.approx(60_000, abs=10_000)}


async def test_a_lane_has_one_job_however_much_comes(room: Room):
    lane = await room.subscribe("billing", "orders", timeout=0, max=2)
    for number in range(1, 6):
        await room.publish("orders", 3, first=number * 10)
    assert (room.instant(), room.scheduled(), room.pending()) == ([lane], {}, {})
