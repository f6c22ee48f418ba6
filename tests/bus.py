"""A real bus for tests: the embedded store, web and worker processes, all ours to stop.

Processes are tethered to the test process, so that none outlives it, whatever happens. A store can
carry several buses, each in a namespace of its own: starting one costs two Python processes.
"""

import contextlib
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from redis import Redis

import routemaster
from routemaster.cli.embedded import EmbeddedStore
from routemaster.cli.supervisor import TETHER
from tests import server
from tests.until import alive, until
from tests.wire import Address, Caller

ROOT_KEY = "root--0123456789abcdef"
HERE = str(Path(routemaster.__file__).parent.parent)
ROUTEMASTER = (sys.executable, "-m", "routemaster")
DEFAULTS = {
    "root_key": ROOT_KEY,
    "allow_private_callbacks": "127.0.0.0/8,::1/128",
    "min_backoff_ms": "20",
    "log_level": "info",
    "max_failed_logins": "0",  # all tests share one address
}
_numbers = itertools.count()


class Process:
    """One process, that can be frozen, killed and started again; what it says is in its log."""

    def __init__(
        self,
        name: str,
        command: tuple[str, ...],
        environ: dict[str, str],
        log: Path,
        fds: tuple[int, ...] = (),
    ):
        self.name = name
        self._command = (*TETHER, str(os.getpid()), *command)
        self._environ = environ
        self._log = log
        self._fds = fds
        self._popen: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._popen = subprocess.Popen(
                self._command,
                env=self._environ,
                pass_fds=self._fds,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        assert self._popen is not None, f"{self.name} was not started"
        return self._popen.pid

    @property
    def is_running(self) -> bool:
        return self._popen is not None and self._popen.poll() is None

    @property
    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def kill(self) -> None:
        """With -9, and gone when this returns. Frozen ones too."""
        if self.is_running:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()

    def terminate(self) -> None:
        """Ask it to finish and leave; see `wait`."""
        os.kill(self.pid, signal.SIGTERM)

    def wait(self, deadline_s: float = 30.0) -> int:
        assert self._popen is not None
        return self._popen.wait(deadline_s)

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        until(lambda: _state(self.pid) == "T", f"{self.name} to stand still")

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def restart(self) -> None:
        self.kill()
        self.start()


class Store:
    """The embedded store (or the server under test, set up like it), fsync always, in a folder whose
    path is short enough for a socket."""

    def __init__(self, max_bytes: int = 256 * 2**20) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="rm-"))
        embedded = EmbeddedStore(self.folder, max_bytes)
        self.url = embedded.url
        child = embedded.prepare(dict(os.environ), -1)
        command = (server.binary(), *child.command[1:])
        self.process = Process("store", command, dict(os.environ), self.folder / "store.out")
        self.redis = Redis(unix_socket_path=str(embedded.socket), socket_timeout=5)

    def start(self) -> None:
        self.process.start()
        self.until_answers()

    def until_answers(self) -> None:
        until(self._answers, "the store to answer")

    def kill(self) -> None:
        self.process.kill()

    def remove(self) -> None:
        self.redis.close()
        self.process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _answers(self) -> bool:
        try:
            return bool(self.redis.ping())
        except Exception:
            return False


