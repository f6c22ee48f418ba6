"""Subscribing: what a subscription is, what a change of it keeps, and sets of lanes in turns."""

from collections.abc import Awaitable, Callable

import msgspec
import pytest

from routemaster.store.script import Script
from tests.store.room import HOUR_MS, Room, line, lines, lines_of, request, url_for

SUBSCRIBE = Script("subscribe")


async def test_a_subscription_is_written_in_both_directions(room: Room):
    await room.subscribe("billing", "orders", "rides", max=7, timeout=50, parallelism=2, client="acme")
    assert room.members("subscribers") == {"billing"}
    assert room.members("topics:billing") == {"orders", "rides"}
    assert room.members("subscribers:orders") == room.members("subscribers:rides") == {"billing"}
    known = room.fields("subscriber:billing")
    assert len(known.pop("incarnation")) == 12
    assert known == {
        "client": "acme",
        "callback": "https://example.com/",
        "uuid": "secret",
        "timeout": "50",
        "max_events": "7",
        "set": "1",
        "parallelism": "2",
        "health_points": "100",
    }


async def test_an_unknown_topic_is_made_unclaimed(room: Room):
    await room.subscribe("billing", "orders")
    assert room.members("topics") == {"orders"}
    assert room.fields("topic:orders") == {"counter": "0"}


async def test_a_topic_that_is_there_stays_as_it_is(room: Room):
    await room.publish("orders", 2)
    before = room.fields("topic:orders")
    await room.subscribe("billing", "orders")
    assert room.fields("topic:orders") == before


async def test_the_list_of_topics_is_replaced(room: Room):
    await room.subscribe("billing", "orders", "rides")
    await room.subscribe("billing", "rides", "users")
    assert room.members("topics:billing") == {"rides", "users"}
    assert room.members("subscribers:orders") == set()
    assert room.members("subscribers:users") == {"billing"}
    await room.subscribe("billing")
    assert room.members("topics:billing") == set()
    assert room.members("subscribers") == {"billing"}


async def test_a_change_keeps_what_is_queued_and_the_lanes(room: Room):
    lane = await room.subscribe("billing", "orders", max=2)
    await room.publish("orders", 3)
    room.redis.hset(room.key("subscriber:billing"), "health_points", 42)
    assert await room.subscribe("billing", "rides", max=5, callback="https://new.example/") == lane
    assert room.queued(lane) == lines("orders", 1, 3)
    known = room.fields("subscriber:billing")
    assert (known["callback"], known["max_events"], known["health_points"]) == (
        "https://new.example/",
        "5",
        "42",
    )


# A lower max holds for what is not sealed


