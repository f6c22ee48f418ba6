"""Figures: what the bus has done and what waits in it, as numbers, the same whichever process asks.

Read in steps, each of which takes the store a millisecond or two: a bus with thousands of subscribers is
looked at without its events waiting for that. Who asks while another reads shares what that one gets.
"""

import asyncio
import struct
from typing import Any, NamedTuple

from routemaster.store.check import fields_of
from routemaster.store.deliveries import AUX, MAIN
from routemaster.store.link import Link
from routemaster.store.script import Script

_FIGURES = Script("figures")
_SUBSCRIBER_FIGURES = Script("subscriber_figures")
_COUNT_DUE = Script("count_due")
DEAD_MS = 15_000  # a worker that has been silent for so long
QUEUES = (MAIN, AUX)
LOGS = ("events", "deliveries")
STEP, LANES = 100, 250  # subscribers or topics, and lanes, looked at in one call
SLOTS, SLOT_BYTES = 32, 8
HISTOGRAMS = ("latency_ms", "attempt_ms", "flush_events", "flush_us")  # as they lie in the store


class Histogram(NamedTuple):
    """`counts[n]` observations were at most 2^n units, and more than those before it."""

    sum: int
    counts: tuple[int, ...]

    def since(self, earlier: "Histogram") -> "Histogram | None":
        """What came after an earlier look; None when the store has gone back behind that."""
        counts = tuple(now - then for now, then in zip(self.counts, earlier.counts, strict=True))
        return None if min(counts) < 0 else Histogram(self.sum - earlier.sum, counts)


class SubscriberFigures(NamedTuple):
    id: str
    client: str
    queued_events: int
    queued_batches: int
    dead_events: int
    routed: int
    delivered: int
    failed: int  # attempts
    dropped: int
    purged: int
    dead: int  # given up, whatever became of them since
    oldest_ms: int
    health_points: int
    paused: int


class Jobs(NamedTuple):
    queue: str
    scheduled: int
    instant: int
    pending: int


class Log(NamedTuple):
    name: str
    last_seq: int
    bytes: int
    gaps: int


class Figures(NamedTuple):
    accepted: dict[str, int]  # by topic
    subscribers: list[SubscriberFigures]
    batches: int
    workers: int
    ids_cut_short: int
    histograms: dict[str, Histogram]
    jobs: list[Jobs]
    logs: list[Log]
    memory_used: int
    memory_max: int  # 0 for no limit


class Reader:
    def __init__(self, link: Link, namespace: str, max_mem: int) -> None:
        self._link = link
        self._namespace = namespace
        self._max_mem = max_mem
        self._reading: asyncio.Task[Figures] | None = None

    async def read(self) -> Figures:
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read())
            self._reading.add_done_callback(_look_at)
        return await asyncio.shield(self._reading)

    async def due_jobs(self, within_ms: int) -> int:
        return int(await self._run(_COUNT_DUE, within_ms, *QUEUES))

    async def exchange_histograms(self, histograms: dict[str, Histogram]) -> dict[str, Histogram]:
        """Remember these as the last ones reported; those that were so far. Workers take turns in reporting,
        so none of them can remember it."""
        key = f"{self._namespace}monitor:histograms"
        return _histograms(await self._link.call("SET", key, _packed(histograms), "GET") or b"")

    async def _read(self) -> Figures:
        bus, memory = await asyncio.gather(
            self._run(_FIGURES, DEAD_MS, len(QUEUES), *QUEUES, *LOGS), self._link.call("INFO", "memory")
        )
        batches, workers, cut_short, packed, jobs, logs = bus
        info = fields_of(memory)
        return Figures(
            await self._accepted(),
            await self._subscribers(),
            int(batches),
            int(workers),
            int(cut_short),
            _histograms(packed),
            [Jobs(queue.decode(), *map(int, counts)) for queue, *counts in jobs],
            [Log(name.decode(), *map(int, numbers)) for name, *numbers in logs],
            int(info["used_memory"]),
            self._max_mem or int(info.get("maxmemory", "0")),
        )

    async def _accepted(self) -> dict[str, int]:
        topics = await self._names("topics")
        accepted: dict[str, int] = {}
        for start in range(0, len(topics), STEP):
            step = topics[start : start + STEP]
            fields = [f"accepted:{topic}" for topic in step]
            counts = await self._link.call("HMGET", f"{self._namespace}counters", *fields)
            accepted |= {topic: int(count or 0) for topic, count in zip(step, counts, strict=True)}
        return accepted

    async def _subscribers(self) -> list[SubscriberFigures]:
        left = await self._names("subscribers")
        found: list[SubscriberFigures] = []
        while left:
            rows: list[list[Any]] = await self._run(_SUBSCRIBER_FIGURES, LANES, *left[:STEP])
            found += [
                SubscriberFigures(id, client.decode(), *map(int, numbers))
                for id, (client, *numbers) in zip(left, rows, strict=False)
                if client
            ]
            left = left[len(rows) :]
        return found

    async def _names(self, key: str) -> list[str]:
        return sorted(name.decode() for name in await self._link.call("SMEMBERS", self._namespace + key))

    async def _run(self, script: Script, *args: str | int) -> Any:
        return await self._link.run(script, self._namespace, *args)


def _look_at(reading: "asyncio.Task[Figures]") -> None:
    """Its error is for those who asked; when they are all gone it is nobody's."""
    if not reading.cancelled():
        reading.exception()


def _histograms(packed: bytes) -> dict[str, Histogram]:
    size = SLOTS * len(HISTOGRAMS)
    numbers = struct.unpack(f">{size}q", packed[: size * SLOT_BYTES].ljust(size * SLOT_BYTES, b"\0"))
    return {
        name: Histogram(numbers[start], numbers[start + 1 : start + SLOTS])
        for name, start in zip(HISTOGRAMS, range(0, size, SLOTS), strict=True)
    }


def _packed(histograms: dict[str, Histogram]) -> bytes:
    numbers = [number for name in HISTOGRAMS for number in (histograms[name].sum, *histograms[name].counts)]
    return struct.pack(f">{len(numbers)}q", *numbers)
