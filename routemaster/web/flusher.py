"""Group commit: what is accepted while one flush is in the air goes together in the next.

No timer: an idle process flushes at once, a busy one fills larger flushes; a second one follows before
the first is answered only when much is waiting. A flush is bounded in bytes and in the work it makes, so
that no call keeps the store from others for long; a wide request (many bytes for many subscribers) is
cut by events over several flushes of its own, in turns with those of the others, and is answered after
its last. Acknowledged means stored: a request is answered only by the store's answer.
"""

import asyncio
import contextlib
import sys
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import msgspec
import structlog

from routemaster.errors import StoreAway
from routemaster.event import SEPARATOR, encode_channel
from routemaster.store.link import Link
from routemaster.store.publish import Conflict, Denied, Flush, Late, Limits, Stale, Stored, send_flush
from routemaster.uid import Maker
from routemaster.web.access import Access
from routemaster.web.problem import Problem, problem_of
from routemaster.web.server import Post
from routemaster.web.snapshot import Lane, Route

log = structlog.get_logger("web")
MAX_BYTES = 2 * 2**20  # of one flush
# Work is counted in bytes copied to lanes; to open a batch is as much as so many of them.
BATCH_WORK = 1024
MAX_WORK = 4 * 2**20  # of one flush; a request of more is wide,
MAX_WIDE = 2**20  # and cut into flushes of so much: 1,000 lanes take about 25 ms, 1,000 new batches 15
SECOND_BYTES = 64 * 2**10  # waiting, for a second flush to follow before the first is answered;

SECOND_REQUESTS = 32  # or so many requests
TELL_EVERY_S = 0.2  # of how large and how slow flushes are,
MOST_UNTOLD = 2_000  # and of how many: two numbers each
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
    runs: list[tuple[int, str]]  # how many events in a row have the same address
    urls: list[str]
    keys: list[tuple[str, str]] | None
    size: int  # bytes that are not in the air or stored yet
    received_at: int
    epoch: bytes = b""  # of the snapshot that it was judged by
    width: int = 1  # subscribers of the address that has most
    opens: float = 0.0  # batches that each of its events opens, there
    stored: int = 0
    channel: list[bytes] | None = None  # its events in the channel format, once somebody wants that
    repeated: dict[int, str] = field(default_factory=dict[int, str])

    def work(self, size: int, events: int) -> float:
        """What it costs the store to file so many events of so many bytes: their copies, and the batches
        that they open, which is most of it where a subscriber takes one or two at a time."""
        return size * self.width + events * self.opens * BATCH_WORK


@dataclass(slots=True)
class Part:
    """The events of one request that go in one flush."""

    publish: Publish
    start: int
    stop: int

    def runs(self) -> list[tuple[int, str]]:
        publish = self.publish
        if self.stop - self.start == len(publish.lines):
            return publish.runs
        runs: list[tuple[int, str]] = []
        at = 0
        for events, address in publish.runs:
            among = min(at + events, self.stop) - max(at, self.start)
            if among > 0:
                runs.append((among, address))
            at += events
        return runs

    def channel_lines(self) -> list[bytes]:
        publish = self.publish
        if publish.channel is None:
            publish.channel = encode_channel(publish.topic, publish.runs, publish.urls, publish.received_at)
        return publish.channel[self.start : self.stop]


