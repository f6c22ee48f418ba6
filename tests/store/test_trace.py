"""Tracing: finding an event in the log whatever stands around it, and its batches among many."""

import time

import msgspec
import pytest
from msgspec import Raw

from routemaster.event import Event, encode_events
from routemaster.store import trace
from routemaster.store.dead import Dead
from routemaster.store.trace import Attempts, Found, Trace, Where
from routemaster.uid import encode
from routemaster.worker.slots import MOST_RUNS
from tests.store.room import HOUR_MS, Room, request, settled

NOW_MS = time.time_ns() // 1_000_000
URL = "https://example.com/1"


def uid(at_ms: int, number: int = 0) -> str:
    return encode(at_ms, 8) + encode(number, 12)


async def log_block(room: Room, at_ms: int, made_ms: list[int], topic: str = "orders", **more) -> list[str]:
    """One block of the log, with an event for each time at which one was made."""
    uids = [uid(ms, at_ms * 1000 + n) for n, ms in enumerate(made_ms)]
    asked = request(topic, len(uids), **more)
    asked.lines = encode_events(topic, [Event("create", URL) for _ in uids], uids, at_ms, None)
    asked.uids = uids
    await room.web.send((await room.web.flush(asked))._replace(received_at=at_ms))
    return uids


async def found(room: Room, id: str) -> Found | None:
    return (await Trace(room.link, room.ns).find(id)).found


async def must_find(room: Room, id: str) -> Found:
    there = await found(room, id)
    assert there is not None
    return there


# In the log


