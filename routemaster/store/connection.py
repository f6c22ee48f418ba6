"""One socket to the store, shared by everything in a process.

Commands are written as they come and answered in order, so that callers that act at one moment
share a round trip (and, in the store, one fsync). Nothing is retried here: a caller whose
connection broke gets StoreAway and knows best whether to ask again. The store's own errors become
ours at this edge.
"""

import asyncio
import ssl
import time
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import hiredis

from routemaster.errors import StoreAway, StoreError, StoreFull, StoreUnfit
from routemaster.store_url import Host

_NOTHING = object()
_pack: Callable[[Any], bytes] = cast(Any, hiredis).pack_command
# Whoever says so is not the primary, or not yet: the connection is cut, so that the next one may find it.
_ELSEWHERE = ("READONLY", "MASTERDOWN", "LOADING", "UNBLOCKED")

_TRANSLATION: dict[str, type[StoreError]] = {
    "OOM": StoreFull,
    "MISCONF": StoreFull,
    "LOADING": StoreAway,
    "BUSY": StoreAway,
    "READONLY": StoreAway,
    "MASTERDOWN": StoreAway,
    "TRYAGAIN": StoreAway,
    "CLUSTERDOWN": StoreAway,
    "NOREPLICAS": StoreAway,
    "UNBLOCKED": StoreAway,
    "NOAUTH": StoreUnfit,
    "WRONGPASS": StoreUnfit,
    "NOPERM": StoreUnfit,
    "DENIED": StoreUnfit,
}
_TOO_MANY = "ERR max number of clients"


class Missing(StoreError):
    """NOSCRIPT: the store does not have the script; nothing ran."""


def translate(text: str) -> StoreError:
    code = text.split(" ", 1)[0]
    if code == "NOSCRIPT":
        return Missing(text)
    if text.startswith(_TOO_MANY):
        return StoreAway(text)
    if code == "NOPERM":
        return StoreUnfit(f"{text} (docs/store.md lists what the store's user must be allowed)")
    return _TRANSLATION.get(code, StoreError)(text)


class Connection(asyncio.Protocol):
    """Pipelined commands over one transport; `on_push` receives what no command asked for."""

    def __init__(self, on_push: Callable[[list[Any]], None] | None = None) -> None:
        self._reader = hiredis.Reader(notEnoughData=_NOTHING, replyError=translate)
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._on_push = on_push
        self._last_words: StoreError | None = None  # why the store closed the connection, where it said so
        self.closed = self._loop.create_future()
        self.progress_at = time.monotonic()
        self.came_by: tuple[Host, ssl.SSLContext | None] | None = None  # what the sentinels named

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=64 * 2**20)

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        waiting = self._waiting
        self.progress_at = time.monotonic()
        reader.feed(data)
        while True:
            try:
                reply: Any = reader.gets()
            except hiredis.ProtocolError:
                self.abort()
                return
            if reply is _NOTHING:
                return
            if self._on_push is not None and _is_message(reply):
                self._on_push(reply)
                continue
            if not waiting:
                # It says why it will not have us before it is asked anything, and closes.
                if isinstance(reply, StoreError):
                    self._last_words = reply
                    self.abort()
                    return
                if self._on_push is not None:
                    self._on_push(reply)
                continue
            future = waiting.popleft()
            if isinstance(reply, StoreError):
                if not future.cancelled():
                    future.set_exception(reply)
                if isinstance(reply, StoreAway) and str(reply).startswith(_ELSEWHERE):
                    self.abort()
                    return
            elif not future.cancelled():
                future.set_result(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        waiting, self._waiting = self._waiting, deque()
        why = f" ({exc})" if exc else ""
        for future in waiting:
            if not future.done():
                future.set_exception(
                    self._last_words
                    or StoreAway(f"the connection to the store broke before its answer came{why}")
                )
        if not self.closed.done():
            self.closed.set_result(None)

    # ours

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    @property
    def outstanding(self) -> int:
        return len(self._waiting)

    def send(self, *args: str | bytes | int) -> asyncio.Future[Any]:
        """Write one command; the future is its answer."""
        future: asyncio.Future[Any] = self._loop.create_future()
        transport = self._transport
        if transport is None:
            future.set_exception(self._last_words or StoreAway("the store cannot be reached"))
            return future
        if not self._waiting:
            self.progress_at = time.monotonic()
        self._waiting.append(future)
        transport.write(_pack(args))
        return future

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def _is_message(reply: Any) -> bool:
    return isinstance(reply, list) and cast(list[Any], reply)[0] == b"message"


async def open_connection(
    where: Host | str,
    tls: ssl.SSLContext | None = None,
    on_push: Callable[[list[Any]], None] | None = None,
) -> Connection:
    """A connection to a host, or to a socket's path; nothing is said on it yet."""
    loop = asyncio.get_running_loop()

    def protocol() -> Connection:
        return Connection(on_push)

    if isinstance(where, str):
        _, connection = await loop.create_unix_connection(protocol, where)
    else:
        _, connection = await loop.create_connection(protocol, *where, ssl=tls)
    return connection
