"""The link: one connection that is made anew, and errors that are ours."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from routemaster.errors import StoreAway, StoreError, StoreFull, StoreUnfit
from routemaster.store.connection import Missing, translate
from routemaster.store.link import Link
from routemaster.store.primary import connect
from routemaster.store.script import Script
from tests.bus import Store, running_store
from tests.store.room import Room
from tests.until import until_async

SOON_S = 3.0  # patience, and what a busy machine adds
TICK, BEAT = Script("tick"), Script("beat")


@pytest.fixture(scope="module")
def own_store() -> Iterator[Store]:
    """A store that tests may stop; runs again when each ends."""
    with running_store() as own:
        yield own


@pytest.fixture
async def own_link(own_store: Store) -> AsyncIterator[Link]:
    if not own_store.process.is_running:
        own_store.start()
    own_store.redis.flushall()
    link = Link(own_store.url, patience_s=0.2, silence_s=0.3)
    link.open()
    await until_async(lambda: link.is_up, "the first connection")
    yield link
    await link.close()


# Calling


async def test_calls_that_act_together_share_the_connection(room: Room):
    for n in range(20):
        room.redis.set(room.key(f"k{n}"), n)
    answers = await asyncio.gather(*(room.link.call("GET", room.key(f"k{n}")) for n in range(20)))
    assert answers == [b"%d" % n for n in range(20)]
    assert room.link.connected == 1


async def test_an_error_is_its_callers_alone(room: Room):
    room.redis.set(room.key("text"), "text")
    good, bad, also_good = await asyncio.gather(
        room.link.call("GET", room.key("text")),
        room.link.call("HGET", room.key("text"), "field"),
        room.link.call("GET", room.key("text")),
        return_exceptions=True,
    )
    assert (good, also_good) == (b"text", b"text")
    assert type(bad) is StoreError
    assert room.link.is_up


async def test_a_caller_that_gave_up_does_not_shift_the_answers(room: Room):
    connection = await room.link.connection()
    room.redis.set(room.key("one"), "1")
    room.redis.set(room.key("two"), "2")
    given_up = connection.send("GET", room.key("one"))
    given_up.cancel()
    assert await room.link.call("GET", room.key("two")) == b"2"


async def test_a_script_that_the_store_forgot_is_loaded_again_and_runs_once(room: Room):
    await room.link.run(TICK, room.ns, "first")
    room.redis.script_flush()
    await asyncio.gather(*(room.link.run(TICK, room.ns, f"job{n}") for n in range(5)))
    assert room.instant("aux") == ["first", "job0", "job1", "job2", "job3", "job4"]


async def test_the_database_of_the_url_is_used(room: Room, store: Store):
    await room.link.call("SET", room.key("here"), "1")
    assert room.redis.exists(room.key("here")) == 1
    assert store.redis.exists(room.key("here")) == 0


# Away


async def test_a_store_that_was_restarted_is_found_again(own_store: Store, own_link: Link):
    await own_link.call("SET", "ns:kept", "1")
    await own_link.run(BEAT, "ns:", "w", "main")
    own_store.process.restart()
    own_store.until_answers()
    await until_async(lambda: own_link.is_up and own_link.connected == 2, "a new connection")
    assert await own_link.call("GET", "ns:kept") == b"1"  # fsync always
    assert await own_link.run(BEAT, "ns:", "w", "main") == [-1]  # loaded again


async def test_while_the_store_is_away_callers_hear_so_soon(own_store: Store, own_link: Link):
    own_store.kill()
    for _ in range(2):
        began = time.monotonic()
        answers = await asyncio.gather(
            *(own_link.call("GET", "ns:x") for _ in range(5)), return_exceptions=True
        )
        assert time.monotonic() - began < SOON_S
        assert {type(answer) for answer in answers} == {StoreAway}
    assert not own_link.is_up
    own_store.start()
    await until_async(lambda: own_link.is_up, "the link to come back")
    assert await own_link.call("PING") == b"PONG"


async def test_a_call_waits_a_moment_for_a_connection(own_store: Store):
    link = Link(own_store.url, patience_s=15)
    if not own_store.process.is_running:
        own_store.start()
    link.open()
    await until_async(lambda: link.is_up, "the first connection")
    own_store.kill()
    await until_async(lambda: not link.is_up, "the link to notice")
    call = asyncio.create_task(link.call("PING"))
    own_store.process.start()
    assert await call == b"PONG"
    await link.close()


async def test_a_frozen_store_is_an_absent_one(own_store: Store, own_link: Link):
    own_store.process.freeze()
    try:
        began = time.monotonic()
        with pytest.raises(StoreAway, match="before its answer came"):
            await own_link.call("GET", "ns:x")
        assert time.monotonic() - began < SOON_S
    finally:
        own_store.process.thaw()
    await until_async(lambda: own_link.is_up, "the link to come back")


async def test_a_cut_connection_fails_who_waits_and_is_made_anew(own_store: Store, own_link: Link):
    own_store.process.freeze()
    try:
        waiting = asyncio.create_task(own_link.call("PING"))
        connection = await own_link.connection()
        await until_async(lambda: connection.outstanding == 1, "the call to be sent")
        own_link.cut()
        with pytest.raises(StoreAway):
            await waiting
    finally:
        own_store.process.thaw()
    await until_async(lambda: own_link.is_up and own_link.connected >= 2, "a new connection")
    assert await own_link.call("PING") == b"PONG"


async def test_a_store_that_is_not_there_is_named():
    link = Link("unix:///nowhere/store.sock")
    link.open()
    with pytest.raises(StoreAway, match=r"unix:///nowhere/store\.sock"):
        await link.call("PING")
    await link.close()


# The store's errors are ours


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("OOM command not allowed when used memory > 'maxmemory'.", StoreFull),
        ("MISCONF Errors writing to the AOF file: No space left on device", StoreFull),
        ("LOADING Valkey is loading the dataset in memory", StoreAway),
        ("BUSY Valkey is busy running a script.", StoreAway),
        ("READONLY You can't write against a read only replica.", StoreAway),
        ("NOREPLICAS Not enough good replicas to write.", StoreAway),
        ("NOAUTH Authentication required.", StoreUnfit),
        ("WRONGPASS invalid username-password pair", StoreUnfit),
        ("NOPERM this user has no permissions", StoreUnfit),
        ("NOSCRIPT No matching script.", Missing),
        ("ERR unknown command 'FOO'", StoreError),
        ("WRONGTYPE Operation against a key", StoreError),
    ],
)
def test_errors_are_translated_by_their_first_word(text: str, expected: type[StoreError]):
    error = translate(text)
    assert type(error) is expected
    assert str(error).startswith(text)


async def test_a_full_store_refuses_scripts_whole_but_for_those_that_free_memory(
    own_store: Store, own_link: Link
):
    own_store.redis.set("filler", "x" * 2**20)
    before = own_store.redis.config_get("maxmemory")["maxmemory"]
    own_store.redis.config_set("maxmemory", 2**20)
    try:
        with pytest.raises(StoreFull):
            await own_link.call("SET", "ns:x", "1")
        with pytest.raises(StoreFull):
            await own_link.run(Script("add_client"), "ns:", "epoch", "shop", "{}", "digest")
        assert own_store.redis.keys("ns:*") == []
        await own_link.run(TICK, "ns:", "scrub")  # flagged allow-oom
        assert own_store.redis.llen("ns:jobs:instant:aux") == 1
    finally:
        own_store.redis.config_set("maxmemory", before)


async def test_a_replica_is_a_store_that_is_away(own_store: Store, own_link: Link):
    """After a failover the link may find itself at a replica: it is not a defect of the request."""
    own_store.redis.replicaof("127.0.0.1", "1")
    try:
        with pytest.raises(StoreAway):
            await own_link.call("SET", "ns:x", "1")
        with pytest.raises(StoreAway):
            await own_link.run(TICK, "ns:", "scrub")
    finally:
        own_store.redis.replicaof("NO", "ONE")
    await own_link.run(TICK, "ns:", "scrub")


async def test_a_store_that_is_busy_with_a_script_is_away(own_store: Store):
    """Until it is done: nothing of ours runs for so long, but somebody else's may."""
    link = Link(own_store.url, patience_s=0.2, silence_s=30)
    link.open()
    await until_async(lambda: link.is_up, "the first connection")
    own_store.redis.config_set("busy-reply-threshold", 1)
    hog = await connect(own_store.url)
    spinning = hog.send("EVAL", "while true do end", 0)
    try:
        with pytest.raises(StoreAway, match=r"^BUSY"):
            while True:
                await link.call("GET", "ns:x")
    finally:
        own_store.redis.script_kill()
        with contextlib.suppress(StoreError):
            await spinning
        hog.abort()
        own_store.redis.config_set("busy-reply-threshold", 5000)
        await link.close()


