"""Led by sentinels: which of them is believed, and what is said when nobody can be."""

import contextlib
from collections.abc import Iterator

import pytest

from routemaster.errors import StoreAway
from routemaster.settings import load
from routemaster.store.check import check
from routemaster.store.link import Link
from routemaster.store.primary import connect
from routemaster.store_url import StoreUrl
from tests.failover import Server, free_port, running_server
from tests.until import until_async


@pytest.fixture(scope="module")
def primary() -> Iterator[Server]:
    with running_server("primary", save='""') as server:
        redis = server.client()
        server.until_answers(redis)
        redis.execute_command("ACL SETUSER bus on >pw ~* &* +@all")
        yield server


@contextlib.contextmanager
def sentinel_of(port: int, **config: str) -> Iterator[Server]:
    """One that is never of the opinion that the server is down."""
    lines = {"sentinel_monitor": f"rm 127.0.0.1 {port} 9", **config}
    with running_server("sentinel", is_sentinel=True, **lines) as sentinel:
        redis = sentinel.client(password=config.get("requirepass"))
        sentinel.until_answers(redis)
        yield sentinel


@pytest.fixture(scope="module")
def sentinel(primary: Server) -> Iterator[Server]:
    with sentinel_of(primary.port) as one:
        yield one


def url_of(*sentinels: Server | int, service: str = "rm", more: str = "", user: str = "") -> StoreUrl:
    ports = [one if isinstance(one, int) else one.port for one in sentinels]
    hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
    return load({"ROUTEMASTER_REDIS_URL": f"redis+sentinel://{user}{hosts}/{service}{more}"}).redis_url


async def test_the_primary_is_found_and_greeted(primary: Server, sentinel: Server):
    link = Link(url_of(sentinel, more="/3", user="bus:pw@"))
    link.open()
    await check(link, "ns:")
    assert await link.call("ACL", "WHOAMI") == b"bus"
    assert primary.client(db=3).get("ns:layout") is not None
    await link.close()


async def test_sentinels_that_are_gone_are_done_without(sentinel: Server):
    connection = await connect(url_of(free_port(), sentinel, free_port()))
    assert await connection.send("PING") == b"PONG"
    connection.abort()


async def test_most_of_them_are_believed_whoever_answers_first(primary: Server, sentinel: Server):
    """The other would do as well by its own word: it is a primary too, that was cut off from the rest."""
    with (
        running_server("other", save='""') as other,
        sentinel_of(other.port) as behind,
        sentinel_of(primary.port) as second,
    ):
        other.until_answers(other.client())
        for order in ((behind, sentinel, second), (sentinel, second, behind), (second, behind, sentinel)):
            connection = await connect(url_of(*order))
            assert connection.came_by is not None
            assert connection.came_by[0] == primary.address
            connection.abort()


async def test_a_server_that_is_no_primary_is_not_believed(primary: Server):
    with running_server("replica", save='""', replicaof=f"127.0.0.1 {primary.port}") as replica:
        replica.until_answers(replica.client())
        words = rf"127\.0\.0\.1:{replica.port}: .*not the primary"
        with sentinel_of(replica.port) as mistaken, pytest.raises(StoreAway, match=words):
            await connect(url_of(mistaken))


async def test_a_connection_is_left_when_most_sentinels_name_another(primary: Server):
    with running_server("next", save='""') as successor, sentinel_of(primary.port) as sentinel:
        successor.until_answers(successor.client())
        link = Link(url_of(sentinel))
        link.open()
        await until_async(lambda: link.is_up, "the first connection")
        redis = sentinel.client()
        redis.execute_command("SENTINEL REMOVE rm")
        redis.execute_command("SENTINEL MONITOR rm 127.0.0.1", successor.port, 9)
        await until_async(lambda: link.connected == 2, "a connection to the next primary")
        connection = await link.connection()
        assert connection.came_by is not None
        assert connection.came_by[0] == successor.address
        await link.close()


async def test_an_unknown_service_and_the_silent_are_named(sentinel: Server):
    gone = free_port()
    with pytest.raises(StoreAway) as caught:
        await connect(url_of(sentinel, gone, service="other"))
    assert f"127.0.0.1:{sentinel.port} knows no such service" in str(caught.value)
    assert f"127.0.0.1:{gone} (" in str(caught.value)


async def test_a_frozen_sentinel_costs_a_moment_only(sentinel: Server):
    sentinel.process.freeze()
    try:
        with pytest.raises(StoreAway, match=rf"127\.0\.0\.1:{sentinel.port} does not answer"):
            await connect(url_of(sentinel))
    finally:
        sentinel.process.thaw()


async def test_sentinels_have_credentials_of_their_own(primary: Server):
    watcher = "watcher on >hunter2 -@all +sentinel|get-master-addr-by-name"
    with sentinel_of(primary.port, requirepass="hunter3", user=watcher) as locked:
        url = f"redis+sentinel://127.0.0.1:{locked.port}/rm"
        for user, password in (("watcher", "hunter2"), ("", "hunter3")):
            env = {
                "ROUTEMASTER_REDIS_URL": url,
                "ROUTEMASTER_REDIS_SENTINEL_USER": user,
                "ROUTEMASTER_REDIS_SENTINEL_PASSWORD": password,
            }
            connection = await connect(load(env).redis_url)
            assert await connection.send("PING") == b"PONG"
            connection.abort()
        with pytest.raises(StoreAway, match="NOAUTH"):
            await connect(load({"ROUTEMASTER_REDIS_URL": url}).redis_url)
        env = {"ROUTEMASTER_REDIS_URL": url, "ROUTEMASTER_REDIS_SENTINEL_PASSWORD": "wrong"}
        with pytest.raises(StoreAway, match="WRONGPASS") as caught:
            await connect(load(env).redis_url)
        assert "wrong" not in str(caught.value)


async def test_what_is_no_sentinel_is_told(primary: Server):
    with pytest.raises(StoreAway, match=r"(?i)unknown command"):
        await connect(url_of(primary))
