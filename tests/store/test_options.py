"""What a subscription may have beside topics: options that come and go, secrets that overlap, and the channel
dialect's way of asking, which only adds.
"""

import msgspec
import pytest

from routemaster.store.registry import Wanted
from tests.store.room import Room, line

SECRETS = [f"whsec_{letter * 32}" for letter in "ABC"]
GRACE_MS = 60_000


async def ask(room: Room, *topics: str, **more: object) -> str:
    wanted = {"callback": "https://example.com/", "uuid": "secret", "timeout": 0, "max_events": 1, **more}
    return await room.ask_for("billing", *topics, **wanted)  # type: ignore[arg-type]


def secrets(room: Room) -> list[tuple[str, int]]:
    known = room.fields("subscriber:billing").get("secrets", "[]")
    return msgspec.json.decode(known, type=list[tuple[str, int]])


# Options


async def test_options_come_and_go(room: Room):
    options = {"match": '["eu"]', "headers": '{"a":"b"}', "max_attempts": 3, "max_rate": "1.5", "name": "x"}
    assert await ask(room, "orders", **options) == "changed"
    known = room.fields("subscriber:billing")
    assert {name: known[name] for name in options} == {name: str(value) for name, value in options.items()}
    epoch = room.epoch()
    assert await ask(room, "orders", **options) == "same"
    assert room.epoch() == epoch
    assert await ask(room, "orders", **dict.fromkeys(options, "")) == "changed"
    assert set(options).isdisjoint(room.fields("subscriber:billing"))
    assert room.epoch() != epoch


async def test_the_id_of_another_client_is_not_taken_over(room: Room):
    await room.subscribe("billing", "orders", client="acme")
    before = room.dump()
    assert await room.ask_for("billing", "rides", client="other", callback="https://evil.example/") == "taken"
    after = room.dump()
    assert after == before


async def test_a_client_that_is_gone_subscribes_to_nothing(room: Room):
    wanted = Wanted("billing", "nobody", 1, {"callback": "https://example.com/"}, "", 0, {"orders"})
    assert await room.registry.subscribe(wanted) == "gone"
    assert room.dump() == {}


# Secrets


async def test_a_first_secret_stands_alone(room: Room):
    await ask(room, "orders", secret=SECRETS[0], grace_ms=GRACE_MS)
    assert secrets(room) == [(SECRETS[0], 0)]


async def test_a_new_one_comes_first_and_the_old_one_goes_on_for_a_while(room: Room):
    await ask(room, "orders", secret=SECRETS[0], grace_ms=GRACE_MS)
    seconds, micros = room.redis.time()  # type: ignore[misc]
    await ask(room, "orders", secret=SECRETS[1], grace_ms=GRACE_MS)
    (first, lasts), (second, until) = secrets(room)
    assert (first, lasts, second) == (SECRETS[1], 0, SECRETS[0])
    assert until - GRACE_MS == pytest.approx(seconds * 1000 + micros / 1000, abs=5_000)


async def test_asking_for_the_same_again_does_not_end_the_overlap(room: Room):
    await ask(room, "orders", secret=SECRETS[0])
    await ask(room, "orders", secret=SECRETS[1], grace_ms=GRACE_MS)
    before = room.dump()
    for again in (SECRETS[1], ""):
        assert await ask(room, "orders", secret=again, grace_ms=GRACE_MS) == "same"
        assert room.dump() == before


async def test_no_more_than_two_are_kept(room: Room):
    for secret in SECRETS:
        await ask(room, "orders", secret=secret, grace_ms=GRACE_MS)
    assert [secret for secret, _ in secrets(room)] == [SECRETS[2], SECRETS[1]]


async def test_without_grace_the_old_one_ends_at_once(room: Room):
    await ask(room, "orders", secret=SECRETS[0])
    await ask(room, "orders", secret=SECRETS[1], grace_ms=0)
    assert secrets(room) == [(SECRETS[1], 0)]


async def test_it_can_be_taken_away(room: Room):
    await ask(room, "orders", secret=SECRETS[0])
    await ask(room, "orders", secret="-")
    assert secrets(room) == []


async def test_a_delivery_has_what_it_is_signed_with(room: Room):
    await ask(room, "orders", secret=SECRETS[0], headers='{"x-a":"b"}')
    await room.publish("orders")
    delivery = await room.take()
    assert msgspec.json.decode(delivery.secrets) == [[SECRETS[0], 0]]
    assert delivery.headers == b'{"x-a":"b"}'
    assert delivery.format == ""


# Only adding


async def test_it_makes_a_subscription_of_its_format(room: Room):
    await room.publish("orders")
    assert await ask(room, "orders", adds=True, format="channel") == "changed"
    assert room.fields("subscriber:billing")["format"] == "channel"
    assert room.members("topics:billing") == {"orders"}


async def test_to_one_that_is_there_it_adds_topics_and_changes_nothing_else(room: Room):
    await room.subscribe("billing", "orders", max=7, timeout=5, parallelism=3)
    await room.publish("rides")
    before = room.fields("subscriber:billing")
    assert await ask(room, "rides", adds=True, format="channel", callback="https://new.example/") == "changed"
    assert room.fields("subscriber:billing") == before
    assert room.members("topics:billing") == {"orders", "rides"}
    assert room.members("subscribers:rides") == {"billing"}
    epoch = room.epoch()
    assert await ask(room, "rides", adds=True, format="channel") == "same"
    assert room.epoch() == epoch
    await room.web.access.refresh()
    route = room.web.access.snapshot.route("default:rides:create")
    assert not route.has_channel
    assert len(route.parallel) == 1


@pytest.mark.parametrize("is_there", [True, False])
async def test_an_unknown_topic_changes_nothing_at_all(room: Room, is_there: bool):
    await room.publish("rides")
    if is_there:
        await room.subscribe("billing", "orders")
    before = room.dump()
    assert await ask(room, "rides", "never", adds=True, format="channel") == "unknown"
    assert room.dump() == before


async def test_its_format_is_for_good(room: Room):
    await room.publish("orders")
    await ask(room, "orders", adds=True, format="channel")
    await room.subscribe("billing", "orders", timeout=0, max=1, client="billing")
    assert room.fields("subscriber:billing")["format"] == "channel"
    await room.publish("orders", first=2)
    delivery = await room.take()
    assert delivery.format == "channel"
    assert b'"channel":"orders"' in delivery.body
    assert line("orders", 2) not in delivery.body
