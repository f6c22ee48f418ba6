"""A whole bus under its supervisor, with stubs for web and worker (their own tests are elsewhere)."""

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redis import Redis

from routemaster.cli.folder import Bus, find
from tests.until import alive, until

STUB = Path(__file__).with_name("stub.py")
UP = f"""
import sys
from functools import partial
from routemaster.cli import app, up
up.Plan = partial(up.Plan, program=(sys.executable, {str(STUB)!r}))
app.main()
"""

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(folder: Path) -> Iterator[Start]:
    """Starts `routemaster up` in the test's folder; whatever still runs at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(*flags: str, **variables: str) -> subprocess.Popen[str]:
        environ = {k: v for k, v in os.environ.items() if not k.startswith("ROUTEMASTER_")}
        with (folder.parent / "stdout").open("w") as stdout:
            process = subprocess.Popen(
                [sys.executable, "-c", UP, "up", "--dir", str(folder), *(flags or ("--port", "0"))],
                env={**environ, **{f"ROUTEMASTER_{k}": v for k, v in variables.items()}},
                stdout=stdout,
                stderr=subprocess.PIPE,
                text=True,
            )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def printed(folder: Path) -> str:
    return (folder.parent / "stdout").read_text()


def ready(process: subprocess.Popen[str], folder: Path) -> Bus:
    until(lambda: "curl" in printed(folder) or process.poll() is not None, "the ready message")
    assert printed(folder).startswith("Routemaster is up at http://127.0.0.1:"), process.communicate()[1]
    bus = find(folder)
    assert bus
    return bus


def test_it_comes_up_and_stops_in_order(start: Start, folder: Path):
    process = start("--port", "0", "--web", "2")
    bus = ready(process, folder)
    assert bus.pid == process.pid
    assert set(bus.pids) == {"store", "web-1", "web-2", "worker-1"}
    with urllib.request.urlopen(f"{bus.url}/health") as answer:
        assert answer.status == 200
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=20)
    out = printed(folder)
    assert process.returncode == 0
    assert err == "stopping …\n"
    assert f"in {folder}/root.key" in out
    assert (folder / "root.key").read_text().strip() not in out + err
    assert not any(alive(pid) for pid in bus.pids.values())
    assert find(folder) is None


def test_an_address_that_needs_https_says_so(start: Start, folder: Path):
    """Everything would be answered 308, to where nobody listens."""
    ready(start("--host", "0.0.0.0", "--port", "0"), folder)
    assert "ROUTEMASTER_REQUIRE_TLS=0" in printed(folder)


def test_a_second_one_in_the_same_folder_says_so(start: Start, folder: Path):
    bus = ready(start(), folder)
    second = start()
    _, err = second.communicate(timeout=20)
    assert second.returncode == 3
    assert f"(pid {bus.pid}) at {bus.url}" in err


@pytest.mark.chaos
def test_killed_it_leaves_nothing_and_the_next_start_has_everything(start: Start, folder: Path):
    process = start()
    bus = ready(process, folder)
    with Redis.from_url(bus.store_url) as redis:
        redis.set("kept", "yes")
    process.kill()
    process.wait()
    again = ready(start(), folder)
    until(lambda: not any(alive(pid) for pid in bus.pids.values()), "the first bus's children to end")
    with Redis.from_url(again.store_url) as redis:
        assert redis.get("kept") == b"yes"


@pytest.mark.chaos
@pytest.mark.parametrize("name", ["store", "web-1", "worker-1"])
def test_a_killed_child_comes_back_alone(start: Start, folder: Path, name: str):
    before = ready(start(), folder).pids
    os.kill(before[name], signal.SIGKILL)

    def pids() -> dict[str, int]:
        bus = find(folder)
        return bus.pids if bus else {}

    until(lambda: pids().get(name, before[name]) != before[name], f"another {name}")
    assert {k: v for k, v in pids().items() if k != name} == {k: v for k, v in before.items() if k != name}


def test_a_port_that_is_taken_is_named(start: Start):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = start("--port", str(port))
        _, err = process.communicate(timeout=20)
    assert process.returncode == 1
    assert err.count("\n") == 1
    assert f"port {port}" in err
    assert "--port" in err


def test_a_given_root_key_writes_no_file(start: Start, folder: Path):
    process = start(ROOT_KEY="root--0123456789")
    ready(process, folder)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    out = printed(folder)
    assert process.returncode == 0
    assert "ROUTEMASTER_ROOT_KEY" in out
    assert "0123456789" not in out + err
    assert not (folder / "root.key").exists()


def test_a_given_store_is_used(start: Start, folder: Path):
    bus = ready(start(REDIS_URL="redis://user:hunter2@127.0.0.1:1"), folder)
    assert set(bus.pids) == {"web-1", "worker-1"}
    assert not (folder / "store").exists()


@pytest.mark.parametrize(
    ("flags", "variables"),
    [
        ((), {"PORT": "http"}),
        (("--web", "0"), {}),
        (("--nonsense",), {}),
        ((), {"ROOT_KEY_FILE": "/nowhere"}),
    ],
)
def test_wrong_usage_and_settings_end_with_2(
    start: Start, folder: Path, flags: tuple[str, ...], variables: dict[str, str]
):
    process = start(*(flags or ("--host", "127.0.0.1")), **variables)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 2
    assert "Traceback" not in err
    assert not folder.exists()
