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
from urllib.parse import parse_qs, unquote, urlsplit

import hiredis

from routemaster.errors import StoreAway, StoreError, StoreFull, StoreUnfit

_NOTHING = object()
_pack: Callable[[Any], bytes] = cast(Any, hiredis).pack_command
CONNECT_TIMEOUT_S = 2.0

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
    "NOAUTH": StoreUnfit,
    "WRONGPASS": StoreUnfit,
    "NOPERM": StoreUnfit,
}


class Missing(StoreError):
    """NOSCRIPT: the store does not have the script; nothing ran."""


def translate(text: str) -> StoreError:
    code = text.split(" ", 1)[0]
    if code == "NOSCRIPT":
        return Missing(text)
    return _TRANSLATION.get(code, StoreError)(text)


class Connection(asyncio.Protocol):
    """Pipelined commands over one transport; `on_push` receives what no command asked for."""

    def __init__(self, on_push: Callable[[list[Any]], None] | None = None) -> None:
        self._reader = hiredis.Reader(notEnoughData=_NOTHING, replyError=translate)
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._on_push = on_push
        self.closed = self._loop.create_future()
        self.progress_at = time.monotonic()

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
            if self._on_push is not None and (not waiting or _is_message(reply)):
                self._on_push(reply)
                continue
            future = waiting.popleft()
            if future.cancelled():
                continue
            if isinstance(reply, StoreError):
                future.set_exception(reply)
            else:
                future.set_result(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        waiting, self._waiting = self._waiting, deque()
        for future in waiting:
            if not future.done():
                future.set_exception(StoreAway("the connection to the store broke before its answer came"))
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
            future.set_exception(StoreAway("the store cannot be reached"))
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


async def connect(url: str, on_push: Callable[[list[Any]], None] | None = None) -> Connection:
    """Open a connection and greet the store: credentials, database, and whether it can be used."""
    parts = urlsplit(url)
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            connection = await _open(url, on_push)
            try:
                if parts.password or parts.username:
                    user = [unquote(parts.username)] if parts.username else []
                    await connection.send("AUTH", *user, unquote(parts.password or ""))
                database = _database(url)
                if database:
                    await connection.send("SELECT", database)
                await connection.send("PING")
            except BaseException:
                connection.abort()
                raise
    except (OSError, TimeoutError) as error:
        raise StoreAway(
            f"the store at {shown(url)} cannot be reached ({error or type(error).__name__})"
        ) from None
    return connection


async def _open(url: str, on_push: Callable[[list[Any]], None] | None) -> Connection:
    parts = urlsplit(url)
    loop = asyncio.get_running_loop()

    def protocol() -> Connection:
        return Connection(on_push)

    if parts.scheme == "unix":
        _, connection = await loop.create_unix_connection(protocol, unquote(parts.path))
        return connection
    secure = ssl.create_default_context() if parts.scheme == "rediss" else None
    host, port = parts.hostname or "127.0.0.1", parts.port or 6379
    _, connection = await loop.create_connection(protocol, host, port, ssl=secure)
    return connection


def _database(url: str) -> int:
    parts = urlsplit(url)
    text = parse_qs(parts.query).get("db", ["0"])[0] if parts.scheme == "unix" else parts.path.strip("/")
    try:
        return int(text or "0")
    except ValueError:
        raise StoreUnfit(f"the store's URL names the database {text!r}, which is not a number") from None


def shown(url: str) -> str:
    """A store URL without its credentials."""
    parts = urlsplit(url)
    where = parts.path if parts.scheme == "unix" else f"{parts.hostname}:{parts.port or 6379}"
    return f"{parts.scheme}://{where}"
