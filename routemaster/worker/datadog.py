"""DogStatsD: readings as gauges, with tags.

An agent adds the host that it runs on to what it is told, unless that is empty: the bus is no host's, and
workers on several hosts take turns in telling of it.
"""

import re

from routemaster.worker.datagrams import Datagrams
from routemaster.worker.reading import Reading

PREFIX = "routemaster."
NO_HOST = "host:"
_OTHER = re.compile(r"[^A-Za-z0-9_./-]")


class Datadog:
    def __init__(self, datagrams: Datagrams) -> None:
        self.name = f"datadog://{datagrams.receiver}"
        self._datagrams = datagrams

    async def report(self, at_ms: int, readings: list[Reading]) -> None:
        await self._datagrams.send(map(line_of, readings))


def line_of(reading: Reading) -> str:
    tags = [f"{label}:{_OTHER.sub('_', value)}" for label, value in reading.labels]
    return f"{PREFIX}{reading.name}:{reading.number}|g|#{','.join([*tags, NO_HOST])}"
