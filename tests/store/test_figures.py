"""Figures: counted where things happen, read in steps."""

import asyncio

import pytest

from routemaster.store import figures
from routemaster.store.figures import Histogram, Reader
from routemaster.web.flush import Part
from tests.store.room import HOUR_MS, Room, request, settled

SLOTS = 31


def counts(**at: int) -> tuple[int, ...]:
    """`p3=2`: two that were at most 2^3."""
    return tuple(at.get(f"p{power}", 0) for power in range(SLOTS))


async def histograms(room: Room) -> dict[str, Histogram]:
    return (await Reader(room.link, room.ns, 0).read()).histograms


# Histograms


@pytest.mark.parametrize(
    ("ms", "power"),
    [(0, 0), (1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (1_024, 10), (1_025, 11), (2**29 + 1, 30), (2**40, 30)],
)
async def test_an_attempt_falls_into_the_least_bucket_that_holds_it(room: Room, ms: int, power: int):
    await room.subscribe("billing", "orders", timeout=0)
    await room.publish("orders")
    await room.settle(settled(await room.take())._replace(ms=ms))
    assert (await histograms(room))["attempt_ms"] == Histogram(ms, counts(**{f"p{power}": 1}))


async def test_latency_runs_from_the_first_event_to_the_acknowledgement(room: Room):
    await room.subscribe("billing", "orders", timeout=HOUR_MS)
    await room.publish("orders")
    room.let_pass(HOUR_MS)
    await room.fail(await room.take(), 0)
    assert sum((await histograms(room))["latency_ms"].counts) == 0
    room.let_pass(HOUR_MS)
    await room.deliver(await room.take())
    told = (await histograms(room))["latency_ms"]
    assert told.counts == counts(p23=1)
    assert told.sum == pytest.approx(2 * HOUR_MS, abs=20_000)
    assert sum((await histograms(room))["attempt_ms"].counts) == 2


async def test_deliveries_that_are_settled_together_all_count(room: Room):
    for name in ("a", "b", "c"):
        await room.subscribe(name, "orders", timeout=0)
    await room.publish("orders")
    one, two, three = await room.acquire("w.0", "w.1", "w.2")
    await room.settle(
        settled(one)._replace(ms=4),
        settled(two, delay_ms=HOUR_MS)._replace(ms=4),
        settled(three)._replace(ms=9),
    )
    told = await histograms(room)
    assert told["attempt_ms"] == Histogram(17, counts(p2=2, p4=1))
    assert sum(told["latency_ms"].counts) == 2
    await room.settle(settled(one)._replace(ms=4))  # again: it changes nothing
    assert (await histograms(room))["attempt_ms"] == told["attempt_ms"]


async def test_a_flush_tells_of_those_before_it(room: Room):
    await room.publish("orders", 5)
    parts = [Part(request("orders", 2), 0, 2)]
    flush = room.web.flusher._build(parts, 2, [5, 900, 100, 1_000, 2, 40_000])
    await room.web.send(flush)
    told = await histograms(room)
    assert told["flush_events"] == Histogram(107, counts(p1=1, p3=1, p7=1))
    assert told["flush_us"] == Histogram(41_900, counts(p10=2, p16=1))
    await room.web.send(flush)  # the reply was lost
    assert await histograms(room) == told
    next(room.web._numbers)
    await room.publish("orders")
    assert await histograms(room) == told  # it has nothing to tell


def test_what_came_since():
    earlier, now = Histogram(10, (1, 0, 2)), Histogram(15, (1, 3, 2))
    assert now.since(earlier) == Histogram(5, (0, 3, 0))
    assert earlier.since(now) is None  # the store has gone back


async def test_the_last_report_is_remembered_in_the_store(room: Room):
    await room.subscribe("billing", "orders", timeout=0, max=1)
    await room.publish("orders", 2)
    await room.deliver(await room.take())
    reader, other = Reader(room.link, room.ns, 0), Reader(room.link, room.ns, 0)
    first = (await reader.read()).histograms
    assert sum(sum(told.counts) for told in (await reader.exchange_histograms(first)).values()) == 0
    await room.settle(settled(await room.take())._replace(ms=3))
    second = (await other.read()).histograms
    assert await other.exchange_histograms(second) == first
    assert second["attempt_ms"].since(first["attempt_ms"]) == Histogram(3, counts(p2=1))


# Steps


async def test_however_it_is_cut_into_steps_everything_is_read(room: Room, monkeypatch: pytest.MonkeyPatch):
    for n in range(30):
        await room.subscribe(f"s{n:02}", "orders", parallelism=1 + n % 4, client="shop--0123456789ab")
    for n in range(15):
        await room.publish(f"topic_{chr(97 + n)}", n + 1)
    await room.publish("orders", 4)
    whole = await Reader(room.link, room.ns, 0).read()
    assert [row.id for row in whole.subscribers] == [f"s{n:02}" for n in range(30)]
    assert {(row.queued_events, row.routed) for row in whole.subscribers} == {(4, 4)}
    assert whole.accepted == {"orders": 4} | {f"topic_{chr(97 + n)}": n + 1 for n in range(15)}
    for step, lanes in ((1, 500), (7, 500), (200, 1), (200, 9)):
        monkeypatch.setattr(figures, "STEP", step)
        monkeypatch.setattr(figures, "LANES", lanes)
        cut = await Reader(room.link, room.ns, 0).read()
        ages = [row._replace(oldest_ms=0) for row in cut.subscribers]
        assert ages == [row._replace(oldest_ms=0) for row in whole.subscribers]
        assert cut.accepted == whole.accepted


async def test_one_call_looks_at_a_bounded_number_of_lanes(room: Room):
    for n in range(10):
        await room.subscribe(f"s{n}", "orders", parallelism=10)
    names = [f"s{n}" for n in range(10)]
    for lanes, rows in ((1, 1), (10, 1), (11, 2), (35, 4), (1_000, 10)):
        reply = await room.link.run(figures._SUBSCRIBER_FIGURES, room.ns, lanes, *names)
        assert len(reply) == rows


async def test_who_goes_meanwhile_is_left_out(room: Room):
    await room.subscribe("billing", "orders")
    room.redis.sadd(room.key("subscribers"), "a ghost")
    assert [row.id for row in (await Reader(room.link, room.ns, 0).read()).subscribers] == ["billing"]


async def test_those_who_read_at_one_moment_share_it(room: Room):
    reader = Reader(room.link, room.ns, 0)
    first, second = await asyncio.gather(reader.read(), reader.read())
    assert first is second
    assert await reader.read() is not first


async def test_one_who_leaves_takes_nothing_from_the_others(room: Room):
    reader = Reader(room.link, room.ns, 0)
    leaving = asyncio.create_task(reader.read())
    staying = asyncio.create_task(reader.read())
    await asyncio.sleep(0)
    leaving.cancel()
    assert (await staying).workers == 0


# Of the bus


async def test_the_oldest_of_all_lanes_is_told(room: Room):
    await room.subscribe("billing", "orders", parallelism=4)
    await room.publish("orders")
    room.let_pass(60_000)
    await room.publish("orders", 20, first=2)
    (row,) = (await Reader(room.link, room.ns, 0).read()).subscribers
    assert row.oldest_ms == pytest.approx(60_000, abs=10_000)


async def test_jobs_are_counted_by_state(room: Room):
    for name, timeout in (("a", 0), ("b", 0), ("c", HOUR_MS)):
        await room.subscribe(name, "orders", timeout=timeout)
    await room.publish("orders")
    await room.take()
    await room.upkeep.tick("scrub", "trim")
    main, aux = (await Reader(room.link, room.ns, 0).read()).jobs
    # `b` is due, though nobody has moved it to the others that are ready.
    assert (main.queue, main.scheduled + main.instant, main.pending) == ("main", 2, 1)
    assert aux == ("aux", 0, 2, 0)


async def test_due_jobs_are_those_that_are_ready_or_soon_will_be(room: Room):
    for name, timeout in (("a", 0), ("b", 60_000), ("c", HOUR_MS)):
        await room.subscribe(name, "orders", timeout=timeout)
    await room.publish("orders")
    await room.upkeep.tick("scrub")
    reader = Reader(room.link, room.ns, 0)
    assert [await reader.due_jobs(ms) for ms in (0, 59_000, 61_000, 2 * HOUR_MS)] == [2, 2, 3, 4]


async def test_workers_that_were_silent_for_long_do_not_count(room: Room):
    await room.deliveries.beat("old")
    room.let_pass(16_000)
    await room.deliveries.beat("new")
    assert (await Reader(room.link, room.ns, 0).read()).workers == 1


async def test_the_limit_of_memory_is_the_settings_or_the_stores(room: Room):
    stores = (await Reader(room.link, room.ns, 0).read()).memory_max
    assert stores == int(room.redis.config_get("maxmemory")["maxmemory"])
    assert (await Reader(room.link, room.ns, 12_345).read()).memory_max == 12_345