async def test_a_store_that_is_loading_is_away_until_it_is_done():
    with running_store() as own:
        with own.redis.pipeline(transaction=False) as pipe:
            for n in range(4000):
                pipe.set(f"k{n}", n)
            pipe.execute()
        own.kill()
        config = own.folder / "store.conf"
        config.write_text(config.read_text() + "key-load-delay 300\n")  # microseconds
        own.process.start()
        link = Link(own.url, patience_s=0.01)
        link.open()
        heard: set[str] = set()
        while not link.is_up:
            try:
                await link.call("PING")
            except StoreAway as error:
                heard.add(str(error).split(" ", 1)[0])
        assert heard <= {"the", "LOADING"}  # there is no socket at first
        assert "LOADING" in heard
        assert await link.call("GET", "k3999") == b"3999"
        await link.close()


async def test_credentials_are_given_and_wrong_ones_are_told(own_store: Store, own_link: Link):
    own_store.redis.acl_setuser("bus", enabled=True, passwords=["+se cret"], categories=["+@all"], keys=["*"])
    plain = own_store.url.removeprefix("unix://")
    connection = await connect(f"unix://bus:se%20cret@{plain}")
    assert await connection.send("ACL", "WHOAMI") == b"bus"
    connection.abort()
    with pytest.raises(StoreUnfit):
        await connect(f"unix://bus:wrong@{plain}")