class Bus:
    """Web and worker processes on a store, in a namespace of their own.

    Settings are given without their prefix: `Bus(store, worker_threads=2)`.
    """

    def __init__(self, store: Store, *, web: int = 1, workers: int = 1, **settings: str | int) -> None:
        self.store = store
        self.number = next(_numbers)
        self.namespace = f"rm{self.number}:"
        self._settings = {"redis_url": store.url, "redis_prefix": self.namespace, **DEFAULTS, **settings}
        self.root_key = str(self._settings["root_key"])
        self._listeners: list[socket.socket] = []
        self._callers: list[Caller] = []
        self._root: Caller | None = None
        self.webs: list[Process] = []
        self.workers: list[Process] = []
        self._counter = itertools.count()
        for _ in range(web):
            self.add_web()
        for _ in range(workers):
            self.add_worker()

    # Processes

    def add_web(self, **settings: str | int) -> Process:
        """A web process with a socket of its own. The socket outlives it: while the process is away,
        connections wait, as they do under `routemaster up`."""
        listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        name = f"web-{len(self.webs) + 1}"
        fd = str(listener.fileno())
        process = self._process(name, ("web", "--fd", fd), settings, (listener.fileno(),))
        self._listeners.append(listener)
        self.webs.append(process)
        return process

    def add_worker(self, **settings: str | int) -> Process:
        name = f"worker-{len(self.workers) + 1}"
        process = self._process(name, ("worker", "--name", name), settings)
        self.workers.append(process)
        return process

    @property
    def web(self) -> Process:
        return self.webs[0]

    @property
    def worker(self) -> Process:
        return self.workers[0]

    @property
    def pids(self) -> dict[str, int]:
        processes = [self.store.process, *self.webs, *self.workers]
        return {process.name: process.pid for process in processes if process.is_running}

    def start(self) -> None:
        """Start what does not run yet, and wait until it serves."""
        for process in (*self.webs, *self.workers):
            if not process.is_running:
                process.start()
        for n, process in enumerate(self.webs):
            self.until_serves(n)
            assert process.is_running, process.log
        for process in self.workers:
            self.until_beats(process)

    def until_serves(self, n: int = 0) -> None:
        """Its socket is open from the start, so the answer to one request is all there is to wait for."""
        with contextlib.closing(Caller(self.address(n), None)) as anybody:
            assert anybody.get("/health").status == 200

    def until_beats(self, worker: Process) -> None:
        until(
            lambda: not worker.is_running or self.redis.hexists(self.key("workers"), worker.name),
            f"{worker.name}'s first heartbeat",
        )
        assert worker.is_running, worker.log

    def stop(self) -> None:
        for caller in self._callers:
            caller.close()
        for process in (*self.webs, *self.workers):
            process.kill()
        for listener in self._listeners:
            listener.close()

    @property
    def log(self) -> str:
        return "".join(process.log for process in (*self.webs, *self.workers))

    # Its clients

    def address(self, n: int = 0) -> Address:
        return self._listeners[n].getsockname()[:2]

    @property
    def addresses(self) -> list[Address]:
        return [self.address(n) for n in range(len(self.webs))]

    def url(self, n: int = 0) -> str:
        host, port = self.address(n)
        return f"http://{host}:{port}"

    def caller(self, token: str | None, n: int = 0) -> Caller:
        caller = Caller(self.address(n), token)
        self._callers.append(caller)
        return caller

    @property
    def root(self) -> Caller:
        if self._root is None:
            self._root = self.caller(self.root_key)
        return self._root

    def token(self, name: str = "service", role: str = "client") -> tuple[str, str]:
        """A new client's token and id."""
        answer = self.root.post("/api_tokens", {"name": name, "role": role})
        assert answer.status == 201, answer
        return answer.json["token"], answer.json["client"]

    def client(self, name: str = "service", role: str = "client") -> Caller:
        """Somebody new, ready to call the first web process."""
        token, client = self.token(name, role)
        caller = self.caller(token)
        caller.id = client
        return caller

    def forget(self, caller: Caller) -> None:
        """Take a client away, with its subscription."""
        caller.close()
        self._callers.remove(caller)
        assert self.root.delete(f"/api_tokens/{caller.id}").status == 204

    def topic(self, name: str = "topic") -> str:
        """A topic that nobody else uses."""
        return f"{name}_{_letters(self.number)}_{_letters(next(self._counter))}"

    # What is in the store

    @property
    def redis(self) -> Redis:
        return self.store.redis

    def key(self, name: str) -> str:
        return self.namespace + name

    def accepted(self) -> int:
        """How many events the log has numbered."""
        return int(self.redis.get(self.key("log:events:seq")) or 0)

    def owner_and_events(self, topic: str) -> tuple[str | None, int] | None:
        """Who publishes a topic and how many events it has had; None when there is no such topic."""
        rows = {row["name"]: row for row in self.root.get("/topics").json}
        return (rows[topic]["publisher"], rows[topic]["events"]) if topic in rows else None

    def subscriber(self, caller: Caller) -> dict:
        """What monitoring says of a client's subscription."""
        rows = [row for row in self.root.get("/subscriptions").json if row["subscriber"] == caller.id]
        assert rows, f"{caller.id} is not subscribed"
        return rows[0]

    def _process(
        self, name: str, command: tuple[str, ...], settings: dict[str, str | int], fds: tuple[int, ...] = ()
    ) -> Process:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("ROUTEMASTER_")}
        environ["PYTHONPATH"] = HERE
        for key, value in {**self._settings, **settings}.items():
            environ[f"ROUTEMASTER_{key.upper()}"] = str(value)
        log = self.store.folder / f"{self.number}-{name}.log"
        return Process(name, (*ROUTEMASTER, *command), environ, log, fds)


@contextlib.contextmanager
def running_store(max_bytes: int = 256 * 2**20) -> Iterator[Store]:
    store = Store(max_bytes)
    try:
        store.start()
        yield store
    finally:
        store.remove()


@contextlib.contextmanager
def running_bus(
    store: Store | None = None, *, web: int = 1, workers: int = 1, **settings: str | int
) -> Iterator[Bus]:
    """A bus in its own namespace, on the given store or on one of its own."""
    with contextlib.ExitStack() as stack:
        bus = Bus(store or stack.enter_context(running_store()), web=web, workers=workers, **settings)
        stack.callback(bus.stop)
        bus.start()
        yield bus


def _letters(number: int) -> str:
    return _letters(number // 26) + chr(97 + number % 26) if number >= 26 else chr(97 + number)


def _state(pid: int) -> str:
    if not alive(pid):
        return ""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
