"""Idempotency keys in the store: a repeated event is not stored again, and keys are kept for a while."""

import msgspec

from routemaster.store.publish import Limits, Stored
from tests.store.room import HOUR_MS, LIMITS, Room, line, request


async def test_a_repeated_event_is_answered_with_its_uid_and_stored_once(room: Room):
    lane = await room.subscribe("billing", "orders")
    first = request("orders", keys=["a"])
    assert await room.web.publish(first) == Stored({})
    before = room.dump()
    again = request("orders", keys=["a"], first=2)
    assert await room.web.publish(again) == Stored({0: first.uids[0]})
    after = room.dump()
    changed = {name for name in before | after if before.get(name) != after.get(name)}
    assert {name.split(":")[0] for name in changed} == {"flush"}  # only the ledger
    assert room.queued(lane) == [line("orders", 1)]


async def test_repeated_events_are_left_out_and_the_rest_is_stored(room: Room):
    lane = await room.subscribe("billing", "orders")
    other = await room.subscribe("audit", "rides")
    await room.web.publish(request("orders", 3, keys=["a", "b", "c"]))
    answer = await room.web.publish(
        request("orders", 4, keys=["b", None, "d", "c"], first=10),
        request("rides", 2, keys=["a", None], client="shop", prints="fprint01", first=20),
        request("orders", 2, keys=["e", "a"], first=30, traceparent="00-aa-bb-01"),
    )
    # Scoped by whoever makes the fields: here "a" of rides is the same field as "a" of orders.
    assert answer == Stored(
        {
            0: "---orders00000000002",
            3: "---orders00000000003",
            4: "---orders00000000001",
            7: "---orders00000000001",
        }
    )
    stored = [line("orders", n) for n in (1, 2, 3, 11, 12, 30)]
    assert room.queued(lane) == stored
    assert room.queued(other) == [line("rides", 21)]
    _, block = room.blocks()[-1]
    assert block["e"].encode().split(b",\n") == [*stored[3:5], line("rides", 21), stored[5]]
    assert msgspec.json.decode(block["c"]) == {"orders": 3, "rides": 1}
    assert msgspec.json.decode(block["s"]) == [
        [2, "shop", "event", "orders", "default", None],
        [1, "shop", "event", "rides", "default", None],
        [1, "shop", "event", "orders", "default", "00-aa-bb-01"],
    ]
    assert (block["f"], block["n"]) == ("4", "4")
    assert room.fields("topic:orders")["counter"] == "6"
    assert room.fields("topic:orders")["last_event"].encode() == line("orders", 30)
    assert room.fields("topic:rides")["counter"] == "1"
    assert room.fields("batches:gauges:event") == {"billing": "6", "audit": "1"}


async def test_runs_shrink_when_what_they_hold_was_there_already(room: Room):
    """Lanes of a parallel subscription get single events; each must still be the right one."""
    await room.subscribe("billing", "orders", parallelism=3)
    urls = [f"https://example.com/{n}" for n in range(12)]
    await room.web.publish(request("orders", 12, keys=[f"k{n}" for n in range(12)], urls=urls))
    before = [room.queued(room.lane("billing", n)) for n in range(3)]
    keys: list[str | None] = [f"k{n}" if n % 4 == 1 else f"new{n}" for n in range(12)]
    await room.web.publish(request("orders", 12, keys=keys, urls=urls, first=101))
    for n in range(3):
        assert before[n]
        numbers = [msgspec.json.decode(text)["n"] + 100 for text in before[n]]
        fresh = [line("orders", number) for number in numbers if (number - 101) % 4 != 1]
        assert room.queued(room.lane("billing", n)) == before[n] + fresh


async def test_a_topic_of_which_everything_was_repeated_keeps_its_last_event(room: Room):
    await room.web.publish(request("orders", 2, keys=["a", "b"]))
    await room.web.publish(request("orders", 2, keys=["a", "b"], first=10), request("rides", 1, first=20))
    assert room.fields("topic:orders")["counter"] == "2"
    assert room.fields("topic:orders")["last_event"].encode() == line("orders", 2)
    _, block = room.blocks()[-1]
    assert msgspec.json.decode(block["c"]) == {"rides": 1}


async def test_a_key_is_known_for_at_least_its_window(room: Room):
    await room.publish("orders", keys=["a"])
    room.let_pass(HOUR_MS - 60_000)
    await room.publish("orders", keys=["b"], first=2)
    room.let_pass(120_000)  # the window of "a" has passed, that of "b" has not
    await room.publish("orders", keys=["c"], first=3)  # a new bucket
    assert (await room.publish("orders", keys=["b"], first=4)).repeated == {0: "---orders00000000002"}
    assert room.counter("ids_cut_short") == 0
    assert 0 < room.redis.pttl(room.key("ids:previous")) <= 2 * HOUR_MS


async def test_a_key_is_forgotten_two_windows_later(room: Room):
    await room.publish("orders", keys=["a"])
    for number in (2, 3):
        room.let_pass(HOUR_MS)
        await room.publish("orders", keys=[f"other{number}"], first=number)
    assert await room.publish("orders", keys=["a"], first=9) == Stored({})
    assert room.fields("topic:orders")["counter"] == "4"


async def test_too_many_keys_turn_the_buckets_early_and_are_counted(room: Room):
    few = Limits(window_ms=HOUR_MS, max_keys=3, max_log_bytes=LIMITS.max_log_bytes)
    for number in range(1, 7):
        await room.web.publish(request("orders", keys=[f"k{number}"], first=number), limits=few)
    assert room.counter("ids_cut_short") == 1
    assert set(room.fields("ids:previous")) == {f"{f'k{n}':*>20}" for n in (1, 2, 3)}
    assert set(room.fields("ids:current")) == {f"{f'k{n}':*>20}" for n in (4, 5, 6)}
    await room.web.publish(request("orders", keys=["k7"], first=7), limits=few)
    assert room.counter("ids_cut_short") == 2
    assert await room.web.publish(request("orders", keys=["k6"], first=8), limits=few) == Stored(
        {0: "---orders00000000006"}
    )
    assert await room.web.publish(request("orders", keys=["k1"], first=9), limits=few) == Stored({})


async def test_events_without_keys_leave_the_buckets_alone(room: Room):
    await room.publish("orders", 3)
    assert not [name for name in room.dump() if name.startswith("ids:")]
