"""A rate: so many deliveries a second begin, over all lanes, whoever takes them."""

import pytest

from tests.store.room import Room, lines_of, request, url_for

SLOTS = [f"w.{n}" for n in range(8)]


async def start(room: Room, rate: float, events: int = 10, **options: int) -> str:
    lane = await room.subscribe("billing", "orders", timeout=0, max=1, max_rate=repr(rate), **options)
    if events:
        await room.publish("orders", events)
    return lane


async def begun(room: Room) -> int:
    """Settle all that can begin at this moment; how many that were."""
    count = 0
    while taken := await room.acquire(*SLOTS):
        count += len(taken)
        for delivery in taken:
            await room.deliver(delivery)
    return count


async def test_one_begins_and_the_next_waits_its_time(room: Room):
    lane = await start(room, 0.1)
    assert await begun(room) == 1
    assert room.fields(f"lane:{lane}")["why"] == "rate"
    assert room.scheduled() == {lane: pytest.approx(10_000, abs=2_000)}
    room.let_pass(5_000)
    assert await begun(room) == 0
    room.let_pass(5_000)
    assert await begun(room) == 1
    (row,) = await room.registry.subscribers()
    assert (row.why, row.max_rate) == ("rate", 0.1)


@pytest.mark.parametrize("parallelism", [1, 4])
async def test_it_holds_over_time(room: Room, parallelism: int):
    urls = [f"https://example.com/{n}" for n in range(200)]
    await start(room, 0.1, 0, parallelism=parallelism)
    await room.web.publish(request("orders", 200, urls=urls))
    total = 0
    for _ in range(100):
        total += await begun(room)
        room.let_pass(5_000)  # 500 s in all: 50 may begin, and the first at once
    assert 48 <= total <= 51


async def test_time_that_was_not_used_is_not_made_up_for(room: Room):
    await start(room, 0.1)
    assert await begun(room) == 1
    room.let_pass(3_600_000)
    assert await begun(room) == 1


async def test_a_failed_attempt_counts_and_its_rest_holds(room: Room):
    lane = await start(room, 0.1)
    await room.fail(await room.take(), 60_000)
    room.let_pass(10_000)
    assert await room.acquire("w.0") == []
    assert room.fields(f"lane:{lane}")["why"] == "status"
    room.let_pass(50_000)
    assert (await room.take()).attempt == 2


async def test_lanes_take_turns(room: Room):
    urls = [url_for(n % 4, 4) for n in range(40)]
    await start(room, 0.1, 0, parallelism=4)
    await room.web.publish(request("orders", 40, urls=urls))
    seen: list[str] = []
    for _ in range(16):
        (delivery,) = await room.acquire(*SLOTS)
        seen.append(delivery.lane[-1])
        await room.deliver(delivery)
        room.let_pass(10_000)
    assert {lane: seen.count(lane) for lane in "0123"} == {"0": 4, "1": 4, "2": 4, "3": 4}
    assert all(set(seen[n : n + 4]) == set("0123") for n in range(0, 16, 4))


async def test_a_busy_rate_starves_nobody_else(room: Room):
    await start(room, 0.1, 50)
    other = await room.subscribe("audit", "rides", timeout=0, max=1)
    await room.publish("rides", 20)
    for _ in range(20):
        taken = await room.acquire("w.0", "w.1")
        assert other in [delivery.lane for delivery in taken]
        for delivery in taken:
            await room.deliver(delivery)


async def test_what_comes_while_it_waits_goes_with_it(room: Room):
    """A batch is sealed only when it is its turn."""
    await room.subscribe("billing", "orders", timeout=0, max=10, max_rate="0.1")
    await room.publish("orders")
    await room.deliver(await room.take())
    await room.publish("orders", first=2)
    assert await room.acquire("w.0") == []
    await room.publish("orders", first=3)
    room.let_pass(10_000)
    assert len(lines_of(await room.take())) == 2


@pytest.mark.parametrize("rate", ["", "100.0"])
async def test_a_new_rate_holds_at_once(room: Room, rate: str):
    lane = await start(room, 0.001)
    await room.deliver(await room.take())
    assert await room.acquire("w.0") == []
    await room.subscribe("billing", "orders", timeout=0, max=1, max_rate=rate)
    assert room.instant() == [lane]
    assert len(await room.acquire("w.0")) == 1


async def test_a_change_of_something_else_does_not_reset_it(room: Room):
    await start(room, 0.1)
    await room.deliver(await room.take())
    await room.subscribe(
        "billing", "orders", timeout=0, max=1, max_rate="0.1", callback="https://new.example/"
    )
    assert await room.acquire("w.0") == []


async def test_it_holds_over_a_change_of_parallelism(room: Room):
    await start(room, 0.1, 2)
    assert await begun(room) == 1
    await room.subscribe("billing", "orders", timeout=0, max=1, max_rate="0.1", parallelism=2)
    assert await begun(room) == 0
    room.let_pass(10_000)
    assert await begun(room) == 1


async def test_asking_again_for_a_lost_reply_is_no_other_delivery(room: Room):
    await start(room, 0.1)
    fence = room.uids()
    first = await room.deliveries.acquire("main", {"w.0": fence})
    before = room.fields("subscriber:billing")["rate_at"]
    assert (await room.deliveries.acquire("main", {"w.0": fence})).taken == first.taken
    assert room.fields("subscriber:billing")["rate_at"] == before
