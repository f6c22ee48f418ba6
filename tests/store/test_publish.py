"""The flush: what it answers, that a refusal leaves no trace, and that a repeated one stores nothing."""

import msgspec
import pytest

from routemaster.store.publish import Conflict, Denied, Flush, Late, Stale, Stored
from tests.store.room import HOUR_MS, LIMITS, Room, Web, line, request

# Topics


async def test_the_first_publisher_of_a_topic_claims_it(room: Room):
    await room.publish("orders", 3, client="shop")
    assert room.members("topics") == {"orders"}
    topic = room.fields("topic:orders")
    assert (topic["publisher"], topic["counter"]) == ("shop", "3")
    assert topic["last_event"].encode() == line("orders", 3)
    assert room.counter("accepted:orders") == 3


async def test_a_claim_keeps_the_epoch(room: Room):
    await room.web.access.refresh()
    before = room.epoch()
    await room.publish("orders")
    assert room.epoch() == before


async def test_an_unclaimed_topic_is_claimed_and_keeps_its_subscribers(room: Room):
    lane = await room.subscribe("billing", "orders")
    assert room.fields("topic:orders") == {"counter": "0"}
    await room.publish("orders", 2, client="shop")
    assert room.fields("topic:orders")["publisher"] == "shop"
    assert len(room.queued(lane)) == 2


async def test_one_flush_may_claim_several_topics(room: Room):
    await room.web.publish(
        request("orders", 2, client="shop"),
        request("rides", 1, client="taxi"),
        request("orders", 3, client="shop", first=10),
    )
    assert room.members("topics") == {"orders", "rides"}
    assert room.fields("topic:orders")["counter"] == "5"
    assert room.fields("topic:orders")["last_event"].encode() == line("orders", 12)
    assert room.fields("topic:rides")["publisher"] == "taxi"
    assert room.counter("accepted:orders") == 5


async def test_the_last_event_is_the_last_one_of_the_last_flush(room: Room):
    for number in (1, 2, 3):
        await room.publish("orders", first=number)
        assert room.fields("topic:orders")["last_event"].encode() == line("orders", number)


# Refusals leave no trace


async def refuse(room: Room, flush: Flush) -> object:
    """Send a flush that must change nothing."""
    before = room.dump()
    answer = await room.web.send(flush)
    assert room.dump() == before
    return answer


@pytest.fixture
async def busy(room: Room) -> Room:
    """A room where something of everything is there already."""
    await room.subscribe("billing", "orders", "rides", max=3)
    await room.subscribe("audit", "orders", timeout=0)
    await room.publish("orders", 4, keys=["a", "b", None, "c"])
    await room.take()
    return room


async def test_a_flush_of_an_old_epoch_is_stale(busy: Room):
    flush = await busy.web.flush(request("orders", 2))
    await busy.subscribe("more", "rides")
    assert await refuse(busy, flush) == Stale()


async def test_a_flush_before_there_is_any_epoch_is_stale(room: Room):
    flush = (await room.web.flush(request("orders", 2)))._replace(epoch=b"never")
    assert await refuse(room, flush) == Stale()


async def test_a_stale_flush_may_come_again_under_its_number(busy: Room):
    flush = await busy.web.flush(request("orders", 2))
    await busy.subscribe("more", "rides")
    assert await busy.web.send(flush) == Stale()
    assert await busy.web.send(flush._replace(epoch=busy.epoch())) == Stored({})
    assert busy.fields("topic:orders")["counter"] == "6"


async def test_another_clients_topic_is_denied_and_nothing_else_is_stored(busy: Room):
    await busy.publish("rides", client="taxi")
    flush = await busy.web.flush(
        request("fresh", 1, client="thief"),
        request("orders", 2, client="thief"),
        request("rides", client="thief"),
    )
    assert await refuse(busy, flush) == Denied({"orders": "shop", "rides": "taxi"})


async def test_a_key_that_was_used_for_another_event_is_a_conflict(busy: Room):
    flush = await busy.web.flush(
        request("orders", 1, keys=["new"], first=20),
        request("orders", 3, keys=["a", None, "c"], prints="another!", first=30),
    )
    assert await refuse(busy, flush) == Conflict([1, 3])


async def test_a_flush_that_was_given_up_never_comes_in_behind_newer_ones(busy: Room):
    given_up = await busy.web.flush(request("orders", 1, first=50))
    await busy.publish("orders", first=60)
    assert await refuse(busy, given_up) == Late()


# The ledger


async def test_a_flush_that_is_in_is_answered_as_it_was_and_stored_once(busy: Room):
    flush = await busy.web.flush(request("orders", 3, keys=["a", "new", "c"], first=70))
    first = await busy.web.send(flush)
    assert first == Stored({0: "---orders00000000001", 2: "---orders00000000004"})
    assert await refuse(busy, flush) == first


