"""The registry: clients, tokens and topics, and what a routing snapshot reads of it."""

import pytest

from routemaster.credential import Token
from routemaster.store import registry
from routemaster.store.clients import Client, ClientRecord
from routemaster.store.registry import Changes, Subscription
from routemaster.web.snapshot import Snapshot
from tests.store.room import Room


def token(digest: str, ends_at: int = 0) -> Token:
    return Token(digest, ends_at, ("id256", "id5"), ("name256", "name5"))


def record(*digests: str, name: str = "shop", role: str = "client") -> ClientRecord:
    return ClientRecord(name, role, 1_700_000_000_123, [token(digest) for digest in digests])


async def read_all(room: Room) -> Changes:
    changes = await room.registry.read(b"")
    assert changes.is_all
    return changes


# Clients and tokens


async def test_a_client_is_added_with_its_token(room: Room):
    assert await room.clients.add("shop--1", record("digest"))
    assert room.fields("tokens") == {"digest": "shop--1"}
    assert (await read_all(room)).clients == {
        "shop--1": Client("shop--1", "shop", "client", (token("digest"),))
    }


@pytest.mark.parametrize(
    ("client", "token"), [("other--2", "digest"), ("shop--1", "new")], ids=["token", "client"]
)
async def test_a_token_or_client_that_is_there_is_not_taken_over(room: Room, client: str, token: str):
    await room.clients.add("shop--1", record("digest"))
    before = room.dump()
    assert not await room.clients.add(client, record(token, name="other"))
    assert room.dump() == before


@pytest.mark.parametrize("by", ["client", "token"])
async def test_a_client_with_one_token_goes_with_it(room: Room, by: str):
    await room.clients.add("shop--1", record("digest"))
    await room.clients.add("taxi--2", record("other"))
    given = ("shop--1", "nothing") if by == "client" else ("nobody", "digest")
    assert await room.clients.delete(*given)
    assert set((await read_all(room)).clients) == {"taxi--2"}
    assert room.fields("tokens") == {"other": "taxi--2"}


async def test_one_of_several_tokens_goes_alone(room: Room):
    await room.clients.add("shop--1", record("one", "two"))
    room.redis.hset(room.key("tokens"), "two", "shop--1")
    assert await room.clients.delete("nobody", "one")
    assert (await read_all(room)).clients["shop--1"] == Client("shop--1", "shop", "client", (token("two"),))
    assert room.fields("tokens") == {"two": "shop--1"}
    assert b'"created_at":1700000000123' in room.redis.hget(room.key("clients"), "shop--1")
    assert await room.clients.delete("nobody", "two")
    assert (await read_all(room)).clients == {}


async def test_who_is_not_there_cannot_be_deleted(room: Room):
    await room.clients.add("shop--1", record("digest"))
    before = room.dump()
    assert not await room.clients.delete("nobody", "nothing")
    assert room.dump() == before


async def test_a_client_takes_its_subscriptions_along_and_leaves_its_topics_unclaimed(room: Room):
    await room.clients.add("shop", record("digest"))
    await room.subscribe("shop", "rides", client="shop", timeout=0)
    await room.subscribe("shop.second", "rides", client="shop", timeout=0)
    await room.subscribe("taxi", "orders", client="taxi", timeout=0)
    await room.publish("orders", client="shop")
    await room.publish("rides", client="taxi")
    assert await room.clients.delete("shop", "")
    changes = await read_all(room)
    assert set(changes.subscriptions) == {"taxi"}
    assert changes.topics == {"orders": "", "rides": "taxi"}
    assert room.indexed() == {room.lane("taxi")}
    assert room.fields("topic:orders")["counter"] == "1"
    await room.publish("orders", client="taxi", first=2)
    assert room.fields("topic:orders")["publisher"] == "taxi"


# Topics


async def test_only_the_owner_or_root_deletes_a_topic(room: Room):
    await room.publish("orders", client="shop")
    before = room.dump()
    assert await room.registry.delete_topic("orders", "thief") == "denied"
    assert await room.registry.delete_topic("nothing", "shop") == "unknown"
    assert await room.registry.delete_topic("nothing", "") == "unknown"
    assert room.dump() == before
    assert await room.registry.delete_topic("orders", "shop") == "done"
    await room.publish("orders", client="shop", first=2)
    assert await room.registry.delete_topic("orders", "") == "done"