class Flusher:
    def __init__(self, link: Link, namespace: str, access: Access, uids: Maker, limits: Limits) -> None:
        self._link = link
        self._namespace = namespace
        self._access = access
        self._uids = uids
        self._limits = limits
        self._process = uids()
        self._number = 0
        self._untold: list[int] = []  # events and µs of flushes that the store has not counted yet
        self._told_at = 0.0
        self._queue: deque[Publish] = deque()
        self._wide: deque[Publish] = deque()
        self._waiting_bytes = 0
        self._last_was_wide = False
        self._in_air: set[asyncio.Task[None]] = set()
        self._in_doubt: set[asyncio.Task[None] | None] = set()  # those of them whose reply was lost
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="flusher")

    async def stop(self) -> None:
        """Store what is queued (the server has stopped taking requests), then end."""
        while self._queue or self._wide or self._in_air:  # noqa: ASYNC110 (at shutdown only)
            await asyncio.sleep(0.01)
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def submit(self, publish: Publish) -> None:
        publish.epoch = self._access.snapshot.epoch
        route = self._access.snapshot.route
        routes = [route(address) for _, address in publish.runs]
        publish.width = max([way.width for way in routes]) or 1
        publish.opens = max([way.opens for way in routes])
        self._enqueue(publish)

    def _enqueue(self, publish: Publish) -> None:
        if publish.work(publish.size, len(publish.lines)) > MAX_WORK or publish.stored:
            self._wide.append(publish)
        else:
            self._waiting_bytes += publish.size
            self._queue.append(publish)
        self._wanted.set()

    async def _run(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            while parts := self._collect():
                task = asyncio.create_task(self._send(parts))
                self._in_air.add(task)
                task.add_done_callback(self._landed)

    def _landed(self, task: asyncio.Task[None]) -> None:
        self._in_air.discard(task)
        self._in_doubt.discard(task)
        self._wanted.set()

    async def _send(self, parts: list[Part]) -> None:
        try:
            await self._store(parts)
        except Exception as error:
            # The store is away or full: nobody waits longer than this for it, and a flush whose
            # requests were answered 503 is not sent again (it might come behind newer events).
            log.warning("a flush was not stored", reason=str(error), requests=len(parts))
            problem = problem_of(error)
            self._fail([part.publish for part in parts], problem)
            if isinstance(error, StoreAway):
                waiting = [*self._queue, *self._wide]
                self._queue.clear()
                self._wide.clear()
                self._waiting_bytes = 0
                self._fail(waiting, problem)

    # Collecting

    def _collect(self) -> list[Part]:
        """What goes in the next flush; nothing when it is not its time yet. Nothing new follows while a
        lost reply is asked for again: the store remembers only the last few flushes, and one that it
        has forgotten would be stored twice."""
        if self._in_doubt:
            return []
        in_air = len(self._in_air)
        turn = self._wide and not (self._last_was_wide and self._queue)
        if turn and in_air > 0 and not self._last_was_wide:
            return []  # else those in the queue would always be ahead of it
        if in_air == 0 and turn:
            self._last_was_wide = True
            return [self._cut(self._wide.popleft())]
        much = self._waiting_bytes >= SECOND_BYTES or len(self._queue) >= SECOND_REQUESTS
        if in_air == 0 or (in_air == 1 and (much or self._last_was_wide)):
            self._last_was_wide = False
            return self._collect_many()
        return []

    def _collect_many(self) -> list[Part]:
        work, size = MAX_WORK, MAX_BYTES
        parts: list[Part] = []
        keys: set[str] = set()
        claims: dict[str, str] = {}
        put_back: list[Publish] = []
        queue = self._queue
        while queue and work > 0 and size > 0:
            publish = queue.popleft()
            if claims.setdefault(publish.topic, publish.client) != publish.client:
                # Two clients claim one topic at one moment: the store tells the second whose it is.
                put_back.append(publish)
                continue
            if publish.keys is not None:
                names = {name for name, _ in publish.keys if name}
                if not keys.isdisjoint(names):
                    # The same key twice at one moment: a later flush finds the first one stored.
                    put_back.append(publish)
                    continue
                keys |= names
            parts.append(Part(publish, publish.stored, len(publish.lines)))
            self._waiting_bytes -= publish.size
            work -= publish.work(publish.size, len(publish.lines))
            size -= publish.size
        queue.extendleft(reversed(put_back))
        return parts

    def _cut(self, publish: Publish) -> Part:
        """As much of a wide request as one flush takes. The rest waits until that is stored, so that
        its events stay in order."""
        start = stop = publish.stored
        lines, size = publish.lines, 0
        while stop < len(lines):
            length = len(lines[stop])
            if size and publish.work(size + length, stop + 1 - start) > MAX_WIDE:
                break
            size += length
            stop += 1
        publish.size -= size
        return Part(publish, start, stop)

    # Storing

    async def _store(self, parts: list[Part]) -> None:
        """Send one flush until it is answered for good, or the time for it is over."""
        number = self._next_number()
        started = time.monotonic()
        deadline = started + PATIENCE_S
        told = self._to_tell(started)
        while parts := self._still_allowed(parts):
            flush = self._build(parts, number, told)
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    answer = await send_flush(self._link, self._namespace, flush, self._limits)
                    if isinstance(answer, Stale):
                        await self._access.refresh()
            except TimeoutError:
                self._link.cut()
                raise StoreAway("the store did not answer in time") from None
            except StoreAway:
                if time.monotonic() > deadline - 0.05 - self._limits.replicas_timeout_ms / 1000:
                    raise
                self._in_doubt.add(asyncio.current_task())
                await asyncio.sleep(0.02)
                continue
            if isinstance(answer, Stored):
                if len(self._untold) < MOST_UNTOLD:
                    self._untold += (flush.events, int((time.monotonic() - started) * 1e6))
                self._finish(parts, answer.repeated)
                return
            if isinstance(answer, Late):
                number = self._next_number()
            elif isinstance(answer, Conflict):
                parts = self._without_conflicts(parts, answer.indexes)
            else:
                if isinstance(answer, Denied):
                    self._deny(parts, answer.owners)

    def _to_tell(self, now: float) -> list[int]:
        """What the next flush has the store count of those before it; nothing most of the time."""
        if now - self._told_at < TELL_EVERY_S:
            return []
        self._told_at = now
        told, self._untold = self._untold, []
        return told

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def _build(self, parts: list[Part], number: int, told: Sequence[int] = ()) -> Flush:
        lines: list[bytes] = []
        keys: list[tuple[int, str, str]] = []
        topics: dict[str, list[str | int]] = {}
        side: list[list[str | int | None]] = []
        runs: list[tuple[int, str]] = []
        for part in parts:
            publish, start, stop = part.publish, part.start, part.stop
            at = len(lines)
            lines += publish.lines if stop - start == len(publish.lines) else publish.lines[start:stop]
            if publish.keys is not None:
                # The first part of a wide request has the keys of all of it checked: a conflict
                # must not be found when half of it is stored.
                last = len(publish.keys) if start == 0 else stop
                for index, (name, value) in enumerate(publish.keys[start:last]):
                    if name:
                        keys.append((at + index, name, value))
            topic = topics.get(publish.topic)
            if topic is None:
                topics[publish.topic] = [publish.topic, publish.client, stop - start, len(lines) - 1]
            else:
                topic[2] = int(topic[2]) + stop - start
                topic[3] = len(lines) - 1
            of_part = part.runs()
            _add_side(side, publish, of_part)
            runs += of_part
        route = self._access.snapshot.route
        routed = [(events, route(address)) for events, address in runs]
        groups, lanes = _groups(routed, parts)
        channel: list[bytes] = []
        if any(way.has_channel for _, way in routed):
            channel = [line for part in parts for line in part.channel_lines()]
        prefix, first = self._uids.range(2 + sum(2 + len(lines) // lane.max_events for lane in lanes))
        return Flush(
            self._access.snapshot.epoch,
            self._process,
            number,
            time.time_ns() // 1_000_000,
            self._uids(),
            prefix,
            first,
            _pack(list(topics.values())),
            _encode_json(side),
            _pack(keys) if keys else b"",
            len(lines),
            _starts(lines),
            SEPARATOR.join(lines),
            _starts(channel) if channel else b"",
            SEPARATOR.join(channel),
            _pack(told) if told else b"",
            groups,
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
            elif not publish.post.response_complete:
                self._enqueue(publish)

    def _fail(self, publishes: Iterable[Publish], problem: Problem) -> None:
        for publish in publishes:
            publish.post.refuse(problem)

    def _without_conflicts(self, parts: list[Part], indexes: list[int]) -> list[Part]:
        kept: list[Part] = []
        at = 0
        for part in parts:
            size = len(part.publish.lines) - part.start
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
        """Judge again what was judged by another snapshot than the one that the flush will name: a token
        may be revoked since then, a grant gone, or a topic somebody else's."""
        snapshot = self._access.snapshot
        epoch = snapshot.epoch
        if all(part.publish.epoch == epoch for part in parts):
            return parts
        kept: list[Part] = []
        for part in parts:
            publish = part.publish
            if not self._access.holds(publish.digest):
                self._fail([publish], self._access.unauthorized())
            elif not snapshot.may_publish(publish.client, publish.topic):
                self._fail([publish], not_granted(publish.topic))
            elif snapshot.owners.get(publish.topic, publish.client) != publish.client:
                self._fail([publish], not_owner(publish.topic))
            else:
                publish.epoch = epoch
                kept.append(part)
        return kept

    def _deny(self, parts: list[Part], owners: dict[str, str]) -> None:
        """Somebody else was first to claim a topic: no epoch tells of it."""
        self._access.snapshot.owners.update(owners)
        for part in parts:
            if part.publish.topic in owners:
                part.publish.epoch = b""


def not_owner(topic: str) -> Problem:
    return Problem(403, f"another client is the publisher of {topic}", field="topic")


def not_granted(topic: str) -> Problem:
    return Problem(403, f"this client's grants do not let it publish to {topic}", field="topic")


def _starts(lines: list[bytes]) -> bytes:
    """Where each event starts in the text, and where one more would: 4 bytes each, little-endian."""
    step = len(SEPARATOR)
    starts = array("I", accumulate([len(line) + step for line in lines], initial=0))
    if sys.byteorder == "big":
        starts.byteswap()
    return starts.tobytes()


def _add_side(side: list[list[str | int | None]], publish: Publish, runs: list[tuple[int, str]]) -> None:
    """Side columns, run by run: what the log keeps of events beside what is delivered."""
    for events, address in runs:
        environment = address.partition(":")[0]
        last = side[-1] if side else None
        if (
            last is not None
            and last[3] == publish.topic
            and last[4] == environment
            and last[1] == publish.client
            and last[5] == publish.traceparent
        ):
            last[0] = int(last[0] or 0) + events
        else:
            side.append([events, publish.client, "event", publish.topic, environment, publish.traceparent])


def _groups(routed: list[tuple[int, Route]], parts: list[Part]) -> tuple[list[bytes], list[Lane]]:
    """Lanes, and the runs of events that go to each: in turns, as the script takes them."""
    first = routed[0][1]
    if not first.parallel and all(route is first for _, route in routed):
        return ([first.packed, b""] if first.lanes else []), first.lanes
    by_lane: dict[Lane, list[int]] = {}
    at = 0
    urls: list[str] = []
    for events, route in routed:
        for lane in route.lanes:
            _extend(by_lane.setdefault(lane, []), at, at + events)
        if route.parallel:
            urls = urls or [url for part in parts for url in part.publish.urls[part.start : part.stop]]
            for lanes in route.parallel:
                for index in range(at, at + events):
                    _extend(by_lane.setdefault(route.lane_for(lanes, urls[index]), []), index, index + 1)
        at += events
    by_runs: dict[bytes, list[Lane]] = {}
    for lane, runs in by_lane.items():
        by_runs.setdefault(_pack(runs), []).append(lane)
    return [packed for runs, lanes in by_runs.items() for packed in (_pack(lanes), runs)], list(by_lane)


def _extend(runs: list[int], start: int, stop: int) -> None:
    if runs and runs[-1] == start:
        runs[-1] = stop
    else:
        runs += (start, stop)
