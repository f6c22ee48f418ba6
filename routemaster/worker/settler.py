"""Settling deliveries together: what ends while one call is in the air goes in the next.

The same group commit as for publishing: one round trip and one fsync for many deliveries, no timer.
A reply that is lost is asked for again with the same fences, so nothing is settled or taken twice.
"""

import asyncio
import random
import time

from routemaster.errors import StoreError
from routemaster.store.deliveries import Deliveries, Delivery, Settlement
from routemaster.uid import Maker

MOST_TOGETHER = 64


class Settler:
    def __init__(self, deliveries: Deliveries, uids: Maker, patience_s: float) -> None:
        self._deliveries = deliveries
        self._uids = uids
        self._patience_s = patience_s
        self._waiting: list[tuple[Settlement, asyncio.Future[Delivery | None]]] = []
        self._task: asyncio.Task[None] | None = None
        self.next_look_ms = -1

    async def settle(self, settlement: Settlement) -> Delivery | None:
        """Settle one delivery; the slot's next one, or None when there is none for it now."""
        future: asyncio.Future[Delivery | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((settlement, future))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="settler")
        return await future

    async def _run(self) -> None:
        while self._waiting:
            together = self._waiting[:MOST_TOGETHER]
            del self._waiting[:MOST_TOGETHER]
            try:
                settled = await self._ask([settlement for settlement, _ in together])
            except StoreError as error:
                for _, future in together:
                    future.set_exception(error)
                continue
            self.next_look_ms = settled.next_look_ms
            for settlement, future in together:
                taken = settled.taken.get(settlement.delivery.slot)
                future.set_result(taken if isinstance(taken, Delivery) else None)

    async def _ask(self, settlements: list[Settlement]):
        deadline = time.monotonic() + self._patience_s
        generation = self._uids()
        while True:
            try:
                return await self._deliveries.settle(settlements, generation)
            except StoreError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(random.uniform(0.02, 0.2))  # noqa: S311 (jitter, not a secret)
