"""A subscriber's HTTP server, in the test process, on a thread of its own.

Each test takes an inbox, which is one path: it records every delivery as it came over the wire and
answers what the test wants. Nothing here knows the bus; it reads HTTP/1.1 by itself so that what it
records is what was sent.
"""

import asyncio
import base64
import contextlib
import itertools
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.until import DEADLINE_S, until

REASONS = {200: "OK", 204: "No Content", 302: "Found", 429: "Too Many Requests", 503: "Unavailable"}


@dataclass(frozen=True)
class Delivery:
    path: str
    headers: dict[str, str]  # names in lower case
    body: bytes
    arrived_at: float  # monotonic seconds

    @property
    def events(self) -> list[dict[str, Any]]:
        return json.loads(self.body)

    @property
    def urls(self) -> list[str]:
        return [event["url"] for event in self.events]

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def attempt(self) -> int:
        return int(self.headers["routemaster-attempt"])

    @property
    def credentials(self) -> str:
        scheme, _, value = self.headers["authorization"].partition(" ")
        assert scheme == "Basic"
        return base64.b64decode(value).decode()


@dataclass(frozen=True)
class Reply:
    """What an inbox answers: a status, or no answer at all."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    hangs: bool = False  # until the inbox is released
    hangs_up: bool = False
    delay_s: float = 0.0


class Inbox:
    """One path of the receiver. Answers 200 until it is told otherwise."""

    def __init__(self, receiver: "Receiver", path: str) -> None:
        self._receiver = receiver
        self.path = path
        self.url = receiver.url + path
        self.deliveries: list[Delivery] = []
        self.in_air = 0
        self.most_in_air = 0
        self._replies: deque[Reply] = deque()
        self._otherwise = Reply()
        self._released = threading.Event()

    def answer(self, status: int = 200, **reply: Any) -> None:
        """From now on, when nothing is left of `answer_next`."""
        self._otherwise = Reply(status, **reply)

    def answer_next(self, *replies: Reply | int) -> None:
        self._replies.extend(reply if isinstance(reply, Reply) else Reply(reply) for reply in replies)

    def release(self) -> None:
        """Answer what hangs, with its status; nothing hangs from here on."""
        self._released.set()

    @property
    def events(self) -> list[dict[str, Any]]:
        return [event for delivery in list(self.deliveries) for event in delivery.events]

    @property
    def urls(self) -> list[str]:
        return [event["url"] for event in self.events]

    def until(self, condition: Callable[[], object], what: str, deadline_s: float = DEADLINE_S) -> None:
        until(condition, f"{what} at {self.path}; {len(self.deliveries)} deliveries came", deadline_s)

    def until_events(self, count: int, deadline_s: float = DEADLINE_S) -> list[dict[str, Any]]:
        self.until(lambda: len(self.events) >= count, f"{count} events", deadline_s)
        return self.events

    def until_deliveries(self, count: int, deadline_s: float = DEADLINE_S) -> list[Delivery]:
        self.until(lambda: len(self.deliveries) >= count, f"{count} deliveries", deadline_s)
        return list(self.deliveries)

    # Called on the receiver's thread

    async def take(self, delivery: Delivery) -> Reply:
        self.in_air += 1
        self.most_in_air = max(self.most_in_air, self.in_air)
        reply = self._replies.popleft() if self._replies else self._otherwise
        self.deliveries.append(delivery)
        try:
            if reply.delay_s:
                await asyncio.sleep(reply.delay_s)
            while reply.hangs and not self._released.is_set():
                await asyncio.sleep(0.005)
        finally:
            self.in_air -= 1
        return reply


class Receiver:
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="receiver", daemon=True)
        self._inboxes: dict[str, Inbox] = {}
        self._numbers = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.connections = 0  # how many were ever opened
        self.url = ""

    def start(self) -> None:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(DEADLINE_S)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(DEADLINE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.close()

    def inbox(self, name: str = "inbox") -> Inbox:
        path = f"/{name}-{next(self._numbers)}"
        self._inboxes[path] = Inbox(self, path)
        return self._inboxes[path]

    # On the receiver's thread

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2**26, backlog=1024)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.url = f"http://{host}:{port}"

    async def _close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            while await self._serve_one(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:-2])
        }
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        inbox = self._inboxes.get(path)
        if inbox is None or method != "POST":
            writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
            return True
        reply = await inbox.take(Delivery(path, headers, body, time.monotonic()))
        if reply.hangs_up:
            writer.transport.abort()
            return False
        writer.write(_bytes(reply))
        await writer.drain()
        return True


def _bytes(reply: Reply) -> bytes:
    lines = [f"HTTP/1.1 {reply.status} {REASONS.get(reply.status, 'Something')}"]
    lines += [f"{name}: {value}" for name, value in reply.headers.items()]
    if reply.status != 204:
        lines.append(f"content-length: {len(reply.body)}")
    return "\r\n".join([*lines, "", ""]).encode() + reply.body


@contextlib.contextmanager
def running_receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    receiver.start()
    try:
        yield receiver
    finally:
        receiver.stop()
