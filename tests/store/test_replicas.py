"""Waiting for replicas: a flush is answered when as many as asked for have it, and asked again until then."""

from collections.abc import AsyncIterator, Iterator

import pytest
from redis import Redis
from structlog.testing import capture_logs

from routemaster.errors import StoreAway, StoreUnfit
from routemaster.store.check import check
from routemaster.store.link import Link
from routemaster.store.publish import Limits, Stored
from tests.failover import Server, running_server
from tests.store.room import LIMITS, Room, request
from tests.until import until, until_async

WAITING = Limits(LIMITS.window_ms, LIMITS.max_keys, LIMITS.max_log_bytes, replicas=1, replicas_timeout_ms=100)


class Pair:
    def __init__(self, primary: Server, replica: Server) -> None:
        self.replica = replica
        self.primary_redis, self.replica_redis = primary.client(), replica.client()
        self.url = f"redis://127.0.0.1:{primary.port}"
        self.replica_url = f"redis://127.0.0.1:{replica.port}"
        primary.until_answers(self.primary_redis)
        replica.until_answers(self.replica_redis)
        until(lambda: _is_in_step(self.replica_redis), "the replica to be in step")


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with running_server("primary", save='""', repl_diskless_sync_delay="0") as primary:
        of = f"127.0.0.1 {primary.port}"
        with running_server("replica", save='""', replicaof=of, repl_timeout="2") as replica:
            yield Pair(primary, replica)


@pytest.fixture
async def room(pair: Pair) -> AsyncIterator[Room]:
    pair.primary_redis.flushall()
    link = Link(pair.url)
    link.open()
    yield Room(link, pair.primary_redis, "ns:")
    await link.close()


async def test_a_flush_that_the_replica_has_is_stored(pair: Pair, room: Room):
    assert await room.web.publish(request("topic"), limits=WAITING) == Stored({})
    assert pair.replica_redis.xlen("ns:log:events") == 1


async def test_one_that_it_has_not_is_not_answered_and_asked_again_is_no_other(pair: Pair, room: Room):
    flush = await room.web.flush(request("topic"))
    pair.replica.process.freeze()
    try:
        with pytest.raises(StoreAway, match="0 of 1 replicas"):
            await room.web.send(flush, WAITING)
        # A new connection has written nothing, and WAIT would be content with that.
        connected = room.link.connected
        room.link.cut()
        await until_async(lambda: room.link.connected > connected, "another connection")
        with pytest.raises(StoreAway, match="0 of 1 replicas"):
            await room.web.send(flush, WAITING)
    finally:
        pair.replica.process.thaw()
    await until_async(lambda: _is_in_step(pair.replica_redis), "the replica to be in step again")
    assert await room.web.send(flush, WAITING) == Stored({})
    assert pair.replica_redis.xlen("ns:log:events") == pair.primary_redis.xlen("ns:log:events") == 1


async def test_who_asked_for_none_waits_for_none(pair: Pair, room: Room):
    pair.replica.process.freeze()
    try:
        pair.primary_redis.config_resetstat()
        assert await room.web.publish(request("topic")) == Stored({})
        assert "cmdstat_wait" not in pair.primary_redis.info("commandstats")
    finally:
        pair.replica.process.thaw()


async def test_fewer_replicas_than_wanted_are_warned_of(pair: Pair, room: Room):
    await until_async(lambda: _is_in_step(pair.replica_redis), "the replica to be in step")
    for wanted, warned in ((1, []), (2, [(1, 2)])):
        with capture_logs() as lines:
            await check(room.link, room.ns, wanted)
        assert [(line["connected"], line["expected"]) for line in lines] == warned


async def test_a_replica_in_the_place_of_the_primary_is_unfit(pair: Pair):
    link = Link(pair.replica_url)
    link.open()
    with pytest.raises(StoreUnfit, match=r"is a replica of 127\.0\.0\.1:\d+.*primary"):
        await check(link, "ns:")
    await link.close()


async def test_a_primary_that_becomes_a_replica_is_left(pair: Pair, room: Room):
    await room.link.call("PING")
    host, port = "127.0.0.1", int(pair.replica_url.rpartition(":")[2])
    connected = room.link.connected
    pair.primary_redis.replicaof(host, port)
    try:
        with pytest.raises(StoreAway, match="READONLY"):
            await room.web.publish(request("topic"))
        await until_async(lambda: room.link.connected > connected, "a new connection")
    finally:
        pair.primary_redis.replicaof("NO", "ONE")
    await until_async(lambda: room.link.is_up, "the link to be back")
    assert await room.web.publish(request("topic")) == Stored({})


def _is_in_step(redis: Redis) -> bool:
    return redis.info("replication").get("master_link_status") == "up"
