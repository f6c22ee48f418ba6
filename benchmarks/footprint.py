"""What it takes at rest and per queued event: store bytes, idle commands a second, resident memory."""

import time

from benchmarks.bus import Bus, resident_mb, running
from benchmarks.load import run
from benchmarks.results import Result

NOWHERE = "http://127.0.0.1:9/"
EVENTS, SUBSCRIBERS = 50_000, 10


def measure() -> list[Result]:
    with running() as bus:
        one = bus.subscribe(NOWHERE, timeout=3_600_000, max=100)
        first = _stored(bus)
        others = [bus.subscribe(NOWHERE, timeout=3_600_000, max=100) for _ in range(SUBSCRIBERS)]
        second = _stored(bus)
        queued = (second - first) / EVENTS / SUBSCRIBERS
        event = len(bus.redis.hget("rm:topic:orders", "last_event"))
        bus.unsubscribe(one, *others)
    with running() as bus:
        bus.start_worker()
        bus.subscribe(NOWHERE, timeout=500, max=100)
        time.sleep(4)  # start-up is over
        idle = _idle_commands(bus, seconds=20)
        memory = [resident_mb(process.pid) for process in (bus.store_process, bus.web, bus.worker) if process]
    goal = 1.2 * event + 16
    return [
        Result(
            "store bytes per queued event",
            queued,
            "bytes",
            goal,
            at_most=True,
            note=f"per subscriber; an event of {event} bytes",
        ),
        Result("store bytes of the log per event", (first - queued * EVENTS) / EVENTS, "bytes", note="once"),
        Result("idle store commands", idle, "a second", 5.0, at_most=True, note="one web, one worker"),
        *(
            Result(f"resident memory, {name}", megabytes, "MB", note="at rest")
            for name, megabytes in zip(("store", "web", "worker"), memory, strict=True)
        ),
    ]


def _stored(bus: Bus) -> float:
    """Bytes of the store that a backlog takes."""
    before = bus.redis.info("memory")["used_memory"]
    run("127.0.0.1", bus.port, [bus.bulk(1000, n) for n in range(0, EVENTS, 1000)], connections=4, seconds=0)
    return bus.redis.info("memory")["used_memory"] - before


def _idle_commands(bus: Bus, seconds: float) -> float:
    before = bus.redis.info("stats")["total_commands_processed"]
    time.sleep(seconds)
    return (bus.redis.info("stats")["total_commands_processed"] - before - 1) / seconds