async def test_a_flush_that_is_in_is_answered_before_its_epoch_is_looked_at(busy: Room):
    flush = await busy.web.flush(request("orders", 3))
    assert await busy.web.send(flush) == Stored({})
    await busy.subscribe("more", "rides")
    await busy.registry.delete_topic("orders", "")
    assert await refuse(busy, flush) == Stored({})


async def test_the_last_four_flushes_are_remembered(room: Room):
    flushes = [await room.web.flush(request("orders", first=n)) for n in range(1, 7)]
    for flush in flushes:
        assert await room.web.send(flush) == Stored({})
    assert [await refuse(room, flush) for flush in flushes[2:]] == [Stored({})] * 4
    assert [await refuse(room, flush) for flush in flushes[:2]] == [Late()] * 2
    assert room.fields("topic:orders")["counter"] == "6"


async def test_two_flushes_in_the_air_may_land_with_a_gap_in_their_numbers(room: Room):
    await room.web.send(await room.web.flush(request("orders"), number=1))
    await room.web.send(await room.web.flush(request("orders", first=2), number=3))
    assert await room.web.send(await room.web.flush(request("orders", first=3), number=2)) == Late()
    assert await room.web.send(await room.web.flush(request("orders", first=3), number=4)) == Stored({})
    assert room.fields("topic:orders")["counter"] == "3"


async def test_each_process_has_a_ledger_of_its_own(room: Room):
    others = Web(room)
    assert await room.web.publish(request("orders")) == Stored({})
    assert await others.publish(request("orders", first=2)) == Stored({})
    assert room.fields("topic:orders")["counter"] == "2"


async def test_the_ledger_goes_with_its_process(room: Room):
    await room.publish("orders")
    (key,) = [name for name in room.dump() if name.startswith("flush:")]
    assert 0 < room.redis.pttl(room.key(key)) <= HOUR_MS


# What goes with it


async def test_counters_and_gauges_say_what_was_put_in(room: Room):
    await room.subscribe("billing", "orders", "rides", max=3)
    await room.subscribe("audit", "orders", max=4)
    await room.publish("orders", 7)
    await room.publish("rides", 2, client="taxi")
    assert room.fields("batches:gauges:event") == {"billing": "9", "audit": "7"}
    assert room.fields("batches:gauges:batch") == {"billing": "3", "audit": "2"}
    assert (room.counter("routed:billing"), room.counter("routed:audit")) == (9, 7)
    assert (room.counter("accepted:orders"), room.counter("accepted:rides")) == (7, 2)


async def test_a_topic_without_subscribers_is_logged_and_counted(room: Room):
    await room.publish("orders", 5)
    assert room.fields("topic:orders")["counter"] == "5"
    assert [block["n"] for _, block in room.blocks()] == ["5"]
    assert not [name for name in room.dump() if name.startswith(("batch", "jobs", "lane"))]


@pytest.mark.parametrize(("timeout", "expected"), [(0, 0), (HOUR_MS, HOUR_MS)])
async def test_workers_are_told_when_to_look(room: Room, timeout: int, expected: int):
    await room.subscribe("billing", "orders", timeout=timeout)
    with room.redis.pubsub() as ears:
        ears.subscribe(room.key("wake:main"))
        assert ears.get_message(timeout=5)
        await room.publish("orders")
        message = ears.get_message(timeout=5)
    assert message
    assert int(message["data"]) == expected


async def test_a_full_batch_wakes_at_once(room: Room):
    await room.subscribe("billing", "orders", max=2)
    await room.publish("orders")
    with room.redis.pubsub() as ears:
        ears.subscribe(room.key("wake:main"))
        assert ears.get_message(timeout=5)
        await room.publish("orders", first=2)
        message = ears.get_message(timeout=5)
    assert message
    assert message["data"] == b"0"


async def test_a_flush_of_very_many_events_and_keys_is_one_flush(room: Room):
    """Above the limits of Lua's unpack, in keys, in runs and in batches."""
    size = 12_000
    await room.subscribe("billing", "orders", max=5)
    await room.subscribe("audit", "orders", max=10_000, parallelism=2)
    keys: list[str | None] = [f"k{n}" for n in range(size)]
    await room.web.publish(request("orders", size, keys=keys), limits=LIMITS)
    assert room.gauges("billing") == (size // 5, size)
    assert room.gauges("audit")[1] == size
    odd = [room.queued(room.lane("audit", n)) for n in (0, 1)]
    assert sorted(odd[0] + odd[1]) == sorted(line("orders", n) for n in range(1, size + 1))
    assert all(part == sorted(part, key=lambda text: msgspec.json.decode(text)["n"]) for part in odd)
    answer = await room.publish("orders", size, keys=keys, first=size + 1)
    assert len(answer.repeated) == size
    assert room.fields("topic:orders")["counter"] == str(size)
