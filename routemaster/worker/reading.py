"""Readings: what the monitor job hands to adapters, and the one thing that an adapter is."""

from typing import NamedTuple, Protocol

from routemaster.metrics import Labels


class Reading(NamedTuple):
    """One number, as it is now: also what only rises is told as its total. Workers take turns in reporting
    and datagrams get lost; a total is right whoever sends it, and whatever was lost before."""

    name: str
    labels: Labels
    value: float

    @property
    def number(self) -> str:
        """Without an exponent, which not every receiver reads."""
        if self.value == int(self.value):
            return str(int(self.value))
        return f"{self.value:.6f}".rstrip("0")


class Adapter(Protocol):
    name: str

    async def report(self, at_ms: int, readings: list[Reading]) -> None:
        """Hand on all readings, or raise OSError; never for long, and never in the way of deliveries."""
        ...
