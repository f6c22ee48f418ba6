"""The auxiliary queue: tickers enqueue unique jobs, one slot of each worker runs them.

Whatever a job raises, it goes back to scheduled and is tried again: none stays pending.
"""

import asyncio
import random
import secrets
from collections.abc import Awaitable, Callable

import structlog

from routemaster.errors import StoreError
from routemaster.settings import Settings
from routemaster.store.deliveries import AUX, MAIN, AuxJob, Deliveries
from routemaster.store.upkeep import Upkeep
from routemaster.worker.monitor import Monitor

log = structlog.get_logger("aux")
DEAD_MS = 15_000
FORGET_MS = 3_600_000
RETRY_MS = 5_000
SCRUB_S, DROP_S, TRIM_S, FORGET_S = 5.0, 5.0, 30.0, 60.0
TURN = 0.8  # of an interval: tickers jitter, and the next turn must not be missed for that


class Aux:
    def __init__(
        self, settings: Settings, name: str, deliveries: Deliveries, upkeep: Upkeep, monitor: Monitor
    ) -> None:
        self._settings = settings
        self._slot = f"{name}.aux"
        self._deliveries = deliveries
        self._upkeep = upkeep
        self._monitor = monitor
        self._look = asyncio.Event()
        self._jobs: dict[str, Callable[[], Awaitable[None]]] = {
            "scrub": self._scrub,
            "autodrop": self._autodrop,
            "trim": self._trim,
            "purge": self._purge,
            "forget": self._forget,
            "monitor": monitor.report,
        }

    def look_in(self, delay_ms: int) -> None:
        if delay_ms == 0:
            self._look.set()
        elif delay_ms > 0:
            asyncio.get_running_loop().call_later(delay_ms / 1000, self._look.set)

    async def run(self) -> None:
        """Run the queue's jobs, one after the other."""
        self._look.set()
        while True:
            await self._look.wait()
            self._look.clear()
            try:
                acquired = await self._deliveries.acquire(AUX, {self._slot: secrets.token_urlsafe(12)})
                for job in acquired.taken:
                    if isinstance(job, AuxJob):
                        await self._do(job)
                        self._look.set()
                self.look_in(acquired.next_look_ms)
            except StoreError as error:
                log.info("auxiliary jobs wait for the store", reason=str(error))
                self.look_in(1_000)

    async def _do(self, job: AuxJob) -> None:
        try:
            await self._jobs[job.name]()
        except Exception as error:
            log.warning("an auxiliary job failed and will be tried again", job=job.name, reason=str(error))
            await self._upkeep.finish(job.slot, RETRY_MS)
        else:
            await self._upkeep.finish(job.slot)

    # Tickers: each asks first, with one command, whether there is anything to do.

    async def tick(self, name: str, every_s: float, wanted: Callable[[], Awaitable[bool]]) -> None:
        while True:
            await asyncio.sleep(every_s * random.uniform(0.9, 1.1))  # noqa: S311 (jitter)
            try:
                if await wanted():
                    await self._upkeep.tick(name)
            except StoreError as error:
                log.info("a ticker waits for the store", job=name, reason=str(error))

    def tickers(self) -> list[Awaitable[None]]:
        tickers: list[Awaitable[None]] = [
            self.tick("scrub", SCRUB_S, self._is_any_busy),
            self.tick("autodrop", DROP_S, self._is_memory_low),
            self.tick("trim", TRIM_S, _always),
            self.tick("forget", FORGET_S, _always),
        ]
        if self._monitor.is_wanted:
            interval_s = self._settings.monitor_interval_ms / 1000
            tickers.append(self.tick("monitor", interval_s, self._is_monitors_turn))
        return tickers

    async def _is_any_busy(self) -> bool:
        # Not by a job: the scrub job itself may be what a dead worker holds.
        await self._scrub_queue(AUX)
        return await self._upkeep.busy_slots(MAIN) > 0

    async def _is_memory_low(self) -> bool:
        settings = self._settings
        return await self._upkeep.lacking_bytes(settings.redis_max_mem, settings.redis_min_free) > 0

    async def _is_monitors_turn(self) -> bool:
        return await self._upkeep.take_turn("monitor", int(self._settings.monitor_interval_ms * TURN))

    # Jobs

    async def _scrub(self) -> None:
        await self._scrub_queue(MAIN)

    async def _scrub_queue(self, queue: str) -> None:
        taken = await self._deliveries.scrub(
            queue,
            silence_ms=DEAD_MS,
            least_ms=self._settings.min_backoff_ms,
            most_ms=self._settings.max_backoff_ms,
        )
        if taken:
            log.warning("jobs were taken back from slots that went silent", queue=queue, slots=taken)

    async def _autodrop(self) -> None:
        """Make room until twice the margin is free: the log's oldest blocks, then the oldest batches."""
        settings = self._settings
        memory = settings.redis_max_mem, settings.redis_min_free
        while await self._upkeep.lacking_bytes(*memory, margins=2) > 0:
            if await self._upkeep.trim("events", settings.log_max_age_ms, 0) > 0:
                continue
            batches, events = await self._upkeep.drop()
            if batches == 0:
                log.error("memory is low, and there is nothing left to drop: give the store more")
                return
            log.error("memory is low: the oldest batches were dropped", batches=batches, events=events)

    async def _trim(self) -> None:
        settings = self._settings
        logs = (("events", settings.log_max_bytes), ("deliveries", settings.deliveries_max_bytes))
        for name, max_bytes in logs:
            while await self._upkeep.trim(name, settings.log_max_age_ms, max_bytes) > 0:
                pass

    async def _purge(self) -> None:
        while await self._upkeep.purge():
            pass

    async def _forget(self) -> None:
        await self._upkeep.forget_workers(FORGET_MS)
        while await self._upkeep.end_tokens():
            pass


async def _always() -> bool:
    return True
