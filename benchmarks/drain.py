"""Delivering a backlog: 10 subscribers, at 100 events a batch and at 1, to a sink that answers at once."""

import asyncio
import time
from statistics import median

import aiohttp
import uvloop

from benchmarks.bus import Bus, SinkProcess, empty_handler, running, until
from benchmarks.load import run
from benchmarks.results import Result

SUBSCRIBERS = 10
ROUNDS = 3


def measure() -> list[Result]:
    with empty_handler() as empty_port, running() as bus:
        sink = bus.start_sink()
        hundred: list[tuple[float, float]] = []
        for _ in range(ROUNDS):
            empty = run("127.0.0.1", empty_port, [bus.single()], connections=256, seconds=2.0)["rate"]
            hundred.append((empty, _drain(bus, sink, batch=100, events=60_000)))
        one: list[tuple[float, float]] = []
        for _ in range(ROUNDS):
            bare = uvloop.run(_bare(sink, seconds=2.0))
            sink.stats()
            one.append((bare, _drain(bus, sink, batch=1, events=1_000)))
    ratio, rate = median(b / a for a, b in hundred), median(b for _, b in hundred)
    ratio_one, rate_one = median(b / a for a, b in one), median(b for _, b in one)
    return [
        Result(
            "drain, max 100", ratio, "× empty", 5.0, note=f"{SUBSCRIBERS} subscribers, median of {ROUNDS}"
        ),
        Result("  in events/s", rate, "events/s"),
        Result("drain, max 1", ratio_one, "of bare aiohttp", 0.40, note=f"{SUBSCRIBERS} in the air in both"),
        Result("  in requests/s", rate_one, "requests/s"),
    ]


def _drain(bus: Bus, sink: SinkProcess, *, batch: int, events: int) -> float:
    """Events a second from the first arrival to the last."""
    subscribers = [bus.subscribe(sink.url(), timeout=0, max=batch) for _ in range(SUBSCRIBERS)]
    bulk = 1000 if events >= 1000 else events
    run("127.0.0.1", bus.port, [bus.bulk(bulk, n) for n in range(0, events, bulk)], connections=4, seconds=0)
    bus.start_worker()
    came, first, last = 0, 0.0, 0.0

    def all_came() -> bool:
        nonlocal came, first, last
        time.sleep(0.3)
        stats = sink.stats()
        came += stats.events
        first, last = first or stats.first, stats.last or last
        return came >= events * SUBSCRIBERS

    until(all_came, 120, "the backlog to be delivered")
    bus.stop_worker()
    bus.unsubscribe(*subscribers)
    return came / (last - first)


async def _bare(sink: SinkProcess, seconds: float) -> float:
    """What aiohttp's client alone reaches, with as many requests in the air, to the same sink."""
    body = b'[{"topic":"orders","type":"create","url":"https://shop.example/orders/1","t":1,"id":"x"}]'
    done = 0
    end = time.monotonic() + seconds
    async with aiohttp.ClientSession() as session:

        async def send() -> None:
            nonlocal done
            while time.monotonic() < end:
                async with session.post(sink.url(), data=body) as answer:
                    await answer.read()
                done += 1

        await asyncio.gather(*(send() for _ in range(SUBSCRIBERS)))
    return done / seconds
