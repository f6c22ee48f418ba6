"""The flush: one script call that stores everything a web process accepted in the meantime."""

from typing import Any, NamedTuple

import msgspec

from routemaster.errors import StoreAway
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
    """The settings that are needed with each flush."""

    window_ms: int
    max_keys: int
    max_log_bytes: int
    replicas: int = 0  # that must have it before it is answered
    replicas_timeout_ms: int = 0


async def send_flush(link: Link, namespace: str, flush: Flush, limits: Limits) -> Answer:
    """What became of a flush. One that is in, but not at as many replicas as it must be, is no answer:
    asked again, the ledger says that it is in, and the replicas are waited for again."""
    args = _arguments(flush, limits)
    if not limits.replicas:
        return _answer(await link.run(_SCRIPT, namespace, *args))
    reply, copies = await link.run_copied(
        _SCRIPT, namespace, limits.replicas, limits.replicas_timeout_ms, *args
    )
    answer = _answer(reply)
    if isinstance(answer, Stored) and copies < limits.replicas:
        raise StoreAway(f"{copies} of {limits.replicas} replicas had the flush in time")
    return answer


def _arguments(flush: Flush, limits: Limits) -> list[str | bytes | int]:
    return [
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
    ]


def _answer(reply: list[Any]) -> Answer:
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
