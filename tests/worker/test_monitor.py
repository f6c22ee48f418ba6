"""The monitor job: what receivers of metrics get, whichever worker sends it, and what they cannot disturb."""

import contextlib
import json
import re
import socket
import time
from collections.abc import Iterator

import pytest

from tests.bus import Bus
from tests.conftest import MakeBus
from tests.receiver import Inbox
from tests.until import until

NOWHERE = "http://127.0.0.1:9/"
LINE = re.compile(r"([A-Za-z0-9_.-]+):([0-9]+(?:\.[0-9]+)?)\|g(?:\|#(.*))?")
EVERY_MS = 1_000


class Receiver:
    """A StatsD server: a UDP socket that keeps what comes."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.setblocking(False)
        self.where = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self.packets: list[str] = []

    def read(self) -> dict[tuple[str, str], list[float]]:
        """All that came so far: by name and tags, in the order in which it came."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self.packets.append(self._socket.recv(65_536).decode("ascii"))
        came: dict[tuple[str, str], list[float]] = {}
        for packet in self.packets:
            assert len(packet) <= 1432
            for text in packet.split("\n"):
                match = LINE.fullmatch(text)
                assert match, text
                came.setdefault((match[1], match[3] or ""), []).append(float(match[2]))
        return came

    def until(self, name: str, wanted: float, tags: str = "") -> dict[tuple[str, str], list[float]]:
        until(lambda: wanted in self.read().get((name, tags), []), f"{name} to be {wanted}")
        return self.read()

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def statsd() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.fixture
def datadog() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


def printed(bus: Bus) -> list[dict]:
    lines = [line for worker in bus.workers for line in worker.log.splitlines()]
    return [json.loads(line) for line in lines if line.startswith('{"at":') and line.endswith("}")]


def test_every_adapter_gets_the_same_figures(
    make_bus: MakeBus, statsd: Receiver, datadog: Receiver, inbox: Inbox
):
    wanted = f"print, statsd://{statsd.where},datadog://{datadog.where}"
    bus = make_bus(metric_adapters=wanted, monitor_interval_ms=EVERY_MS)
    publisher, subscriber, topic = bus.client("shop.eu"), bus.client("billing"), bus.topic()
    subscriber.subscribe(inbox.url, topic, timeout=0, max=1, name="a")
    for n in range(3):
        publisher.publish(topic, f"https://example.com/{n}")
    inbox.until_events(3)
    id = f"{subscriber.id}.a"
    came = statsd.until(f"routemaster.events_delivered_total.{id.replace('.', '_')}", 3)
    assert came[f"routemaster.events_accepted_total.{topic}", ""][-1] == 3
    assert came["routemaster.workers", ""][-1] == 1
    assert came["routemaster.jobs.main.scheduled", ""][-1] == 0
    assert came["routemaster.log_last_seq.events", ""][-1] == 3
    assert came["routemaster.delivery_latency_seconds_count", ""][-1] == 3
    assert 0 < came["routemaster.delivery_latency_seconds_p95", ""][-1] < 60
    tags = f"subscriber:{id},client:billing,host:"
    came = datadog.until("routemaster.events_delivered_total", 3, tags)
    assert came["routemaster.events_accepted_total", f"topic:{topic},host:"][-1] == 3
    assert came["routemaster.store_memory_used_bytes", "host:"][-1] > 2**20
    until(lambda: any(_printed_value(line, "events_delivered_total", id) == 3 for line in printed(bus)), "it")
    last = printed(bus)[-1]
    assert abs(last["at"] - time.time() * 1000) < 60_000
    assert {tuple(row) for row in last["metrics"]} == {("name", "labels", "value")}


def _printed_value(line: dict, name: str, subscriber: str) -> float | None:
    rows = [row for row in line["metrics"] if row["name"] == name]
    return next((row["value"] for row in rows if row["labels"]["subscriber"] == subscriber), None)


