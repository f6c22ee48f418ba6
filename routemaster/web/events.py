"""GET /events/:id: where one event came from, where it went, and every attempt to deliver it.

A client sees what it published and what it may read; of anything else it is not told that it is there.
"""

import asyncio
from typing import Any, Literal

import msgspec

from routemaster.errors import InvalidInput
from routemaster.pattern import glob_matches
from routemaster.store.clients import Client
from routemaster.store.trace import Found, Record, Trace, Where
from routemaster.uid import is_uid
from routemaster.web.access import Access
from routemaster.web.calls import READERS, Answer, Call, Operation
from routemaster.web.problem import Problem

MOST_WAITING = 16  # for their turn: one may take a second or two

State = Literal["queued", "in the air", "delivered", "dead", "dropped", "failed", "unknown"]


class Logged(msgspec.Struct):
    """An event as the log has it, which is as it is delivered."""

    topic: str
    type: str
    url: str
    t: int
    id: str
    key: str | None = None
    data: msgspec.Raw = msgspec.Raw(b"")


class Attempt(msgspec.Struct):
    at: int  # when it ended
    attempt: int
    status: Literal["delivered", "failed"]
    code: int  # what the callback answered; 0 for nothing
    ms: int
    why: str


class Routed(msgspec.Struct):
    """What became of the event for one subscriber. A batch that it is in may be

    queued: it waits, for its first attempt or for another one;
    in the air: it is being sent at this moment;
    delivered: it was acknowledged;
    dead: it is among the dead letters;
    dropped: it was deleted because memory was low;
    failed: its attempts failed, and its subscription or its dead letters were deleted since;
    unknown: events of this address go to the subscriber now, but nothing is known of this one. The
    subscription may be younger than the event, or the attempts may be ones that were not looked at."""

    subscriber: str
    state: State
    batch: str | None
    attempts: list[Attempt]


class LookedAt(msgspec.Struct):
    """Which attempts were looked at: those from `since` on (earlier ones have left the log) and up to `until`
    (the search is bounded). Null for no such limit."""

    since: int | None
    until: int | None


class Trail(msgspec.Struct):
    id: str
    kind: str
    topic: str
    type: str
    url: str
    environment: str
    address: str
    publisher: str
    key: str | None  # what the publisher called its id
    traceparent: str | None
    t: int
    received_at: int
    generation: str
    seq: int
    data: msgspec.Raw | None
    archived: bool | None  # null while there is no archive
    subscribers: list[Routed]
    attempts_looked_at: LookedAt


class TrailShape(Trail):
    """What the document says of it: data is sent on as it is, so its type cannot tell."""

    data: dict[str, Any] | None  # pyright: ignore[reportIncompatibleVariableOverride]


class Events:
    def __init__(self, trace: Trace, access: Access) -> None:
        self._trace = trace
        self._access = access
        self._turn = asyncio.Lock()  # one trace at a time in a process: they read much
        self._waiting = 0

    def operations(self) -> list[Operation]:
        return [
            Operation(
                method="GET",
                path="/events/{id}",
                summary="Where one event came from, where it was routed, and every attempt to deliver it.",
                roles=READERS,
                gives={200: TrailShape, 404: None},
                act=self._show,
            )
        ]

    async def _show(self, call: Call) -> Answer:
        uid = call.names["id"]
        if not is_uid(uid):
            raise InvalidInput("id", "the 20 characters that routemaster-event-id gave")
        if self._waiting >= MOST_WAITING:
            raise Problem(503, "too many events are being traced; try again", [(b"retry-after", b"1")])
        self._waiting += 1
        try:
            return await self._trace_in_turn(call, uid)
        finally:
            self._waiting -= 1

    async def _trace_in_turn(self, call: Call, uid: str) -> Answer:
        async with self._turn:
            search = await self._trace.find(uid)
            if search.found is None:
                raise _not_there(is_whole=search.is_whole)
            event = msgspec.json.decode(search.found.line, type=Logged)
            address = f"{search.found.environment}:{event.topic}:{event.type}"
            if not _may_see(call.client, search.found, address):
                raise _not_there()
            return Answer(200, await self._trail(search.found, event, address))

    async def _trail(self, found: Found, event: Logged, address: str) -> Trail:
        route = self._access.snapshot.route(address)
        subscribers = {lane.subscriber for lane in route.lanes}
        subscribers |= {lanes[0].subscriber for lanes in route.parallel}
        # First where it waits: what moves on in the meantime shows in the attempts.
        where = await self._trace.locate(found, event.url, sorted(subscribers))
        attempts = await self._trace.attempts(found)
        rows = await self._rows(found, where, attempts.records)
        known = {row.subscriber for row in rows}
        missing = sorted(subscribers - known)
        dropped = await self._trace.dropped_for(found) if missing or _has_failed(rows) else set[str]()
        for row in rows:
            if row.state == "failed" and row.subscriber in dropped:
                row.state = "dropped"
        rows += [Routed(id, "dropped", None, []) for id in sorted(dropped - known)]
        rows += [Routed(id, "unknown", None, []) for id in missing if id not in dropped]
        return Trail(
            id=event.id,
            kind=found.kind,
            topic=event.topic,
            type=event.type,
            url=event.url,
            environment=found.environment,
            address=address,
            publisher=found.publisher,
            key=event.key,
            traceparent=found.traceparent,
            t=event.t,
            received_at=found.received_at,
            generation=found.generation,
            seq=found.seq,
            data=event.data or None,
            archived=None,
            subscribers=sorted(rows, key=lambda row: row.subscriber),
            attempts_looked_at=LookedAt(attempts.since, attempts.until),
        )

    async def _rows(self, found: Found, where: dict[str, Where], records: list[Record]) -> list[Routed]:
        """One for each subscriber and batch."""
        rows = {(id, at.batch): Routed(id, _state(at.state), at.batch, []) for id, at in where.items()}
        for record in records:
            key = record.subscriber, record.batch
            row = rows.setdefault(key, Routed(record.subscriber, "failed", record.batch, []))
            row.attempts.append(_attempt(record))
        for row in rows.values():
            if any(attempt.status == "delivered" for attempt in row.attempts):
                row.state = "delivered"
        # Dead letters that were queued again stand where nobody looks for them by their number.
        lost = [row for row in rows.values() if row.state == "failed" and row.batch]
        states = await self._trace.states_of([row.batch for row in lost if row.batch])
        for row in lost:
            row.state = _state(states.get(row.batch or "", "failed"))
        return list(rows.values())


def _may_see(client: Client, found: Found, address: str) -> bool:
    if client.id == found.publisher or client.grants.read is None:
        return True
    return glob_matches(client.grants.read, address)


def _not_there(*, is_whole: bool = True) -> Problem:
    text = "the log does not have this event; it keeps events for a while only"
    if not is_whole:
        text = "the event was not found in as much of the log as is looked at for one request"
    return Problem(404, text)


def _has_failed(rows: list[Routed]) -> bool:
    return any(row.state == "failed" for row in rows)


def _state(text: str) -> State:
    return msgspec.convert(text, State)


def _attempt(record: Record) -> Attempt:
    status: Literal["delivered", "failed"] = "delivered" if record.status == "delivered" else "failed"
    return Attempt(record.at, record.attempt, status, record.code, record.ms, record.why)
