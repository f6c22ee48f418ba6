"""Logs: blocks, dense sequence numbers, generations, and what leaves them."""

import os
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest

from routemaster.store.link import Link
from routemaster.store.publish import Limits
from routemaster.uid import ALPHABET, is_uid
from tests.bus import running_store
from tests.store.room import HOUR_MS, LIMITS, Room, lines, request

# Blocks


async def test_a_block_is_written_as_documented(room: Room):
    await room.web.publish(
        request("orders", 2, environment="eu", traceparent="00-aa-bb-01"),
        request("rides", 1, client="taxi"),
        request("orders", 1, environment="eu", first=3),
    )
    ((id, block),) = room.blocks()
    assert id == "4-0"
    assert list(block) == ["g", "f", "n", "r", "b", "c", "s", "e"]
    assert is_uid(block["g"])
    assert (block["f"], block["n"]) == ("1", "4")
    assert msgspec.json.decode(block["c"]) == {"orders": 3, "rides": 1}
    assert msgspec.json.decode(block["s"]) == [
        [2, "shop", "event", "orders", "eu", "00-aa-bb-01"],
        [1, "taxi", "event", "rides", "default", None],
        [1, "shop", "event", "orders", "eu", None],
    ]
    texts = [*lines("orders", 1, 2), *lines("rides", 1, 1), *lines("orders", 3, 3)]
    assert block["e"].encode() == b",\n".join(texts)
    assert len(msgspec.json.decode(b"[" + block["e"].encode() + b"]")) == 4
    assert int(block["b"]) == sum(len(block[part]) for part in "cse") + 100
    assert room.redis.get(room.key("log:events:bytes")) == block["b"].encode()


async def test_the_time_of_a_block_is_the_web_processs(room: Room):
    flush = await room.web.flush(request("orders"))
    await room.web.send(flush._replace(received_at=1_234_567_890_123))
    assert room.blocks()[0][1]["r"] == "1234567890123"


async def test_sequence_numbers_are_dense_and_ids_are_the_last_of_each_block(room: Room):
    sizes = [1, 5, 2, 9, 1]
    for n, size in enumerate(sizes):
        await room.publish("orders", size, first=10 * n)
    blocks = room.blocks()
    assert [id for id, _ in blocks] == ["1-0", "6-0", "8-0", "17-0", "18-0"]
    assert [int(block["f"]) for _, block in blocks] == [1, 2, 7, 9, 18]
    assert [int(block["n"]) for _, block in blocks] == sizes
    assert room.redis.get(room.key("log:events:seq")) == b"18"
    written = [int(block["b"]) for _, block in blocks]
    assert written == sorted(set(written))


async def test_a_flush_without_new_events_leaves_no_block(room: Room):
    await room.publish("orders", keys=["a"])
    await room.publish("orders", keys=["a"], first=2)
    assert len(room.blocks()) == 1
    assert room.redis.get(room.key("log:events:seq")) == b"1"


# What leaves the log


def size_of(room: Room, log: str = "events") -> int:
    taken = room.redis.get(room.key(f"log:{log}:trimmed")) or 0
    return int(room.redis.get(room.key(f"log:{log}:bytes")) or 0) - int(taken)


def kept_bytes(room: Room, log: str = "events") -> int:
    return sum(sum(len(block[part]) for part in "cse") + 100 for _, block in room.blocks(log))


async def test_past_the_cap_the_oldest_blocks_go_and_the_gap_grows(room: Room):
    await room.publish("orders", 2)
    block = size_of(room)
    capped = Limits(LIMITS.window_ms, LIMITS.max_keys, 3 * block + 30)
    for n in range(1, 3):
        await room.web.publish(request("orders", 2, first=1 + 2 * n), limits=capped)
    assert room.gaps() == []
    generation = room.blocks()[0][1]["g"]
    for n in range(3, 6):
        await room.web.publish(request("orders", 2, first=1 + 2 * n), limits=capped)
        gone = 2 * (n - 2)
        assert room.gaps() == [[generation, 1, gone, "cap", {"orders": gone}]]
        assert [id for id, _ in room.blocks()] == [f"{gone + 2 * k}-0" for k in (1, 2, 3)]
        assert size_of(room) == kept_bytes(room) <= capped.max_log_bytes