def test_several_metrics_share_a_packet(make_bus: MakeBus, statsd: Receiver):
    bus = make_bus(metric_adapters=f"statsd://{statsd.where}", monitor_interval_ms=EVERY_MS)
    topic = bus.topic()
    for _ in range(30):
        bus.client("a-subscriber-with-a-long-name").subscribe(NOWHERE, topic)
    until(lambda: len([name for name, _ in statsd.read() if ".paused." in name]) == 30, "all subscribers")
    lines = sum(packet.count("\n") + 1 for packet in statsd.packets)
    assert lines > 8 * len(statsd.packets)


def test_workers_take_turns_and_their_totals_are_right(make_bus: MakeBus, statsd: Receiver, inbox: Inbox):
    """The one that sent the last report dies: the next report is not less, and not counted anew."""
    bus = make_bus(workers=3, metric_adapters=f"statsd://{statsd.where}", monitor_interval_ms=EVERY_MS)
    publisher, subscriber, topic = bus.client(), bus.client(), bus.topic()
    subscriber.subscribe(inbox.url, topic, timeout=0)
    name = f"routemaster.events_delivered_total.{subscriber.id}"
    for n, worker in enumerate(bus.workers, 1):
        publisher.publish(topic)
        statsd.until(name, n)
        if n < 3:
            worker.terminate()
            assert worker.wait() == 0
    came = statsd.read()
    assert came[name, ""] == sorted(came[name, ""])


def test_one_report_an_interval_however_many_workers(make_bus: MakeBus, statsd: Receiver):
    make_bus(workers=3, metric_adapters=f"statsd://{statsd.where}", monitor_interval_ms=EVERY_MS)
    until(lambda: statsd.read(), "the first report")
    started = time.monotonic()
    first = len(statsd.read()["routemaster.workers", ""])
    until(lambda: len(statsd.read()["routemaster.workers", ""]) >= first + 4, "four more")
    assert time.monotonic() - started >= 0.8 * 4 - 1


def test_quantiles_are_those_since_the_last_report(make_bus: MakeBus, statsd: Receiver, inbox: Inbox):
    bus = make_bus(metric_adapters=f"statsd://{statsd.where}", monitor_interval_ms=EVERY_MS)
    publisher, subscriber, topic = bus.client(), bus.client(), bus.topic()
    subscriber.subscribe(inbox.url, topic, timeout=0)
    publisher.publish(topic)
    statsd.until("routemaster.delivery_latency_seconds_count", 1)
    reports = len(statsd.read()["routemaster.workers", ""])
    until(lambda: len(statsd.read()["routemaster.workers", ""]) > reports + 1, "two more reports")
    assert len(statsd.read()["routemaster.delivery_latency_seconds_p50", ""]) == 1


def test_a_dead_receiver_disturbs_nothing(make_bus: MakeBus, statsd: Receiver, inbox: Inbox):
    """Nobody listens at one, one has no address; the third gets its reports."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unheard:
        unheard.bind(("127.0.0.1", 0))
        nowhere = f"127.0.0.1:{unheard.getsockname()[1]}"
    adapters = f"statsd://{nowhere},datadog://no-such-host.invalid:8125,statsd://{statsd.where}"
    bus = make_bus(metric_adapters=adapters, monitor_interval_ms=EVERY_MS)
    publisher, subscriber, topic = bus.client(), bus.client(), bus.topic()
    subscriber.subscribe(inbox.url, topic, timeout=0)
    for n in range(3):
        publisher.publish(topic)
        inbox.until_events(n + 1)
        statsd.until(f"routemaster.events_delivered_total.{subscriber.id}", n + 1)
    assert bus.worker.log.count("metrics are not handed on") == 1  # not once a report
    assert "an auxiliary job failed" not in bus.worker.log
    assert "Traceback" not in bus.worker.log


def test_without_adapters_nothing_is_enqueued(make_bus: MakeBus):
    bus = make_bus(monitor_interval_ms=EVERY_MS)
    monitored = make_bus(monitor_interval_ms=EVERY_MS, metric_adapters="print")
    until(lambda: len(printed(monitored)) >= 2, "two reports of another bus")
    assert printed(bus) == []
    assert not bus.redis.keys(bus.key("monitor:*"))
    assert bus.redis.keys(monitored.key("monitor:*"))
