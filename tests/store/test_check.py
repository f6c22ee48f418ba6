"""Whether a store can be run on."""

import socket
from collections.abc import Iterator

import pytest

from routemaster.errors import StoreAway, StoreUnfit
from routemaster.store import check as subject
from routemaster.store.check import LAYOUT, check, fields_of, wait_for
from routemaster.store.link import Link
from tests.failover import running_server
from tests.store.room import Room
from tests.until import until_async


@pytest.fixture(scope="module")
def locked() -> Iterator[int]:
    """The port of a store that wants a password."""
    with running_server(save='""', requirepass="hunter2") as server:
        server.until_answers(server.client(password="hunter2"))
        yield server.port


def own_address() -> str | None:
    """An address of this machine that is not a loopback one. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        address = probe.getsockname()[0]
    return None if address.startswith("127.") else address


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
    for floor in ("VALKEY_FLOOR", "REDIS_FLOOR"):
        monkeypatch.setattr(subject, floor, (99, 1))
    with pytest.raises(StoreUnfit, match=r"(valkey|redis) \d+\.\d+.*at least 99\.1"):
        await check(room.link, room.ns)
    assert room.dump() == {}


async def test_a_store_that_is_away_is_no_unfit_one(room: Room):
    link = Link("unix:///nowhere/store.sock", patience_s=0.05)
    link.open()
    with pytest.raises(StoreAway):
        await check(link, room.ns)
    await link.close()


async def test_a_store_in_cluster_mode_is_refused():
    with running_server(save='""', cluster_enabled="yes") as server:
        server.until_answers(server.client())
        link = Link(f"redis://127.0.0.1:{server.port}")
        link.open()
        with pytest.raises(StoreUnfit, match=r"cluster mode.*not supported yet"):
            await check(link, "ns:")
        await link.close()


async def test_a_sentinel_is_told_from_a_store():
    monitor = {"sentinel_monitor": "rm 127.0.0.1 1 1"}
    with running_server(**monitor, is_sentinel=True) as server:
        server.until_answers(server.client())
        link = Link(f"redis://127.0.0.1:{server.port}")
        link.open()
        with pytest.raises(StoreUnfit, match=r"is a sentinel.*redis\+sentinel://"):
            await check(link, "ns:")
        await link.close()


@pytest.mark.parametrize(
    ("credentials", "words"), [("", "NOAUTH"), (":wrong@", "WRONGPASS"), ("nobody:x@", "WRONGPASS")]
)
async def test_who_is_not_let_in_hears_so_at_the_start(locked: int, credentials: str, words: str):
    link = Link(f"redis://{credentials}127.0.0.1:{locked}", patience_s=0.2)
    link.open()
    with pytest.raises(StoreUnfit, match=rf"127\.0\.0\.1:{locked}.*{words}"):
        await wait_for(link, "ns:")
    await link.close()


async def test_a_password_alone_is_enough_where_the_store_has_but_that(locked: int):
    link = Link(f"redis://:hunter2@127.0.0.1:{locked}")
    link.open()
    await wait_for(link, "ns:")
    await link.close()


async def test_a_store_with_no_room_for_another_connection_is_away():
    with running_server(save='""', maxclients="1") as server:
        url = f"redis://127.0.0.1:{server.port}"
        first, second = Link(url), Link(url, patience_s=0.5)
        first.open()
        await until_async(lambda: first.is_up, "the store to be up")
        second.open()
        with pytest.raises(StoreAway, match="max number of clients"):
            await second.call("PING")
        await first.close()
        await until_async(lambda: second.is_up, "the second to come in")
        await second.close()


async def test_protected_mode_says_what_to_do():
    """Where this machine has another address: from loopback everybody is let in."""
    address = own_address()
    if address is None:
        pytest.skip("this machine has no address but loopback")
    with running_server(save='""', bind=f"127.0.0.1 {address}", protected_mode="yes") as server:
        server.until_answers(server.client())
        link = Link(f"redis://{address}:{server.port}", patience_s=0.3)
        link.open()
        with pytest.raises(StoreUnfit, match=r"DENIED .*protected mode"):
            await wait_for(link, "ns:")
        await link.close()


def test_fields_of_what_the_server_says():
    text = b"# Server\r\nvalkey_version:9.1.2\r\n\r\nexecutable:/a:b\r\nempty:\r\n"
    assert fields_of(text) == {"valkey_version": "9.1.2", "executable": "/a:b", "empty": ""}
