"""What is measured: a store, web processes, workers and sinks, each a process of its own."""

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from redis import Redis

from benchmarks.load import request
from benchmarks.sink import Stats
from routemaster.cli.embedded import EmbeddedStore

ROOT = "root--0123456789abcdef"
TOPIC = "orders"
GRANTS = {"publish": ["orders", "other*", "wide"], "read": ["*:order?:*", "*:other*", "*:wide:*"]}
PYTHON = (sys.executable, "-m")


def listener() -> socket.socket:
    sock = socket.create_server(("127.0.0.1", 0), backlog=4096)
    os.set_inheritable(sock.fileno(), True)
    return sock


def until(condition: Any, seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError(f"waited {seconds} s for {what}")
        time.sleep(0.02)


class Bus:
    """A bus without a supervisor, so that each part can be started when it is wanted."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="rm-bench-"))
        self.processes: list[subprocess.Popen[bytes]] = []
        store = EmbeddedStore(self.folder, 8 * 2**30)
        child = store.prepare(os.environ, -1)
        self._environ = dict(child.environ)
        self.store_process = self._start(*child.command)
        until(lambda: asyncio.run(store.answers()), 10, "the store")
        self.redis: Any = Redis(unix_socket_path=str(store.socket))
        self._environ |= {
            "ROUTEMASTER_REDIS_URL": store.url,
            "ROUTEMASTER_ROOT_KEY": ROOT,
            "ROUTEMASTER_ALLOW_PRIVATE_CALLBACKS": "127.0.0.0/8",
            "ROUTEMASTER_LOG_LEVEL": "error",
        }
        sock = listener()
        self.port: int = sock.getsockname()[1]
        self.web = self._start(*PYTHON, "routemaster", "web", "--fd", str(sock.fileno()), fd=sock.fileno())
        sock.close()
        until(lambda: get(self.port, "/health") is not None, 20, "the web process")
        self.worker: subprocess.Popen[bytes] | None = None
        self.publisher = self.token("publisher")

    def _start(self, *command: str, fd: int | None = None) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            command,
            env=self._environ,
            pass_fds=() if fd is None else (fd,),
            stderr=subprocess.DEVNULL if command[0].endswith("server") else None,
        )
        self.processes.append(process)
        return process

    def start_worker(self, slots: int = 64) -> None:
        self.worker = self._start(*PYTHON, "routemaster", "worker", "--slots", str(slots))

    def start_sink(self) -> "SinkProcess":
        sock = listener()
        port: int = sock.getsockname()[1]
        self._start(*PYTHON, "benchmarks.sink", str(sock.fileno()), fd=sock.fileno())
        sock.close()
        sink = SinkProcess(port)
        until(lambda: get(port, "/stats") is not None, 10, "the sink")
        return sink

    def stop_worker(self) -> None:
        if self.worker is not None:
            end(self.worker)
            self.worker = None

    def close(self) -> None:
        for process in reversed(self.processes):
            end(process)
        shutil.rmtree(self.folder, ignore_errors=True)

    # Over HTTP

    def token(self, name: str) -> str:
        made = call(self.port, "POST", "/api_tokens", ROOT, {"name": name, "grants": GRANTS})
        return str(json.loads(made)["token"])

    def subscribe(self, callback: str, *, timeout: int, max: int, topic: str = TOPIC, **more: Any) -> str:
        token = self.token("subscriber")
        wanted = {"topics": [topic], "callback": callback, "uuid": "u", "timeout": timeout, "max": max}
        call(self.port, "POST", "/subscription", token, {**wanted, **more})
        return token

    def unsubscribe(self, *tokens: str) -> None:
        for token in tokens:
            call(self.port, "DELETE", "/subscriber", token)

    def clear(self) -> None:
        """Wait until what ended subscriptions had queued is deleted, and empty the log."""
        until(lambda: not self.redis.exists("rm:purge"), 60, "the purge")
        self.redis.xtrim("rm:log:events", maxlen=0, approximate=False)

    def single(self, topic: str = TOPIC, data: dict[str, Any] | None = None) -> bytes:
        event = {"type": "create", "url": "https://shop.example/orders/12345", "data": data or {"n": 1}}
        return self.post(json.dumps(event).encode(), topic)

    def bulk(self, size: int, first: int = 0, *, ids: bool = False, topic: str = TOPIC) -> bytes:
        events: list[dict[str, Any]] = []
        for n in range(first, first + size):
            event: dict[str, Any] = {
                "type": "update",
                "url": f"https://shop.example/orders/{n}",
                "data": {"n": n},
            }
            events.append({**event, "id": f"key-{n}"} if ids else event)
        return self.post(json.dumps(events).encode(), topic)

    def post(self, body: bytes, topic: str) -> bytes:
        return request("POST", f"/topics/{topic}", self.publisher, body, "content-type: application/json")


class SinkProcess:
    def __init__(self, port: int) -> None:
        self.port = port

    def url(self, path: str = "/") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def stats(self) -> Stats:
        return msgspec.json.decode(get(self.port, "/stats") or b"{}", type=Stats)


def end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def call(port: int, method: str, path: str, token: str, body: Any = None) -> bytes:
    data = None if body is None else json.dumps(body).encode()
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    asked = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers, method=method)
    with urllib.request.urlopen(asked, timeout=30) as answer:
        return answer.read()


def get(port: int, path: str) -> bytes | None:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return answer.read()
    except OSError:
        return None


@contextlib.contextmanager
def running() -> Iterator[Bus]:
    bus = Bus()
    try:
        yield bus
    finally:
        bus.close()


@contextlib.contextmanager
def empty_handler() -> Iterator[int]:
    """The same server with nothing behind it; gives its port."""
    sock = listener()
    process = subprocess.Popen([*PYTHON, "benchmarks.empty", str(sock.fileno())], pass_fds=(sock.fileno(),))
    port = sock.getsockname()[1]
    sock.close()
    try:
        until(lambda: get(port, "/") is not None, 20, "the empty handler")
        yield port
    finally:
        end(process)


def resident_mb(pid: int) -> float:
    with Path(f"/proc/{pid}/status").open() as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmRSS"))
