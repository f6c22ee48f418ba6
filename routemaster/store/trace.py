"""Tracing one event: finding it in the log, and what became of it.

Everything is looked for in bounded steps, with others' turns in between, so that neither the store nor this
process is held up. The steps together are bounded too: what was not looked at is said.
"""

import asyncio
import zlib
from typing import Any, NamedTuple

import msgspec

from routemaster.errors import StoreError
from routemaster.store.link import Link
from routemaster.store.script import Script
from routemaster.uid import time_ms

_SEEK = Script("seek_log")
_FIND = Script("find_event")
_LOCATE = Script("locate_event")
_FIND_BATCHES = Script("find_batches")
_FIND_DROPS = Script("find_drops")

# When the block of an event was received, measured from when its UID was made: nearly always in the first; in
# the second when clocks differ, or when it waited for the rest of a wide request.
WINDOWS_MS = ((-250, 2_000), (-10_000, 300_000))
SLACK_MS = 5_000  # by how much a web process's clock may be ahead of the store's
STEP_BLOCKS, STEP_BYTES = 256, 2**19  # a millisecond of the store's time
MOST_BYTES = 128 * 2**20
PAUSE_S = 0.002
ATTEMPT_BLOCKS, MOST_ATTEMPT_BYTES = 16, 16 * 2**20
STEP_SUBSCRIBERS, STEP_BATCHES, STEP_DROPS = 25, 500, 1_000


class Found(NamedTuple):
    """An event as the log has it."""

    generation: str
    seq: int
    received_at: int
    publisher: str
    kind: str
    topic: str
    environment: str
    traceparent: str | None
    line: bytes  # as it is delivered


class Search(NamedTuple):
    found: Found | None
    is_whole: bool  # False when it was given up for the amount of what was to be looked at


class Record(msgspec.Struct):
    """One line of the log of deliveries."""

    batch: str = ""
    subscriber: str = ""
    generation: str = ""
    first: int = 0
    last: int = -1
    runs: list[int] = []
    attempt: int = 0
    status: str = ""
    why: str = ""
    code: int = 0
    ms: int = 0
    at: int = 0

    def holds(self, generation: str, seq: int) -> bool:
        """As far as it can be told: of a batch of very many runs the record does not name the last ones."""
        if generation != self.generation or not self.first <= seq <= self.last:
            return False
        runs = self.runs
        if not runs or seq >= runs[-2] + runs[-1]:
            return True
        return any(first <= seq < first + n for first, n in zip(runs[::2], runs[1::2], strict=True))


class Attempts(NamedTuple):
    records: list[Record]
    since: int | None  # attempts before this have left the log; None when none has
    until: int | None  # attempts after this were not looked at; None when all were


class Where(NamedTuple):
    state: str  # 'queued', 'in the air' or 'dead'
    batch: str


_decode = msgspec.json.Decoder(list[Record]).decode
_Side = list[tuple[int, str, str, str, str, str | None]]  # events, publisher, kind, topic, environment, trace


