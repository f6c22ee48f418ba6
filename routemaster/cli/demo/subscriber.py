"""A subscriber: an HTTP server on loopback that takes batches, slowly or not at all if its part says so.

It writes a batch down when it arrives, before it takes its time over it.
"""

import asyncio
import base64
import secrets
import time
from typing import Any

import msgspec
from aiohttp import web

from routemaster.cli.demo.cast import SubscriberPart, is_outage
from routemaster.cli.demo.ledger import Ledger, event_of


class _Arrived(msgspec.Struct):
    key: str


_batch = msgspec.json.Decoder(list[_Arrived])


class Subscriber:
    def __init__(self, part: SubscriberPart, ledger: Ledger, *, seconds: float) -> None:
        self.part = part
        self._uuid = secrets.token_hex(16)
        self._callback = ""
        self._ledger = ledger
        self._seconds = seconds
        self._began = time.monotonic()
        self._credential = "Basic " + base64.b64encode(f"{self._uuid}:{self._uuid}".encode()).decode()
        self._runner: web.AppRunner | None = None

    async def open(self) -> None:
        app = web.Application()
        app.router.add_post("/events", self._take)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self._callback = f"http://127.0.0.1:{self._runner.addresses[0][1]}/events"

    async def close(self) -> None:
        if self._runner:
            await self._runner.cleanup()

    def subscription(self) -> dict[str, Any]:
        """What it asks of the bus."""
        return {
            "topics": list(self.part.topics),
            "callback": self._callback,
            "uuid": self._uuid,
            "timeout": self.part.timeout_ms,
            "max": self.part.max_events,
        }

    def begin(self) -> None:
        """Count outages from now."""
        self._began = time.monotonic()

    async def _take(self, request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != self._credential:
            return web.Response(status=401)
        events = [event_of(event.key) for event in _batch.decode(await request.read())]
        fails = self.part.outages and is_outage(time.monotonic() - self._began, self._seconds)
        self._ledger.arrive(self.part.name, request.headers["webhook-id"], events, taken=not fails)
        if fails:
            return web.Response(status=500)
        await asyncio.sleep(self.part.takes_s)
        return web.Response(status=204)
