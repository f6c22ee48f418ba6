"""What the screen shows, as plain values: one moment of the demo. Whatever draws it asks nothing else."""

from dataclasses import dataclass
from typing import Literal

Phase = Literal["publishing", "emptying"]


@dataclass(frozen=True, kw_only=True)
class PublisherRow:
    name: str
    topic: str
    manner: str
    rate: float  # acknowledged events a second
    acknowledged: int


@dataclass(frozen=True, kw_only=True)
class SubscriberRow:
    name: str
    topics: tuple[str, ...]
    manner: str
    health: int
    queued: int
    rate: float
    delivered: int
    is_refusing: bool
    p50_ms: float | None
    p99_ms: float | None


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    phase: Phase
    elapsed_s: float
    seconds: float
    publishers: tuple[PublisherRow, ...]
    subscribers: tuple[SubscriberRow, ...]
    published_rates: tuple[float, ...]  # events a second, oldest first
    delivered_rates: tuple[float, ...]
    retried: int
    out_of_order: int

    @property
    def acknowledged(self) -> int:
        return sum(row.acknowledged for row in self.publishers)

    @property
    def delivered(self) -> int:
        return sum(row.delivered for row in self.subscribers)

    @property
    def queued(self) -> int:
        return sum(row.queued for row in self.subscribers)
