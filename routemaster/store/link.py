"""The process's link to the store: one connection that is made anew whenever it breaks.

`call` and `run` wait a moment for a connection and then say StoreAway; they never send a command
twice by themselves. A connection that has been silent for too long while answers are due is cut,
so that a frozen store looks like an absent one.
"""

import asyncio
import contextlib
import random
import time
from typing import Any

from routemaster.errors import StoreAway, StoreError, StoreUnfit
from routemaster.store.connection import Connection, Missing, connect
from routemaster.store.script import Script

RETRY_LEAST_S = 0.02
RETRY_MOST_S = 1.0
WATCH_S = 0.25


class Link:
    def __init__(self, url: str, *, patience_s: float = 0.5, silence_s: float = 5.0) -> None:
        self.url = url
        self._patience_s = patience_s
        self._silence_s = silence_s
        self._connection: Connection | None = None
        self._ready = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._why = "the store cannot be reached"
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
        while connection.is_open:
            await asyncio.wait([connection.closed], timeout=WATCH_S)
            if connection.outstanding and time.monotonic() - connection.progress_at > self._silence_s:
                connection.abort()
                return

    async def _reconnect(self) -> None:
        delay_s = RETRY_LEAST_S
        while True:
            try:
                self._connection = await connect(self.url)
            except (StoreAway, StoreUnfit) as error:
                self._why = str(error)
            except StoreError as error:
                self._why = f"the store refused: {error}"
            else:
                self.connected += 1
                self._ready.set()
                return
            await asyncio.sleep(delay_s * random.uniform(0.5, 1.0))  # noqa: S311 (jitter, not a secret)
            delay_s = min(RETRY_MOST_S, delay_s * 2)
