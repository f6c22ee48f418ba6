"""StatsD: readings as gauges, with what they are of in their names.

StatsD's counters are differences, which are wrong for good once a packet is lost or sent twice; totals are
not, and every receiver can make rates of them.
"""

import re

from routemaster.worker.datagrams import Datagrams
from routemaster.worker.reading import Reading

PREFIX = "routemaster."
SAID_TWICE = "client"  # a subscriber's id says it already
_OTHER = re.compile(r"[^A-Za-z0-9_-]")


class Statsd:
    def __init__(self, datagrams: Datagrams) -> None:
        self.name = f"statsd://{datagrams.receiver}"
        self._datagrams = datagrams

    async def report(self, at_ms: int, readings: list[Reading]) -> None:
        await self._datagrams.send(map(line_of, readings))


def line_of(reading: Reading) -> str:
    """A dot would be another level of the name."""
    parts = [_OTHER.sub("_", value) for label, value in reading.labels if label != SAID_TWICE]
    return f"{PREFIX}{'.'.join([reading.name, *parts])}:{reading.number}|g"
