"""The flush: one script call that stores everything a web process accepted in the meantime."""

from typing import NamedTuple

import msgspec

from routemaster.store.link import Link
from routemaster.store.script import Script

LEDGER_MS = 3_600_000
_SCRIPT = Script("publish")


class Flush(NamedTuple):
    """What publish.lua takes, encoded. `groups` are lanes and runs in turns, both MessagePack."""

    epoch: bytes
    process: str
    number: int
    received_at: int
    generation: str
    bid_prefix: str
    bid_number: int
    topics: bytes
    side: bytes
    keys: bytes
    events: int
    starts: bytes
    text: bytes
    channel_starts: bytes  # the same in the channel format; empty where no lane wants it
    channel_text: bytes
    told: bytes  # earlier flushes, to be counted
    groups: list[bytes]


class Stored(NamedTuple):
    repeated: dict[int, str]  # index of an event that was there already -> its UID


class Stale(NamedTuple):
    pass


class Late(NamedTuple):
    """A newer flush of the process is in and this one is not: it needs a new number."""


class Denied(NamedTuple):
    owners: dict[str, str]  # topic -> the client that owns it


class Conflict(NamedTuple):
    indexes: list[int]  # events whose key was used for another event


Answer = Stored | Stale | Late | Denied | Conflict


class Limits(msgspec.Struct, frozen=True):
    """The settings that the script needs with each flush."""

    window_ms: int
    max_keys: int
    max_log_bytes: int


async def send_flush(link: Link, namespace: str, flush: Flush, limits: Limits) -> Answer:
    reply = await link.run(
        _SCRIPT,
        namespace,
        flush.epoch,
        flush.process,
        flush.number,
        flush.received_at,
        flush.generation,
        flush.bid_prefix,
        flush.bid_number,
        flush.topics,
        flush.side,
        flush.keys,
        limits.window_ms,
        limits.max_keys,
        limits.max_log_bytes,
        LEDGER_MS,
        flush.events,
        flush.starts,
        flush.text,
        flush.channel_starts,
        flush.channel_text,
        flush.told,
        *flush.groups,
    )
    tag = reply[0]
    if tag == b"ok":
        pairs = reply[1]
        return Stored({int(pairs[i]): pairs[i + 1].decode() for i in range(0, len(pairs), 2)})
    if tag == b"stale":
        return Stale()
    if tag == b"late":
        return Late()
    if tag == b"denied":
        return Denied({reply[i].decode(): reply[i + 1].decode() for i in range(1, len(reply), 2)})
    return Conflict([int(index) for index in reply[1:]])