async def test_a_gap_counts_its_records_by_topic(room: Room):
    await room.web.publish(request("orders", 2), request("rides", 3))
    await room.web.publish(request("rides", 1, first=4), request("users", 1))
    await room.web.publish(request("users", 1, first=2))
    assert await room.upkeep.trim("events", HOUR_MS, 200) == 2
    generation = room.blocks()[0][1]["g"]
    assert room.gaps() == [[generation, 1, 7, "cap", {"orders": 2, "rides": 4, "users": 1}]]


async def test_old_blocks_go_by_age(room: Room):
    for age_ms in (5000, 4000, 1000):
        flush = await room.web.flush(request("orders"))
        await room.web.send(flush._replace(received_at=flush.received_at - age_ms * 1000))
    assert await room.upkeep.trim("events", 6_000_000, 2**30) == 0
    assert await room.upkeep.trim("events", 2_000_000, 2**30) == 2
    assert [id for id, _ in room.blocks()] == ["3-0"]
    generation = room.blocks()[0][1]["g"]
    assert room.gaps() == [[generation, 1, 2, "age", {"orders": 2}]]
    assert size_of(room) == kept_bytes(room)
    assert await room.upkeep.trim("events", 2_000_000, 2**30) == 0


async def test_a_gap_that_goes_on_for_another_reason_stays_one(room: Room):
    for age_ms in (5_000_000, 0, 0):
        flush = await room.web.flush(request("orders"))
        await room.web.send(flush._replace(received_at=flush.received_at - age_ms))
    assert await room.upkeep.trim("events", 1_000_000, size_of(room) - 250) == 2
    assert [(gap[1], gap[2], gap[3]) for gap in room.gaps()] == [(1, 2, "cap")]


async def test_a_gap_does_not_go_on_into_another_generation(room: Room):
    await room.publish("orders", 2)
    room.start_store_anew()
    await room.publish("orders", 3)
    assert await room.upkeep.trim("events", HOUR_MS, 0) == 2
    old, new = (entry[:20] for entry in room.items("log:events:generations"))
    assert [gap[:4] for gap in room.gaps()] == [[old, 1, 2, "cap"], [new, 3, 5, "cap"]]


async def test_a_call_trims_so_many_blocks_at_most(room: Room):
    for n in range(20):
        await room.publish("orders", first=n)
    assert await room.upkeep.trim("events", HOUR_MS, 0) == 16
    assert await room.upkeep.trim("events", HOUR_MS, 0) == 4
    assert await room.upkeep.trim("events", HOUR_MS, 0) == 0
    assert room.blocks() == []
    assert size_of(room) == 0
    assert [gap[1:3] for gap in room.gaps()] == [[1, 20]]


async def test_an_emptied_log_goes_on_counting(room: Room):
    await room.publish("orders", 3)
    await room.upkeep.trim("events", HOUR_MS, 0)
    await room.publish("orders", 2, first=4)
    assert [(id, block["f"]) for id, block in room.blocks()] == [("5-0", "4")]
    assert size_of(room) == kept_bytes(room)


async def test_trimming_nothing_changes_nothing(room: Room):
    await room.publish("orders", 3)
    before = room.dump()
    assert await room.upkeep.trim("events", HOUR_MS, 2**30) == 0
    assert await room.upkeep.trim("deliveries", HOUR_MS, 0) == 0
    assert room.dump() == before


async def test_queued_events_outlive_their_block(room: Room):
    lane = await room.subscribe("billing", "orders")
    await room.publish("orders", 3)
    await room.upkeep.trim("events", HOUR_MS, 0)
    assert room.queued(lane) == lines("orders", 1, 3)


