"""From the moment a publisher sends to the moment a subscriber has it, at a trickle and at half load."""

from benchmarks.bus import Bus, SinkProcess, running, until
from benchmarks.load import NOW, run
from benchmarks.results import Result

SECONDS = 8.0


def measure() -> list[Result]:
    with running() as bus:
        sink = bus.start_sink()
        bus.start_worker()
        results: list[Result] = []
        for most in (1, 100):
            subscriber = bus.subscribe(sink.url(), timeout=0, max=most)
            p50, p99 = _ages(bus, sink, rate=100)
            bus.unsubscribe(subscriber)
            results += [
                Result(f"latency p50, 100/s, max {most}", p50, "ms", 3.0, at_most=True),
                Result(f"latency p99, 100/s, max {most}", p99, "ms", 10.0, at_most=True),
            ]
        subscriber = bus.subscribe(sink.url(), timeout=0, max=100)
        deaf = bus.subscribe(sink.url("/never"), timeout=0, max=100)
        p50, p99 = _ages(bus, sink, rate=100, deaf=1)
        bus.unsubscribe(deaf)
        results.append(Result("  p99 beside one that never answers", p99, "ms", 10.0, at_most=True))
        full = run("127.0.0.1", bus.port, [bus.single()], connections=256, seconds=3.0)["rate"]
        _settle(bus, sink, deaf=0)
        p50, p99 = _ages(bus, sink, rate=full / 2)
        bus.unsubscribe(subscriber)
        note = f"{full / 2:,.0f} publishes/s on 2 cores, delivery and load included"
        results += [
            Result("latency p50, half of full load", p50, "ms", note=note),
            Result("latency p99, half of full load", p99, "ms"),
        ]
    return results


def _ages(bus: Bus, sink: SinkProcess, rate: float, deaf: int = 0) -> tuple[float, float]:
    single = bus.single(data={"ns": 1}).replace(b'"ns": 1', b'"ns":' + NOW)
    length = single.split(b"\r\n\r\n", 1)[1]
    single = bus.post(length, "orders")
    run("127.0.0.1", bus.port, [single], connections=32, seconds=1.0, rate=rate)  # warm
    _settle(bus, sink, deaf)
    sink.stats()
    sent = run("127.0.0.1", bus.port, [single], connections=64, seconds=SECONDS, rate=rate)["requests"]
    ages: list[float] = []
    until(lambda: ages.extend(sink.stats().ages_ms) or len(ages) >= sent, 60, "all deliveries")
    ages.sort()
    return ages[len(ages) // 2], ages[len(ages) * 99 // 100]


def _settle(bus: Bus, sink: SinkProcess, deaf: int) -> None:
    """Wait until nothing is queued but for those who never answer."""

    def is_quiet() -> bool:
        sink.stats()
        return sum(int(n) > 0 for n in bus.redis.hgetall("rm:batches:gauges:event").values()) <= deaf

    until(is_quiet, 60, "the queues to empty")
