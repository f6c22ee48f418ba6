"""Deliveries: taking batches for slots, and settling them. The order of a lane is kept in here.

Every call may be sent again with the same slot and fence after its reply was lost, and then gets
the same answer.
"""

import struct
from typing import Any, NamedTuple

from routemaster.event import SEPARATOR
from routemaster.store.link import Link
from routemaster.store.script import Script

MAIN = "main"
AUX = "aux"
_ACQUIRE = Script("acquire")
_SETTLE = Script("settle")
_SCRUB = Script("scrub")
_BEAT = Script("beat")
_RUN_HEAD = struct.Struct(">QI")


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
    events: int
    callback: str
    uuid: str
    timeout_ms: int
    health_points: int
    format: str  # 'channel', or '' for the usual one
    headers: bytes  # JSON, or empty
    secrets: bytes  # JSON [[secret, until when or 0], …], or empty
    runs: list[bytes]

    @property
    def subscriber(self) -> str:
        return self.lane.rsplit("#", 1)[0]

    @property
    def body(self) -> bytes:
        """The events as they are sent: the runs joined, nothing encoded again."""
        return body_of(self.runs)

    @property
    def first_seq(self) -> int:
        return _RUN_HEAD.unpack_from(self.runs[0])[0]

    @property
    def last_seq(self) -> int:
        first, events = _RUN_HEAD.unpack_from(self.runs[-1])
        return first + events - 1

    @property
    def seq_runs(self) -> list[int]:
        """First seq and how many, run by run; neighbours are joined."""
        joined: list[int] = []
        for run in self.runs:
            first, events = _RUN_HEAD.unpack_from(run)
            if joined and joined[-2] + joined[-1] == first:
                joined[-1] += events
            else:
                joined += (first, events)
        return joined


def trial(fields: dict[str, bytes], batch: str, event: bytes) -> Delivery:
    """A delivery of one event that is in no lane: to see what a subscription's callback answers."""

    def text(name: str) -> str:
        return fields.get(name, b"").decode()

    run = _RUN_HEAD.pack(0, 1) + event
    return Delivery(
        slot="",
        fence="",
        lane="",
        batch=batch,
        attempt=1,
        generation="",
        sequence=0,
        is_replay=False,
        created_at=0,
        events=1,
        callback=text("callback"),
        uuid=text("uuid"),
        timeout_ms=0,
        health_points=0,
        format=text("format"),
        headers=fields.get("headers", b""),
        secrets=fields.get("secrets", b""),
        runs=[run],
    )


def body_of(runs: list[bytes]) -> bytes:
    return b"[" + SEPARATOR.join([run[_RUN_HEAD.size :] for run in runs]) + b"]"


class Settlement(NamedTuple):
    """How a delivery ended; `delay_ms` is None when it was delivered."""

    delivery: Delivery
    next_fence: str  # '' when the slot takes no other job
    delay_ms: int | None
    why: str
    record: bytes
    ms: int = 0  # how long the attempt took


class AuxJob(NamedTuple):
    slot: str
    name: str


class Acquired(NamedTuple):
    next_look_ms: int  # -1: nothing is scheduled
    taken: list[Delivery | AuxJob]


class Settled(NamedTuple):
    next_look_ms: int
    taken: dict[str, "Delivery | AuxJob"]  # by slot


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

    async def settle(self, settlements: list[Settlement], generation: str) -> Settled:
        """Settle deliveries, each by its fence, and take the next job of each slot."""
        flat: list[str | bytes | int] = []
        fences: dict[str, str] = {}
        for delivery, next_fence, delay_ms, why, record, ms in settlements:
            fences[delivery.slot] = next_fence
            flat += (delivery.slot, delivery.lane, delivery.batch, delivery.fence, next_fence)
            flat += ("" if delay_ms is None else delay_ms, why, ms, record)
        reply = await self._link.run(
            _SETTLE, self._namespace, self._lease_ms, generation, self._max_log_bytes, *flat
        )
        taken = [_taken(job, fences) for job in reply[2:]]
        return Settled(int(reply[0]), {job.slot: job for job in taken})

    async def scrub(self, queue: str, *, silence_ms: int, least_ms: int, most_ms: int) -> list[str]:
        reply = await self._link.run(_SCRUB, self._namespace, queue, silence_ms, least_ms, most_ms)
        return [slot.decode() for slot in reply]

    async def beat(self, worker: str) -> tuple[int, int]:
        """Say that the worker lives; in how many milliseconds to look for main and for auxiliary jobs,
        -1 for no need."""
        main, aux = await self._link.run(_BEAT, self._namespace, worker, MAIN, AUX)
        return int(main), int(aux)


def _taken(job: list[Any], fences: dict[str, str]) -> Delivery | AuxJob:
    slot = job[0].decode()
    if len(job) == 2:
        return AuxJob(slot, job[1].decode())
    return Delivery(
        slot,
        fences[slot],
        job[2].decode(),
        job[3].decode(),
        int(job[4]),
        job[5].decode(),
        int(job[6]),
        job[7] == b"replay",
        int(job[8]),
        int(job[9]),
        job[10].decode(),
        job[11].decode(),
        int(job[12]),
        int(job[13]),
        job[14].decode(),
        job[15],
        job[16],
        job[17:],
    )
