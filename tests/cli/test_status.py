"""`routemaster status`: the screen on a real terminal, text and JSON, and how metrics are read."""

import io
import json
import signal
import subprocess
from pathlib import Path

import pytest
from rich.console import Console

from routemaster.cli.status import screen
from routemaster.cli.status.metrics import Metrics
from routemaster.cli.status.snapshot import Latency, Snapshot, Store, Subscriber, Topic, Workers
from tests.bus import ROOT_KEY, running_bus, running_store
from tests.cli.commands import Commands
from tests.cli.conftest import OnTerminal
from tests.conftest import MakeClient
from tests.receiver import Inbox
from tests.wire import Caller

ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"


def test_json_is_one_snapshot_with_rates(
    root: Commands, shop: Caller, client: MakeClient, inbox: Inbox, topic: str
):
    shop.subscribe(inbox.url, topic, timeout=0, paused=True)
    client("publisher").publish_many(topic, ["https://a.example/"] * 10)
    seen = root.ok("status", "--json").json
    (row,) = [row for row in seen["subscribers"] if row["subscriber"] == shop.id]
    assert (row["state"], row["queued"], row["dead"], row["rate"]) == ("paused", 10, 0, 0.0)
    assert row["oldest"] <= seen["at"]
    assert seen["oldest"] <= row["oldest"]
    assert seen["queued"] >= 10
    (row,) = [row for row in seen["topics"] if row["name"] == topic]
    assert (row["events"], row["rate"]) == (10, 0.0)
    assert 0.9 <= seen["over_s"] < 10


def test_workers_the_store_and_latency_are_told(root: Commands, shop: Caller, inbox: Inbox, topic: str):
    shop.subscribe(inbox.url, topic, timeout=0)
    process = root.start("status", "--json", stdout=subprocess.PIPE)
    while process.poll() is None:
        shop.publish(topic)
    assert process.stdout
    seen = json.loads(process.stdout.read())
    process.stdout.close()
    assert seen["workers"]["alive"] == 1
    assert seen["store"]["used_bytes"] > 0
    assert 0 < seen["latency"]["p50_ms"] <= seen["latency"]["p99_ms"]


def test_rates_are_measured(root: Commands, client: MakeClient, topic: str):
    """A publisher that goes on for as long as the command looks."""
    publisher = client("publisher")
    process = root.start("status", "--json", stdout=subprocess.PIPE)
    while process.poll() is None:
        publisher.publish(topic)
    assert process.stdout
    seen = json.loads(process.stdout.read())
    process.stdout.close()
    assert seen["accepted_rate"] > 0
    assert [row["rate"] > 0 for row in seen["topics"] if row["name"] == topic] == [True]


def test_without_a_terminal_it_is_text_once(root: Commands, shop: Caller, inbox: Inbox, topic: str):
    shop.subscribe(inbox.url, topic)
    ran = root.ok("status")
    assert "\x1b" not in ran.out
    assert ran.out.startswith("Routemaster at http://127.0.0.1:")
    assert any(line.split()[:3] == [shop.id, "idle", "100"] for line in ran.out.splitlines())


def test_the_screen_follows_the_bus_and_leaves_the_terminal_as_it_was(
    root: Commands, on_terminal: OnTerminal, shop: Caller, client: MakeClient, inbox: Inbox, topic: str
):
    terminal = on_terminal(root, "status", width=110, height=40)
    terminal.until_shows("queued")
    shop.subscribe(inbox.url, topic, paused=True)
    terminal.until_shows(shop.id)
    terminal.until_shows("paused")
    client("publisher").publish_many(topic, ["https://a.example/"] * 4_321)
    terminal.until_shows("4,321")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.end() == 0
    assert terminal.shown.count(ENTER) == terminal.shown.count(LEAVE) == 1
    assert "Traceback" not in terminal.shown and ROOT_KEY not in terminal.shown


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_the_terminal_as_it_was_too(
    root: Commands, on_terminal: OnTerminal, number: signal.Signals
):
    terminal = on_terminal(root, "status")
    terminal.until_shows("subscriber")
    terminal.process.send_signal(number)
    assert terminal.end() == 128 + number
    assert terminal.shown.count(LEAVE) == 1


def test_while_the_bus_is_away_the_screen_says_so_and_goes_on_after(on_terminal: OnTerminal, tmp_path: Path):
    with running_store() as store, running_bus(store, workers=0) as bus:
        commands = Commands(tmp_path, {"url": bus.url(), "token": ROOT_KEY})
        terminal = on_terminal(commands, "status", width=140)
        terminal.until_shows("serves")
        store.kill()
        terminal.until_shows("cannot do this now")
        terminal.forget()
        store.start()
        terminal.until_shows("serves")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == 0


def test_once_prints_it_on_a_terminal(root: Commands, on_terminal: OnTerminal):
    terminal = on_terminal(root, "status", "--once")
    assert terminal.end() == 0
    assert ENTER not in terminal.shown and "subscriber" in terminal.shown


