"""Tests of the store's scripts share one server; each has a namespace of its own in a database that
is emptied between tests, and fails when it leaves a key outside of its namespace. The link comes as a user
that is allowed what docs/store.md says and no more, so that every test is one of that list too."""

import itertools
from collections.abc import AsyncIterator

import pytest
from redis import Redis

from routemaster.store.link import Link
from routemaster.store.permissions import rule
from tests.bus import Store
from tests.store.room import Room

DATABASE = 1
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def user(store: Store) -> str:
    """A user with the least permissions, for namespaces ns1:, ns2: and so on; and its password."""
    store.redis.execute_command(f"ACL SETUSER bus reset on >pw {rule('ns')}")
    return "bus:pw"


@pytest.fixture
async def link(store: Store, user: str) -> AsyncIterator[Link]:
    link = Link(f"unix://{user}@{store.url.removeprefix('unix://')}?db={DATABASE}")
    link.open()
    yield link
    await link.close()


@pytest.fixture
async def room(store: Store, link: Link) -> AsyncIterator[Room]:
    redis = Redis(unix_socket_path=store.redis.get_connection_kwargs()["path"], db=DATABASE)
    redis.flushdb()
    room = Room(link, redis, f"ns{next(_numbers)}:")
    yield room
    strays = room.strays()
    redis.flushdb()
    redis.close()
    assert strays == []