async def test_an_unclaimed_topic_is_roots_to_delete(room: Room):
    await room.subscribe("billing", "orders")
    assert await room.registry.delete_topic("orders", "shop") == "denied"
    assert await room.registry.delete_topic("orders", "") == "done"


async def test_a_deleted_topic_leaves_no_dangling_subscription_and_keeps_what_is_queued(room: Room):
    lane = await room.subscribe("billing", "orders", "rides")
    await room.publish("orders", 2)
    before = room.epoch()
    await room.registry.delete_topic("orders", "")
    assert room.members("topics") == {"rides"}
    assert room.members("topics:billing") == {"rides"}
    assert not [name for name in room.dump() if name.endswith(":orders") and name.split(":")[0] != "counters"]
    assert room.epoch() != before
    assert len(room.queued(lane)) == 2
    await room.publish("orders", first=3)  # somebody begins it anew
    assert len(room.queued(lane)) == 2
    assert room.fields("topic:orders")["counter"] == "1"
    assert room.counter("accepted:orders") == 3  # what audits count outlives the topic


async def test_topics_are_listed_with_owner_and_count(room: Room):
    await room.subscribe("billing", "unclaimed")
    await room.publish("orders", 3, client="shop")
    assert await room.registry.topics() == [("orders", "shop", 3), ("unclaimed", None, 0)]


async def test_however_it_is_cut_into_steps_every_subscriber_is_listed(
    room: Room, monkeypatch: pytest.MonkeyPatch
):
    for n in range(30):
        await room.subscribe(f"s{n:02}", "orders", parallelism=1 + n % 4)
    room.redis.sadd(room.key("subscribers"), "s05 that went meanwhile")
    whole = await room.registry.subscribers()
    assert [row.id for row in whole] == [f"s{n:02}" for n in range(30)]
    for step, lanes in ((1, 500), (7, 500), (200, 1), (200, 9)):
        monkeypatch.setattr(registry, "_STEP", step)
        monkeypatch.setattr(registry, "_STEP_LANES", lanes)
        assert await room.registry.subscribers() == whole


async def test_one_call_lists_subscribers_of_a_bounded_number_of_lanes(room: Room):
    names = [f"s{n}" for n in range(10)]
    for name in names:
        await room.subscribe(name, "orders", parallelism=10)
    for lanes, rows in ((1, 1), (10, 1), (11, 2), (35, 4), (1_000, 10)):
        reply = await room.link.run(registry._LIST_SUBSCRIBERS, room.ns, lanes, *names)
        assert len(reply) == rows


async def test_subscribers_are_listed_with_what_is_queued(room: Room):
    await room.subscribe("billing", "orders", "rides", timeout=0, max=2, client="acme")
    await room.subscribe("audit", "orders", timeout=70, parallelism=2)
    await room.publish("orders", 5)
    delivery = await room.take()
    assert delivery.subscriber == "billing"
    await room.fail(delivery)
    audit, billing = await room.registry.subscribers()
    attempted = int(room.fields("subscriber:billing")["last_attempted_at"])
    assert billing._asdict() == {
        "id": "billing",
        "client": "acme",
        "name": None,
        "uuid": "secret",
        "callback": "https://example.com/",
        "max_events": 2,
        "timeout_ms": 0,
        "health_points": 98,
        "last_attempted_at": attempted,
        "parallelism": 1,
        "match": [],
        "max_rate": None,
        "max_attempts": None,
        "headers": {},
        "secrets": [],
        "is_channel": False,
        "paused": False,
        "sent": 0,
        "failed": 1,
        "dropped": 0,
        "dead": 0,
        "queued": 5,
        "oldest": delivery.created_at,
        "topics": ["orders", "rides"],
        "retry_at": int(room.fields(f"lane:{delivery.lane}")["not_before"]),
        "why": "status",
    }
    assert (audit.id, audit.parallelism, audit.timeout_ms, audit.queued) == ("audit", 2, 70, 5)
    assert audit.last_attempted_at is None


async def test_what_was_sent_is_counted_per_subscriber(room: Room):
    await room.subscribe("billing", "orders", timeout=0, max=2)
    await room.publish("orders", 3)
    await room.deliver(await room.take())
    (row,) = await room.registry.subscribers()
    assert (row.sent, row.queued) == (2, 1)


# Snapshots


