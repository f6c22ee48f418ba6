"""A bus that was brought up with `routemaster up`, by a supervisor that can be killed."""

import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from redis import Redis

from routemaster.cli.folder import find
from tests.bus import HERE, ROOT_KEY, ROUTEMASTER, Process
from tests.until import alive, until
from tests.wire import Address, Caller

READY_S = 30.0


class UpBus:
    namespace = "rm:"

    def __init__(self, folder: Path, **settings: str | int) -> None:
        self.folder = folder
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address: Address = free.getsockname()[:2]
        environ = {name: value for name, value in os.environ.items() if not name.startswith("ROUTEMASTER_")}
        environ |= {"PYTHONPATH": HERE, "ROUTEMASTER_ROOT_KEY": ROOT_KEY}
        environ |= {f"ROUTEMASTER_{name.upper()}": str(value) for name, value in settings.items()}
        command = ("up", "--dir", str(folder), "--port", str(self.address[1]), "--web", "2")
        self.supervisor = Process("up", (*ROUTEMASTER, *command), environ, folder.parent / "up.log")
        self.redis = Redis(unix_socket_path=str(folder / "store.sock"), socket_timeout=5)
        self._root = Caller(self.address, ROOT_KEY)
        self._topics = 0

    @property
    def addresses(self) -> list[Address]:
        return [self.address]

    @property
    def pids(self) -> dict[str, int]:
        bus = find(self.folder)
        return bus.pids if bus and bus.pid == self.supervisor.pid else {}

    def start(self) -> None:
        self.supervisor.start()

    def until_ready(self) -> None:
        until(lambda: len(self.pids) == 4 or not self.supervisor.is_running, "the children", READY_S)
        until(lambda: self._is_healthy() or not self.supervisor.is_running, "the bus to serve", READY_S)
        assert self.supervisor.is_running, self.supervisor.log

    def kill(self) -> dict[str, int]:
        """The supervisor alone, with -9; answers who its children were."""
        pids = self.pids
        self.supervisor.kill()
        return pids

    def stop(self) -> None:
        pids = self.kill() if self.supervisor.is_running else {}
        until(lambda: not any(alive(pid) for pid in pids.values()), "the children to go with it")
        self._root.close()
        self.redis.close()

    def client(self, name: str) -> Caller:
        answer = self._root.post("/api_tokens", {"name": name})
        assert answer.status == 201, answer
        return Caller(self.address, answer.json["token"], answer.json["client"])

    def topic(self, name: str) -> str:
        return f"topic_{name}"

    def _is_healthy(self) -> bool:
        try:
            return self._root.get("/pulse").status == 204
        except OSError:
            return False


@contextmanager
def running_up(**settings: str | int) -> Iterator[UpBus]:
    with tempfile.TemporaryDirectory(prefix="rm-", ignore_cleanup_errors=True) as path:
        bus = UpBus(Path(path) / "bus", **settings)
        try:
            bus.start()
            bus.until_ready()
            yield bus
        finally:
            bus.stop()
