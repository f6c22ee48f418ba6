"""Metrics: what the bus tells of itself, by name, kind and meaning. For whoever hands them on.

Labels are few on purpose: topics that there are, subscribers that there are. What has ended disappears here;
its counters stay in the store, for audits.
"""

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

from routemaster.store.figures import Figures, Histogram, Jobs, Log, SubscriberFigures

CLIENT_SUFFIX = 14  # of a client's id: two dashes and twelve characters

Kind = Literal["counter", "gauge", "histogram"]
Labels = tuple[tuple[str, str], ...]


class Sample(NamedTuple):
    labels: Labels
    value: float


class Distribution(NamedTuple):
    """A histogram in the units that it is told in: how many were at most each bound, all below included."""

    sum: float
    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: int

    def quantile(self, part: float) -> float:
        """Estimated: as if the observations of a bucket lay evenly between its bounds."""
        wanted, below, least = part * self.total, 0, 0.0
        for bound, upto in zip(self.bounds, self.counts, strict=True):
            if upto >= wanted and upto > below:
                return least + (bound - least) * (wanted - below) / (upto - below)
            below, least = upto, bound
        return self.bounds[-1]


class Metric(NamedTuple):
    name: str
    kind: Kind
    meaning: str
    samples: list[Sample] = []  # noqa: RUF012 (never changed)
    distribution: Distribution | None = None


class Scale(NamedTuple):
    """How a histogram of the store is told: its units to ours, and the powers of two that are bounds."""

    name: str
    meaning: str
    per_unit: float
    least: int
    most: int


SCALES = {
    "latency_ms": Scale(
        "delivery_latency_seconds",
        "From the acceptance of a batch's first event to the batch's acknowledgement.",
        1_000,
        2,
        22,
    ),
    "attempt_ms": Scale(
        "attempt_duration_seconds",
        "How long attempts at delivery took, failed ones too.",
        1_000,
        0,
        15,
    ),
    "flush_events": Scale(
        "flush_events", "Events that one call to the store took in; told of by later ones.", 1, 0, 14
    ),
    "flush_us": Scale(
        "flush_duration_seconds",
        "How long such a call took, seen from the web process; told of by later ones.",
        1_000_000,
        7,
        20,
    ),
}

_Value = Callable[[SubscriberFigures], float]
_OF_SUBSCRIBERS: tuple[tuple[str, Kind, str, _Value], ...] = (
    ("events_routed_total", "counter", "Events that were put in a subscriber's queue.", lambda s: s.routed),
    ("events_delivered_total", "counter", "Events that were acknowledged.", lambda s: s.delivered),
    ("attempts_failed_total", "counter", "Attempts at delivery that failed.", lambda s: s.failed),
    (
        "events_dropped_total",
        "counter",
        "Events that were deleted because memory was low.",
        lambda s: s.dropped,
    ),
    (
        "events_purged_total",
        "counter",
        "Events that were deleted with an earlier subscription of this name.",
        lambda s: s.purged,
    ),
    (
        "events_dead_total",
        "counter",
        "Events that were given up after the last attempt that the subscriber allows.",
        lambda s: s.dead,
    ),
    ("queued_events", "gauge", "Events that wait or are in the air.", lambda s: s.queued_events),
    ("queued_batches", "gauge", "Batches that wait or are in the air.", lambda s: s.queued_batches),
    ("dead_events", "gauge", "Events among the dead letters.", lambda s: s.dead_events),
    ("oldest_seconds", "gauge", "Age of the oldest queued batch, 0 for none.", lambda s: s.oldest_ms / 1000),
    ("health_points", "gauge", "100 is healthy, 0 fails all the time.", lambda s: s.health_points),
    ("paused", "gauge", "1 when nothing is delivered until it is resumed.", lambda s: s.paused),
)


_OF_LOGS: tuple[tuple[str, Kind, str, Callable[[Log], float]], ...] = (
    ("log_last_seq", "gauge", "The last number given in a log.", lambda log: log.last_seq),
    ("log_bytes", "gauge", "Bytes of a log.", lambda log: log.bytes),
    ("log_gaps", "gauge", "Stretches of a log that were trimmed.", lambda log: log.gaps),
)


def metrics_of(figures: Figures) -> Iterator[Metric]:
    """One after the other, so that who hands on those of thousands of subscribers can pause in between."""
    yield Metric(
        "events_accepted_total",
        "counter",
        "Events that were taken from publishers.",
        [Sample((("topic", topic),), count) for topic, count in figures.accepted.items()],
    )
    yield from _of_subscribers(figures.subscribers)
    for name, scale in SCALES.items():
        told = distribution_of(scale, figures.histograms[name])
        yield Metric(scale.name, "histogram", scale.meaning, distribution=told)
    yield _jobs(figures.jobs)
    yield _plain("batches", "gauge", "Batches in the store, dead ones too.", figures.batches)
    yield _plain("workers", "gauge", "Worker processes that were heard of lately.", figures.workers)
    yield _plain(
        "idempotency_window_cut_short_total",
        "counter",
        "Times that more ids came than are remembered, so that some were known for less than the window.",
        figures.ids_cut_short,
    )
    yield _plain("store_memory_used_bytes", "gauge", "Memory that the store uses.", figures.memory_used)
    yield _plain(
        "store_memory_max_bytes",
        "gauge",
        "Memory that the store may use, 0 for no limit.",
        figures.memory_max,
    )
    for name, kind, meaning, value in _OF_LOGS:
        yield Metric(name, kind, meaning, [Sample((("log", log.name),), value(log)) for log in figures.logs])


def distribution_of(scale: Scale, histogram: Histogram) -> Distribution:
    powers = range(scale.least, scale.most + 1)
    return Distribution(
        histogram.sum / scale.per_unit,
        tuple(2**power / scale.per_unit for power in powers),
        tuple(sum(histogram.counts[: power + 1]) for power in powers),
        sum(histogram.counts),
    )


def name_of_client(client: str) -> str:
    """What a client is called: its id without the part that tells it from its namesakes."""
    return client[:-CLIENT_SUFFIX] if client[-CLIENT_SUFFIX : -CLIENT_SUFFIX + 2] == "--" else client


def _of_subscribers(subscribers: list[SubscriberFigures]) -> Iterator[Metric]:
    labels: list[Labels] = [
        (("subscriber", row.id), ("client", name_of_client(row.client))) for row in subscribers
    ]
    for name, kind, meaning, value in _OF_SUBSCRIBERS:
        rows = zip(labels, subscribers, strict=True)
        yield Metric(name, kind, meaning, [Sample(label, value(row)) for label, row in rows])


def _jobs(queues: list[Jobs]) -> Metric:
    return Metric(
        "jobs",
        "gauge",
        "Jobs by queue and state: scheduled for later, ready for a slot (instant), worked on (pending).",
        [
            Sample((("queue", jobs.queue), ("state", state)), count)
            for jobs in queues
            for state, count in (
                ("scheduled", jobs.scheduled),
                ("instant", jobs.instant),
                ("pending", jobs.pending),
            )
        ],
    )


def _plain(name: str, kind: Kind, meaning: str, value: float) -> Metric:
    return Metric(name, kind, meaning, [Sample((), value)])
