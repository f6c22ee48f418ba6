"""Clients and their tokens, as the scripts keep them."""

import msgspec
import pytest

from routemaster.credential import Token, token_of
from routemaster.store.clients import Client, Grants
from routemaster.store.registry import Wanted
from tests.store.room import HOUR_MS, Room
from tests.store.test_registry import read_all, record, token


async def client_of(room: Room, client: str = "shop--1") -> Client:
    found = (await read_all(room)).clients[client]
    assert found is not None
    return found


def digests(client: Client) -> list[str]:
    return [token.digest for token in client.tokens]


async def test_a_new_token_comes_first_and_the_old_ones_end(room: Room):
    await room.clients.add("shop--1", record("one"))
    assert await room.clients.rotate("shop--1", token("two"), HOUR_MS) == "done"
    newest, old = (await client_of(room)).tokens
    assert (newest, old.digest) == (token("two"), "one")
    assert room.redis.zrange(room.key("tokens:ending"), 0, -1, withscores=True) == [(b"one", old.ends_at)]
    assert room.fields("tokens") == {"one": "shop--1", "two": "shop--1"}


async def test_a_shorter_grace_holds_and_a_longer_one_prolongs_nothing(room: Room):
    await room.clients.add("shop--1", record("one"))
    await room.clients.rotate("shop--1", token("two"), HOUR_MS)
    first_end = (await client_of(room)).tokens[1].ends_at
    await room.clients.rotate("shop--1", token("three"), 10 * HOUR_MS)
    three, two, one = (await client_of(room)).tokens
    assert one.ends_at == first_end
    assert two.ends_at > first_end
    await room.clients.rotate("shop--1", token("four"), 1000)
    _, three, *older = (await client_of(room)).tokens
    assert all(old.ends_at < first_end for old in (three, *older))


async def test_without_a_grace_only_the_new_one_is_left(room: Room):
    await room.clients.add("shop--1", record("one"))
    await room.clients.rotate("shop--1", token("two"), HOUR_MS)
    await room.clients.rotate("shop--1", token("three"), 0)
    assert digests(await client_of(room)) == ["three"]
    assert room.fields("tokens") == {"three": "shop--1"}
    assert "tokens:ending" not in room.dump()


@pytest.mark.parametrize(
    ("client", "digest", "said"), [("nobody", "new", "unknown"), ("shop--1", "other", "taken")]
)
async def test_what_cannot_be_rotated_changes_nothing(room: Room, client: str, digest: str, said: str):
    await room.clients.add("shop--1", record("one"))
    await room.clients.add("taxi--2", record("other"))
    before = room.dump()
    assert await room.clients.rotate(client, token(digest), 0) == said
    assert room.dump() == before


async def test_tokens_go_when_their_grace_is_over(room: Room):
    await room.clients.add("shop--1", record("one"))
    await room.clients.rotate("shop--1", token("two"), HOUR_MS)
    epoch = room.epoch()
    assert not await room.upkeep.end_tokens()
    assert room.epoch() == epoch
    ended = (await client_of(room)).tokens[1]
    text = room.redis.hget(room.key("clients"), "shop--1")
    room.redis.hset(room.key("clients"), "shop--1", text.replace(str(ended.ends_at).encode(), b"1000"))
    room.redis.zadd(room.key("tokens:ending"), {"one": 1000})
    assert not await room.upkeep.end_tokens()
    assert digests(await client_of(room)) == ["two"]
    assert room.fields("tokens") == {"two": "shop--1"}
    assert room.epoch() != epoch


async def test_a_client_whose_last_token_ends_is_left_without_one(room: Room):
    await room.clients.add("shop--1", record("one"))
    await room.clients.rotate("shop--1", token("two"), HOUR_MS)
    await room.clients.delete("two", "two")
    (ending,) = (await client_of(room)).tokens
    text = room.redis.hget(room.key("clients"), "shop--1")
    room.redis.hset(room.key("clients"), "shop--1", text.replace(str(ending.ends_at).encode(), b"1000"))
    room.redis.zadd(room.key("tokens:ending"), {"one": 1000})
    await room.upkeep.end_tokens()
    assert (await client_of(room)).tokens == ()
    assert await room.clients.rotate("shop--1", token("three"), 0) == "done"
    assert digests(await client_of(room)) == ["three"]


async def test_of_a_client_that_went_meanwhile_nothing_is_left(room: Room):
    await room.clients.add("shop--1", record("one"))
    await room.clients.rotate("shop--1", token("two"), HOUR_MS)
    await room.clients.delete("shop--1", "")
    assert "tokens" not in room.dump()
    assert "tokens:ending" not in room.dump()
    room.redis.zadd(room.key("tokens:ending"), {"stray": 1})
    assert not await room.upkeep.end_tokens()
    assert "tokens:ending" not in room.dump()


async def test_a_token_is_kept_with_all_that_proves_it(room: Room):
    made = token_of("secret-token", "shop--1", "shop")
    assert len({*made.by_id, *made.by_name, made.digest}) == 5
    await room.clients.add("shop--1", msgspec.structs.replace(record(), tokens=[made]))
    await room.clients.rotate("shop--1", token("two"), HOUR_MS)
    kept = (await client_of(room)).tokens[1]
    assert kept == Token(made.digest, kept.ends_at, made.by_id, made.by_name)


@pytest.mark.parametrize("grants", [Grants(), Grants(publish=()), Grants(("a",), ("b", "c*"))])
async def test_grants_survive_what_scripts_do(room: Room, grants: Grants):
    """An empty list stays a list."""
    await room.clients.add("shop--1", record("one"))
    assert await room.clients.grant("shop--1", grants)
    await room.clients.rotate("shop--1", token("two"), HOUR_MS)
    await room.clients.delete("", "one")
    assert (await client_of(room)).grants == grants
    assert not await room.clients.grant("nobody", grants)


async def test_a_seed_grows_once(room: Room):
    assert await room.clients.seed("shop--1", record("one"))
    assert not await room.clients.seed("shop--2", record("one"))
    await room.clients.delete("shop--1", "")
    before = room.dump()
    assert not await room.clients.seed("shop--3", record("one"))
    assert room.dump() == before


async def test_a_count_is_spent_once(room: Room):
    spent = [await room.clients.spend_nonce("nonce", count, 1000) for count in (1, 2, 1, 16_383, 2, 16_383)]
    assert spent == [True, True, False, True, False, False]
    assert await room.clients.spend_nonce("another", 1, 1000)
    assert 0 < room.redis.pttl(room.key("nonce:nonce")) <= 1000


async def test_all_sign_nonces_with_the_same_key(room: Room):
    assert len(await room.clients.nonce_key()) == 32
    assert await room.clients.nonce_key() == await room.clients.nonce_key()


async def test_a_token_that_was_revoked_meanwhile_subscribes_to_nothing(room: Room):
    """Who asks was looked up before its callback was."""
    await room.clients.add("shop--1", record("old"))
    await room.clients.rotate("shop--1", token("new"), 0)
    wanted = Wanted("shop--1", "shop--1", 1, {"callback": "https://example.com/"}, "", 0, {"orders"}, "old")
    before = room.dump()
    assert await room.registry.subscribe(wanted) == "gone"
    assert room.dump() == before
    assert await room.registry.subscribe(wanted._replace(token="new")) == "changed"
