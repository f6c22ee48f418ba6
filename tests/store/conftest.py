"""Tests of the store's scripts share one server; each has a namespace of its own in a database that
is emptied between tests, and fails when it leaves a key outside of its namespace."""

import itertools
from collections.abc import AsyncIterator

import pytest
from redis import Redis

from routemaster.store.link import Link
from tests.bus import Store
from tests.store.room import Room

DATABASE = 1
_numbers = itertools.count(1)


@pytest.fixture
async def link(store: Store) -> AsyncIterator[Link]:
    link = Link(f"{store.url}?db={DATABASE}")
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
