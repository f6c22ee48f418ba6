"""Adapters, each by itself."""

import asyncio
import itertools
import json
import os
import socket

import pytest

from routemaster.worker import datadog, statsd
from routemaster.worker.datagrams import MAX_BYTES, Datagrams, packets
from routemaster.worker.monitor import adapter_of
from routemaster.worker.printer import Printer
from routemaster.worker.reading import Reading
from tests.until import until_async

SUBSCRIBER = (("subscriber", "shop.eu--0123456789ab.second"), ("client", "shop.eu"))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (3, "3"),
        (2.0, "2"),
        (0.25, "0.25"),
        (1e15, "1000000000000000"),
        (0.0000004, "0.0"),
        (1e-3, "0.001"),
    ],
)
def test_numbers_have_no_exponent(value: float, text: str):
    assert float(Reading("n", (), value).number) == float(text)
    assert "e" not in Reading("n", (), value).number


def test_statsd_says_in_the_name_what_it_is_of():
    assert statsd.line_of(Reading("workers", (), 2)) == "routemaster.workers:2|g"
    line = statsd.line_of(Reading("queued_events", SUBSCRIBER, 7))
    assert line == "routemaster.queued_events.shop_eu--0123456789ab_second:7|g"
    jobs = Reading("jobs", (("queue", "main"), ("state", "instant")), 1)
    assert statsd.line_of(jobs) == "routemaster.jobs.main.instant:1|g"
    assert statsd.line_of(Reading("n", (("topic", "a:b|c\nd"),), 1)) == "routemaster.n.a_b_c_d:1|g"


def test_datadog_has_tags_and_no_host():
    assert datadog.line_of(Reading("workers", (), 2)) == "routemaster.workers:2|g|#host:"
    line = datadog.line_of(Reading("queued_events", SUBSCRIBER, 7))
    assert line == (
        "routemaster.queued_events:7|g|#subscriber:shop.eu--0123456789ab.second,client:shop.eu,host:"
    )
    assert (
        datadog.line_of(Reading("n", (("topic", "a,b|c\n#d"),), 1))
        == "routemaster.n:1|g|#topic:a_b_c__d,host:"
    )


@pytest.mark.parametrize("size", [1, 30, 100, 715, 716, 1431, 1432])
def test_lines_share_packets_of_a_bounded_size(size: int):
    lines = [f"{n:0{size}}"[-size:] for n in range(200)]
    made = list(packets(lines))
    assert b"\n".join(made).decode().split("\n") == lines
    assert max(map(len, made)) <= MAX_BYTES
    for one, following in itertools.pairwise(made):
        assert len(one) + 1 + len(following.split(b"\n")[0]) > MAX_BYTES  # as many as fit


def test_a_line_that_fits_in_no_packet_is_left_out():
    assert list(packets(["a", "b" * (MAX_BYTES + 1), "c"])) == [b"a\nc"]
    assert list(packets([])) == []


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
async def test_datagrams_reach_either_family(family: socket.AddressFamily):
    with socket.socket(family, socket.SOCK_DGRAM) as to:
        try:
            to.bind(("127.0.0.1" if family == socket.AF_INET else "::1", 0))
        except OSError:
            pytest.skip("this machine has no such loopback")
        to.settimeout(5)
        host = "127.0.0.1" if family == socket.AF_INET else "[::1]"
        adapter = adapter_of(f"statsd://{host}:{to.getsockname()[1]}")
        await adapter.report(0, [Reading("workers", (), 1), Reading("batches", (), 2)])
        assert to.recv(2048) == b"routemaster.workers:1|g\nroutemaster.batches:2|g"


async def test_a_name_is_looked_up_once_for_many_reports(monkeypatch: pytest.MonkeyPatch):
    asked: list[str] = []
    loop = asyncio.get_running_loop()
    answer = asyncio.Event()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as to:
        to.bind(("127.0.0.1", 0))
        real = loop.getaddrinfo

        async def slow(host: str, *rest: object, **more: object) -> object:
            asked.append(host)
            await answer.wait()
            return await real("127.0.0.1", *rest, **more)  # type: ignore[arg-type]

        monkeypatch.setattr(loop, "getaddrinfo", slow)
        monkeypatch.setattr("routemaster.worker.datagrams.LOOK_UP_PATIENCE_S", 0.01)
        datagrams = Datagrams("statsd.example", to.getsockname()[1])
        for _ in range(3):
            with pytest.raises(OSError, match=r"statsd\.example"):
                await datagrams.send(["a"])
        assert asked == ["statsd.example"]  # one look at a time, however often it is asked
        answer.set()
        await until_async(lambda: datagrams._look is not None and datagrams._look.done(), "the answer")
        for _ in range(3):
            await datagrams.send(["a"])
        assert asked == ["statsd.example"]


async def test_a_name_that_is_not_known_is_an_error_each_time():
    datagrams = Datagrams("no-such-host.invalid", 8125)
    for _ in range(2):
        with pytest.raises(OSError):
            await datagrams.send(["a"])


async def test_a_pipe_that_nobody_reads_holds_up_nothing():
    reading, writing = os.pipe()
    printer = Printer(writing)
    many = [Reading("queued_events", SUBSCRIBER, n) for n in range(20_000)]
    await printer.report(1, many)  # more than a pipe takes
    with pytest.raises(OSError, match="nobody reads"):
        await printer.report(2, many)
    with os.fdopen(reading, "rb") as pipe:
        loop = asyncio.get_running_loop()
        line = json.loads(await loop.run_in_executor(None, pipe.readline))
        assert (line["at"], len(line["metrics"])) == (1, 20_000)
        assert line["metrics"][7] == {"name": "queued_events", "labels": dict(SUBSCRIBER), "value": 7}
        await until_async(lambda: not printer._writer.is_alive(), "the thread to end")  # type: ignore[union-attr]
        await printer.report(3, [])
        assert json.loads(await loop.run_in_executor(None, pipe.readline)) == {"at": 3, "metrics": []}
        await until_async(lambda: not printer._writer.is_alive(), "the thread to end")  # type: ignore[union-attr]
    os.close(writing)
