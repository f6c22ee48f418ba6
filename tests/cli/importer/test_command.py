"""`routemaster import` as it is called: what it prints, how it exits, and what a kill -9 costs."""

import contextlib
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from redis import Redis

from tests.bus import Bus, running_bus, running_store
from tests.cli.importer.conftest import DATABASE, Command, arguments
from tests.cli.importer.original import Original, event_bytes
from tests.receiver import Inbox
from tests.until import until


def events(first: int, last: int) -> list[bytes]:
    return [event_bytes("orders", f"https://shop.example/{n}") for n in range(first, last + 1)]


@pytest.fixture
def mail(original: Original, inbox: Inbox) -> str:
    token = original.token("mail")
    original.subscribe(token, inbox.url, "orders", timeout=0, max_events=3)
    original.ingest(token, *events(1, 4))
    return token


def test_it_prints_an_account(original: Original, command: Command, mail: str):
    original.count("workers.scrubbed", 1)
    dry = command("--dry-run")
    assert (dry.code, dry.err) == (0, "")
    assert "would be taken" in dry.out and "Nothing was changed: this was a dry run." in dry.out
    done = command()
    lines = {line.split()[0]: line.split()[1:] for line in done.out.splitlines() if line.strip()}
    assert (done.code, done.err) == (0, "")
    assert lines["tokens"] == ["1", "0", "0"]
    assert lines["events"] == ["4", "0", "0"]
    assert "Counters that have no place here: 1; --json lists them." in done.out


def test_it_prints_json(command: Command, mail: str):
    done = command("--json")
    account = json.loads(done.out)
    assert account["events"] == {"taken": 4, "known": 0, "left": 0}
    assert account["source"].endswith("(no prefix)") and account["dry_run"] is False


def test_it_says_with_its_exit_that_something_was_left(original: Original, command: Command, mail: str):
    bid = original.promote(original.ingest(mail, b"\xc1"))
    done = command()
    assert done.code == 1
    assert f"batch {bid}: message " in done.out


@pytest.mark.parametrize("given", ["", "http://x", "redis://:secret@", "redis://h:secret/0"])
def test_a_url_that_is_none_is_refused_without_showing_it(command: Command, given: str):
    refused = command("--from", given)
    assert refused.code == 2
    assert "--from" in refused.err and ": expected " in refused.err and "secret" not in refused.err


def test_a_password_may_come_from_the_environment(
    original: Original, redis: Redis, command: Command, mail: str, target: Bus
):
    redis.execute_command("ACL", "SETUSER", "reader", "on", ">s3cret", "~*", "+@all")
    url = f"unix://reader@{target.store.url.removeprefix('unix://')}?db={DATABASE}"
    try:
        assert command(import_from=url, import_password="s3cret").code == 0
        refused = command(import_from=url, import_password="wr0ng")
        assert refused.code == 1 and "WRONGPASS" in refused.err
        assert "wr0ng" not in refused.err + refused.out
    finally:
        redis.execute_command("ACL", "DELUSER", "reader")


@pytest.mark.chaos
def test_killed_again_and_again_it_takes_all_once_and_in_order(
    original: Original, target: Bus, source_url: str, command: Command, inbox: Inbox
):
    mail = original.token("mail")
    original.subscribe(mail, inbox.url, "orders", timeout=0, max_events=10)
    for first in range(1, 4000, 10):
        original.fill(mail, 1, events(first, first + 9))
    args, environ = arguments(target, source_url)
    notes = target.key("import:batches")
    for taken in (1, 3, 50, 120, 250):
        process = subprocess.Popen(args, env=environ, stdout=subprocess.DEVNULL)
        until(lambda taken=taken: target.redis.hlen(notes) >= taken, f"{taken} batches to be taken")
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "it was done before it was killed"
    done = command("--json")
    assert done.code == 0
    account = json.loads(done.out)
    assert account["batches"]["taken"] + account["batches"]["known"] == 400
    inbox.until_events(4000)
    assert inbox.urls == [f"https://shop.example/{n}" for n in range(1, 4001)]
    assert target.accepted() == 4000


def peak_kb(pid: int) -> int:
    """The most memory that a process has had; 0 when it is gone."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1])
    return 0


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="nothing tells how much memory it has")
def test_much_is_taken_in_little_memory():
    """Ten times as much takes no more of it."""
    with running_store(2**30) as store, running_bus(store, web=0, workers=0) as target:
        redis = Redis(unix_socket_path=store.redis.get_connection_kwargs()["path"], db=DATABASE)
        original = Original(redis)
        mail = original.token("mail")
        original.subscribe(mail, "https://mail.example/", "orders", max_events=100)
        args, environ = arguments(target, f"{store.url}?db={DATABASE}", "--json")
        peaks: list[int] = []
        for batches in (200, 2000):
            original.fill(mail, batches, events(1, 100))
            process = subprocess.Popen(args, env=environ, stdout=subprocess.PIPE, text=True)
            peaks.append(0)
            while process.poll() is None:  # what is known of it ends with it
                peaks[-1] = max(peaks[-1], peak_kb(process.pid))
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.01)
            out, _ = process.communicate()
            assert process.returncode == 0, out
            assert json.loads(out)["events"]["taken"] == 100 * batches
        assert peaks[1] < peaks[0] + 4 * 1024, f"{peaks} kB"
        assert target.accepted() == 220_000
        redis.close()
