"""Reads a store of the original. Only ever reads, in steps whose size does not depend on how much there is.

Every read may be repeated, so a connection that breaks is waited for, with pauses that grow.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from routemaster.cli.importer import layout
from routemaster.cli.importer.layout import Counter, Subscriber, Unreadable
from routemaster.cli.importer.patience import patiently
from routemaster.errors import StoreAway, StoreError
from routemaster.store.link import Link

STEP = 500  # members of a set or hash in one read
BATCHES = 16  # read at one moment
PIECE = 1000  # messages in one read


class Topic(NamedTuple):
    name: str
    publisher: str  # a token; '' while unclaimed
    counter: int


class Look(NamedTuple):
    """What changes as soon as somebody publishes or something is delivered."""

    counted: int
    batches: int
    queued: int


class Open(NamedTuple):
    """A batch, read as far as its first piece."""

    batch: str
    key: str  # '' for one that is gone
    items: list[bytes]
    length: int  # of its messages
    problem: str = ""  # why it cannot be read


class Source:
    def __init__(self, link: Link, prefix: str) -> None:
        self._link = link
        self.prefix = prefix

    async def has_any(self, *names: str) -> bool:
        found = await asyncio.gather(*(self.ask("EXISTS", self.prefix + name) for name in names))
        return any(found)

    # The registry

    async def tokens(self) -> dict[str, str]:
        """Token -> name of its service."""
        pairs = await self._hash(layout.TOKENS)
        return {
            token.decode(errors="replace"): name.decode(errors="replace") for token, name in pairs.items()
        }

    async def topics(self) -> list[Topic]:
        names = sorted(await self._set("topics"))
        found: list[Topic] = []
        for start in range(0, len(names), STEP):
            step = names[start : start + STEP]
            rows = await asyncio.gather(*(self._topic(name) for name in step))
            found += rows
        return found

    async def _topic(self, name: str) -> Topic:
        publisher, counter = await self.ask("HMGET", f"{self.prefix}topic:{name}", "publisher", "counter")
        is_number = (counter or b"").isdigit()
        return Topic(name, (publisher or b"").decode(errors="replace"), int(counter) if is_number else 0)

    async def subscribers(self) -> list[str]:
        """Their tokens."""
        return sorted(await self._set("subscribers"))

    async def subscriber(self, token: str) -> Subscriber:
        fields = await self._hash(f"subscriber:{token}")
        return layout.read_subscriber(token, fields, await self._set(f"topics:{token}"))

    async def current(self, token: str) -> set[str]:
        """The batches of a subscriber that were still filling."""
        return await self._set(f"batches:current:{token}")

    async def counters(self) -> list[Counter]:
        return [layout.read_counter(*pair) for pair in (await self._hash("counters")).items()]

    # Batches

    async def count_batches(self) -> int:
        return int(await self.ask("ZCARD", f"{self.prefix}batches:index"))

    async def batches(self) -> AsyncIterator[list[str]]:
        """Ids of all batches, in the order of their creation, some at a time. What goes meanwhile does not
        make others be missed."""
        score, seen = "-inf", 0
        while True:
            reply = await self.ask(
                "ZRANGEBYSCORE",
                f"{self.prefix}batches:index",
                score,
                "+inf",
                "WITHSCORES",
                "LIMIT",
                seen,
                BATCHES,
            )
            if not reply:
                return
            ids, scores = reply[::2], reply[1::2]
            last = scores[-1].decode()
            seen = scores.count(scores[-1]) + (seen if last == score else 0)
            score = last
            yield [id.decode(errors="backslashreplace") for id in ids]

    async def open(self, batches: list[str]) -> list[Open]:
        return await asyncio.gather(*(self._open(batch) for batch in batches))

    async def _open(self, batch: str) -> Open:
        for key in (f"{self.prefix}{name}{batch}" for name in layout.BATCH_KEYS):
            try:
                items = await self.ask("LRANGE", key, 0, layout.HEADER + PIECE - 1)
            except Unreadable as error:
                return Open(batch, key, [], 0, str(error))
            if items:
                full = len(items) == layout.HEADER + PIECE
                size = await self.ask("LLEN", key) if full else len(items)
                return Open(batch, key, items, int(size) - layout.HEADER)
        return Open(batch, "", [], 0)

    async def messages(self, opened: Open, start: int) -> list[bytes]:
        """A piece of a batch's messages, from the given one on."""
        if start < PIECE and opened.length <= PIECE:
            return opened.items[layout.HEADER + start :]
        first = layout.HEADER + start
        last = layout.HEADER + min(start + PIECE, opened.length) - 1
        return await self.ask("LRANGE", opened.key, first, last)

    # Whether anybody is at work

    async def look(self) -> Look:
        counted = sum(topic.counter for topic in await self.topics())
        gauges = (await self._hash("batches:gauges:event")).values()
        queued = sum(int(count) for count in gauges if count.isdigit())
        return Look(counted, await self.count_batches(), queued)

    async def silence_ms(self) -> int | None:
        """How long ago a worker was last heard of; None where there is none."""
        beats = [int(at) for at in (await self._hash("workers")).values() if at.isdigit()]
        if not beats:
            return None
        seconds, micros = await self.ask("TIME")
        return int(seconds) * 1000 + int(micros) // 1000 - max(beats)

    # Asking

    async def ask(self, *args: str | bytes | int) -> Any:
        try:
            return await patiently(lambda: self._link.call(*args))
        except StoreAway:
            raise
        except StoreError as error:
            if str(error).startswith("WRONGTYPE"):
                raise Unreadable("its key does not hold what the original keeps there") from None
            raise

    async def _set(self, name: str) -> set[str]:
        found: set[str] = set()
        cursor: bytes | int = 0
        while True:
            cursor, members = await self.ask("SSCAN", self.prefix + name, cursor, "COUNT", STEP)
            found |= {member.decode(errors="replace") for member in members}
            if int(cursor) == 0:
                return found

    async def _hash(self, name: str) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = {}
        cursor: bytes | int = 0
        while True:
            cursor, flat = await self.ask("HSCAN", self.prefix + name, cursor, "COUNT", STEP)
            found.update(zip(flat[::2], flat[1::2], strict=True))
            if int(cursor) == 0:
                return found