@pytest.mark.parametrize("most", [1, 2, 3, 4, 5, 9, 10, 11])
async def test_a_lower_max_splits_what_is_current(room: Room, most: int):
    lane = await room.subscribe("billing", "orders", max=100)
    await room.publish("elsewhere", 4)  # so that seqs are not indexes
    for size, first in ((3, 1), (1, 4), (6, 5)):
        await room.publish("orders", size, first=first)
    before = room.current(lane)
    assert before
    await room.subscribe("billing", "orders", max=most)
    left = room.current(lane)
    assert left
    batches = [*room.ready(lane), left]
    assert [batch.events for batch in batches] == [most] * ((10 - 1) // most) + [(10 - 1) % most + 1]
    assert [len(batch.lines) for batch in batches] == [batch.events for batch in batches]
    assert [batch.sequence for batch in batches] == [*range(1, len(batches)), None]
    assert room.queued(lane) == lines("orders", 1, 10)
    seqs = [seq for batch in batches for first, size in batch.runs for seq in range(first, first + size)]
    assert seqs == list(range(5, 15))
    assert {(batch.created_at, batch.attempts, batch.generation) for batch in batches} == {
        (before.created_at, 0, before.generation)
    }
    bids = [batch.bid for batch in batches]
    assert bids == sorted(set(bids))
    assert [bid.decode() for bid in room.redis.zrange(room.key("batches:index"), 0, -1)] == bids
    assert room.gauges("billing") == (len(batches), 10)


async def test_a_split_batch_goes_at_once_and_its_rest_at_its_deadline(room: Room):
    lane = await room.subscribe("billing", "orders", max=100, timeout=60_000)
    await room.publish("orders", 5)
    assert await room.acquire("w.0") == []
    await room.subscribe("billing", "orders", max=2, timeout=60_000)
    for first in (1, 3):
        delivery = await room.take()
        assert lines_of(delivery) == lines("orders", first, first + 1)
        await room.deliver(delivery)
    assert room.scheduled() == {lane: pytest.approx(60_000, abs=10_000)}
    await room.publish("orders", first=6)
    assert lines_of(await room.take()) == lines("orders", 5, 6)


async def test_a_sealed_batch_is_not_split(room: Room):
    """One webhook-id always carries the same events."""
    lane = await room.subscribe("billing", "orders", max=4, timeout=0)
    await room.publish("orders", 2)
    in_air = await room.take()
    await room.publish("orders", 7, first=3)
    await room.subscribe("billing", "orders", max=1, timeout=0)
    assert [batch.events for batch in room.ready(lane)] == [2, 4, 1, 1]
    assert room.ready(lane)[0].bid == in_air.batch
    await room.fail(in_air, 0)
    assert lines_of(await room.take()) == lines("orders", 1, 2)


async def test_a_lower_max_holds_for_every_lane_and_over_a_change_of_parallelism(room: Room):
    await room.subscribe("billing", "orders", max=100, parallelism=2)
    await room.web.publish(request("orders", 8, urls=[url_for(n % 2, 2) for n in range(8)]))
    old = [room.lane("billing", n) for n in range(2)]
    await room.subscribe("billing", "orders", max=3, parallelism=1)
    assert [[batch.events for batch in room.ready(lane)] for lane in old] == [[3, 1], [3, 1]]
    assert room.current(old[0]) is room.current(old[1]) is None
    assert sorted(room.instant()) == old
    await room.publish("orders", first=9)
    for _ in range(2):
        for delivery in await room.acquire("w.0", "w.1", "w.2"):
            assert delivery.lane in old
            await room.deliver(delivery)
    assert room.queued(room.lane("billing")) == [line("orders", 9)]
    assert waiting(room) == set()


async def test_very_much_is_split_a_part_at_a_time(room: Room):
    """A script that makes ten thousand batches in one go would hold up everybody."""
    lane = await room.subscribe("billing", "orders", max=10_000)
    await room.publish("orders", 2500)
    room.redis.hset(room.key("clients"), "billing", "{}")
    epoch, fields = room.epoch(), msgspec.msgpack.encode(["max_events", 1])
    for done in (1000, 2000):
        answer = await room.link.run(
            SUBSCRIBE, room.ns, room.uids(), "billing", "billing", "", 1, fields, "", 0, "replace", ""
        )
        assert answer == b"split"
        assert [batch.events for batch in room.ready(lane)] == [1] * done
    assert (room.epoch(), room.fields("subscriber:billing")["max_events"]) == (epoch, "10000")
    await room.subscribe("billing", "orders", max=1)
    assert [batch.events for batch in room.ready(lane)] == [1] * 2499
    assert room.queued(lane) == lines("orders", 1, 2500)
    assert room.gauges("billing") == (2500, 2500)


async def test_as_many_calls_as_it_takes_are_made(room: Room):
    lane = await room.subscribe("billing", "orders", max=10_000)
    await room.publish("orders", 2500)
    await room.subscribe("billing", "orders", max=1)
    assert [batch.events for batch in room.ready(lane)] == [1] * 2499


# The epoch


@pytest.mark.parametrize(
    ("change", "is_new"),
    [
        ({}, False),
        ({"max": 8}, True),
        ({"timeout": 51}, True),
        ({"callback": "https://other.example/"}, True),
        ({"parallelism": 3}, True),
        ({"topics": ["rides", "orders"]}, False),
        ({"topics": ["orders"]}, True),
        ({"topics": ["orders", "rides", "users"]}, True),
    ],
    ids=str,
)
async def test_the_epoch_is_new_only_when_something_changed(room: Room, change: dict, is_new: bool):
    options = {"max": 7, "timeout": 50, "parallelism": 2}
    await room.subscribe("billing", "orders", "rides", **options)
    before, dump = room.epoch(), room.dump()
    topics = change.pop("topics", ["orders", "rides"])
    await room.subscribe("billing", *topics, **{**options, **change})
    assert (room.epoch() != before) == is_new
    assert (room.dump() != dump) == is_new


# A change of parallelism: sets of lanes, each behind the one before it

URLS = [url_for(n, 4) for n in range(4)]


async def set_of(room: Room, parallelism: int, **options: int) -> str:
    await room.subscribe(
        "billing", "orders", **{"timeout": 0, "max": 1, "parallelism": parallelism, **options}
    )
    return room.fields("subscriber:billing")["set"]


def waiting(room: Room) -> set[str]:
    """The sets whose lanes wait, by their numbers."""
    lanes = [name for name in room.dump() if name.startswith("lane:") and "waiting" in room.fields(name)]
    return {name.split(".")[1] for name in lanes}


async def test_a_change_with_nothing_queued_starts_the_new_set_at_once(room: Room):
    await set_of(room, 1)
    assert await set_of(room, 4) == "2"
    assert not [name for name in room.dump() if name.startswith(("lane:", "draining:"))]
    await room.web.publish(request("orders", 4, urls=URLS))
    assert sorted(room.instant()) == sorted(room.lane("billing", n) for n in range(4))


async def test_the_old_sets_current_batches_are_sealed_and_due(room: Room):
    lane = await room.subscribe("billing", "orders", timeout=HOUR_MS, max=10)
    await room.publish("orders", 3)
    await room.subscribe("billing", "orders", timeout=HOUR_MS, max=10, parallelism=2)
    assert room.current(lane) is None
    assert room.ready(lane)[0].sequence == 1
    assert (room.instant(), room.scheduled()) == ([lane], {})


async def test_a_lane_that_rests_is_not_hastened_by_the_change(room: Room):
    lane = await room.subscribe("billing", "orders", timeout=0, max=10)
    await room.publish("orders")
    await room.fail(await room.take(), 60_000)
    await room.publish("orders", first=2)
    await room.subscribe("billing", "orders", timeout=0, max=10, parallelism=2)
    assert room.instant() == []
    assert room.scheduled() == {lane: pytest.approx(60_000, abs=10_000)}


async def test_new_events_wait_in_the_new_set_without_a_job(room: Room):
    old = await room.subscribe("billing", "orders", timeout=0, max=1)
    await room.publish("orders", 2)
    assert await set_of(room, 4) == "2"
    await room.web.publish(request("orders", 4, first=3, urls=URLS))
    assert waiting(room) == {"2"}
    assert room.indexed() == {old}
    for expected in (1, 2):
        delivery = await room.take()
        assert lines_of(delivery) == [line("orders", expected)]
        assert room.indexed() == {old}
        await room.deliver(delivery)
    assert waiting(room) == set()
    assert room.indexed() == {room.lane("billing", n) for n in range(4)}
    assert not [name for name in room.dump() if name.startswith("draining:") or name == f"lane:{old}"]


async def test_a_released_set_waits_for_its_own_deadlines(room: Room):
    await room.subscribe("billing", "orders", timeout=60_000, max=10)
    await room.publish("orders")
    await set_of(room, 2, timeout=60_000, max=10)
    await room.web.publish(request("orders", 1, first=2, urls=[url_for(1, 2)]))
    await room.deliver(await room.take())
    assert room.scheduled() == {room.lane("billing", 1): pytest.approx(60_000, abs=10_000)}


async def deliver_it(room: Room) -> None:
    while in_air := await room.acquire("w.0"):
        await room.deliver(in_air[0])
        if len(room.indexed()) > 1:
            return


async def drop_it(room: Room) -> None:
    await room.drop(2)


EMPTY: dict[str, Callable[[Room], Awaitable[None]]] = {"delivered": deliver_it, "dropped": drop_it}


@pytest.mark.parametrize("how", EMPTY)
async def test_a_set_starts_when_the_one_before_is_empty_whatever_emptied_it(room: Room, how: str):
    await set_of(room, 1)
    await room.publish("orders", 2)
    await set_of(room, 2)
    await room.web.publish(request("orders", 2, first=3, urls=[url_for(0, 2), url_for(1, 2)]))
    await EMPTY[how](room)
    taken = await room.acquire("v.0", "v.1")
    assert sorted(lines_of(delivery)[0] for delivery in taken) == lines("orders", 3, 4)


async def test_several_changes_in_a_row_drain_set_by_set(room: Room):
    """Each set must wait for all the earlier ones, also where its own predecessor is empty."""
    first = 1
    counts = {1: 1, 2: 3, 3: 2, 4: 0, 5: 1, 6: 4}
    parallelisms = [1, 3, 2, 4, 1, 4]
    for number, parallelism in enumerate(parallelisms, 1):
        assert await set_of(room, parallelism) == str(number)
        events = counts[number]
        if events:
            urls = [url_for(n % parallelism, parallelism) for n in range(events)]
            await room.web.publish(request("orders", events, first=first, urls=urls))
            first += events
    assert waiting(room) == {"2", "3", "5", "6"}
    seen: list[tuple[str, bytes]] = []
    while in_air := await room.acquire(*[f"w.{n}" for n in range(4)]):
        sets = {delivery.lane.split(".")[1] for delivery in in_air}
        assert len(sets) == 1, "lanes of two sets in the air together"
        for delivery in in_air:
            seen.append((sets.copy().pop(), *lines_of(delivery)))
            await room.deliver(delivery)
    assert [number for number, _ in seen] == sorted(number for number, _ in seen)
    assert {text for _, text in seen} == set(lines("orders", 1, first - 1))
    assert len(seen) == first - 1
    assert not [name for name in room.dump() if name.startswith(("draining:", "batch:"))]
    assert waiting(room) == set()


async def test_a_middle_set_that_is_dropped_first_releases_nothing_early(room: Room):
    """The first set's only batch is in the air, so the drop takes the second set's."""
    await set_of(room, 1)
    await room.publish("orders")
    held = await room.take()
    await set_of(room, 2)
    await room.publish("orders", first=2)
    await set_of(room, 1)
    await room.publish("orders", first=3)
    assert await room.drop(1) == (1, 1)
    assert await room.acquire("v.0") == []
    assert waiting(room) == {"3"}
    await room.deliver(held)
    assert lines_of(await room.take("v.0")) == [line("orders", 3)]


async def test_a_failed_batch_of_the_old_set_keeps_the_new_one_waiting(room: Room):
    await set_of(room, 1)
    await room.publish("orders")
    held = await room.take()
    await set_of(room, 2)
    await room.publish("orders", first=2)
    await room.fail(held, 60_000)
    assert await room.acquire("v.0", "v.1") == []
    room.let_pass(60_000)
    (again,) = await room.acquire("v.0", "v.1")
    assert again.batch == held.batch
    await room.deliver(again)
    assert lines_of(await room.take("v.0")) == [line("orders", 2)]


async def test_a_dead_workers_batch_keeps_the_new_set_waiting(room: Room):
    await set_of(room, 1)
    await room.publish("orders")
    held = await room.take()
    await set_of(room, 2)
    await room.publish("orders", first=2)
    await room.scrub()
    (again,) = await room.acquire("v.0", "v.1")
    assert again.batch == held.batch


async def test_events_of_one_entity_keep_their_order_over_changes(room: Room):
    urls = [url_for(n, 4) for n in range(4)]
    seen: dict[str, list[int]] = {url: [] for url in urls}
    number = 0
    of: dict[bytes, tuple[str, int]] = {}

    async def some(most: int) -> None:
        for delivery in (await room.acquire(*[f"w.{n}" for n in range(4)]))[:most]:
            for text in lines_of(delivery):
                url, n = of[text]
                seen[url].append(n)
            await room.deliver(delivery)

    for parallelism in (1, 4, 2, 2, 3, 1):
        await set_of(room, parallelism, max=2)
        for _ in range(3):
            await room.web.publish(request("orders", 4, first=number + 1, urls=urls))
            for n, url in enumerate(urls):
                of[line("orders", number + 1 + n)] = (url, number + 1 + n)
            number += 4
        room.let_pass(HOUR_MS)
        await some(2)
    while room.gauges("billing")[1]:
        room.let_pass(HOUR_MS)  # what was taken and not settled comes back
        await room.scrub()
        await some(4)
    for n, url in enumerate(urls):
        assert seen[url] == list(range(n + 1, number + 1, 4))


async def test_monitoring_knows_the_oldest_event_also_while_a_set_drains(room: Room):
    old = await room.subscribe("billing", "orders")
    await room.publish("orders")
    room.let_pass(60_000)
    batch = room.current(old)
    assert batch
    (row,) = await room.registry.subscribers()
    assert (row.oldest, row.queued) == (batch.created_at, 1)
    await room.subscribe("billing", "orders", parallelism=2)
    await room.publish("orders", first=2)
    (row,) = await room.registry.subscribers()
    assert (row.oldest, row.queued) == (batch.created_at, 2)
