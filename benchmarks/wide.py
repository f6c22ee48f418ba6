"""A bulk to many subscribers of one topic: how long others wait for the store meanwhile. 10,000 events to
1,000 subscribers, and 3,000 to 100 that take one at a time, so that each event opens a batch for each."""

import threading

from benchmarks.bus import running
from benchmarks.load import run
from benchmarks.results import Result

NOWHERE = "http://127.0.0.1:9/"


def measure() -> list[Result]:
    most, note = _beside(subscribers=1000, max=100, events=10_000)
    most_one, note_one = _beside(subscribers=100, max=1, events=3_000)
    return [
        Result("longest wait beside a wide bulk", most, "ms", 250, at_most=True, note=note),
        Result("  beside one to subscribers of max 1", most_one, "ms", 250, at_most=True, note=note_one),
    ]


def _beside(*, subscribers: int, max: int, events: int) -> tuple[float, str]:
    with running() as bus:
        for _ in range(subscribers):
            bus.subscribe(NOWHERE, timeout=3_600_000, max=max)
        wide = [bus.bulk(events)]
        other = bus.single(topic="others")
        run("127.0.0.1", bus.port, [other], connections=2, seconds=0)
        took: list[float] = []

        def publish_wide() -> None:
            took.append(run("127.0.0.1", bus.port, wide, connections=1, seconds=0)["seconds"])

        thread = threading.Thread(target=publish_wide)
        thread.start()
        waits: list[float] = []
        while thread.is_alive():
            waits.append(run("127.0.0.1", bus.port, [other], connections=64, seconds=1.0, rate=100)["most"])
        thread.join()
        queued = sum(int(n) for n in bus.redis.hgetall("rm:batches:gauges:event").values())
    return sorted(waits)[-1], f"{queued:,} event copies stored in {took[0]:.1f} s"
