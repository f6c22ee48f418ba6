import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from redis.asyncio import Redis

from routemaster.cli.embedded import SOCKET_PATH_MAX_BYTES, EmbeddedStore, machine_memory_bytes
from routemaster.cli.supervisor import Supervisor
from routemaster.errors import StartFailed
from tests.until import DEADLINE_S, until_async


@pytest.fixture
def lock_fd(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "lock", os.O_CREAT | os.O_RDWR)
    yield fd
    os.close(fd)


@asynccontextmanager
async def running(store: EmbeddedStore, lock_fd: int):
    pids: dict[str, int] = {}
    supervisor = Supervisor(pids.update)
    supervisor.start(store.prepare(os.environ, lock_fd))
    try:
        await supervisor.until(store.answers)
        yield pids
    finally:
        await supervisor.stop()
        store.remove()


async def until_answers(store: EmbeddedStore) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not await store.answers():
            await asyncio.sleep(0.01)


def client(store: EmbeddedStore) -> Redis:
    return Redis(unix_socket_path=str(store.socket))


async def test_what_was_acknowledged_outlives_a_kill(folder: Path, lock_fd: int):
    folder.mkdir()
    store = EmbeddedStore(folder, 64 * 2**20)
    async with running(store, lock_fd) as pids:
        async with client(store) as redis:
            await redis.set("kept", "yes")
        first = pids["store"]
        os.kill(first, signal.SIGKILL)
        await until_async(lambda: pids["store"] != first, "another store")
        await until_answers(store)
        async with client(store) as redis:
            assert await redis.get("kept") == b"yes"
    async with running(store, lock_fd), client(store) as redis:
        assert await redis.get("kept") == b"yes"


async def test_it_runs_as_configured(folder: Path, lock_fd: int):
    folder.mkdir()
    store = EmbeddedStore(folder, 64 * 2**20)
    async with running(store, lock_fd), client(store) as redis:
        config = await redis.config_get("*")
        assert config["appendfsync"] == "always"
        assert config["maxmemory-policy"] == "noeviction"
        assert config["maxmemory"] == str(64 * 2**20)
        assert config["port"] == "0"
        assert store.socket.stat().st_mode & 0o777 == 0o700
        assert (folder / "store.conf").stat().st_mode & 0o777 == 0o600


async def test_a_long_or_odd_path_is_no_obstacle(tmp_path: Path, lock_fd: int):
    folder = tmp_path / 'with "quotes" and spaces' / ("x" * SOCKET_PATH_MAX_BYTES)
    folder.mkdir(parents=True)
    store = EmbeddedStore(folder, 0)
    assert len(os.fsencode(store.socket)) <= SOCKET_PATH_MAX_BYTES
    assert store.socket.parent.stat().st_mode & 0o777 == 0o700
    async with running(store, lock_fd), client(store) as redis:
        assert await redis.config_get("maxmemory") == {"maxmemory": str(machine_memory_bytes() // 2)}
    assert not store.socket.parent.exists()


async def test_a_store_that_cannot_run_points_to_its_log(folder: Path, lock_fd: int):
    folder.mkdir()
    manifest = folder / "store" / "appendonlydir" / "appendonly.aof.manifest"
    manifest.parent.mkdir(parents=True)
    manifest.write_text("nonsense\n")
    with pytest.raises(StartFailed, match=r"store does not stay up .* see .*store\.log"):
        async with running(EmbeddedStore(folder, 0), lock_fd):
            pass
