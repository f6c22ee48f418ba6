"""Settling deliveries together: what ends while one call is in the air goes in the next.

The same group commit as for publishing: one round trip and one fsync for many deliveries, no timer.
A reply that is lost is asked for again with the same fences, so nothing is settled or taken twice.
"""

import asyncio
import random
import time

from routemaster.errors import StoreError
from routemaster.store.deliveries import Deliveries, Delivery, Settled, Settlement
from routemaster.uid import Maker

MOST_TOGETHER = 64
SECOND = 4


class Settler:
    def __init__(self, deliveries: Deliveries, uids: Maker, patience_s: float) -> None:
        self._deliveries = deliveries
        self._uids = uids
        self._patience_s = patience_s
        self._waiting: list[tuple[Settlement, asyncio.Future[Delivery | None]]] = []
        self._in_air: set[asyncio.Task[None]] = set()
        self.next_look_ms = -1

    async def settle(self, settlement: Settlement) -> Delivery | None:
        """Settle one delivery; the slot's next one, or None when there is none for it now."""
        future: asyncio.Future[Delivery | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((settlement, future))
        self._send()
        return await future

    def _send(self) -> None:
        """One call at a time, or two when enough is waiting for a second."""
        while self._waiting and len(self._in_air) < (2 if len(self._waiting) >= SECOND else 1):
            together, self._waiting = self._waiting[:MOST_TOGETHER], self._waiting[MOST_TOGETHER:]
            task = asyncio.create_task(self._settle(together))
            self._in_air.add(task)
            task.add_done_callback(self._landed)

    def _landed(self, task: asyncio.Task[None]) -> None:
        self._in_air.discard(task)
        self._send()

    async def _settle(self, together: list[tuple[Settlement, asyncio.Future[Delivery | None]]]) -> None:
        try:
            settled = await self._ask([settlement for settlement, _ in together])
        except StoreError as error:
            for _, future in together:
                if not future.done():
                    future.set_exception(error)
            return
        self.next_look_ms = settled.next_look_ms
        for settlement, future in together:
            taken = settled.taken.get(settlement.delivery.slot)
            if not future.done():
                future.set_result(taken if isinstance(taken, Delivery) else None)

    async def _ask(self, settlements: list[Settlement]) -> Settled:
        deadline = time.monotonic() + self._patience_s
        generation = self._uids()
        while True:
            try:
                return await self._deliveries.settle(settlements, generation)
            except StoreError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(random.uniform(0.02, 0.2))  # noqa: S311 (jitter, not a secret)
