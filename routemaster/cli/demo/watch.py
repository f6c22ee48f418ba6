"""Looks at the ledger and asks the bus, twice a second, and makes snapshots of it.

Rates and latencies are the ledger's; health and queue depth only the bus knows.
"""

import asyncio
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass

import aiohttp
import msgspec

from routemaster.cli.demo.cast import PUBLISHERS, SUBSCRIBERS
from routemaster.cli.demo.ledger import Ledger, quantile
from routemaster.cli.demo.snapshot import Phase, PublisherRow, Snapshot, SubscriberRow

EVERY_S = 0.5
RATE_OVER = 4  # samples: rates are calm enough to be read
KEPT = 240


class _Events(msgspec.Struct):
    queued: int


class _Subscription(msgspec.Struct):
    subscriber: str
    health_points: int
    events: _Events


_subscriptions = msgspec.json.Decoder(list[_Subscription])


@dataclass(frozen=True)
class _Sample:
    at: float
    counts: dict[str, int]  # acknowledged by topic, delivered by subscriber


class Watch:
    def __init__(self, ledger: Ledger, bus_url: str, root: aiohttp.ClientSession, *, seconds: float) -> None:
        self.phase: Phase = "publishing"
        self._ledger = ledger
        self._url = f"{bus_url}/subscriptions"
        self._root = root
        self._seconds = seconds
        self._began = time.monotonic()
        self._samples: deque[_Sample] = deque(maxlen=KEPT)
        self._asked_at = 0.0  # when the bus was asked for what it answered last
        self._queued: dict[str, int] = {}
        self._health: dict[str, int] = {}
        self._take()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            await self._look()

    async def _look(self) -> None:
        asked_at = time.monotonic()
        with suppress(aiohttp.ClientError, OSError, TimeoutError, msgspec.MsgspecError):
            async with self._root.get(self._url) as answer:
                for row in _subscriptions.decode(await answer.read()):
                    name = row.subscriber.partition("--")[0]
                    self._queued[name], self._health[name] = row.events.queued, row.health_points
                self._asked_at = asked_at
        self._take()

    async def until_empty(self) -> None:
        """Wait until the bus says that nothing is queued."""
        since = time.monotonic()
        while True:
            if self._asked_at >= since and not any(self._queued.values()):
                return
            await asyncio.sleep(EVERY_S / 10)

    def snapshot(self) -> Snapshot:
        received = self._ledger.received.values()
        return Snapshot(
            phase=self.phase,
            elapsed_s=time.monotonic() - self._began,
            seconds=self._seconds,
            publishers=tuple(
                PublisherRow(
                    name=part.name,
                    topic=part.topic,
                    manner=part.manner,
                    rate=self._rate(len(self._samples) - 1, part.topic),
                    acknowledged=len(self._ledger.published[part.topic].acknowledged),
                )
                for part in PUBLISHERS
            ),
            subscribers=tuple(self._subscriber(part.name, part.manner) for part in SUBSCRIBERS),
            published_rates=self._rates(*(part.topic for part in PUBLISHERS)),
            delivered_rates=self._rates(*(part.name for part in SUBSCRIBERS)),
            retried=sum(page.retried for page in received),
            out_of_order=sum(page.out_of_order for page in received),
        )

    def _subscriber(self, name: str, manner: str) -> SubscriberRow:
        page = self._ledger.received[name]
        recent = page.recent_latencies_s()
        p50, p99 = quantile(recent, 0.50), quantile(recent, 0.99)
        return SubscriberRow(
            name=name,
            topics=page.topics,
            manner=manner,
            health=self._health.get(name, 100),
            queued=self._queued.get(name, 0),
            rate=self._rate(len(self._samples) - 1, name),
            delivered=page.delivered,
            is_refusing=page.is_refusing,
            p50_ms=None if p50 is None else p50 * 1000,
            p99_ms=None if p99 is None else p99 * 1000,
        )

    def _take(self) -> None:
        topics = {name: len(page.acknowledged) for name, page in self._ledger.published.items()}
        subscribers = {name: page.delivered for name, page in self._ledger.received.items()}
        self._samples.append(_Sample(time.monotonic(), topics | subscribers))

    def _rates(self, *names: str) -> tuple[float, ...]:
        return tuple(sum(self._rate(index, name) for name in names) for index in range(1, len(self._samples)))

    def _rate(self, index: int, name: str) -> float:
        before, last = self._samples[max(0, index - RATE_OVER)], self._samples[index]
        passed_s = last.at - before.at
        return (last.counts[name] - before.counts[name]) / passed_s if passed_s > 0 else 0.0
