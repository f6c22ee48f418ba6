"""The monitor job: reads the bus's figures and hands them to the adapters that the settings name.

One worker does it at a time, for the whole bus. An adapter that fails costs its own report and nothing else.
"""

import asyncio
import time
from collections.abc import Iterator

import structlog

from routemaster.metrics import SCALES, Metric, distribution_of, metrics_of
from routemaster.store.figures import Histogram, Reader
from routemaster.worker.datadog import Datadog
from routemaster.worker.datagrams import Datagrams
from routemaster.worker.printer import Printer
from routemaster.worker.reading import Adapter, Reading
from routemaster.worker.statsd import Statsd

log = structlog.get_logger("monitor")
PATIENCE_S = 5.0
QUANTILES = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))


def adapter_of(wanted: str) -> Adapter:
    """The adapter that a checked setting asks for."""
    scheme, _, where = wanted.partition("://")
    if scheme == "print":
        return Printer()
    host, _, port = where.rpartition(":")
    datagrams = Datagrams(host.strip("[]"), int(port))
    return Datadog(datagrams) if scheme == "datadog" else Statsd(datagrams)


class Monitor:
    def __init__(self, reader: Reader, adapters: list[Adapter]) -> None:
        self._reader = reader
        self._adapters = adapters
        self._failing: set[str] = set()  # so that a receiver that is away is told of once

    @property
    def is_wanted(self) -> bool:
        return bool(self._adapters)

    async def report(self) -> None:
        if not self._adapters:
            return  # the job of another worker, whose settings differ
        async with asyncio.timeout(PATIENCE_S):
            figures = await self._reader.read()
            earlier = await self._reader.exchange_histograms(figures.histograms)
        at_ms = time.time_ns() // 1_000_000
        readings: list[Reading] = []
        for metric in metrics_of(figures):
            readings += _readings(metric)
            await asyncio.sleep(0)  # deliveries go on between
        readings += _recent(figures.histograms, earlier)
        for adapter in self._adapters:
            await self._hand_to(adapter, at_ms, readings)

    async def _hand_to(self, adapter: Adapter, at_ms: int, readings: list[Reading]) -> None:
        try:
            await adapter.report(at_ms, readings)
        except OSError as error:
            if adapter.name not in self._failing:
                self._failing.add(adapter.name)
                log.warning("metrics are not handed on", adapter=adapter.name, reason=str(error))
        else:
            self._failing.discard(adapter.name)


def _readings(metric: Metric) -> Iterator[Reading]:
    if metric.distribution is not None:
        yield Reading(f"{metric.name}_count", (), metric.distribution.total)
        yield Reading(f"{metric.name}_sum", (), metric.distribution.sum)
    for labels, value in metric.samples:
        yield Reading(metric.name, labels, value)


def _recent(histograms: dict[str, Histogram], earlier: dict[str, Histogram]) -> Iterator[Reading]:
    """Quantiles of what was observed since the last report: a receiver cannot make them from totals."""
    for name, scale in SCALES.items():
        since = histograms[name].since(earlier[name])
        told = since and distribution_of(scale, since)
        if told and told.total:
            for quantile, part in QUANTILES:
                yield Reading(f"{scale.name}_{quantile}", (), told.quantile(part))
