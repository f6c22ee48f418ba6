"""Seeds and lengths of chaos: CHAOS_SEED repeats what was done, CHAOS_SECONDS makes it last longer."""

import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from redis import RedisError

from tests.bus import Bus, Store, running_bus
from tests.chaos import books
from tests.chaos.proxy import Proxy, Where, running_proxy

# A worker's lane is taken back soon, and no wait grows long: each round of chaos takes a second or two.
QUICK = {
    "delivery_timeout_ms": 1_000,
    "lease_ms": 2_000,
    "min_backoff_ms": 20,
    "max_backoff_ms": 300,
}


@pytest.fixture
def seed() -> int:
    chosen = int(os.environ.get("CHAOS_SEED") or random.randrange(2**32))
    print(f"CHAOS_SEED={chosen}")
    return chosen


@pytest.fixture
def dice(seed: int) -> random.Random:
    return random.Random(seed)


@pytest.fixture(scope="session")
def chaos_seconds() -> float:
    """How long a random mix goes on."""
    return float(os.environ.get("CHAOS_SECONDS") or 4)


@pytest.fixture(scope="session")
def rounds(chaos_seconds: float) -> int:
    """How often one kind of harm is done."""
    return max(3, round(chaos_seconds / 2))


class Kept:
    """A bus that one test after the other may use, as long as the last left it in good order."""

    def __init__(self, make: Callable[[ExitStack], Bus]) -> None:
        self._make = make
        self._stack = ExitStack()
        self._bus: Bus | None = None

    def bus(self) -> Bus:
        """Everything of it runs. One with leftovers is put away, so that only one test fails."""
        if self._bus is not None and self._has_leftovers(self._bus):
            self.close()
        if self._bus is None:
            self._bus = self._make(self._stack)
        self._bus.start()
        return self._bus

    def close(self) -> None:
        self._stack.close()
        self._bus = None

    def _has_leftovers(self, bus: Bus) -> bool:
        try:
            books.until_drained(bus.redis, bus.namespace, deadline_s=1.0)
        except (AssertionError, RedisError):
            return True
        return False


@pytest.fixture(scope="module")
def kept_bus() -> Iterator[Kept]:
    """Two web processes and two workers, on a store of their own, which may be killed."""
    kept = Kept(lambda stack: stack.enter_context(running_bus(web=2, workers=2, **QUICK)))
    yield kept
    kept.close()


@pytest.fixture
def chaos_bus(kept_bus: Kept) -> Iterator[Bus]:
    bus = kept_bus.bus()
    before = len(bus.log)
    yield bus
    assert "Traceback" not in bus.log[before:], bus.log[before:]


@pytest.fixture(scope="module")
def shared_proxy(store: Store) -> Iterator[Proxy]:
    with running_proxy(Where(path=store.url.removeprefix("unix://"))) as proxy:
        yield proxy


@pytest.fixture
def store_proxy(shared_proxy: Proxy) -> Iterator[Proxy]:
    """In front of the shared store, for the processes of one bus."""
    yield shared_proxy
    shared_proxy.mend()
