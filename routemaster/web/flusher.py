"""Group commit: what is accepted while one flush is in the air goes together in the next.

No timer: an idle process flushes at once, a busy one fills larger flushes. A flush is bounded in
bytes and in events × lanes, so that no call keeps the store from others for long; a wide request
is cut by events over several flushes while small ones pass beside it, and is answered after its
last. Acknowledged means stored: a request is answered only by the store's answer.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import structlog

from routemaster.errors import StoreAway, StoreError
from routemaster.store.link import Link
from routemaster.store.publish import Conflict, Denied, Flush, Limits, Stale, Stored, send_flush
from routemaster.uid import Maker
from routemaster.web.access import Access
from routemaster.web.problem import Problem, problem_of, unauthorized
from routemaster.web.server import Post
from routemaster.web.snapshot import Lane, Route, Snapshot

log = structlog.get_logger("web")
MAX_UNITS = 20_000  # events × lanes in one flush
MAX_BYTES = 4 * 2**20
PATIENCE_S = 0.8  # a request that cannot be stored is answered 503 within a second

_encode_json = msgspec.json.encode
_pack = msgspec.msgpack.encode


@dataclass(slots=True)
class Publish:
    """One request: its events, encoded, and what is needed to route and answer them."""

    post: Post
    answer: Callable[["Publish"], None]
    client: str
    digest: str
    topic: str
    traceparent: str | None
    lines: list[bytes]
    uids: list[str]
    addresses: list[str]
    urls: list[str]
    keys: list[tuple[str, str]] | None
    size: int
    stored: int = 0
    repeated: dict[int, str] = field(default_factory=dict[int, str])


@dataclass(slots=True)
class Part:
    """The events of one request that go in one flush."""

    publish: Publish
    start: int
    stop: int


class Flusher:
    def __init__(self, link: Link, namespace: str, access: Access, uids: Maker, limits: Limits) -> None:
        self._link = link
        self._namespace = namespace
        self._access = access
        self._uids = uids
        self._limits = limits
        self._process = uids()
        self._number = 0
        self._queue: deque[Publish] = deque()
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="flusher")

    async def stop(self) -> None:
        """Store what is queued (the server has stopped taking requests), then end."""
        while self._queue:  # noqa: ASYNC110 (at shutdown only)
            await asyncio.sleep(0.01)
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def submit(self, publish: Publish) -> None:
        self._queue.append(publish)
        self._wanted.set()

    async def _run(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            while self._queue:
                parts = self._collect()
                try:
                    await self._store(parts)
                except StoreError as error:
                    log.warning("a flush was not stored", reason=str(error), requests=len(parts))
                    # The store is away or full: nobody waits longer than this for it, and a flush
                    # whose requests were answered 503 is not sent again (it might come behind
                    # newer events).
                    self._fail([part.publish for part in parts], problem_of(error))
                    if isinstance(error, StoreAway):
                        self._fail(list(self._queue), problem_of(error))

    # Collecting

    def _collect(self) -> list[Part]:
        """Take requests off the queue up to the bounds. A wide one gets at most half of them and
        goes to the end of the line with what is left."""
        snapshot = self._access.snapshot
        units, size = MAX_UNITS, MAX_BYTES
        parts: list[Part] = []
        keys: set[str] = set()
        for _ in range(len(self._queue)):
            if parts and (units <= 0 or size <= 0):
                break
            publish = self._queue.popleft()
            if publish.keys is not None:
                names = {name for name, _ in publish.keys if name}
                if not keys.isdisjoint(names):
                    # The same key twice at one moment: the next flush finds the first one stored.
                    self._queue.append(publish)
                    continue
                keys |= names
            width = max(1, snapshot.route(publish.addresses[publish.stored]).width)
            left = len(publish.lines) - publish.stored
            if left * width > MAX_UNITS // 2:
                left = min(left, max(1, MAX_UNITS // 2 // width))
            stop = publish.stored + left
            parts.append(Part(publish, publish.stored, stop))
            if stop < len(publish.lines):
                self._queue.append(publish)
            units -= left * width
            size -= publish.size * left // len(publish.lines)
        return parts

    # Storing

    async def _store(self, parts: list[Part]) -> None:
        """Send one flush until it is answered for good, or the time for it is over."""
        self._number += 1
        number = self._number
        deadline = time.monotonic() + PATIENCE_S
        while parts:
            flush = self._build(parts, number)
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    answer = await send_flush(self._link, self._namespace, flush, self._limits)
                    if isinstance(answer, Stale):
                        await self._access.refresh()
            except TimeoutError:
                self._link.cut()
                raise StoreAway("the store did not answer in time") from None
            except StoreAway:
                if time.monotonic() > deadline - 0.05:
                    raise
                await asyncio.sleep(0.02)
                continue
            if isinstance(answer, Stored):
                self._finish(parts, answer.repeated)
                return
            if isinstance(answer, Conflict):
                parts = self._without_conflicts(parts, answer.indexes)
            else:
                if isinstance(answer, Denied):
                    self._access.snapshot.owners.update(answer.owners)
                parts = self._still_allowed(parts)

    def _build(self, parts: list[Part], number: int) -> Flush:
        snapshot = self._access.snapshot
        events: list[bytes] = []
        addresses: list[str] = []
        keys: list[tuple[int, str, str]] = []
        topics: dict[str, list[str | int]] = {}
        side: list[list[str | int | None]] = []
        for part in parts:
            publish, start, stop = part.publish, part.start, part.stop
            at = len(events)
            if stop - start == len(publish.lines):
                events += publish.lines
                addresses += publish.addresses
            else:
                events += publish.lines[start:stop]
                addresses += publish.addresses[start:stop]
            if publish.keys is not None:
                for index, (name, value) in enumerate(publish.keys[start:stop]):
                    if name:
                        keys.append((at + index, name, value))
            topic = topics.get(publish.topic)
            if topic is None:
                topics[publish.topic] = [publish.topic, publish.client, stop - start, len(events) - 1]
            else:
                topic[2] = len(events) - at + int(topic[2])
                topic[3] = len(events) - 1
            _add_side(side, publish, start, stop)
        groups = _groups(snapshot, parts, addresses)
        batches = 2 + sum(2 + len(events) // lane.max_events for lane in _lanes_in(snapshot, addresses))
        prefix, first = self._uids.range(batches)
        return Flush(
            snapshot.epoch,
            self._process,
            number,
            time.time_ns() // 1_000_000,
            self._uids(),
            prefix,
            first,
            _pack(list(topics.values())),
            _encode_json(side),
            _pack(keys) if keys else b"",
            groups,
            events,
        )

    # Answering

    def _finish(self, parts: list[Part], repeated: dict[int, str]) -> None:
        at = 0
        for part in parts:
            publish = part.publish
            size = part.stop - part.start
            if repeated:
                for index in range(at, at + size):
                    if index in repeated:
                        publish.repeated[part.start + index - at] = repeated[index]
            at += size
            publish.stored = part.stop
            if publish.stored == len(publish.lines):
                publish.answer(publish)

    def _fail(self, publishes: list[Publish], problem: Problem) -> None:
        for publish in publishes:
            with contextlib.suppress(ValueError):
                self._queue.remove(publish)
            publish.post.refuse(problem)

    def _without_conflicts(self, parts: list[Part], indexes: list[int]) -> list[Part]:
        kept: list[Part] = []
        at = 0
        for part in parts:
            size = part.stop - part.start
            bad = next((index for index in indexes if at <= index < at + size), None)
            at += size
            if bad is None:
                kept.append(part)
            else:
                where = part.start + bad - (at - size)
                text = (
                    f"id of event {where} was used for another event; expected a new one, or the same event"
                )
                self._fail([part.publish], Problem(409, text, field="id", index=where))
        return kept

    def _still_allowed(self, parts: list[Part]) -> list[Part]:
        """Check again by the new snapshot: a revoked token, or a topic that somebody else has."""
        snapshot = self._access.snapshot
        kept: list[Part] = []
        for part in parts:
            publish = part.publish
            if publish.digest not in snapshot.by_digest:
                self._fail([publish], unauthorized())
            elif snapshot.owners.get(publish.topic, publish.client) != publish.client:
                self._fail([publish], not_owner(publish.topic))
            else:
                kept.append(part)
        return kept


def not_owner(topic: str) -> Problem:
    return Problem(403, f"another client is the publisher of {topic}", field="topic")


def _add_side(side: list[list[str | int | None]], publish: Publish, start: int, stop: int) -> None:
    """Side columns, run by run: what the log keeps of events beside what is delivered."""
    last_environment = None
    row: list[str | int | None] | None = None
    for address in publish.addresses[start:stop]:
        environment = address.split(":", 1)[0]
        if row is None or environment != last_environment:
            row = [0, publish.client, "event", publish.topic, environment, publish.traceparent]
            if side and side[-1][1:] == row[1:]:
                row = side[-1]
            else:
                side.append(row)
            last_environment = environment
        row[0] = int(row[0] or 0) + 1


def _lanes_in(snapshot: Snapshot, addresses: list[str]) -> list[Lane]:
    routes = {id(route): route for route in map(snapshot.route, set(addresses))}
    lanes: list[Lane] = []
    for route in routes.values():
        lanes += route.lanes
        for shared in route.parallel:
            lanes += shared
    return lanes


def _groups(snapshot: Snapshot, parts: list[Part], addresses: list[str]) -> list[bytes]:
    """Lanes and the events that go to each: pairs of MessagePack, as the script takes them."""
    first = snapshot.route(addresses[0])
    routes = [snapshot.route(address) for address in addresses]
    if not first.parallel and routes.count(first) == len(routes):
        return [first.packed, b""] if first.lanes else []
    return _mixed_groups(parts, routes)


def _mixed_groups(parts: list[Part], routes: list[Route]) -> list[bytes]:
    by_route: dict[Route, list[int]] = {}
    for index, route in enumerate(routes):
        by_route.setdefault(route, []).append(index)
    by_lane: dict[Lane, list[int]] = {}
    for route, indexes in by_route.items():
        for lane in route.lanes:
            by_lane.setdefault(lane, []).extend(indexes)
        if route.parallel:
            urls = [url for part in parts for url in part.publish.urls[part.start : part.stop]]
            for lanes in route.parallel:
                for index in indexes:
                    by_lane.setdefault(route.lane_for(lanes, urls[index]), []).append(index)
    by_indexes: dict[bytes, list[Lane]] = {}
    for lane, indexes in by_lane.items():
        by_indexes.setdefault(_pack(sorted(indexes)), []).append(lane)
    return [packed for indexes, lanes in by_indexes.items() for packed in (_pack(lanes), indexes)]
