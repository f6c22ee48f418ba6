"""Group commit: what is accepted while one flush is in the air goes together in the next.

No timer: an idle process flushes at once, a busy one fills larger flushes; a second one follows before
the first is answered only when much is waiting. A flush is bounded in bytes and in the work it makes, so
that no call keeps the store from others for long; a wide request (many bytes for many subscribers) is
cut by events over several flushes of its own, in turns with those of the others, and is answered after
its last. Acknowledged means stored: a request is answered only by the store's answer.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Iterable, Sequence

import structlog

from routemaster.errors import StoreAway
from routemaster.store.link import Link
from routemaster.store.publish import Conflict, Denied, Flush, Late, Limits, Stale, Stored, send_flush
from routemaster.uid import Maker
from routemaster.web.access import Access
from routemaster.web.flush import Part, Publish, build
from routemaster.web.problem import Problem, problem_of

log = structlog.get_logger("web")
MAX_BYTES = 2 * 2**20  # of one flush
MAX_WORK = 4 * 2**20  # of one flush; a request of more is wide,
MAX_WIDE = 2**20  # and cut into flushes of so much: 1,000 lanes take about 25 ms, 1,000 new batches 15
SECOND_BYTES = 64 * 2**10  # waiting, for a second flush to follow before the first is answered;
SECOND_REQUESTS = 32  # or so many requests
TELL_EVERY_S = 0.2  # of how large and how slow flushes are,
MOST_UNTOLD = 2_000  # and of how many: two numbers each
PATIENCE_S = 0.8  # a request that cannot be stored is answered 503 within a second


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
        return build(parts, number, told, self._access.snapshot, self._process, self._uids)

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
