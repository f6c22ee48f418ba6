"""`routemaster publish`: one event, files and pipes, at a real bus; and while its store is away."""

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bus import Bus, Store, running_bus, running_store
from tests.cli.commands import Commands
from tests.conftest import MakeClient
from tests.until import until
from tests.wire import Caller

URL = "https://shop.example/orders"


def lines(*numbers: int, **more: object) -> str:
    return "".join(json.dumps({"type": "update", "url": f"{URL}/{n}", **more}) + "\n" for n in numbers)


def count(bus: Bus, topic: str) -> int:
    found = bus.owner_and_events(topic)
    return found[1] if found else 0


def test_one_event_by_its_flags(as_shop: Commands, shop: Caller, bus: Bus, topic: str, inbox):
    shop.subscribe(inbox.url, topic, timeout=0)
    ran = as_shop.ok(
        *("publish", topic, "--type", "create", "--url", f"{URL}/1", "--data", '{"total": 5}'),
        *("--environment", "eu", "--id", "o-1", "--timestamp", "1700000000000"),
    )
    (event,) = inbox.until_events(1)
    assert event == {
        "topic": topic,
        "type": "create",
        "url": f"{URL}/1",
        "t": 1_700_000_000_000,
        "data": {"total": 5},
        "id": ran.out.strip(),
        "key": "o-1",
    }
    assert bus.owner_and_events(topic) == (shop.id, 1)


def test_json_tells_the_id(as_shop: Commands, topic: str):
    made = as_shop.ok("publish", topic, "--type", "noop", "--url", URL, "--id", "same", "--json").json
    again = as_shop.ok("publish", topic, "--type", "noop", "--url", URL, "--id", "same", "--json").json
    assert made == again
    assert made["topic"] == topic and len(made["id"]) == 20


@pytest.mark.parametrize("form", ["lines", "array"])
def test_a_file_goes_in_bulks_in_its_order(
    as_shop: Commands, shop: Caller, bus: Bus, topic: str, inbox, tmp_path: Path, form: str
):
    shop.subscribe(inbox.url, topic, timeout=0, max=1000)
    text = lines(*range(2_500))
    if form == "array":
        text = json.dumps([json.loads(line) for line in text.splitlines()], indent=2)
    (tmp_path / "events").write_text(text)
    ran = as_shop.ok("publish", topic, "events", "--json")
    assert ran.json == {"accepted": 2_500, "requests": 3, "retries": 0}
    inbox.until_events(2_500)
    assert inbox.urls == [f"{URL}/{n}" for n in range(2_500)]


def test_a_pipe_is_published_as_it_comes(as_shop: Commands, bus: Bus, topic: str):
    process = as_shop.start("publish", topic, "-", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin
    for number in range(1, 4):
        process.stdin.write(lines(number).encode())
        process.stdin.flush()
        until(lambda number=number: count(bus, topic) == number, f"event {number} while the pipe is open")
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, b"3 events published\n")


@pytest.mark.parametrize(
    ("text", "line", "said", "before"),
    [
        (
            lines(1, 2) + "\n" + '{"type":"x","url":"https://a.example/"}\n' + lines(3),
            4,
            "type: expected one of",
            2,
        ),
        (lines(1) + "nonsense\n", 2, "body: expected valid JSON", 1),
        (lines(1) + '{"type":"noop"}\n', 2, "url: expected", 1),
        (lines(1) + '{"type":"noop","url":"https://a.example/\xff"}\n', 2, "UTF-8", 1),
        ("[" + lines(1) + "\n," + lines(2) + lines(3) + "]", 4, "expected , or ]", 2),
        ("[" + lines(1) + ",\n{]", 3, "expected a JSON object", 1),
        ("[\n" + lines(1), 3, "expected the array to end", 1),
        ("[" + lines(1) + "] x", 2, "expected nothing after the ]", 1),
        ('{"a": "' + "x" * 2_200_000, 1, "at most 2097152 bytes", 0),
    ],
    ids=["type", "no-json", "field", "no-utf8", "comma", "torn", "open", "after", "huge"],
)
def test_it_stops_at_the_first_bad_event_and_names_its_line(
    as_shop: Commands, bus: Bus, topic: str, text: str, line: int, said: str, before: int
):
    ran = as_shop("publish", topic, "-", stdin=text.encode("latin-1"))
    assert ran.code == 5, ran
    assert f"standard input, line {line}: " in ran.err and said in ran.err
    assert f"{before} events were published, and none from line {line} on" in ran.err
    assert count(bus, topic) == before
    assert ran.out == ""


def test_what_only_the_bus_can_tell_names_the_line_too(as_shop: Commands, bus: Bus, topic: str):
    """More data than this bus takes: all before it goes in, nothing from it on."""
    text = lines(1, 2) + lines(3, data={"text": "x" * 5_000}) + lines(4)
    ran = as_shop("publish", topic, "-", stdin=text)
    assert ran.code == 5
    assert "line 3: data: expected at most 4096 bytes of JSON" in ran.err
    assert count(bus, topic) == 2


