"""Whether a store can be run on."""

from collections.abc import Iterator

import pytest

from routemaster.errors import StoreAway, StoreUnfit
from routemaster.store import check as subject
from routemaster.store.check import LAYOUT, check, fields_of
from routemaster.store.link import Link
from tests.store.room import Room


@pytest.fixture
def eviction(room: Room) -> Iterator[Room]:
    yield room
    room.redis.config_set("maxmemory-policy", "noeviction")


async def test_a_fit_store_gets_the_layouts_version(room: Room):
    await check(room.link, room.ns)
    assert room.dump() == {"layout": str(LAYOUT).encode()}


async def test_checking_again_changes_nothing(room: Room):
    await check(room.link, room.ns)
    before = room.dump()
    await check(room.link, room.ns)
    assert room.dump() == before


async def test_a_newer_layout_is_refused(room: Room):
    room.redis.set(room.key("layout"), LAYOUT + 1)
    with pytest.raises(StoreUnfit, match=f"layout {LAYOUT + 1}.*upgrade"):
        await check(room.link, room.ns)
    assert room.redis.get(room.key("layout")) == str(LAYOUT + 1).encode()


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
async def test_a_store_that_evicts_is_refused(eviction: Room, policy: str):
    eviction.redis.config_set("maxmemory-policy", policy)
    with pytest.raises(StoreUnfit, match=f"{policy}.*noeviction"):
        await check(eviction.link, eviction.ns)
    assert eviction.dump() == {}


async def test_a_version_below_the_floor_is_refused(room: Room, monkeypatch: pytest.MonkeyPatch):
    """Older servers are not at hand, so the floor is raised instead."""
    monkeypatch.setattr(subject, "VALKEY_FLOOR", (99, 1))
    with pytest.raises(StoreUnfit, match=r"valkey \d+\.\d+.*at least 99\.1"):
        await check(room.link, room.ns)
    assert room.dump() == {}


async def test_a_store_that_is_away_is_no_unfit_one(room: Room):
    link = Link("unix:///nowhere/store.sock", patience_s=0.05)
    link.open()
    with pytest.raises(StoreAway):
        await check(link, room.ns)
    await link.close()


def test_fields_of_what_the_server_says():
    text = b"# Server\r\nvalkey_version:9.1.2\r\n\r\nexecutable:/a:b\r\nempty:\r\n"
    assert fields_of(text) == {"valkey_version": "9.1.2", "executable": "/a:b", "empty": ""}
