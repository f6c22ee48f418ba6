"""What is taken over from a store of the original, and the notes of it.

Each call takes one thing over whole, with the note that it was, in one step: whatever is repeated, after a
kill or on another day, adds nothing. What somebody changed or deleted here since is left as it is.
"""

import time
from typing import Any, NamedTuple

import msgspec

from routemaster.store.clients import ClientRecord
from routemaster.store.link import Link
from routemaster.store.script import Script
from routemaster.uid import Maker

_CLIENT = Script("import_client")
_TOPIC = Script("import_topic")
_SUBSCRIBER = Script("import_subscriber")
_BATCH = Script("import_batch")
_FORGET = Script("forget_import")


class Lanes(NamedTuple):
    """Where a subscription's events go, as it was when it was asked for."""

    incarnation: str
    set: str
    parallelism: int
    max_events: int
    is_channel: bool


class Group(NamedTuple):
    """The events of one lane, already joined."""

    lane: int
    events: int
    text: bytes
    channel_text: bytes = b""  # in the channel format, where the lane wants that


class Piece(NamedTuple):
    """A batch of the original, or a part of it that is not too long for one call."""

    batch: str
    start: int  # how many of its messages were taken before, and are after this
    stop: int
    subscriber: str
    lanes: Lanes
    created_at: int
    attempts: int
    is_open: bool
    counts: dict[str, int]
    side: list[list[str | int | None]]
    groups: list[Group]


class Imports:
    def __init__(self, link: Link, namespace: str, uids: Maker) -> None:
        self._link = link
        self._namespace = namespace
        self._uids = uids

    async def client(self, client: str, record: ClientRecord, name: str) -> tuple[str, str]:
        """'new', 'known' or 'deleted', and who it is. `name` is the digest of what it was called there."""
        reply = await self._run(
            _CLIENT, self._uids(), client, msgspec.json.encode(record), name, record.tokens[0].digest
        )
        return reply[0].decode(), reply[1].decode() if len(reply) > 1 else ""

    async def topic(self, topic: str, publisher: str, counter: int, note: str) -> str:
        """'new', 'known', 'taken' by somebody else, or 'deleted'."""
        return (await self._run(_TOPIC, self._uids(), topic, publisher, counter, note)).decode()

    async def subscriber(
        self, subscriber: str, client: str, fields: dict[str, str | int], topics: set[str]
    ) -> str:
        """'new', 'known', 'deleted' or 'gone' (the client)."""
        flat = [item for pair in fields.items() for item in pair]
        outcome = await self._run(
            _SUBSCRIBER,
            self._uids(),
            subscriber,
            client,
            self._uids()[-12:],
            msgspec.msgpack.encode(flat),
            *sorted(topics),
        )
        return outcome.decode()

    async def batch(self, piece: Piece) -> str:
        """'done', 'elsewhere', 'moved' or 'gone'."""
        flat: list[str | bytes | int] = []
        for group in piece.groups:
            flat += (group.lane, self._uids(), group.events, group.text, group.channel_text)
        outcome = await self._run(
            _BATCH,
            piece.batch,
            piece.start,
            piece.stop,
            piece.subscriber,
            piece.lanes.incarnation,
            piece.lanes.set,
            piece.lanes.parallelism,
            piece.created_at,
            piece.attempts,
            "open" if piece.is_open else "",
            self._uids(),
            sum(group.events for group in piece.groups),
            msgspec.json.encode(piece.counts),
            msgspec.json.encode(piece.side),
            time.time_ns() // 1_000_000,
            *flat,
        )
        return outcome.decode()

    async def forget(self) -> int:
        """Drop the notes; how many batches were in them."""
        return int(await self._run(_FORGET))

    # What is there

    async def taken(self, batches: list[str]) -> list[int]:
        """How many messages of each batch were taken."""
        reply = await self._link.call("HMGET", f"{self._namespace}import:batches", *batches)
        return [int(count or 0) for count in reply]

    async def lanes(self, subscriber: str) -> Lanes | None:
        reply = await self._link.call(
            "HMGET",
            f"{self._namespace}subscriber:{subscriber}",
            "incarnation",
            "set",
            "parallelism",
            "max_events",
            "format",
        )
        if reply[0] is None:
            return None
        incarnation, number, parallelism, most, form = reply
        return Lanes(incarnation.decode(), number.decode(), int(parallelism), int(most), form == b"channel")

    async def look_for_client(self, name: str) -> tuple[str, str]:
        """What `client` would answer; '' for who is not there yet."""
        known = await self._field("tokens", name) or await self._field("import:clients", name)
        if not known:
            return "new", ""
        return ("known", known) if await self._field("clients", known) else ("deleted", "")

    async def look_for_topic(self, topic: str, publisher: str, note: str) -> str:
        """What `topic` would answer."""
        before = await self._field("import:topics", note)
        is_there = await self._link.call("SISMEMBER", f"{self._namespace}topics", topic)
        owner = await self._field(f"topic:{topic}", "publisher")
        if before and not is_there:
            return "deleted"
        if publisher and owner and owner != publisher:
            return "taken"
        return "known" if before else "new"

    async def look_for_subscriber(self, subscriber: str) -> str:
        """What `subscriber` would answer."""
        if await self._link.call("EXISTS", f"{self._namespace}subscriber:{subscriber}"):
            return "known"
        imported = await self._link.call("SISMEMBER", f"{self._namespace}import:subscribers", subscriber)
        return "deleted" if imported else "new"

    async def _field(self, key: str, field: str) -> str:
        return ((await self._link.call("HGET", self._namespace + key, field)) or b"").decode()

    async def _run(self, script: Script, *args: str | bytes | int) -> Any:
        return await self._link.run(script, self._namespace, *args)
