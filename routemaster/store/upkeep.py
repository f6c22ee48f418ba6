"""Upkeep: the auxiliary jobs' side of the store. Each step is bounded; callers go on until done."""

from routemaster.store.check import fields_of
from routemaster.store.link import Link
from routemaster.store.script import Script
from routemaster.uid import Maker

_TICK = Script("tick")
_FINISH = Script("finish")
_PURGE = Script("purge")
_TRIM = Script("trim")
_DROP = Script("drop")
_END_TOKENS = Script("end_tokens")
STEP = 500
DROP_RECORDS = 100_000


class Upkeep:
    def __init__(self, link: Link, namespace: str, uids: Maker) -> None:
        self._link = link
        self._namespace = namespace
        self._uids = uids

    async def tick(self, *names: str) -> None:
        await self._link.run(_TICK, self._namespace, *names)

    async def take_turn(self, name: str, ms: int) -> bool:
        """Whether nobody else has taken this turn within so long: for jobs that one worker does for all."""
        key = f"{self._namespace}{name}:turn"
        return await self._link.call("SET", key, 1, "NX", "PX", ms) is not None

    async def finish(self, slot: str, retry_ms: int | None = None) -> None:
        await self._link.run(_FINISH, self._namespace, slot, "" if retry_ms is None else retry_ms)

    async def busy_slots(self, queue: str) -> int:
        return int(await self._link.call("SCARD", f"{self._namespace}jobs:pending:index:{queue}"))

    async def purge(self) -> bool:
        """Delete some batches of ended subscriptions; whether there are more."""
        return bool(await self._link.run(_PURGE, self._namespace, STEP))

    async def trim(self, log: str, max_age_ms: int, max_bytes: int) -> int:
        return int(await self._link.run(_TRIM, self._namespace, log, max_age_ms, max_bytes, 16))

    async def drop(self) -> tuple[int, int]:
        """Drop some of the oldest batches: how many, and how many events were in them."""
        batches, events = await self._link.run(_DROP, self._namespace, STEP, DROP_RECORDS)
        return int(batches), int(events)

    async def lacking_bytes(self, max_mem: int, min_free: int, margins: int = 1) -> int:
        """How much memory has to be freed for so many margins to be free; 0 or less when there is enough.
        In a small store the margin is an eighth of it: more would drop all that comes."""
        memory = fields_of(await self._link.call("INFO", "memory"))
        limit = max_mem or int(memory.get("maxmemory", "0"))
        if not limit:
            return 0
        return margins * min(min_free, limit // 8) - (limit - int(memory["used_memory"]))

    async def end_tokens(self) -> bool:
        """Forget some tokens whose grace is over; whether there may be more."""
        return int(await self._link.run(_END_TOKENS, self._namespace, self._uids(), STEP)) == STEP

    async def forget_workers(self, silence_ms: int) -> None:
        """Take workers that have been silent for long out of the list."""
        now = await self._link.call("TIME")
        before = int(now[0]) * 1000 - silence_ms
        known = await self._link.call("HGETALL", f"{self._namespace}workers")
        gone = [name for name, seen in zip(known[::2], known[1::2], strict=True) if int(seen) < before]
        if gone:
            await self._link.call("HDEL", f"{self._namespace}workers", *gone)