@pytest.mark.parametrize("blocks", [1, 2, 3, 7, 64, 301])
async def test_every_event_of_a_log_is_found(room: Room, blocks: int):
    uids: list[str] = []
    for n in range(blocks):
        at_ms = NOW_MS + n * 1_000
        uids += await log_block(room, at_ms, [at_ms - 3] * (1 + n % 3))
    for n in {0, 1, len(uids) // 2, len(uids) - 1} & {*range(len(uids))}:
        there = await must_find(room, uids[n])
        assert (there.seq, msgspec.json.decode(there.line)["id"]) == (n + 1, uids[n])
    assert await found(room, uid(NOW_MS, 1)) is None


async def test_side_columns_are_those_of_the_event(room: Room):
    first = request("orders", 3, traceparent="00-aa-bb-01")
    second = request("rides", 2, client="taxi", environment="eu")
    uids = [uid(NOW_MS, n) for n in range(5)]
    for asked, ids in ((first, uids[:3]), (second, uids[3:])):
        asked.lines = encode_events(asked.topic, [Event("create", URL) for _ in ids], ids, NOW_MS, None)
    await room.web.send((await room.web.flush(first, second))._replace(received_at=NOW_MS))
    sides = []
    for id in uids:
        there = await must_find(room, id)
        sides.append((there.publisher, there.topic, there.environment, there.traceparent))
    assert sides == [("shop", "orders", "default", "00-aa-bb-01")] * 3 + [("taxi", "rides", "eu", None)] * 2


@pytest.mark.parametrize(
    "data",
    [
        '{"id":"%s"}',
        '{"of":{"id":"%s"}}',
        '{"of":[{"a":1,"id":"%s"},{}],"id":"%s"}',
        '{"text":"\\"id\\":\\"%s\\"}"}',
        '{"id":"%s","text":"{\\"}"}',
    ],
)
async def test_an_event_that_speaks_of_another_is_not_taken_for_it(room: Room, data: str):
    wanted = uid(NOW_MS, 2)
    asked = request("orders", 3)
    about = Raw(data.replace("%s", wanted).encode())
    events = [
        Event("create", URL, data=about),
        Event("create", URL, id="k"),
        Event("create", URL, data=about),
    ]
    asked.uids = [uid(NOW_MS, 1), wanted, uid(NOW_MS, 3)]
    asked.lines = encode_events("orders", events, asked.uids, NOW_MS, "00-aa-bb-01")
    await room.web.send((await room.web.flush(asked))._replace(received_at=NOW_MS))
    for n, id in enumerate(asked.uids):
        there = await must_find(room, id)
        assert (there.seq, there.line) == (n + 1, asked.lines[n])


@pytest.mark.parametrize("later_ms", [-9_000, -2_000, -251, -1, 0, 1_999, 2_001, 60_000, 299_000])
async def test_clocks_may_differ_and_a_wide_request_takes_its_time(room: Room, later_ms: int):
    """The block says another time than the UID."""
    for n in range(20):
        await log_block(room, NOW_MS - 20_000 + n * 1_000, [NOW_MS - 20_000 + n * 1_000])
    (id,) = await log_block(room, NOW_MS + later_ms, [NOW_MS])
    await log_block(room, NOW_MS + 400_000, [NOW_MS + 400_000])
    assert (await must_find(room, id)).received_at == NOW_MS + later_ms


async def test_hosts_whose_clocks_differ_may_take_turns(room: Room):
    uids: list[str] = []
    for n in range(200):
        at_ms = NOW_MS + n * 100 + (3_000 if n % 2 else 0)  # two web processes
        uids += await log_block(room, at_ms, [at_ms])
    for n, id in enumerate(uids):
        assert (await must_find(room, id)).seq == n + 1


async def test_what_was_trimmed_is_not_found_and_what_is_left_is(room: Room):
    uids: list[str] = []
    for n in range(50):
        uids += await log_block(room, NOW_MS + n * 1_000, [NOW_MS + n * 1_000])
    room.redis.xtrim(room.key("log:events"), minid="31-0", approximate=False)
    assert [await found(room, id) for id in uids[:30:7]] == [None] * 5
    assert [(await must_find(room, id)).seq for id in uids[30::7]] == [31, 38, 45]


async def test_numbers_that_are_given_again_belong_to_another_generation(room: Room):
    (first,) = await log_block(room, NOW_MS, [NOW_MS])
    room.start_store_anew()
    (second,) = await log_block(room, NOW_MS + 1, [NOW_MS + 1])
    there, then = await must_find(room, first), await must_find(room, second)
    assert there.generation < then.generation


async def test_a_search_is_bounded_and_says_so(room: Room, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(trace, "MOST_BYTES", 20_000)
    for n in range(100):
        await log_block(room, NOW_MS + n, [NOW_MS] * 5)
    search = await Trace(room.link, room.ns).find(uid(NOW_MS, 1))
    assert (search.found, search.is_whole) == (None, False)


async def test_no_step_reads_more_than_its_share(room: Room):
    """A step of the search ends at the block that fills it."""
    for n in range(40):
        await log_block(room, NOW_MS + n, [NOW_MS] * 10)
    size = len(room.blocks()[0][1]["e"])
    for most_bytes, blocks in ((1, 1), (3 * size, 3), (3 * size + 1, 4)):
        reply = await room.link.run(
            trace._FIND, room.ns, uid(NOW_MS, 1), 1, NOW_MS + HOUR_MS, 256, most_bytes
        )
        assert reply == [b"on", blocks * size, str(blocks * 10 + 1).encode()]
    reply = await room.link.run(trace._FIND, room.ns, uid(NOW_MS, 1), 1, NOW_MS + HOUR_MS, 7, 10**9)
    assert reply == [b"on", 7 * size, b"71"]
    least, most = await room.link.run(trace._SEEK, room.ns, "events", NOW_MS + 30, "", "", 1)
    assert least < most  # one block was read, and the next step goes on from here
    assert least in (1, 211)


# In queues


async def traced(room: Room, seq: int, *subscribers: str, url: str = URL) -> dict[str, Where]:
    generation = room.blocks()[-1][1]["g"]
    there = Found(generation, seq, 0, "shop", "event", "orders", "default", None, b"")
    return await Trace(room.link, room.ns).locate(there, url, list(subscribers))


async def test_an_event_is_located_among_many_batches(room: Room):
    lane = await room.subscribe("billing", "orders", max=3)
    for n in range(40):
        await room.publish("orders", 5, first=n * 5)
        await room.publish("rides", 2)
    batches = room.ready(lane)
    current = room.current(lane)
    holders = {
        seq: batch.bid
        for batch in [*batches, *([current] if current else [])]
        for first, size in batch.runs
        for seq in range(first, first + size)
    }
    assert len(holders) == 200
    for seq in range(1, 281):
        expected = {"billing": Where("queued", holders[seq])} if seq in holders else {}
        assert await traced(room, seq, "billing") == expected, seq


async def test_the_batch_that_is_being_sent_is_in_the_air(room: Room):
    await room.subscribe("billing", "orders", max=1, timeout=0)
    await room.publish("orders", 3)
    delivery = await room.take()
    assert await traced(room, 1, "billing") == {"billing": Where("in the air", delivery.batch)}
    assert (await traced(room, 2, "billing"))["billing"].state == "queued"
    await room.deliver(delivery)
    assert await traced(room, 1, "billing") == {}


async def test_dead_letters_that_were_queued_again_do_not_hide_others(room: Room):
    lane = await room.subscribe("billing", "orders", max=1, timeout=0, max_attempts=1)
    await room.publish("orders", 40)
    dead = []
    for _ in range(20):
        delivery = await room.take()
        await room.fail(delivery)
        dead.append(delivery.batch)
    for seq, batch in enumerate(dead, 1):
        assert await traced(room, seq, "billing") == {"billing": Where("dead", batch)}
    assert await Dead(room.link, room.ns).retry("billing", None) == 20
    await room.publish("orders", 25, first=41)
    places = {batch.runs[0][0]: batch.bid for batch in room.ready(lane)}
    assert len(places) == 65
    for seq in range(21, 66):
        assert await traced(room, seq, "billing") == {"billing": Where("queued", places[seq])}, seq
    assert await Trace(room.link, room.ns).states_of([*dead, "A" * 20]) == dict.fromkeys(dead, "queued")


async def test_many_subscribers_are_located_in_steps(room: Room, monkeypatch: pytest.MonkeyPatch):
    names = [f"s{n}" for n in range(60)]
    for name in names:
        await room.subscribe(name, "orders")
    await room.publish("orders", 3)
    whole = await traced(room, 2, *names, "nobody")
    assert {*whole} == {*names}
    monkeypatch.setattr(trace, "STEP_BYTES", 1)  # one subscriber in each call
    assert await traced(room, 2, *names, "nobody") == whole


async def test_batches_of_an_ended_subscription_are_not_queued(room: Room):
    lane = await room.subscribe("billing", "orders", max=1)
    await room.publish("orders")
    (batch,) = room.ready(lane)
    assert await Trace(room.link, room.ns).states_of([batch.bid]) == {batch.bid: "queued"}
    await room.registry.unsubscribe("billing")
    assert await Trace(room.link, room.ns).states_of([batch.bid]) == {}


async def test_what_autodrop_took_is_known(room: Room, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(trace, "STEP_DROPS", 7)
    for name in ("billing", "audit"):
        await room.subscribe(name, "orders", max=2)
    await room.subscribe("other", "rides", max=2)
    for n in range(20):
        await room.publish("orders", 1, first=n)
        await room.publish("rides", 1)
    await room.drop(24)
    generation = room.blocks()[-1][1]["g"]
    gone = {
        (row[0].split("#")[0], seq)
        for row in map(msgspec.json.decode, room.items("drops"))
        for first, size in zip(row[3][::2], row[3][1::2], strict=True)
        for seq in range(first, first + size)
    }
    assert gone
    for seq in range(1, 41):
        there = Found(generation, seq, 0, "shop", "event", "orders", "default", None, b"")
        told = await Trace(room.link, room.ns).dropped_for(there)
        assert told == {name for name, number in gone if number == seq}, seq
    other = Found("A" * 20, 1, 0, "shop", "event", "orders", "default", None, b"")
    assert await Trace(room.link, room.ns).dropped_for(other) == set()


# Attempts


async def attempts_of(room: Room, seq: int, received_at: int = 0) -> Attempts:
    there = Found("G", seq, received_at, "shop", "event", "orders", "default", None, b"")
    return await Trace(room.link, room.ns).attempts(there)


async def record(room: Room, batch: str, first: int, last: int, runs: list[int], **more) -> None:
    """A delivery whose record says this."""
    told = {"batch": batch, "subscriber": "billing", "generation": "G", "first": first, "last": last}
    delivery = await room.take()
    line = msgspec.json.encode({**told, "runs": runs, "attempt": 1, "status": "delivered", **more})
    await room.settle(settled(delivery, record=line))


async def test_attempts_are_matched_by_the_events_of_their_batch(room: Room):
    await room.subscribe("billing", "orders", max=1, timeout=0)
    await room.publish("orders", 5)
    await record(room, "whole", 5, 9, [])
    await record(room, "holes", 5, 9, [5, 1, 8, 2])
    await record(room, "other generation", 5, 9, [], generation="H")
    await record(room, "later", 10, 12, [])
    await room.deliver(await room.take())  # a record that says nothing
    names = {seq: [row.batch for row in (await attempts_of(room, seq)).records] for seq in range(4, 11)}
    assert names == {
        4: [],
        5: ["whole", "holes"],
        6: ["whole"],
        7: ["whole"],
        8: ["whole", "holes"],
        9: ["whole", "holes"],
        10: ["later"],
    }


async def test_a_batch_of_very_many_runs_is_matched_as_far_as_it_is_told(room: Room):
    await room.subscribe("billing", "orders", max=1, timeout=0)
    await room.publish("orders")
    await record(room, "many", 1, 5_000, [n for first in range(1, 2 * MOST_RUNS, 2) for n in (first, 1)])
    seen = {seq: bool((await attempts_of(room, seq)).records) for seq in (1, 2, 1_999, 2_000, 4_001, 5_001)}
    assert seen == {1: True, 2: False, 1_999: True, 2_000: True, 4_001: True, 5_001: False}


async def test_the_search_for_attempts_says_what_it_did_not_look_at(
    room: Room, monkeypatch: pytest.MonkeyPatch
):
    await room.subscribe("billing", "orders", max=1, timeout=0)
    await room.publish("orders", 60)
    for n in range(60):
        await record(room, f"b{n}", 1, 1, [])
    whole = await attempts_of(room, 1)
    assert (len(whole.records), whole.since, whole.until) == (60, None, None)
    times = [int(block["r"]) for _, block in room.blocks("deliveries")]
    monkeypatch.setattr(trace, "MOST_ATTEMPT_BYTES", 1)
    cut = await attempts_of(room, 1)
    assert (len(cut.records), cut.until) == (trace.ATTEMPT_BLOCKS, times[trace.ATTEMPT_BLOCKS - 1])
    monkeypatch.undo()
    room.redis.xtrim(room.key("log:deliveries"), minid="31-0", approximate=False)
    late = await attempts_of(room, 1)
    assert (len(late.records), late.since, late.until) == (30, times[30], None)
    assert (await attempts_of(room, 1, received_at=times[59] + 1)).since is None


async def test_an_old_record_has_the_time_of_its_block(room: Room):
    await room.subscribe("billing", "orders", max=1, timeout=0)
    await room.publish("orders", 2)
    await record(room, "old", 1, 1, [])
    await record(room, "new", 1, 1, [], at=77)
    ((_, block), _) = room.blocks("deliveries")
    assert [row.at for row in (await attempts_of(room, 1)).records] == [int(block["r"]), 77]
