"""What there is to see of a bus at one moment, as plain values: what `--json` prints, and a screen shows.

Rates and latencies are over the time since an earlier look, which `over_s` tells. What the bus did not
tell is None, never 0.
"""

import msgspec


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    publisher: str | None
    events: int
    rate: float  # events a second


class Subscriber(msgspec.Struct, frozen=True, kw_only=True):
    subscriber: str
    state: str
    health_points: int
    queued: int
    oldest: int | None  # when its oldest batch was begun, ms
    dead: int | None
    rate: float  # events a second that were acknowledged


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """From acceptance to acknowledgement."""

    p50_ms: float
    p99_ms: float


class Store(msgspec.Struct, frozen=True, kw_only=True):
    used_bytes: int
    max_bytes: int | None  # None: it has no limit of its own


class Workers(msgspec.Struct, frozen=True, kw_only=True):
    alive: int
    working: int  # deliveries in the air
    ready: int  # that wait for a slot


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    at: int  # ms
    over_s: float
    accepted_rate: float
    delivered_rate: float
    failed_rate: float  # attempts
    queued: int
    oldest: int | None
    dead: int
    latency: Latency | None
    workers: Workers | None
    store: Store | None
    topics: list[Topic]
    subscribers: list[Subscriber]