async def test_the_log_of_deliveries_is_capped_and_trimmed_alike(room: Room):
    await room.subscribe("billing", "orders", timeout=0, max=1)
    await room.publish("orders", 5)
    for _ in range(5):
        await room.deliver(await room.take())
    assert await room.upkeep.trim("deliveries", HOUR_MS, size_of(room, "deliveries") // 2) == 3
    assert [id for id, _ in room.blocks("deliveries")] == ["4-0", "5-0"]
    generation = room.blocks("deliveries")[0][1]["g"]
    assert room.gaps("deliveries") == [[generation, 1, 3, "cap", {}]]
    assert len(room.blocks("events")) == 1


# Generations


async def test_a_generation_begins_with_the_first_block(room: Room):
    await room.publish("orders", 2)
    await room.publish("orders", 2, first=3)
    run = room.redis.info("server")["run_id"]
    generation = room.blocks()[0][1]["g"]
    assert room.items("log:events:generations") == [f"{generation} 1 {run}"]
    assert {block["g"] for _, block in room.blocks()} == {generation}


async def test_another_start_of_the_store_begins_another_generation(room: Room):
    await room.publish("orders", 2)
    room.start_store_anew()
    await room.publish("orders", 3, first=3)
    await room.publish("orders", 1, first=6)
    old, new = room.items("log:events:generations")
    run = room.redis.info("server")["run_id"]
    assert new.split(" ")[1:] == ["3", run]
    assert old[:20] < new[:20]
    assert [block["g"] for _, block in room.blocks()] == [old[:20], new[:20], new[:20]]


async def test_logs_have_generations_of_their_own(room: Room):
    await room.subscribe("billing", "orders", timeout=0, max=1)
    await room.publish("orders", 2)
    await room.deliver(await room.take())
    room.start_store_anew("deliveries")
    await room.deliver(await room.take())
    assert len(room.items("log:deliveries:generations")) == 2
    assert len(room.items("log:events:generations")) == 1
    assert room.items("log:deliveries:generations")[1].split(" ")[1] == "2"


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        ("zA" + "-" * 18, "zA" + "-" * 17 + "0"),
        ("zA" + "-" * 17 + "z", "zA" + "-" * 16 + "0-"),
        ("zA" + "z" * 18, "zB" + "-" * 18),
        ("z" * 9 + "_" + "z" * 10, "z" * 9 + "a" + "-" * 10),
        ("z" * 9 + "Z" + "z" * 10, "z" * 9 + "_" + "-" * 10),
        ("z" * 9 + "9" + "z" * 10, "z" * 9 + "A" + "-" * 10),
    ],
)
async def test_a_process_whose_clock_is_behind_begins_a_later_generation_all_the_same(
    room: Room, last: str, expected: str
):
    assert is_uid(last)
    assert last < expected
    room.redis.rpush(room.key("log:events:generations"), f"{last} 1 {'0' * 40}")
    await room.publish("orders")
    assert room.blocks()[0][1]["g"] == expected
    assert room.items("log:events:generations")[1].startswith(f"{expected} 1 ")


async def test_a_candidate_that_is_the_last_one_again_is_not_used_twice(room: Room):
    flush = await room.web.flush(request("orders"))
    room.redis.rpush(room.key("log:events:generations"), f"{flush.generation} 1 {'0' * 40}")
    await room.web.send(flush)
    assert room.blocks()[0][1]["g"] > flush.generation


@pytest.fixture
def dictionary_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine where text is sorted as in a dictionary: `a` before `Z`, unlike in ASCII."""
    made = shutil.which("localedef") and subprocess.run(
        ["localedef", "-i", "en_US", "-f", "UTF-8", tmp_path / "en_US.UTF-8"],
        capture_output=True,
        check=False,
    )
    if not made or not (tmp_path / "en_US.UTF-8").is_dir():
        pytest.skip("no locale can be made here")
    monkeypatch.setenv("LOCPATH", str(tmp_path))
    monkeypatch.setenv("LC_ALL", "en_US.UTF-8")


@pytest.mark.usefixtures("dictionary_order")
async def test_generations_rise_wherever_the_store_runs():
    with running_store() as own:
        assert own.redis.eval("return tostring('a' < 'Z')", 0) == b"true", os.environ["LOCPATH"]
        link = Link(own.url)
        link.open()
        room = Room(link, own.redis, "ns:")
        last = "a" + "-" * 19
        room.redis.rpush(room.key("log:events:generations"), f"{last} 1 {'0' * 40}")
        flush = await room.web.flush(request("orders"))
        await room.web.send(flush._replace(generation="Z" * 20))  # earlier: its clock is behind
        await link.close()
        assert room.blocks()[0][1]["g"] > last


def test_the_alphabet_is_in_ascii_order():
    assert list(ALPHABET) == sorted(ALPHABET)