async def test_one_damaged_record_keeps_nobody_else_out(room: Room):
    await room.clients.add("shop--1", record("digest"))
    room.redis.hset(room.key("clients"), "taxi--2", '{"name": "taxi"}')
    clients = (await read_all(room)).clients
    assert clients["shop--1"] == Client("shop--1", "shop", "client", (token("digest"),))
    assert clients["taxi--2"] is None


async def test_the_first_look_gives_the_bus_its_epoch(room: Room):
    assert await room.registry.epoch() is None
    changes = await room.registry.read(b"")
    assert changes == Changes(room.epoch(), True, {}, {}, {})
    assert (await room.registry.read(b"")).epoch == changes.epoch


async def test_who_is_up_to_date_gets_nothing(room: Room):
    await room.subscribe("billing", "orders")
    assert await room.registry.read(room.epoch()) == Changes(room.epoch(), False, {}, {}, {})


async def test_only_what_has_changed_is_read(room: Room):
    await room.clients.add("shop", record("digest"))
    await room.subscribe("billing", "orders")
    known = room.epoch()
    lane = await room.subscribe("audit", "orders", "rides", max=5, timeout=9, parallelism=3, client="acme")
    await room.clients.add("taxi", record("other"))
    incarnation = lane.split("#")[1].split(".")[0]
    assert await room.registry.read(known) == Changes(
        room.epoch(),
        False,
        {"taxi": Client("taxi", "shop", "client", (token("other"),))},
        {"rides": ""},
        {
            "audit": Subscription(
                "audit", "acme", 5, 9, incarnation, 1, 3, False, (), frozenset({"orders", "rides"})
            )
        },
    )


async def test_what_is_gone_is_read_as_none(room: Room):
    await room.clients.add("shop", record("digest"))
    await room.subscribe("billing", "orders", client="shop")
    await room.publish("rides", client="shop")
    known = room.epoch()
    await room.clients.delete("shop", "")
    await room.registry.delete_topic("orders", "")
    changes = await room.registry.read(known)
    assert not changes.is_all
    assert changes.clients == {"shop": None}
    assert changes.subscriptions == {"billing": None}
    assert changes.topics == {"orders": None, "rides": ""}


async def test_an_epoch_that_the_store_never_had_gets_everything(room: Room):
    """After a rollback, or when a process was away for long."""
    await room.subscribe("billing", "orders")
    changes = await room.registry.read(b"another")
    assert changes.is_all
    assert set(changes.subscriptions) == {"billing"}


@pytest.mark.parametrize(("changes", "is_all"), [(999, False), (1000, True), (1100, True)])
async def test_a_thousand_changes_are_remembered(room: Room, changes: int, is_all: bool):
    await room.subscribe("first", "orders")
    known = room.epoch()
    for n in range(changes):
        await room.clients.add(f"c{n}", record(f"d{n}"))
    found = await room.registry.read(known)
    assert found.is_all == is_all
    assert len(found.clients) == changes
    assert len(room.dump()["registry:changes"]) <= 1000


async def test_changes_upon_a_snapshot_give_what_a_whole_reading_gives(room: Room):
    """Whatever happens between two looks."""

    async def look(snapshot: Snapshot) -> Snapshot:
        changes = await room.registry.read(snapshot.epoch)
        return snapshot.changed(changes)

    snapshot = await look(Snapshot(b"", {}, {}, {}))
    steps = [
        lambda: room.clients.add("shop", record("d1")),
        lambda: room.subscribe("shop", "orders", "rides", client="shop"),
        lambda: room.subscribe("taxi", "orders", parallelism=2, client="taxi"),
        lambda: room.registry.unsubscribe("shop", "rides"),
        lambda: room.clients.add("taxi", record("d2", "d3")),
        lambda: room.subscribe("taxi", "users", parallelism=3, client="taxi"),
        lambda: room.registry.delete_topic("orders", ""),
        lambda: room.clients.delete("nobody", "d2"),
        lambda: room.registry.unsubscribe("shop"),
        lambda: room.subscribe("shop", "orders", client="shop"),
        lambda: room.clients.delete("taxi", ""),
    ]
    for n, step in enumerate(steps):
        await step()
        if n % 2:
            continue  # so that some looks find two changes at once
        snapshot = await look(snapshot)
        whole = Snapshot(b"", {}, {}, {}).changed(await read_all(room))
        for part in ("epoch", "clients", "owners", "subscriptions", "by_digest"):
            assert getattr(snapshot, part) == getattr(whole, part), (n, part)
