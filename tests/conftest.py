"""One store, one bus and one receiver for all tests that can share them."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.bus import Bus, Store, running_bus, running_store
from tests.receiver import Inbox, Receiver, running_receiver
from tests.wire import Caller

MakeBus = Callable[..., Bus]
MakeInbox = Callable[..., Inbox]
MakeClient = Callable[..., Caller]


@pytest.fixture(scope="session")
def store() -> Iterator[Store]:
    with running_store() as store:
        yield store


@pytest.fixture(scope="session")
def shared_bus(store: Store) -> Iterator[Bus]:
    """Two web processes and a worker."""
    with running_bus(store, web=2) as bus:
        yield bus


@pytest.fixture
def bus(shared_bus: Bus) -> Iterator[Bus]:
    """The shared bus; a test fails when a process of it has died or left a traceback in its log."""
    before = len(shared_bus.log)
    pids = shared_bus.pids
    yield shared_bus
    assert "Traceback" not in shared_bus.log[before:], shared_bus.log[before:]
    assert shared_bus.pids == pids


@pytest.fixture
def make_bus(store: Store) -> Iterator[MakeBus]:
    """Starts a bus with settings of its own, in a namespace of its own, on the shared store."""
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(running_bus(store, **settings))


@pytest.fixture
def client(bus: Bus) -> Iterator[MakeClient]:
    """Makes clients of the shared bus, which go with the test."""
    made: list[Caller] = []

    def make(name: str = "service", role: str = "client") -> Caller:
        made.append(bus.client(name, role))
        return made[-1]

    yield make
    for caller in made:
        bus.forget(caller)


@pytest.fixture
def publisher(client: MakeClient) -> Caller:
    return client("publisher")


@pytest.fixture
def subscriber(client: MakeClient) -> Caller:
    return client("subscriber")


@pytest.fixture
def topic(bus: Bus) -> str:
    return bus.topic()


@pytest.fixture(scope="session")
def receiver() -> Iterator[Receiver]:
    with running_receiver() as receiver:
        yield receiver


@pytest.fixture
def inbox(receiver: Receiver) -> Iterator[Inbox]:
    inbox = receiver.inbox()
    yield inbox
    inbox.release()
