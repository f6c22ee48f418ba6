"""A bus as a newcomer starts it: `routemaster up`, in an empty folder."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from routemaster.cli import folder
from tests.bus import HERE, ROUTEMASTER
from tests.receiver import Inbox, Receiver
from tests.until import alive, until
from tests.wire import Caller


class Up:
    """`routemaster up --dir <folder>`, and what a person finds in that folder."""

    def __init__(self, path: Path) -> None:
        self.folder = path
        self._callers: list[Caller] = []
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environ = {k: v for k, v in os.environ.items() if not k.startswith("ROUTEMASTER_")}
        with (self.folder.parent / "up.log").open("wb") as log:
            self._process = subprocess.Popen(
                [*ROUTEMASTER, "up", "--port", "0", "--dir", str(self.folder)],
                env={**environ, "PYTHONPATH": HERE},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        started = self._process
        until(lambda: started.poll() is not None or "is up at" in self.printed, "the bus to be up", 30)
        assert self._process.poll() is None, self.printed

    @property
    def printed(self) -> str:
        return (self.folder.parent / "up.log").read_text()

    @property
    def pids(self) -> dict[str, int]:
        bus = folder.find(self.folder)
        assert bus
        return bus.pids

    def as_root(self) -> Caller:
        return self.as_holder_of((self.folder / "root.key").read_text().strip())

    def as_holder_of(self, token: str) -> Caller:
        bus = folder.find(self.folder)
        assert bus
        host, port = bus.url.removeprefix("http://").rsplit(":", 1)
        self._callers.append(Caller((host, int(port)), token))
        return self._callers[-1]

    def new_service(self, name: str) -> Caller:
        """What later chapters do not spell out again: a token for a service."""
        created = self.as_root().post("/api_tokens", {"name": name})
        assert created.status == 201
        caller = self.as_holder_of(created.json["token"])
        caller.id = created.json["client"]
        return caller

    def kill(self) -> None:
        """With -9: the supervisor and, through it, everything."""
        assert self._process is not None
        children = list(self.pids.values())
        self._process.kill()
        self._process.wait()
        until(lambda: not any(alive(pid) for pid in children), "its children to end")
        self._hang_up()

    def stop(self) -> None:
        self._hang_up()
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(20)
            finally:
                self._process.kill()
                self._process.wait()

    def _hang_up(self) -> None:
        for caller in self._callers:
            caller.close()
        self._callers.clear()


@pytest.fixture(scope="package")
def bus() -> Iterator[Up]:
    with tempfile.TemporaryDirectory(prefix="rm-") as path:
        up = Up(Path(path) / "bus")
        try:
            up.start()
            yield up
        finally:
            up.stop()


@pytest.fixture
def shop_server(receiver: Receiver) -> Iterator[Inbox]:
    """Where a subscriber listens."""
    inbox = receiver.inbox("shop")
    yield inbox
    inbox.release()
