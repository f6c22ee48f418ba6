import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from routemaster.cli.folder import find
from tests.bus import ROOT_KEY, ROUTEMASTER, Bus
from tests.cli.commands import Commands, Terminal
from tests.conftest import MakeClient
from tests.until import until
from tests.wire import Caller

OnTerminal = Callable[..., Terminal]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a path short enough for a socket file."""
    with tempfile.TemporaryDirectory(prefix="rm-") as path:
        yield Path(path) / "bus"


@pytest.fixture
def nowhere(tmp_path: Path) -> Commands:
    """Commands in a folder with no bus, and no settings."""
    return Commands(tmp_path)


@pytest.fixture
def root(bus: Bus, tmp_path: Path) -> Commands:
    """Commands of root at the shared bus, which is named by its URL."""
    return Commands(tmp_path, {"url": bus.url(), "root_key": ROOT_KEY}, [ROOT_KEY])


@pytest.fixture
def shop(client: MakeClient) -> Caller:
    """A client of the shared bus."""
    return client("shop")


@pytest.fixture
def as_shop(bus: Bus, shop: Caller, tmp_path: Path) -> Commands:
    """Commands of that client, and of nobody else."""
    assert shop.token
    return Commands(tmp_path, {"url": bus.url(), "token": shop.token}, [shop.token, ROOT_KEY])


@pytest.fixture(scope="session")
def brought_up() -> Iterator[Path]:
    """A whole bus in `.routemaster` of a folder, as `routemaster up` makes it."""
    with tempfile.TemporaryDirectory(prefix="rm-") as path:
        commands = Commands(Path(path))
        log = (commands.folder / "up.log").open("wb")
        process = subprocess.Popen(
            [*ROUTEMASTER, "up", "--port", "0"], cwd=path, env=commands.environ(), stdout=log, stderr=log
        )
        try:
            said = commands.folder / "up.log"
            until(lambda: "is up at" in said.read_text() or process.poll() is not None, "the bus")
            assert process.poll() is None, said.read_text()
            yield commands.folder
        finally:
            process.terminate()
            process.wait(30)
            log.close()


@pytest.fixture
def here(brought_up: Path) -> Commands:
    """Commands in that folder, without any settings: how a first day begins."""
    key = (brought_up / ".routemaster" / "root.key").read_text().strip()
    assert find(brought_up / ".routemaster")
    return Commands(brought_up, {}, [key])


@pytest.fixture
def on_terminal() -> Iterator[OnTerminal]:
    started: list[Terminal] = []

    def start(commands: Commands, *args: str, **size: int) -> Terminal:
        started.append(Terminal(commands, *args, **size))
        return started[-1]

    yield start
    for terminal in started:
        terminal.close()
