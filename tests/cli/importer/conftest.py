"""A store of the original in a database of its own, beside the bus that it is taken over into."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from redis import Redis

from tests.bus import HERE, ROUTEMASTER, Bus, Store
from tests.cli.importer.original import Original

DATABASE = 7


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def account(self) -> dict[str, Any]:
        return json.loads(self.out)

    def tallies(self) -> dict[str, tuple[int, int, int]]:
        names = ("tokens", "topics", "subscriptions", "batches", "events")
        return {name: tuple(self.account[name][key] for key in ("taken", "known", "left")) for name in names}


Run = Callable[..., Ran]


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


@pytest.fixture
def target(make_bus: Callable[..., Bus]) -> Bus:
    """A bus of its own: what is taken over stays in it."""
    bus = make_bus()
    assert bus.root.get("/api_tokens").status == 204
    return bus


def command(target: Bus, source_url: str, *flags: str) -> tuple[list[str], dict[str, str]]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ROUTEMASTER_")}
    environ |= {
        "PYTHONPATH": HERE,
        "ROUTEMASTER_REDIS_URL": target.store.url,
        "ROUTEMASTER_REDIS_PREFIX": target.namespace,
    }
    return [*ROUTEMASTER, "import", "--from", source_url, *flags], environ


@pytest.fixture
def run(target: Bus, source_url: str) -> Run:
    """Runs the command to its end."""

    def run(*flags: str, url: str | None = None, **variables: str) -> Ran:
        args, environ = command(target, url or source_url, *(flags or ("--json",)))
        environ |= {f"ROUTEMASTER_{name.upper()}": value for name, value in variables.items()}
        done = subprocess.run(args, env=environ, capture_output=True, text=True, timeout=50)
        assert "Traceback" not in done.stderr, done.stderr
        return Ran(done.returncode, done.stdout, done.stderr)

    return run
