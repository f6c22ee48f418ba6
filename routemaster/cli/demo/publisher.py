"""A publisher: sends events at its pace, one request after the other, and writes down what came of each.

A request that was not answered, or with 503, is sent again under the same ids, which the bus stores once.
"""

import asyncio
import time
from collections.abc import Sequence

import aiohttp
import msgspec

from routemaster.cli.demo.cast import PublisherPart
from routemaster.cli.demo.ledger import Event, Ledger, key_of

GIVE_UP_S = 10.0
AGAIN_S = 0.2
ENTITIES = 500


class Publisher:
    def __init__(
        self, part: PublisherPart, bus_url: str, session: aiohttp.ClientSession, ledger: Ledger
    ) -> None:
        self._part = part
        self._url = f"{bus_url}/topics/{part.topic}"
        self._session = session
        self._ledger = ledger

    async def run(self, stopping: asyncio.Event) -> None:
        """Publish until told to stop; what is under way then is finished."""
        began = due = time.monotonic()
        while not stopping.is_set():
            events = self._ledger.send(self._part.topic, self._part.size(time.monotonic() - began))
            await self._publish(events)
            # One that fell behind goes on from now: it does not make up for it with a burst.
            due = max(due + self._part.every_s, time.monotonic() - self._part.every_s)
            await asyncio.sleep(due - time.monotonic())

    async def _publish(self, events: Sequence[Event]) -> None:
        page = self._ledger.published[self._part.topic]
        bodies = [_body(event) for event in events]
        body = msgspec.json.encode(bodies if self._part.is_bulk else bodies[0])
        deadline = time.monotonic() + GIVE_UP_S
        while True:
            outcome = await self._post(body)
            if outcome == "":
                self._ledger.acknowledge(events)
                return
            if outcome.startswith("4") or time.monotonic() > deadline:
                page.trouble = f"a publish was given up: {outcome}"
                return
            await asyncio.sleep(AGAIN_S)

    async def _post(self, body: bytes) -> str:
        """Nothing when it was acknowledged, or what came instead."""
        headers = {"Content-Type": "application/json"}
        try:
            async with self._session.post(self._url, data=body, headers=headers) as answer:
                said = await answer.text()
                return "" if answer.status == 200 else f"{answer.status} {said}".strip()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            return str(error) or type(error).__name__


def _body(event: Event) -> dict[str, str]:
    topic, number = event
    return {
        "type": "create" if number < ENTITIES else "update",
        "url": f"https://shop.example/{topic}/{number % ENTITIES}",
        "id": key_of(event),
    }
