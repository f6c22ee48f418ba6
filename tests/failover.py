"""A store with replicas and sentinels on loopback, all real processes: to be killed, frozen and led by.

What it offers is what a `Store` offers, so that a bus runs on it; `redis` is always the primary of the
moment.
"""

import contextlib
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from redis import Redis, RedisError
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests import server
from tests.bus import Process
from tests.until import until

SERVICE = "rm-test"
FAILOVER_S = 20.0
Lines = Mapping[str, str]


class Server:
    """One server or sentinel, on a port of its own."""

    def __init__(self, name: str, folder: Path, config: Lines, *, is_sentinel: bool = False) -> None:
        self.port = free_port()
        self.address = ("127.0.0.1", self.port)
        self.folder = folder / name
        self.folder.mkdir()
        path = self.folder / "server.conf"
        own = {"port": str(self.port), "bind": "127.0.0.1", "dir": str(self.folder), **config}
        path.write_text("".join(f"{key} {value}\n" for key, value in own.items()))
        flags = ("--sentinel",) if is_sentinel else ()
        command = (server.binary(), str(path), *flags)
        self.process = Process(name, command, dict(os.environ), self.folder / "out")
        self._clients: list[Redis] = []

    def client(self, **how: object) -> Redis:
        at_once = Retry(NoBackoff(), 0)  # who waits for it asks again by itself
        self._clients.append(Redis(port=self.port, socket_timeout=2, retry=at_once, **how))
        return self._clients[-1]

    def start(self) -> None:
        self.process.start()

    def until_answers(self, redis: Redis) -> None:
        until(lambda: answers(redis), f"{self.process.name} to answer: {self.process.log[-2000:]}")

    def remove(self) -> None:
        for client in self._clients:
            client.close()
        self.process.kill()


class Guarded:
    """A primary, its replicas and their sentinels."""

    def __init__(self, folder: Path, *, replicas: int, sentinels: int = 3) -> None:
        self.folder = folder
        config = {
            "save": '""',
            "appendonly": "yes",
            "appendfsync": "always",
            "maxmemory-policy": "noeviction",
            "repl-diskless-sync-delay": "0",
            "repl-timeout": "5",
        }
        self.servers = [Server("store-1", folder, config)]
        first = self.servers[0].port
        for n in range(replicas):
            self.servers.append(
                Server(f"store-{n + 2}", folder, {**config, "replicaof": f"127.0.0.1 {first}"})
            )
        quick = {
            "sentinel monitor": f"{SERVICE} 127.0.0.1 {first} {sentinels // 2 + 1}",
            "sentinel down-after-milliseconds": f"{SERVICE} 700",
            "sentinel failover-timeout": f"{SERVICE} 4000",
            "sentinel parallel-syncs": f"{SERVICE} 2",
        }
        self.sentinels = [
            Server(f"sentinel-{n + 1}", folder, quick, is_sentinel=True) for n in range(sentinels)
        ]
        self._redis = {one.port: one.client() for one in (*self.servers, *self.sentinels)}
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        self.url = f"redis+sentinel://{hosts}/{SERVICE}"

    def start(self) -> None:
        """Sentinels come last: they look for replicas when they start, and then every ten seconds."""
        for one in self.servers:
            one.start()
        first = self._redis[self.servers[0].port]
        for one in self.servers:
            one.until_answers(self._redis[one.port])
        until(lambda: self._online(first) == len(self.servers) - 1, "the replicas to be in step")
        for one in self.sentinels:
            one.start()
        self.until_guarded()

    def until_guarded(self) -> None:
        """The primary has all its replicas, and the sentinels know of them and of each other."""
        until(self._is_guarded, "replicas and sentinels to know each other", FAILOVER_S)

    @property
    def primary(self) -> Server:
        """What most sentinels call so."""
        names = [name for sentinel in self.sentinels if (name := self._named(sentinel)) is not None]
        port = max(set(names), key=names.count)
        return next(one for one in self.servers if one.port == port)

    @property
    def process(self) -> Process:
        return self.primary.process

    @property
    def redis(self) -> Redis:
        return self._redis[self.primary.port]

    def redis_of(self, one: Server) -> Redis:
        return self._redis[one.port]

    def until_replaced(self, old: Server) -> None:
        def is_replaced() -> bool:
            new = self.primary
            return new is not old and answers(self._redis[new.port]) and self._role(new) == "master"

        until(is_replaced, "another primary", FAILOVER_S)

    def remove(self) -> None:
        for one in (*self.sentinels, *self.servers):
            one.remove()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _named(self, sentinel: Server) -> int | None:
        try:
            answer = self._redis[sentinel.port].execute_command(
                "SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE
            )
        except RedisError:
            return None
        return int(answer[1])

    def _role(self, one: Server) -> str:
        try:
            return str(self._redis[one.port].info("replication")["role"])
        except RedisError:
            return ""

    def _is_guarded(self) -> bool:
        try:
            replicas = self._online(self.redis)
            known = [
                (int(found["num-slaves"]), int(found["num-other-sentinels"]), found["flags"])
                for sentinel in self.sentinels
                for found in [self._seen_by(sentinel)]
            ]
        except (RedisError, ValueError):
            return False
        others, copies = len(self.sentinels) - 1, len(self.servers) - 1
        return replicas == copies and known == [(copies, others, "master")] * len(self.sentinels)

    def _online(self, redis: Redis) -> int:
        info = redis.info("replication")
        return sum(info[f"slave{n}"]["state"] == "online" for n in range(info["connected_slaves"]))

    def _seen_by(self, sentinel: Server) -> dict[str, str]:
        [flat] = self._redis[sentinel.port].execute_command("SENTINEL", "MASTERS")
        return {key.decode(): value.decode() for key, value in flat.items()}


def answers(redis: Redis) -> bool:
    try:
        return bool(redis.ping())
    except RedisError:
        return False


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@contextlib.contextmanager
def running_server(name: str = "store", *, is_sentinel: bool = False, **config: str) -> Iterator[Server]:
    """One server on a port; `_` in a setting's name stands for `-`, or for a blank in a sentinel's."""
    blank = " " if is_sentinel else "-"
    with tempfile.TemporaryDirectory(prefix="rm-", ignore_cleanup_errors=True) as folder:
        lines = {key.replace("_", blank): value for key, value in config.items()}
        one = Server(name, Path(folder), lines, is_sentinel=is_sentinel)
        try:
            one.start()
            yield one
        finally:
            one.remove()


@contextlib.contextmanager
def guarded_store(*, replicas: int = 2, sentinels: int = 3) -> Iterator[Guarded]:
    store = Guarded(Path(tempfile.mkdtemp(prefix="rm-")), replicas=replicas, sentinels=sentinels)
    try:
        store.start()
        yield store
    finally:
        store.remove()
