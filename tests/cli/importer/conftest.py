"""A store of the original in a database of its own, beside the bus that it is taken over into.

The bus is shared: each test finds it empty. `run` takes over in this process, `command` as a command.
"""

import asyncio
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from redis import Redis

from routemaster import settings
from routemaster.cli.importer.run import Plan, take_over
from routemaster.errors import RoutemasterError
from tests.bus import HERE, ROUTEMASTER, Bus, Store, running_bus
from tests.cli.importer.original import Original
from tests.store.conftest import link, room, user

__all__ = ["link", "room", "user"]  # fixtures

DATABASE = 7
FAILED, REFUSED = 1, 2


@dataclass(frozen=True)
class Ran:
    """What came of an import: its account, or the error that it ended with."""

    account: dict[str, Any]
    error: str = ""

    def tallies(self) -> dict[str, tuple[int, int, int]]:
        names = ("tokens", "topics", "subscriptions", "batches", "events")
        return {name: tuple(self.account[name][key] for key in ("taken", "known", "left")) for name in names}

    @property
    def is_whole(self) -> bool:
        account = self.account
        return not (self.error or account["left"] or account["failed"] or account["changed_meanwhile"])


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


Run = Callable[..., Ran]
Command = Callable[..., Ended]


@pytest.fixture
def redis(store: Store) -> Iterator[Redis]:
    redis = Redis(unix_socket_path=store.redis.get_connection_kwargs()["path"], db=DATABASE)
    redis.flushdb()
    yield redis
    redis.flushdb()
    redis.close()


@pytest.fixture
def original(redis: Redis) -> Original:
    return Original(redis)


@pytest.fixture
def source_url(store: Store) -> str:
    return f"{store.url}?db={DATABASE}"


@pytest.fixture(scope="module")
def emptied_bus(store: Store) -> Iterator[Bus]:
    with running_bus(store) as bus:
        assert bus.root.get("/api_tokens").status == 204
        yield bus


@pytest.fixture
def target(emptied_bus: Bus) -> Iterator[Bus]:
    """A bus that knows nobody, whatever the test before left in it."""
    bus, before = emptied_bus, len(emptied_bus.log)
    for key in bus.redis.scan_iter(bus.key("*")):
        if key != bus.key("workers").encode():
            bus.redis.delete(key)
    yield bus
    assert "Traceback" not in bus.log[before:], bus.log[before:]


@pytest.fixture
def run(target: Bus, source_url: str) -> Run:
    def run(*, url: str = "", folder: Path | None = None, watch_s: float = 0.05, **wanted: Any) -> Ran:
        names = ("dry_run", "force", "prefix", "password")
        flags = {name: wanted.pop(name, None) for name in names}
        environ = {"redis_url": target.store.url, "redis_prefix": target.namespace, **wanted}
        plan = Plan(
            source_url=url or source_url,
            settings=settings.load({f"ROUTEMASTER_{key.upper()}": value for key, value in environ.items()}),
            folder=folder or Path("nowhere"),
            is_folder_given=folder is not None,
            is_url_given=True,
            dry_run=bool(flags["dry_run"]),
            force=bool(flags["force"]),
            prefix=flags["prefix"],
            password=flags["password"],
            as_json=False,
            watch_s=watch_s,
        )
        try:
            return Ran(msgspec.to_builtins(asyncio.run(take_over(plan))))
        except RoutemasterError as error:
            return Ran({}, str(error))

    return run


def arguments(
    target: Bus, source_url: str, *flags: str, **variables: str
) -> tuple[list[str], dict[str, str]]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ROUTEMASTER_")}
    named = {"redis_url": target.store.url, "redis_prefix": target.namespace, "import_from": source_url}
    environ |= {f"ROUTEMASTER_{name.upper()}": value for name, value in {**named, **variables}.items()}
    return [*ROUTEMASTER, "import", *flags], {**environ, "PYTHONPATH": HERE}


@pytest.fixture
def command(target: Bus, source_url: str) -> Command:
    def command(*flags: str, **variables: str) -> Ended:
        args, environ = arguments(target, source_url, *flags, **variables)
        done = subprocess.run(args, env=environ, capture_output=True, text=True, timeout=50)
        assert "Traceback" not in done.stderr, done.stderr
        return Ended(done.returncode, done.stdout, done.stderr)

    return command
