"""What is queued in the old bus: its batches, oldest first, each behind what its lane has here.

A batch is taken in single steps of the store, each with a note of how far it was taken. One that cannot be
read is found before the first of them, and stays where it is. A dry run reads the same, and takes no step.
"""

import zlib
from collections.abc import Awaitable, Callable, Iterable

import msgspec

from routemaster.cli.importer import layout
from routemaster.cli.importer.account import Account
from routemaster.cli.importer.enrolment import Enrolment
from routemaster.cli.importer.layout import Head, Message, Unreadable
from routemaster.cli.importer.patience import patiently
from routemaster.cli.importer.source import Open, Source
from routemaster.errors import StoreAway, StoreFull
from routemaster.event import SEPARATOR, Delivered, address_of, encode_channel
from routemaster.store.imports import Group, Imports, Lanes, Piece
from routemaster.uid import Maker
from routemaster.web.subscriptions import MAX_EVENTS

ROOM_EVERY = 256  # pieces, between two looks at the memory that is left
TOO_LATE = "more of it was taken meanwhile by another import"
_lines = msgspec.json.Encoder().encode_lines


class Backlog:
    def __init__(
        self,
        source: Source,
        imports: Imports,
        uids: Maker,
        account: Account,
        enrolment: Enrolment,
        *,
        lacks_room: Callable[[], Awaitable[bool]],
        progress: Callable[[int], None],
    ) -> None:
        self._source = source
        self._imports = imports
        self._uids = uids
        self._account = account
        self._enrolment = enrolment
        self._lacks_room = lacks_room
        self._progress = progress
        self._lanes: dict[str, Lanes] = {}  # of subscriptions, as far as they were asked for
        self._pieces = 0

    async def take(self) -> None:
        async for ids in self._source.batches():
            taken = await patiently(lambda ids=ids: self._imports.taken(ids))
            for opened, start in zip(await self._source.open(ids), taken, strict=True):
                await self._take_batch(opened, start)
            self._progress(len(ids))

    async def _take_batch(self, opened: Open, start: int) -> None:
        account = self._account
        if not opened.key:
            return  # gone between the index and here: somebody delivered it
        try:
            if opened.problem:
                raise Unreadable(opened.problem)
            head = layout.read_head(opened.items)
            owner = self._enrolment.owners.get(head.subscriber)
            if owner is None:
                account.orphaned_batches += 1
                return
            if start >= opened.length:
                account.batches.known += 1
                account.events.known += opened.length
                return
            why_not = owner.why_not or await self._send(opened, head, owner.subscriber, start)
        except Unreadable as error:
            why_not = str(error)
        if why_not:
            account.leave("batch", opened.batch, why_not)
            account.events.left += max(0, opened.length - start)
        else:
            account.batches.taken += 1

    async def _send(self, opened: Open, head: Head, subscriber: str, start: int) -> str:
        """Take a batch over, in pieces where it is long. Returns why not, if so."""
        if opened.length - start > len(await self._source.messages(opened, start)):
            await self._read_through(opened, start)
        is_current = opened.batch in self._enrolment.current
        self._account.events.known += start
        while start < opened.length:
            messages = await self._source.messages(opened, start)
            if not messages:
                break  # it went while it was read
            read = [_read(n, item) for n, item in enumerate(messages, start)]
            while read:
                lanes = await self._lanes_of(subscriber)
                size = min(len(read), lanes.max_events)
                stop = start + size
                is_open = is_current and stop == opened.length
                events = [message for message in read[:size] if message is not None]
                if not self._account.dry_run:
                    piece = self._piece(opened, head, (start, stop), subscriber, lanes, events, is_open)
                    outcome = await self._store(piece)
                    if outcome == "moved":
                        del self._lanes[subscriber]
                        continue
                    if outcome != "done":
                        return TOO_LATE if outcome == "elsewhere" else "its subscription was ended here"
                self._account.events.taken += len(events)
                read, start = read[size:], stop
        return ""

    async def _read_through(self, opened: Open, start: int) -> None:
        """Find what is wrong with a long batch before the first piece of it is taken."""
        while start < opened.length:
            messages = await self._source.messages(opened, start)
            for n, item in enumerate(messages, start):
                _read(n, item)
            if not messages:
                return
            start += len(messages)

    async def _lanes_of(self, subscriber: str) -> Lanes:
        lanes = self._lanes.get(subscriber)
        if lanes is None:
            found = await patiently(lambda: self._imports.lanes(subscriber))
            lanes = self._lanes[subscriber] = found or Lanes("", "1", 1, MAX_EVENTS, False)
        return lanes

    def _piece(
        self,
        opened: Open,
        head: Head,
        span: tuple[int, int],
        subscriber: str,
        lanes: Lanes,
        events: list[Message],
        is_open: bool,
    ) -> Piece:
        by_lane: dict[int, list[Message]] = {}
        for event in events:
            lane = zlib.crc32(event.url.encode()) % lanes.parallelism
            by_lane.setdefault(lane, []).append(event)
        in_order = [event for lane in by_lane.values() for event in lane]
        return Piece(
            batch=opened.batch,
            start=span[0],
            stop=span[1],
            subscriber=subscriber,
            lanes=lanes,
            created_at=max(0, head.created_at),
            attempts=max(0, head.attempts),
            is_open=is_open,
            counts=_counts(in_order),
            side=self._side(in_order),
            groups=[self._group(n, lane, is_channel=lanes.is_channel) for n, lane in by_lane.items()],
        )

    def _group(self, lane: int, events: list[Message], *, is_channel: bool) -> Group:
        uids = self._uids.many(len(events))
        text = _joined(
            Delivered(event.topic, event.type, event.url, event.t, event.data or msgspec.UNSET, uid)
            for event, uid in zip(events, uids, strict=True)
        )
        if not is_channel:
            return Group(lane, len(events), text)
        lines = [
            line
            for event in events
            for line in encode_channel(
                event.topic, [(1, address_of(event.topic, None, event.type))], [event.url], event.t
            )
        ]
        return Group(lane, len(events), text, SEPARATOR.join(lines))

    def _side(self, events: list[Message]) -> list[list[str | int | None]]:
        """The log's side columns, run by run."""
        rows: list[list[str | int | None]] = []
        for event in events:
            if rows and rows[-1][3] == event.topic:
                rows[-1][0] = int(rows[-1][0] or 0) + 1
            else:
                publisher = self._enrolment.publishers.get(event.topic, "")
                rows.append([1, publisher, "event", event.topic, "default", None])
        return rows

    async def _store(self, piece: Piece) -> str:
        if self._pieces % ROOM_EVERY == 0 and await patiently(self._lacks_room):
            raise StoreFull(
                "the target store has little memory left, and would drop its oldest batches to take more:"
                " give it more (or let its subscribers catch up), then run this again: it goes on from here"
            )
        self._pieces += 1
        is_sure = True  # whether an answer that it was taken can only be ours

        async def send() -> str:
            nonlocal is_sure
            try:
                return await self._imports.batch(piece)
            except StoreAway:
                is_sure = False
                raise

        outcome = await patiently(send)
        if outcome == "elsewhere" and not is_sure:
            (taken,) = await patiently(lambda: self._imports.taken([piece.batch]))
            return "done" if taken == piece.stop else outcome
        return outcome


def _read(number: int, item: bytes) -> Message | None:
    try:
        return layout.read_message(item)
    except Unreadable as error:
        raise Unreadable(f"message {number} cannot be read: {error}") from None


def _counts(events: list[Message]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for event in events:
        counts[event.topic] = counts.get(event.topic, 0) + 1
    return counts


def _joined(events: Iterable[Delivered]) -> bytes:
    return SEPARATOR.join(_lines(list(events)).split(b"\n")[:-1])
