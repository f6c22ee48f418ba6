"""With tiny real children: each writes what happens to it into a file."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from routemaster.cli import tether
from routemaster.cli.supervisor import Backoff, Child, Supervisor
from routemaster.errors import StartFailed
from tests.until import alive, until, until_async

DIARY = """
import os, signal, sys, time
def note(what):
    with open(sys.argv[1], "a") as diary: diary.write(f"{what} {sys.argv[2]} {os.getpid()}\\n")
def leave(*_):
    note("left"); os._exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN if "deaf" in sys.argv else leave)
note("came")
if "short" in sys.argv: os._exit(7)
while True: signal.pause()
"""

SUPERVISES = """
import asyncio, os, sys
from routemaster.cli.supervisor import Child, Supervisor
async def main():
    supervisor = Supervisor(lambda pids: None)
    for name in ("one", "two"):
        supervisor.start(Child(name=name, command=(sys.executable, "-c", sys.argv[2], sys.argv[1], name),
                               environ=os.environ))
    await asyncio.Event().wait()
asyncio.run(main())
"""


class Diary:
    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def child(self, name: str, *habits: str, grace_s: float = 10.0) -> Child:
        command = (sys.executable, "-c", DIARY, str(self.path), name, *habits)
        return Child(name=name, command=command, environ=os.environ, grace_s=grace_s)

    def lines(self) -> list[list[str]]:
        return [line.split() for line in self.path.read_text().splitlines()]

    def said(self, what: str, name: str) -> list[int]:
        return [int(pid) for said, who, pid in self.lines() if (said, who) == (what, name)]


@pytest.fixture
def diary(tmp_path: Path) -> Diary:
    return Diary(tmp_path / "diary")


async def test_what_dies_is_started_again(diary: Diary):
    pids: dict[str, int] = {}
    supervisor = Supervisor(pids.update, Backoff(least_s=0.01))
    supervisor.start(diary.child("one"), diary.child("two"))
    await until_async(lambda: len(diary.lines()) == 2, "both to start")
    os.kill(pids["one"], signal.SIGKILL)
    await until_async(lambda: len(diary.said("came", "one")) == 2, "one to come back")
    assert diary.said("came", "one")[-1] == pids["one"]
    assert len(diary.said("came", "two")) == 1
    await supervisor.stop()


async def test_a_child_that_never_stays_up_fails_the_start(diary: Diary):
    supervisor = Supervisor(lambda _: None, Backoff(least_s=0.001, most_s=0.01))
    supervisor.start(diary.child("weak", "short"))

    async def never() -> bool:
        return False

    with pytest.raises(StartFailed, match=r"weak does not stay up \(exit code 7\)"):
        await supervisor.until(never)
    await supervisor.stop()


async def test_a_command_that_does_not_exist_fails_the_start():
    supervisor = Supervisor(lambda _: None, Backoff(least_s=0.001, most_s=0.01))
    supervisor.start(Child(name="ghost", command=("/nowhere",), environ={}))

    async def never() -> bool:
        return False

    with pytest.raises(StartFailed, match="ghost"):
        await supervisor.until(never)
    await supervisor.stop()


async def test_tiers_stop_in_reverse_order(diary: Diary):
    supervisor = Supervisor(lambda _: None)
    supervisor.start(diary.child("store"))
    supervisor.start(diary.child("web"), diary.child("worker"))
    await until_async(lambda: len(diary.lines()) == 3, "all to start")
    await supervisor.stop()
    left = [name for what, name, _ in diary.lines() if what == "left"]
    assert sorted(left[:2]) == ["web", "worker"]
    assert left[2:] == ["store"]


async def test_one_that_does_not_listen_is_killed_after_its_grace(diary: Diary):
    supervisor = Supervisor(lambda _: None)
    supervisor.start(diary.child("deaf", "deaf", grace_s=0.1))
    await until_async(diary.lines, "it to start")
    await supervisor.stop()
    assert not alive(diary.said("came", "deaf")[0])
    assert not diary.said("left", "deaf")


async def test_stopping_does_not_wait_for_a_restart(diary: Diary):
    supervisor = Supervisor(lambda _: None, Backoff(least_s=3600, most_s=3600))
    supervisor.start(diary.child("weak", "short"))
    await until_async(diary.lines, "it to start and die")
    await supervisor.stop()
    assert len(diary.lines()) == 1


def test_the_delay_doubles_up_to_its_bound():
    backoff = Backoff()
    for deaths, longest_s in ((1, 0.1), (2, 0.2), (5, 1.6), (8, 10.0), (1000, 10.0)):
        assert 0.75 * longest_s <= backoff.delay_s(deaths) <= longest_s


@pytest.mark.chaos
def test_no_child_outlives_a_supervisor_that_is_killed(diary: Diary):
    supervisor = subprocess.Popen([sys.executable, "-c", SUPERVISES, str(diary.path), DIARY])
    until(lambda: len(diary.lines()) == 2, "both to start")
    supervisor.kill()
    supervisor.wait()
    for _, name, pid in diary.lines():
        until(lambda pid=pid: not alive(int(pid)), f"{name} to end")


@pytest.mark.chaos
def test_the_watcher_of_other_systems_ends_a_child_too(diary: Diary):
    """What tether.py does where the kernel cannot: tried here, on whatever this runs on."""
    supervisor = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    ties = (
        "import importlib.util, os, sys\n"
        f"spec = importlib.util.spec_from_file_location('tether', {tether.__file__!r})\n"
        "tether = importlib.util.module_from_spec(spec); spec.loader.exec_module(tether)\n"
        f"tether.tie_by_watcher({supervisor.pid})\n" + DIARY
    )
    child = subprocess.Popen([sys.executable, "-c", ties, str(diary.path), "tied"])
    until(diary.lines, "it to start")
    supervisor.kill()
    supervisor.wait()
    assert child.wait(10) == -signal.SIGKILL
