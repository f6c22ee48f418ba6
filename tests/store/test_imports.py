"""Taking things over: once, behind what is there, and never over what somebody has here."""

import json
import time

import pytest

from routemaster.credential import digest_of
from routemaster.store.clients import Grants
from routemaster.store.imports import Group, Imports, Lanes, Piece
from routemaster.web.tokens import new_client
from tests.store.room import HOUR_MS, Room, line, lines, lines_of

FIELDS: dict[str, str | int] = {
    "callback": "https://example.com/",
    "uuid": "secret",
    "timeout": HOUR_MS,
    "max_events": 10,
    "health_points": 70,
}


@pytest.fixture
def imports(room: Room) -> Imports:
    return Imports(room.link, room.ns, room.uids)


def text(topic: str, first: int, last: int) -> bytes:
    return b",\n".join(lines(topic, first, last))


async def piece(imports: Imports, subscriber: str, first: int, last: int, **more: object) -> Piece:
    lanes = await imports.lanes(subscriber)
    assert lanes
    size = last - first + 1
    wanted = {
        "batch": "bid",
        "start": 0,
        "stop": size,
        "subscriber": subscriber,
        "lanes": lanes,
        "created_at": 1000,
        "attempts": 0,
        "is_open": False,
        "counts": {"orders": size},
        "side": [[size, "shop", "event", "orders", "default", None]],
        "groups": [Group(0, size, text("orders", first, last))],
        **more,
    }
    return Piece(**wanted)  # type: ignore[arg-type]


# Clients


async def test_a_client_is_made_once(room: Room, imports: Imports):
    first, second = (new_client("shop", "shop--secret", "client", Grants()) for _ in range(2))
    name = digest_of("shop--secret")
    assert await imports.look_for_client(name) == ("new", "")
    assert await imports.client(*first, name) == ("new", first[0])
    epoch = room.epoch()
    assert await imports.client(*second, name) == ("known", first[0])
    assert await imports.look_for_client(name) == ("known", first[0])
    assert room.epoch() == epoch
    assert list(room.fields("clients")) == [first[0]]
    assert room.fields("tokens") == {name: first[0]}


async def test_who_has_no_token_there_is_found_again(room: Room, imports: Imports):
    name = digest_of("shop--gone")
    made = new_client("shop", "another secret", "client", Grants())
    assert await imports.client(*made, name) == ("new", made[0])
    again = new_client("shop", "a third secret", "client", Grants())
    assert await imports.client(*again, name) == ("known", made[0])
    assert list(room.fields("tokens")) == [digest_of("another secret")]


async def test_whose_token_was_changed_here_does_not_get_it_back(room: Room, imports: Imports):
    client, record = new_client("shop", "shop--secret", "client", Grants())
    name = digest_of("shop--secret")
    await imports.client(client, record, name)
    _, other = new_client("shop", "rotated", "client", Grants())
    await room.clients.rotate(client, other.tokens[0], 0)
    assert await imports.client(client, record, name) == ("known", client)
    assert list(room.fields("tokens")) == [digest_of("rotated")]


async def test_who_was_deleted_here_stays_deleted(room: Room, imports: Imports):
    client, record = new_client("shop", "shop--secret", "client", Grants())
    name = digest_of("shop--secret")
    await imports.client(client, record, name)
    await room.clients.delete(client, "")
    assert await imports.look_for_client(name) == ("deleted", "")
    assert await imports.client(client, record, name) == ("deleted", "")
    assert room.fields("clients") == {}


# Topics


async def test_a_topic_is_counted_once(room: Room, imports: Imports):
    assert await imports.look_for_topic("orders", "shop", "note") == "new"
    assert await imports.topic("orders", "shop", 7, "note") == "new"
    epoch = room.epoch()
    assert await imports.topic("orders", "shop", 7, "note") == "known"
    assert await imports.topic("orders", "shop", 9, "note") == "known"
    assert await imports.topic("orders", "shop", 3, "note") == "known"
    assert await imports.look_for_topic("orders", "shop", "note") == "known"
    assert room.fields("topic:orders") == {"publisher": "shop", "counter": "9"}
    assert room.epoch() == epoch


async def test_a_topic_that_has_its_publisher_here_is_added_to(room: Room, imports: Imports):
    await room.publish("orders", 2)
    assert await imports.topic("orders", "shop", 7, "note") == "new"
    assert room.fields("topic:orders")["counter"] == "9"


async def test_an_unclaimed_topic_is_claimed(room: Room, imports: Imports):
    await room.subscribe("billing", "orders")
    epoch = room.epoch()
    assert await imports.topic("orders", "shop", 0, "note") == "new"
    assert room.fields("topic:orders") == {"publisher": "shop", "counter": "0"}
    assert room.epoch() != epoch


async def test_a_topic_of_somebody_else_is_left_alone(room: Room, imports: Imports):
    await room.publish("orders", client="stranger")
    before = room.dump()
    assert await imports.look_for_topic("orders", "shop", "note") == "taken"
    assert await imports.topic("orders", "shop", 7, "note") == "taken"
    assert room.dump() == before


