"""The process's link to the store: one connection that is made anew whenever it breaks.

`call` and `run` wait a moment for a connection and then say StoreAway; they never send a command
twice by themselves. A connection that has been silent for too long while answers are due is cut,
so that a frozen store looks like an absent one; so is one to a server that is not the primary any more,
by its own word or by that of most of the sentinels.
"""

import asyncio
import contextlib
import random
import time
from typing import Any, cast

from routemaster import store_url
from routemaster.errors import StoreAway, StoreError, StoreUnfit
from routemaster.store.connection import Connection, Missing
from routemaster.store.primary import connect, is_replaced
from routemaster.store.script import Script
from routemaster.store_url import StoreUrl

RETRY_LEAST_S = 0.02
RETRY_MOST_S = 1.0
WATCH_S = 0.25
SENTINEL_EVERY_S = 2.0


class Link:
    def __init__(self, url: StoreUrl | str, *, patience_s: float = 0.5, silence_s: float = 5.0) -> None:
        self.url = store_url.read(url) if isinstance(url, str) else url
        self._patience_s = patience_s
        self._silence_s = silence_s
        self._connection: Connection | None = None
        self._ready = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._why = "the store cannot be reached"
        self.refusal: StoreUnfit | None = None  # why the last attempt to connect will not do, ever
        self.connected = 0  # how many connections have been made: tells a caller that one was lost

    def open(self) -> None:
        """Start keeping a connection; the first one may take its time, as any later one."""
        self._keeper = asyncio.create_task(self._keep(), name="store link")

    async def close(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
        if self._connection is not None:
            self._connection.abort()

    @property
    def is_up(self) -> bool:
        return self._ready.is_set()

    async def connection(self) -> Connection:
        """The open connection, waiting a moment for it."""
        connection = self._connection
        if connection is not None and connection.is_open:
            return connection
        try:
            async with asyncio.timeout(self._patience_s):
                while True:
                    await self._ready.wait()
                    connection = self._connection
                    if connection is not None and connection.is_open:
                        return connection
                    await asyncio.sleep(0)
        except TimeoutError:
            raise StoreAway(self._why) from None

    async def call(self, *args: str | bytes | int) -> Any:
        return await (await self.connection()).send(*args)

    async def run(self, script: Script, namespace: str, *args: str | bytes | int) -> Any:
        """Run a script, loading it first where the store does not have it (then nothing ran)."""
        connection = await self.connection()
        try:
            return await connection.send("EVALSHA", script.sha, 1, namespace, *args)
        except Missing:
            await connection.send("SCRIPT", "LOAD", script.source)
            return await connection.send("EVALSHA", script.sha, 1, namespace, *args)

    async def run_copied(
        self, script: Script, namespace: str, replicas: int, timeout_ms: int, *args: str | bytes | int
    ) -> tuple[Any, int]:
        """Run a script, and say how many replicas had what it wrote in time: WAIT goes right behind it,
        in the same round trip."""
        connection = await self.connection()
        try:
            return await _send_copied(connection, script, namespace, replicas, timeout_ms, *args)
        except Missing:
            await connection.send("SCRIPT", "LOAD", script.source)
            return await _send_copied(connection, script, namespace, replicas, timeout_ms, *args)

    def cut(self) -> None:
        """Drop the connection: its answers can no longer be trusted to come."""
        if self._connection is not None:
            self._connection.abort()

    async def _keep(self) -> None:
        while True:
            connection = self._connection
            if connection is not None and connection.is_open:
                await self._watch(connection)
            self._ready.clear()
            self._connection = None
            await self._reconnect()

    async def _watch(self, connection: Connection) -> None:
        asked_at = time.monotonic()
        while connection.is_open:
            await asyncio.wait([connection.closed], timeout=WATCH_S)
            if connection.outstanding and time.monotonic() - connection.progress_at > self._silence_s:
                connection.abort()
                return
            if self.url.by_sentinel and time.monotonic() - asked_at > SENTINEL_EVERY_S:
                if await is_replaced(self.url, connection):
                    connection.abort()
                    return
                asked_at = time.monotonic()

    async def _reconnect(self) -> None:
        delay_s = RETRY_LEAST_S
        while True:
            try:
                self._connection = await connect(self.url)
            except StoreUnfit as error:
                self._why = str(error)
                self.refusal = error
            except StoreAway as error:
                self._why = str(error)
                self.refusal = None
            except StoreError as error:
                self._why = f"the store refused: {error}"
            else:
                self.connected += 1
                self.refusal = None
                self._ready.set()
                return
            await asyncio.sleep(delay_s * random.uniform(0.5, 1.0))  # noqa: S311 (jitter, not a secret)
            delay_s = min(RETRY_MOST_S, delay_s * 2)


async def _send_copied(
    connection: Connection,
    script: Script,
    namespace: str,
    replicas: int,
    timeout_ms: int,
    *args: str | bytes | int,
) -> tuple[Any, int]:
    answer, copies = await asyncio.gather(
        connection.send("EVALSHA", script.sha, 1, namespace, *args),
        connection.send("WAIT", replicas, timeout_ms),
        return_exceptions=True,
    )
    for reply in (answer, copies):
        if isinstance(reply, BaseException):
            raise reply
    return answer, int(cast(int, copies))