def test_a_first_look_that_fails_ends_it(nowhere: Commands, on_terminal: OnTerminal):
    terminal = on_terminal(nowhere.having(url="http://127.0.0.1:1", token=ROOT_KEY), "status")
    assert terminal.end() == 4
    assert ENTER not in terminal.shown and "nothing listens" in terminal.shown


# The screen itself


def snapshot(subscribers: int = 3, topics: int = 2, **more: object) -> Snapshot:
    values = {
        "url": "http://127.0.0.1:7080",
        "at": 1_700_000_000_000,
        "over_s": 5.0,
        "accepted_rate": 12_345.6,
        "delivered_rate": 23_456.7,
        "failed_rate": 1.0,
        "queued": 1_234_567,
        "oldest": 1_699_999_000_000,
        "dead": 3,
        "latency": Latency(p50_ms=2.5, p99_ms=1_234.0),
        "workers": Workers(alive=2, working=10, ready=3),
        "store": Store(used_bytes=10 * 2**20, max_bytes=2**30),
        "topics": [
            Topic(name=f"topic_{n}", publisher=f"shop--{n:012}", events=1_000_000 + n, rate=float(n))
            for n in range(topics)
        ],
        "subscribers": [
            Subscriber(
                subscriber=f"search--{n:012}",
                state="rests: refused" if n % 2 else "sends",
                health_points=n % 101,
                queued=1_000 + n,
                oldest=None if n % 3 else 1_699_999_999_000,
                dead=n % 2,
                rate=float(n),
            )
            for n in range(subscribers)
        ],
        **more,
    }
    return Snapshot(**values)


def drawn(shown: Snapshot, width: int, height: int | None, trouble: str = "") -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, record=True)
    console.print(screen.draw(shown, width=width, height=height, trouble=trouble))
    return console.export_text().splitlines()


@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 30), (140, 50)])
@pytest.mark.parametrize(("subscribers", "topics"), [(0, 0), (3, 2), (500, 300), (1, 300), (300, 1)])
def test_it_fits(width: int, height: int, subscribers: int, topics: int):
    lines = drawn(snapshot(subscribers, topics), width, height)
    assert max(map(len, lines)) <= width
    assert len(lines) <= height
    text = "\n".join(lines)
    assert "accepted 12,345.6/s" in text and "p99 1.2 s" in text and "10.0 MiB of 1.0 GiB" in text
    if subscribers > 100:
        assert f"search--{subscribers - 1:012}" in text  # the longest queue comes first
        assert "… and " in text
    if topics > 100:
        assert f"topic_{topics - 1}" in text


def test_text_has_all_rows():
    lines = drawn(snapshot(500, 300), 200, None)
    assert sum("search--" in line for line in lines) == 500
    assert sum(line.startswith("topic_") for line in lines) == 300


def test_what_is_unknown_is_no_zero():
    text = "\n".join(drawn(snapshot(latency=None, workers=None, store=None), 100, 30, "the bus is away"))
    assert "latency –" in text and "workers –" in text and "store –" in text
    assert "the bus is away" in text and "serves" not in text


# Metrics

TEXT = """\
# HELP routemaster_workers Worker processes that were heard of lately.
# TYPE routemaster_workers gauge
routemaster_workers 2
routemaster_jobs{{queue="main",state="scheduled"}} 7
routemaster_jobs{{queue="main",state="instant"}} 5
routemaster_jobs{{queue="main",state="pending"}} 3
routemaster_jobs{{queue="aux",state="pending"}} 1
routemaster_store_memory_used_bytes 1.5e6
routemaster_store_memory_max_bytes 0
routemaster_delivery_latency_seconds_bucket{{le="0.004"}} {a}
routemaster_delivery_latency_seconds_bucket{{le="0.008"}} {b}
routemaster_delivery_latency_seconds_bucket{{le="+Inf"}} {c}
nonsense here
routemaster_events_accepted_total{{topic="a{{b} c"}} 5
"""


def told(a: int, b: int, c: int) -> Metrics:
    text = TEXT
    for name, value in (("{a}", a), ("{b}", b), ("{c}", c), ("{{", "{"), ("}}", "}")):
        text = text.replace(name, str(value))
    return Metrics(text)


def test_metrics_tell_workers_and_the_store():
    metrics = told(0, 0, 0)
    assert metrics.workers() == Workers(alive=2, working=3, ready=5)
    assert metrics.store() == Store(used_bytes=1_500_000, max_bytes=None)
    assert Metrics("").workers() is None and Metrics("").store() is None


def test_latency_is_of_what_came_since():
    assert told(100, 100, 100).latency(told(0, 0, 0)) == Latency(p50_ms=2.0, p99_ms=4.0)
    assert told(100, 200, 200).latency(told(100, 100, 100)) == Latency(p50_ms=6.0, p99_ms=8.0)
    assert told(0, 0, 10).latency(told(0, 0, 0)) == Latency(p50_ms=8.0, p99_ms=8.0)


def test_latency_is_unknown_where_nothing_came_or_counting_began_anew():
    assert told(5, 5, 5).latency(told(5, 5, 5)) is None
    assert told(1, 2, 3).latency(told(5, 5, 5)) is None
    assert Metrics("").latency(Metrics("")) is None