async def test_a_topic_that_was_deleted_here_stays_deleted(room: Room, imports: Imports):
    await imports.topic("orders", "shop", 7, "note")
    await room.registry.delete_topic("orders", "")
    assert await imports.look_for_topic("orders", "shop", "note") == "deleted"
    assert await imports.topic("orders", "shop", 8, "note") == "deleted"
    assert room.members("topics") == set()


# Subscriptions


async def subscribed(room: Room, imports: Imports, *topics: str) -> str:
    """A subscription that was taken over; its lane."""
    room.redis.hset(room.key("clients"), "mail", "{}")
    assert await imports.subscriber("mail", "mail", FIELDS, set(topics)) == "new"
    room.redis.hdel(room.key("clients"), "mail")
    return room.lane("mail")


async def test_a_subscription_is_as_if_it_had_been_made_here(room: Room, imports: Imports):
    await room.subscribe("usual", "orders", client="usual")
    lane = await subscribed(room, imports, "orders", "users")
    usual, taken = room.fields("subscriber:usual"), room.fields("subscriber:mail")
    assert taken.keys() == usual.keys()
    assert taken["health_points"] == "70"
    assert room.members("topics:mail") == {"orders", "users"}
    assert room.members("subscribers:orders") == {"usual", "mail"}
    assert room.fields("topic:users") == {"counter": "0"}
    await room.publish("orders", 2)
    assert room.queued(lane) == lines("orders", 1, 2)


async def test_a_subscription_that_is_there_stays_as_it_is(room: Room, imports: Imports):
    await subscribed(room, imports, "orders")
    await room.subscribe("mail", "users", callback="https://new.example/")
    before = room.fields("subscriber:mail")
    room.redis.hset(room.key("clients"), "mail", "{}")
    assert await imports.look_for_subscriber("mail") == "known"
    assert await imports.subscriber("mail", "mail", FIELDS, {"orders"}) == "known"
    assert room.fields("subscriber:mail") == before
    assert room.members("topics:mail") == {"users"}
    await room.registry.unsubscribe("mail")
    assert await imports.look_for_subscriber("mail") == "deleted"
    assert await imports.subscriber("mail", "mail", FIELDS, {"orders"}) == "deleted"
    assert await imports.subscriber("other", "nobody", FIELDS, {"orders"}) == "gone"


# Batches


async def test_a_batch_is_sealed_logged_and_counted(room: Room, imports: Imports):
    lane = await subscribed(room, imports, "orders")
    assert await imports.batch(await piece(imports, "mail", 1, 3, attempts=2)) == "done"
    (batch,) = room.ready(lane)
    assert (batch.created_at, batch.attempts, batch.sequence, batch.events) == (1000, 2, 1, 3)
    assert (batch.runs, batch.lines) == ([(1, 3)], lines("orders", 1, 3))
    ((id, block),) = room.blocks()
    assert (id, block["n"], block["g"]) == ("3-0", "3", batch.generation)
    assert block["e"].encode() == text("orders", 1, 3)
    assert json.loads(block["c"]) == {"orders": 3}
    assert json.loads(block["s"]) == [[3, "shop", "event", "orders", "default", None]]
    assert abs(int(block["r"]) - time.time() * 1000) < HOUR_MS
    assert (room.counter("accepted:orders"), room.counter("routed:mail")) == (3, 3)
    assert room.gauges("mail") == (1, 3)
    assert room.instant() == [lane]
    delivery = await room.take()
    assert (delivery.attempt, lines_of(delivery)) == (3, lines("orders", 1, 3))
    await room.deliver(delivery)
    assert room.gauges("mail") == (0, 0)
    assert room.counter("delivered:mail") == 3
    assert room.indexed() == set()


async def test_a_batch_is_taken_once_and_its_rest_later(room: Room, imports: Imports):
    lane = await subscribed(room, imports, "orders")
    await imports.batch(await piece(imports, "mail", 1, 3))
    before = room.dump()
    assert await imports.taken(["bid", "other"]) == [3, 0]
    assert await imports.batch(await piece(imports, "mail", 1, 3)) == "elsewhere"
    assert room.dump() == before
    assert await imports.batch(await piece(imports, "mail", 4, 5, start=3, stop=5)) == "done"
    assert room.queued(lane) == lines("orders", 1, 5)
    assert [batch.runs for batch in room.ready(lane)] == [[(1, 3)], [(4, 2)]]


async def test_it_goes_behind_what_is_there(room: Room, imports: Imports):
    lane = await subscribed(room, imports, "orders")
    await room.publish("orders", 2)
    await imports.batch(await piece(imports, "mail", 3, 4))
    await room.publish("orders", first=5)
    assert room.queued(lane) == lines("orders", 1, 5)
    assert [batch.sequence for batch in room.ready(lane)] == [1, 2]
    assert room.current(lane)
    assert room.instant() == [lane]


