"""A bulk of 10,000 to 1,000 subscribers of one topic: how long others wait for the store meanwhile."""

import threading

from benchmarks.bus import running
from benchmarks.load import run
from benchmarks.results import Result

NOWHERE = "http://127.0.0.1:9/"


def measure() -> list[Result]:
    with running() as bus:
        for _ in range(1000):
            bus.subscribe(NOWHERE, timeout=3_600_000, max=100)
        wide = [bus.bulk(10_000)]
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
    note = f"{queued:,} event copies stored in {took[0]:.1f} s"
    return [Result("longest wait beside a wide bulk", max(waits), "ms", 250, at_most=True, note=note)]
