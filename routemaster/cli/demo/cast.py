"""Who takes part: the publishers and subscribers of the demo, and how each of them behaves. Values only.

The numbers are chosen so that one can watch: the slow subscriber's queue rises and falls with the waves
of `stock`, and the failing one's health falls to about half and comes back before it fails again.
"""

import math
from dataclasses import dataclass

WAVE_S = 12.0


@dataclass(frozen=True, kw_only=True)
class PublisherPart:
    name: str
    topic: str
    manner: str
    every_s: float
    events: int = 1
    swing: int = 0  # by how many events a request swings around `events`, in waves

    def size(self, elapsed_s: float) -> int:
        """How many events the next request has."""
        return self.events + round(self.swing * math.sin(2 * math.pi * elapsed_s / WAVE_S))

    @property
    def is_bulk(self) -> bool:
        return self.events + self.swing > 1


@dataclass(frozen=True, kw_only=True)
class SubscriberPart:
    name: str
    topics: tuple[str, ...]
    manner: str
    timeout_ms: int
    max_events: int
    takes_s: float = 0.0  # over a batch, before it answers
    outages: bool = False


PUBLISHERS = (
    PublisherPart(name="shop", topic="orders", manner="one at a time", every_s=1 / 80),
    PublisherPart(name="depot", topic="stock", manner="in bulk, in waves", every_s=0.25, events=40, swing=25),
)
SUBSCRIBERS = (
    SubscriberPart(name="search", topics=("orders", "stock"), manner="quick", timeout_ms=0, max_events=100),
    SubscriberPart(
        name="reports", topics=("orders", "stock"), manner="slow", timeout_ms=200, max_events=100, takes_s=0.4
    ),
    SubscriberPart(
        name="mail", topics=("orders",), manner="unreliable", timeout_ms=100, max_events=20, outages=True
    ),
)


def is_outage(elapsed_s: float, seconds: float) -> bool:
    """Whether a part with outages is in one: for 3 s in every 10, or less of each where a run is short."""
    cycle_s = min(10.0, max(2.0, seconds / 3))
    return elapsed_s < seconds and 0.3 <= (elapsed_s % cycle_s) / cycle_s < 0.6
