"""Publishing: requests a second against the empty handler, with 1 and 10 subscribers, single and bulk."""

from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

from benchmarks.bus import Bus, empty_handler, running
from benchmarks.load import run
from benchmarks.results import Result

ROUNDS, SECONDS, CONNECTIONS = 5, 2.0, 256
BULK_CONNECTIONS = 16
NOWHERE = "http://127.0.0.1:9/"  # nobody listens: what is published stays queued


def measure() -> list[Result]:
    with empty_handler() as empty_port, running() as bus:
        bus.start_worker()
        single = _ratios(bus, empty_port, subscribers=1)
        bulk = _bulk(bus, empty_port, subscribers=1)
        keyed = _bulk(bus, empty_port, subscribers=1, with_ids=True)
        ten = _ratios(bus, empty_port, subscribers=10)
        bulk_ten = _bulk(bus, empty_port, subscribers=10)
    empties = [empty for empty, _ in single]
    how = f"{CONNECTIONS} connections, fsync always, median of {ROUNDS}"
    return [
        Result("empty handler", median(empties), "requests/s", note=f"{CONNECTIONS} connections"),
        Result("publish, 1 subscriber", _median(single), "of empty", 0.70, note=how),
        Result("publish, 10 subscribers", _median(ten), "of empty", 0.60, note=how),
        Result("  in requests/s, 1 subscriber", median(rate for _, rate in single), "requests/s"),
        Result("bulk of 100, 1 subscriber", _median(bulk), "× empty", 6.0, note="events/s over requests/s"),
        Result("  in events/s", median(rate for _, rate in bulk), "events/s"),
        Result("bulk of 100 with ids", _median(keyed), "× empty", note="idempotency keys on every event"),
        Result("bulk of 100, 10 subscribers", _median(bulk_ten), "× empty"),
    ]


def _median(pairs: list[tuple[float, float]]) -> float:
    return median(rate / empty for empty, rate in pairs)


def _empty(bus: Bus, port: int) -> float:
    return run("127.0.0.1", port, [bus.single()], connections=CONNECTIONS, seconds=SECONDS)["rate"]


@contextmanager
def _subscribed(bus: Bus, subscribers: int) -> Iterator[None]:
    """Subscribers that take nothing; what was queued for them is gone afterwards, so that no round pays
    for memory that the ones before it filled."""
    tokens = [bus.subscribe(NOWHERE, timeout=3_600_000, max=100) for _ in range(subscribers)]
    yield
    bus.unsubscribe(*tokens)
    bus.clear()


def _ratios(bus: Bus, empty_port: int, *, subscribers: int) -> list[tuple[float, float]]:
    """The two in turns, so that a slow moment of the machine meets both."""
    pairs: list[tuple[float, float]] = []
    for _ in range(ROUNDS):
        empty = _empty(bus, empty_port)
        with _subscribed(bus, subscribers):
            full = run("127.0.0.1", bus.port, [bus.single()], connections=CONNECTIONS, seconds=SECONDS)
        pairs.append((empty, full["rate"]))
    return pairs


def _bulk(
    bus: Bus, empty_port: int, *, subscribers: int, with_ids: bool = False
) -> list[tuple[float, float]]:
    pairs: list[tuple[float, float]] = []
    for turn in range(ROUNDS):
        empty = _empty(bus, empty_port)
        size = 4000 // subscribers
        requests = [bus.bulk(100, (turn * size + n) * 100, ids=with_ids) for n in range(size)]
        with _subscribed(bus, subscribers):
            full = run("127.0.0.1", bus.port, requests, connections=BULK_CONNECTIONS, seconds=0)
        pairs.append((empty, full["rate"] * 100))
    return pairs
