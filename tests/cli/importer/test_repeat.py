"""An import that ends at any step, before or after that was done, is made whole by the next one."""

import asyncio
import itertools
from typing import Any

import pytest
from redis import Redis

from routemaster.cli.importer.account import Account
from routemaster.cli.importer.backlog import Backlog
from routemaster.cli.importer.enrolment import Enrolment
from routemaster.cli.importer.source import Source
from routemaster.errors import StoreAway
from routemaster.store.imports import Imports
from routemaster.store.link import Link
from routemaster.store.script import Script
from routemaster.uid import Maker
from tests.bus import Store
from tests.cli.importer.original import Original
from tests.store.room import Room

STEPS = 15  # that an uninterrupted import of `original` takes, and one more


class Killed(Exception):
    pass


class Mortal(Link):
    """A link whose process dies, or whose answer is lost, at the given script."""

    def __init__(self, url: str, at: int, *, done: bool, error: type[Exception] = Killed) -> None:
        super().__init__(url, silence_s=30.0)
        self._left = at
        self._is_done = done
        self._error = error

    async def run(self, script: Script, namespace: str, *args: str | bytes | int) -> Any:
        self._left -= 1
        if self._left == 0 and not self._is_done:
            raise self._error
        reply = await super().run(script, namespace, *args)
        if self._left == 0:
            raise self._error
        return reply


@pytest.fixture
def filled(original: Original) -> Original:
    """Two publishers, two subscribers, seven batches, one of them still filling."""
    shop, mail, bill = (original.token(name) for name in ("shop", "mail", "bill"))
    original.subscribe(mail, "https://mail.example/", "orders", max_events=4)
    original.subscribe(bill, "https://bill.example/", "orders", "users", max_events=3)
    for n in range(1, 8):
        original.publish(shop, "orders", f"https://shop.example/{n}")
        original.publish(shop, "users", f"https://shop.example/users/{n}")
    return original


async def take_over(there: str, here: Link, namespace: str) -> Account:
    link = Link(there)
    link.open()
    here.open()
    try:
        account, uids, source = Account("", "", False), Maker(), Source(link, "")
        imports = Imports(here, namespace, uids)
        enrolment = Enrolment(source, imports, account, lambda token: False)

        async def has_room() -> bool:
            return False

        await enrolment.take()
        await Backlog(
            source, imports, uids, account, enrolment, lacks_room=has_room, progress=lambda batches: None
        ).take()
        return account
    finally:
        await asyncio.gather(link.close(), here.close())


def state_of(room: Room) -> dict[str, Any]:
    """What is there, with names of its own for what is made anew each time."""
    dump = room.dump()
    names = {client: client.partition("--")[0] for client in dump["clients"]}
    lanes: dict[str, list[tuple[Any, ...]]] = {}
    for subscriber, name in names.items():
        if not room.redis.exists(room.key(f"subscriber:{subscriber}")):
            continue
        lane = room.lane(subscriber)
        current = room.current(lane)
        batches = [*room.ready(lane), *([current] if current else [])]
        lanes[name] = [
            (b.created_at, b.attempts, b.sequence, b.events, [line.split(b',"id"')[0] for line in b.lines])
            for b in batches
        ]
        assert room.gauges(subscriber) == (len(batches), sum(b.events for b in batches))
    counters = {
        field.replace(client, name): value
        for field, value in dump["counters"].items()
        for client, name in names.items()
        if client in field or not any(other in field for other in names)
    }
    topics = {
        name.decode(): {
            field: names.get(value.decode(), value) for field, value in dump[f"topic:{name.decode()}"].items()
        }
        for name in dump["topics"]
    }
    return {
        "clients": sorted(names.values()),
        "lanes": lanes,
        "counters": counters,
        "topics": topics,
        "jobs": len(dump["jobs:index:main"]),
        "logged": dump["log:events:seq"],
    }


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
async def test_killed_at_any_step_the_next_run_makes_it_whole(
    filled: Original, room: Room, store: Store, source_url: str, done: bool
):
    there, here = source_url, room.link.url
    await take_over(there, Link(here), room.ns)
    whole = state_of(room)
    assert whole["logged"] == b"21"
    for at in itertools.count(1):
        room.redis.flushdb()
        try:
            await take_over(there, Mortal(here, at, done=done), room.ns)
        except Killed:
            assert (await take_over(there, Link(here), room.ns)).is_whole
            assert state_of(room) == whole, f"killed at step {at}"
        else:
            assert at == STEPS
            break


async def test_an_answer_that_is_lost_is_asked_for_again(
    filled: Original, room: Room, source_url: str, redis: Redis
):
    await take_over(source_url, Link(room.link.url), room.ns)
    whole = state_of(room)
    for at, done in itertools.product(range(1, STEPS), (False, True)):
        room.redis.flushdb()
        account = await take_over(source_url, Mortal(room.link.url, at, done=done, error=StoreAway), room.ns)
        assert account.is_whole
        assert account.events.taken == 21
        assert state_of(room) == whole, f"lost at step {at}"