class Trace:
    def __init__(self, link: Link, namespace: str) -> None:
        self._link = link
        self._namespace = namespace

    async def find(self, uid: str) -> Search:
        made_at, left = time_ms(uid), MOST_BYTES
        for before_ms, after_ms in WINDOWS_MS:
            seq = await self._seek("events", made_at + before_ms)
            while seq is not None:
                until = made_at + after_ms
                tag, read, *rest = await self._run(_FIND, uid, seq, until, STEP_BLOCKS, STEP_BYTES)
                if tag == b"found":
                    return Search(_found(*rest), True)
                left -= int(read)
                seq = int(rest[0]) if tag == b"on" else None
                if left <= 0:
                    return Search(None, False)
                await asyncio.sleep(PAUSE_S)
        return Search(None, True)

    async def locate(self, found: Found, url: str, subscribers: list[str]) -> dict[str, Where]:
        """Where it is queued now; subscribers for whom it is not are left out."""
        where: dict[str, Where] = {}
        crc, since = zlib.crc32(url.encode()), found.received_at - SLACK_MS
        left = subscribers
        while left:
            step = left[:STEP_SUBSCRIBERS]
            rows = await self._run(_LOCATE, found.generation, found.seq, crc, since, STEP_BYTES, *step)
            for subscriber, (state, batch) in zip(step, rows, strict=False):
                if state:
                    where[subscriber] = Where(state.decode(), batch.decode())
            left = left[len(rows) :]
        return where

    async def attempts(self, found: Found) -> Attempts:
        """Every attempt to deliver it, in their order."""
        records: list[Record] = []
        start = await self._seek("deliveries", found.received_at - SLACK_MS)
        if start is None:
            return Attempts(records, None, None)
        since = await self._trimmed_until(found.received_at)
        following, left, until = str(start), MOST_ATTEMPT_BYTES, None
        while left > 0:
            entries = await self._blocks(following, ATTEMPT_BLOCKS)
            for id, block in entries:
                records += _records(block, found)
                following, until = f"{id}-1", int(block[b"r"])
                left -= len(block[b"e"])
            if len(entries) < ATTEMPT_BLOCKS:
                return Attempts(records, since, None)
        return Attempts(records, since, until)

    async def _trimmed_until(self, received_at: int) -> int | None:
        """The time of the oldest attempt that is left, where later ones than this time may be gone."""
        for _, block in await self._blocks("-", 1):
            if int(block[b"f"]) > 1 and int(block[b"r"]) > received_at:
                return int(block[b"r"])
        return None

    async def _blocks(self, start: str, most: int) -> list[tuple[int, dict[bytes, bytes]]]:
        """Blocks of the log of deliveries, with the seq that each ends at."""
        key = f"{self._namespace}log:deliveries"
        entries: list[tuple[bytes, list[bytes]]] = await self._link.call(
            "XRANGE", key, start, "+", "COUNT", most
        )
        return [
            (int(id.split(b"-")[0]), dict(zip(flat[::2], flat[1::2], strict=True))) for id, flat in entries
        ]

    async def states_of(self, batches: list[str]) -> dict[str, str]:
        """What has become of batches; those that are gone are left out."""
        states: dict[str, str] = {}
        for start in range(0, len(batches), STEP_BATCHES):
            step = batches[start : start + STEP_BATCHES]
            reply = await self._run(_FIND_BATCHES, *step)
            states |= {batch: state.decode() for batch, state in zip(step, reply, strict=True) if state}
        return states

    async def dropped_for(self, found: Found) -> set[str]:
        """Subscribers for whom autodrop dropped it. The list of what was dropped is bounded."""
        subscribers: set[str] = set()
        start = 0
        while True:
            last = start + STEP_DROPS - 1
            looked_at, *ids = await self._run(_FIND_DROPS, found.generation, found.seq, start, last)
            subscribers |= {id.decode() for id in ids}
            if int(looked_at) < STEP_DROPS:
                return subscribers
            start += STEP_DROPS

    async def _seek(self, log: str, at_ms: int) -> int | None:
        """The seq where blocks begin that were received then or later; None when the log is empty."""
        least, most = "", ""
        while True:
            bounds = await self._run(_SEEK, log, at_ms, least, most, STEP_BYTES)
            if not bounds:
                return None
            least, most = str(int(bounds[0])), str(int(bounds[1]))
            if least == most:
                return int(least)

    async def _run(self, script: Script, *args: str | int) -> Any:
        return await self._link.run(script, self._namespace, *args)


def _found(first: Any, generation: bytes, received_at: bytes, side: bytes, index: int, line: bytes) -> Found:
    left = int(index)
    for events, publisher, kind, topic, environment, traceparent in msgspec.json.decode(side, type=_Side):
        if left < events:
            seq = int(first) + int(index)
            return Found(
                generation.decode(),
                seq,
                int(received_at),
                publisher,
                kind,
                topic,
                environment,
                traceparent,
                line,
            )
        left -= events
    raise StoreError("a block of the log has fewer side columns than events")


def _records(block: dict[bytes, bytes], found: Found) -> list[Record]:
    try:
        records = _decode(b"[" + block[b"e"] + b"]")
    except msgspec.DecodeError:
        return []  # not of ours
    return [
        record if record.at else msgspec.structs.replace(record, at=int(block[b"r"]))
        for record in records
        if record.holds(found.generation, found.seq)
    ]