async def test_one_that_is_open_goes_on_filling_until_its_deadline(room: Room, imports: Imports):
    lane = await subscribed(room, imports, "orders")
    created_at = int(time.time() * 1000) - HOUR_MS // 2
    await imports.batch(await piece(imports, "mail", 1, 2, is_open=True, created_at=created_at))
    assert room.ready(lane) == []
    (left_ms,) = room.scheduled().values()
    assert HOUR_MS * 0.4 < left_ms < HOUR_MS * 0.6
    await room.publish("orders", first=3)
    current = room.current(lane)
    assert current and current.lines == lines("orders", 1, 3)
    await imports.batch(await piece(imports, "mail", 4, 4, batch="next"))
    assert [batch.lines for batch in room.ready(lane)] == [lines("orders", 1, 3), lines("orders", 4, 4)]
    assert room.instant() == [lane]


async def test_one_that_is_open_and_full_is_sealed(room: Room, imports: Imports):
    lane = await subscribed(room, imports, "orders")
    await imports.batch(await piece(imports, "mail", 1, 10, is_open=True))
    assert room.current(lane) is None
    assert len(room.ready(lane)) == 1


async def test_one_from_the_future_is_as_old_as_the_day(room: Room, imports: Imports):
    lane = await subscribed(room, imports, "orders")
    await imports.batch(await piece(imports, "mail", 1, 2, created_at=2**52))
    (batch,) = room.ready(lane)
    assert abs(batch.created_at - time.time() * 1000) < HOUR_MS


async def test_lanes_that_are_others_by_now_are_not_written(room: Room, imports: Imports):
    await subscribed(room, imports, "orders")
    wanted = await piece(imports, "mail", 1, 2)
    await room.subscribe("mail", "orders", parallelism=2)
    before = room.dump()
    assert await imports.batch(wanted) == "moved"
    assert room.dump() == before
    await room.registry.unsubscribe("mail")
    assert await imports.batch(wanted) == "gone"
    assert await imports.lanes("mail") is None


async def test_each_lane_gets_its_own(room: Room, imports: Imports):
    await subscribed(room, imports, "orders")
    await room.subscribe("mail", "orders", parallelism=3)
    groups = [Group(2, 2, text("orders", 1, 2)), Group(0, 1, line("orders", 3))]
    await imports.batch(await piece(imports, "mail", 1, 3, groups=groups))
    assert [room.queued(room.lane("mail", n)) for n in range(3)] == [
        lines("orders", 3, 3),
        [],
        lines("orders", 1, 2),
    ]
    assert [batch.runs for n in (2, 0) for batch in room.ready(room.lane("mail", n))] == [[(1, 2)], [(3, 1)]]
    ((_, block),) = room.blocks()
    assert block["e"].encode() == text("orders", 1, 3)


async def test_lanes_that_wait_for_an_older_set_are_not_woken(room: Room, imports: Imports):
    old = await subscribed(room, imports, "orders")
    await room.publish("orders", 1)
    await room.subscribe("mail", "orders", parallelism=2)
    await imports.batch(await piece(imports, "mail", 2, 2))
    assert room.indexed() == {old}
    await room.deliver(await room.take())
    assert room.indexed() == {room.lane("mail", 0)}


async def test_a_lane_that_rests_goes_on_resting(room: Room, imports: Imports):
    lane = await subscribed(room, imports, "orders")
    await imports.batch(await piece(imports, "mail", 1, 1))
    await room.fail(await room.take())
    await imports.batch(await piece(imports, "mail", 2, 2, batch="next"))
    assert room.instant() == []
    assert list(room.scheduled()) == [lane]


async def test_a_lane_of_the_channel_format_gets_that(room: Room, imports: Imports):
    await subscribed(room, imports, "orders")
    room.redis.hset(room.key("subscriber:mail"), "format", "channel")
    lanes = await imports.lanes("mail")
    assert lanes == Lanes(room.fields("subscriber:mail")["incarnation"], "1", 1, 10, True)
    await imports.batch(await piece(imports, "mail", 1, 1, groups=[Group(0, 1, line("orders", 1), b"{}")]))
    assert room.queued(room.lane("mail")) == [b"{}"]
    ((_, block),) = room.blocks()
    assert block["e"].encode() == line("orders", 1)


async def test_a_batch_without_events_is_only_noted(room: Room, imports: Imports):
    lane = await subscribed(room, imports, "orders")
    nothing = await piece(imports, "mail", 1, 2, counts={}, side=[], groups=[])
    assert await imports.batch(nothing) == "done"
    assert await imports.taken(["bid"]) == [2]
    assert (room.queued(lane), room.blocks(), room.gauges("mail")) == ([], [], (0, 0))


async def test_the_notes_can_be_dropped(room: Room, imports: Imports):
    await subscribed(room, imports, "orders")
    await imports.topic("orders", "shop", 1, "note")
    await imports.batch(await piece(imports, "mail", 1, 2))
    assert await imports.forget() == 1
    assert [name for name in room.dump() if name.startswith("import:")] == []
    assert await imports.forget() == 0
