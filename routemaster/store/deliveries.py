"""Deliveries: taking batches for slots, and settling them. The order of a lane is kept in here.

Every call may be sent again with the same slot and fence after its reply was lost, and then gets
the same answer.
"""

import struct
from typing import Any, NamedTuple

from routemaster.store.link import Link
from routemaster.store.script import Script

MAIN = "main"
AUX = "aux"
_ACQUIRE = Script("acquire")
_ACK = Script("ack")
_NACK = Script("nack")
_SCRUB = Script("scrub")
_BEAT = Script("beat")
_SEQ_BYTES = 8


class Delivery(NamedTuple):
    """A batch in the air: what a slot needs to send it and to settle it."""

    slot: str
    fence: str
    lane: str
    batch: str
    attempt: int
    generation: str
    sequence: int
    is_replay: bool
    created_at: int
    callback: str
    uuid: str
    timeout_ms: int
    health_points: int
    items: list[bytes]

    @property
    def subscriber(self) -> str:
        return self.lane.rsplit("#", 1)[0]

    @property
    def events(self) -> list[bytes]:
        return [item[_SEQ_BYTES:] for item in self.items]

    @property
    def first_seq(self) -> int:
        return struct.unpack(">Q", self.items[0][:_SEQ_BYTES])[0]

    @property
    def last_seq(self) -> int:
        return struct.unpack(">Q", self.items[-1][:_SEQ_BYTES])[0]


class AuxJob(NamedTuple):
    slot: str
    name: str


class Acquired(NamedTuple):
    next_look_ms: int  # -1: nothing is scheduled
    taken: list[Delivery | AuxJob]


class Settled(NamedTuple):
    was_held: bool  # False: the lease had ended and somebody else has the lane
    next_look_ms: int
    taken: Delivery | AuxJob | None


class Deliveries:
    def __init__(self, link: Link, namespace: str, *, lease_ms: int, max_log_bytes: int) -> None:
        self._link = link
        self._namespace = namespace
        self._lease_ms = lease_ms
        self._max_log_bytes = max_log_bytes

    async def acquire(self, queue: str, fences: dict[str, str]) -> Acquired:
        """Jobs for the given slots, each with the fence it brings."""
        flat = [text for pair in fences.items() for text in pair]
        reply = await self._link.run(_ACQUIRE, self._namespace, queue, self._lease_ms, *flat)
        return Acquired(int(reply[0]), [_taken(job, fences) for job in reply[1:]])

    async def ack(self, delivery: Delivery, next_fence: str, generation: str, record: bytes) -> Settled:
        return await self._settle(_ACK, delivery, next_fence, generation, record)

    async def nack(
        self, delivery: Delivery, next_fence: str, generation: str, record: bytes, delay_ms: int, why: str
    ) -> Settled:
        return await self._settle(_NACK, delivery, next_fence, generation, record, delay_ms, why)

    async def scrub(self, queue: str, *, silence_ms: int, least_ms: int, most_ms: int) -> list[str]:
        reply = await self._link.run(_SCRUB, self._namespace, queue, silence_ms, least_ms, most_ms)
        return [slot.decode() for slot in reply]

    async def beat(self, worker: str) -> int:
        """Say that the worker lives; in how many milliseconds to look for jobs, -1 for no need."""
        return int(await self._link.run(_BEAT, self._namespace, worker, MAIN))

    async def _settle(
        self,
        script: Script,
        delivery: Delivery,
        next_fence: str,
        generation: str,
        record: bytes,
        *more: str | int,
    ) -> Settled:
        reply = await self._link.run(
            script,
            self._namespace,
            delivery.slot,
            delivery.lane,
            delivery.batch,
            delivery.fence,
            next_fence,
            self._lease_ms,
            generation,
            record,
            self._max_log_bytes,
            *more,
        )
        taken = reply[2] if len(reply) > 2 else None
        fences = {delivery.slot: next_fence}
        return Settled(reply[0] == b"done", int(reply[1]), _taken(taken, fences) if taken else None)


def _taken(job: list[Any], fences: dict[str, str]) -> Delivery | AuxJob:
    slot = job[0].decode()
    if len(job) == 2:
        return AuxJob(slot, job[1].decode())
    (
        _,
        _,
        lane,
        batch,
        attempt,
        generation,
        sequence,
        source,
        created,
        callback,
        uuid,
        timeout,
        health,
        items,
    ) = job
    return Delivery(
        slot,
        fences[slot],
        lane.decode(),
        batch.decode(),
        int(attempt),
        generation.decode(),
        int(sequence),
        source == b"replay",
        int(created),
        callback.decode(),
        uuid.decode(),
        int(timeout),
        int(health),
        items,
    )