def test_an_id_that_was_used_for_another_event_names_the_line(as_shop: Commands, bus: Bus, topic: str):
    as_shop.ok("publish", topic, "--type", "noop", "--url", URL, "--id", "used")
    ran = as_shop("publish", topic, "-", stdin=lines(1) + lines(2, id="used"))
    assert ran.code == 5
    assert "line 2: id was used for another event" in ran.err
    assert count(bus, topic) == 2


def test_a_file_may_have_an_event_twice(as_shop: Commands, bus: Bus, topic: str):
    """One request may not; in two, the second is known."""
    ran = as_shop.ok("publish", topic, "-", "--json", stdin=lines(1, id="a") + lines(2) + lines(1, id="a"))
    assert ran.json == {"accepted": 3, "requests": 2, "retries": 0}
    assert count(bus, topic) == 2


def test_a_bus_that_takes_little_at_once_gets_less(make_bus, tmp_path: Path):
    bus = make_bus(workers=0, max_body_bytes=4_096)
    token, _ = bus.token()
    commands = Commands(tmp_path, {"url": bus.url(), "token": token})
    ran = commands.ok("publish", "orders", "-", "--json", stdin=lines(*range(500)))
    assert ran.json["accepted"] == 500
    assert ran.json["requests"] > 10
    assert count(bus, "orders") == 500


def test_nothing_is_nothing(as_shop: Commands, topic: str):
    assert as_shop.ok("publish", topic, "-", stdin="\n \n").out == "0 events published\n"


def test_a_topic_of_somebody_else_is_refused(as_shop: Commands, client: MakeClient, topic: str):
    client("other").publish(topic)
    ran = as_shop("publish", topic, "-", stdin=lines(1))
    assert ran.code == 5
    assert "standard input, line 1: " in ran.err and "403" in ran.err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--type", "create"), "--url: expected"),
        (("--url", URL), "--type: expected"),
        ((), "a file of events (- for standard input)"),
        (("file", "--type", "create"), "either a file of events or one by its flags (--type)"),
        (("--type", "create", "--url", URL, "--url", URL), "--bus"),
        (("--type", "create", "--url", URL, "--data", "{"), "--data='{': expected a JSON object"),
        (("--type", "made", "--url", URL), "--type"),
        (("missing.ndjson",), "No such file"),
        (("-", "--token", "-"), "events come from standard input"),
        (("-", "--patience", "-1"), "--patience"),
    ],
)
def test_wrong_usage_says_what_was_expected(as_shop: Commands, topic: str, args: tuple[str, ...], said: str):
    ran = as_shop("publish", topic, *args)
    assert ran.code == 2, ran
    assert said in ran.err


@pytest.fixture
def frail(tmp_path: Path) -> Iterator[tuple[Store, Bus, Commands]]:
    """A bus whose store can go away."""
    with running_store() as store, running_bus(store, workers=0) as bus:
        token, _ = bus.token()
        yield store, bus, Commands(tmp_path, {"url": bus.url(), "token": token})


@pytest.mark.parametrize("id", [None, "once"])
def test_while_the_store_is_away_it_tries_again(frail: tuple[Store, Bus, Commands], id: str | None):
    store, bus, commands = frail
    store.kill()
    process = commands.start(
        *("publish", "orders", "--type", "noop", "--url", URL, *(("--id", id) if id else ())),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    said: list[bytes] = []
    assert process.stderr
    reader = threading.Thread(target=lambda: said.append(process.stderr.readline()))
    reader.start()
    reader.join(20)
    assert b"sent again until it is in" in said[0]
    assert (b"may be stored twice" in said[0]) == (id is None)
    store.start()
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert len(out.strip()) == 20
    assert count(bus, "orders") == 1


def test_patience_ends(frail: tuple[Store, Bus, Commands]):
    store, _, commands = frail
    store.kill()
    ran = commands("publish", "orders", "-", "--patience", "1", stdin=lines(1, 2))
    assert ran.code == 4
    assert "given up after 1 s" in ran.err
    assert "0 events were published; those from line 1 on may be or not" in ran.err


def test_nobody_there_is_told_at_once(nowhere: Commands):
    ran = nowhere("publish", "orders", "-", stdin=lines(1), url="http://127.0.0.1:1", token="shop--12345678")
    assert ran.code == 4
    assert "nothing listens at http://127.0.0.1:1: is the bus running?" in ran.err


def test_ctrl_c_ends_it_quietly_and_says_how_far_it_came(as_shop: Commands, bus: Bus, topic: str):
    process = as_shop.start("publish", topic, "-", stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin
    process.stdin.write(lines(1, 2).encode())
    process.stdin.flush()
    until(lambda: count(bus, topic) == 2, "both events")
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert err.decode() in (
        "routemaster: 2 events were published, and no more\n",
        "routemaster: 0 events were published; those from line 1 on may be or not\n",
    )


def test_on_a_terminal_a_bar_shows_how_far_it_is(as_shop: Commands, on_terminal, topic: str, tmp_path: Path):
    (tmp_path / "events").write_text(lines(*range(1_500)))
    terminal = on_terminal(as_shop, "publish", topic, "events")
    assert terminal.end() == 0
    assert "1,500 events published" in terminal.shown
    assert "0 events" in terminal.shown and "100%" in terminal.shown
