"""Slots: each takes one job at a time, sends its batch and settles it.

1. Free slots ask for jobs together, whenever a wake-up or a timer says that there may be some.
2. A settled delivery brings the slot its next job in the same round trip.
3. A reply that is lost is asked for again with the same fence, so nothing is sent or counted twice
   by us; if the store stays away until the lease ends, the lane is somebody else's.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
import structlog

from routemaster import backoff
from routemaster.errors import StoreError
from routemaster.sender import Outcome, Sender
from routemaster.settings import Settings
from routemaster.store.deliveries import MAIN, Deliveries, Delivery, Settlement
from routemaster.uid import Maker
from routemaster.worker.settler import Settler

log = structlog.get_logger("worker")
ASK_LEAST, ASK_MOST = 4, 64
MOST_RUNS = 1_000  # that a record names
_T = TypeVar("_T")


class Slots:
    def __init__(
        self, settings: Settings, name: str, deliveries: Deliveries, sender: Sender, uids: Maker
    ) -> None:
        self._settings = settings
        self._deliveries = deliveries
        self._sender = sender
        self._uids = uids  # fences: unique for good, also after the store was rolled back
        self._settler = Settler(deliveries, uids, patience_s=settings.lease_ms / 2000)
        self._ask_for = settings.worker_threads  # at the start: what a namesake that died had is ours
        self._free = [f"{name}.{number}" for number in range(settings.worker_threads)]
        self._busy: set[asyncio.Task[None]] = set()
        self._look = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._leaving = False
        self._stopped = asyncio.Event()

    async def run(self) -> None:
        """Take jobs until `leave`."""
        try:
            while not self._leaving:
                await self._look.wait()
                self._look.clear()
                if self._free and not self._leaving:
                    await self._acquire()
        finally:
            self._stopped.set()

    def look_in(self, delay_ms: int) -> None:
        """There may be a job in so many milliseconds (negative: none is known of)."""
        if delay_ms < 0:
            return
        if delay_ms == 0:
            self._look.set()
            return
        loop = asyncio.get_running_loop()
        at = loop.time() + delay_ms / 1000
        if self._timer is None or at < self._timer_at or self._timer_at <= loop.time():
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = at
            self._timer = loop.call_at(at, self._look.set)

    async def leave(self) -> None:
        """Finish what is in the air and take nothing more. What the store may be handing over at this
        moment is in the air too: left pending, its lanes would wait for their lease to end."""
        self._leaving = True
        self._look.set()
        await self._stopped.wait()
        if self._busy:
            await asyncio.wait(self._busy)

    async def _acquire(self) -> None:
        """Ask for a few slots, then for more as long as every one that asked got a job."""
        most = self._ask_for
        asked, self._free = self._free[:most], self._free[most:]
        fences = {slot: self._uids() for slot in asked}
        started = time.monotonic()
        try:
            acquired = await self._again(lambda: self._deliveries.acquire(MAIN, fences))
        except StoreError as error:
            log.warning("no jobs can be taken", reason=str(error))
            self._free += asked
            self.look_in(200)
            return
        busy: set[str] = set()
        for delivery in acquired.taken:
            if isinstance(delivery, Delivery):
                busy.add(delivery.slot)
                task = asyncio.create_task(self._work(delivery, started))
                self._busy.add(task)
                task.add_done_callback(self._busy.discard)
        self._free = [slot for slot in asked if slot not in busy] + self._free
        if len(busy) == len(asked):
            self._ask_for = ASK_MOST
            if self._free:
                self._look.set()
        else:
            self._ask_for = ASK_LEAST
            self.look_in(acquired.next_look_ms)

    async def _work(self, delivery: Delivery, taken_at: float) -> None:
        """One slot's deliveries, one after the other, until there is none for it."""
        slot = delivery.slot
        current: Delivery | None = delivery
        try:
            while current is not None:
                if not self._can_finish(taken_at):
                    break  # it might be taken back while the subscriber still answers
                outcome = await self._sender.send(current)
                taken_at = time.monotonic()
                current = await self._settler.settle(self._settlement(current, outcome))
            else:
                self.look_in(self._settler.next_look_ms)
        except StoreError as error:
            # The batch stays in the air until its lease ends; scrub then gives it to a slot again.
            log.warning("a delivery could not be settled", lane=delivery.lane, reason=str(error))
        except Exception:
            log.exception("a slot failed; its batch comes back when the lease ends", lane=delivery.lane)
        finally:
            self._free.append(slot)
            if len(self._free) == 1:
                self._look.set()  # all slots were busy: jobs may have come that nobody could take

    def _can_finish(self, taken_at: float) -> bool:
        """Whether the lease covers the longest send; it runs from when the job was asked for."""
        lease_left_ms = self._settings.lease_ms - (time.monotonic() - taken_at) * 1000
        return lease_left_ms >= self._settings.delivery_timeout_ms

    def _settlement(self, delivery: Delivery, outcome: Outcome) -> Settlement:
        next_fence = "" if self._leaving else self._uids()
        record = _record(delivery, outcome)
        if outcome.delivered:
            return Settlement(delivery, next_fence, None, "", record, outcome.ms)
        delay_ms = max(outcome.retry_after_ms, self._backoff_ms(delivery))
        log.info(
            "a delivery failed", lane=delivery.lane, why=outcome.why, code=outcome.code, retry_in_ms=delay_ms
        )
        return Settlement(delivery, next_fence, delay_ms, outcome.why, record, outcome.ms)

    def _backoff_ms(self, delivery: Delivery) -> int:
        return backoff.delay_ms(
            delivery.attempt,
            max(0, delivery.health_points - backoff.HEALTH_LOSS),
            delivery.timeout_ms,
            least_ms=self._settings.min_backoff_ms,
            most_ms=self._settings.max_backoff_ms,
            chance=random.random(),  # noqa: S311 (jitter, not a secret)
        )

    async def _again(self, ask: Callable[[], Awaitable[_T]]) -> _T:
        """Ask the store until it answers, for at most half a lease, and once when leaving."""
        deadline = time.monotonic() + self._settings.lease_ms / 2000
        while True:
            try:
                return await ask()
            except StoreError:
                if self._leaving or time.monotonic() > deadline:
                    raise
                await asyncio.sleep(random.uniform(0.02, 0.2))  # noqa: S311 (jitter, not a secret)


def _record(delivery: Delivery, outcome: Outcome) -> bytes:
    """One line of the log of deliveries. Where the batch is not all events from its first to its last, `runs`
    says which: first seq and how many, in turns; no more than so many, a trace knows what it does not see."""
    first, last = delivery.first_seq, delivery.last_seq
    runs = [] if last - first + 1 == delivery.events else delivery.seq_runs[: 2 * MOST_RUNS]
    return msgspec.json.encode(
        {
            "at": time.time_ns() // 1_000_000,
            "batch": delivery.batch,
            "subscriber": delivery.subscriber,
            "lane": delivery.lane,
            "generation": delivery.generation,
            "first": first,
            "last": last,
            "runs": runs,
            "events": delivery.events,
            "attempt": delivery.attempt,
            "status": "delivered" if outcome.delivered else "failed",
            "why": outcome.why,
            "code": outcome.code,
            "ms": outcome.ms,
            "replay": delivery.is_replay,
        }
    )
