"""Publishing many events: in bulks of bounded size, one request after the other, in the order of the file.

It stops at the first event that is bad: all before it are published then, and none from it on. A bulk without
an answer, or with one that asks for patience, is sent again after a growing pause with jitter; events that
have ids are stored once however often they come, others may come to be stored twice.
"""

import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from routemaster.cli.event_file import BadEvent, Written
from routemaster.cli.session import AWAY, Answer, Session, index_of, told
from routemaster.errors import BusAway, InvalidInput, Refused, RoutemasterError
from routemaster.event import parse_one

MAX_EVENTS = 1_000
MAX_BYTES = 2**20
MAX_DATA = 2**20  # the most a bus can be set to take; what this one takes it says itself
PAUSE_LEAST_S, PAUSE_MOST_S = 0.1, 5.0
BUSY = (408, 429, *AWAY)


@dataclass
class Bulk:
    """Events that go in one request."""

    events: list[Written] = field(default_factory=list[Written])
    size: int = 0
    ids: set[str] = field(default_factory=set[str])

    def takes(self, event: Written, id: str | None) -> bool:
        """Whether there is room; the same id twice needs two requests, which a bus tells apart."""
        if not self.events:
            return True
        is_full = len(self.events) >= MAX_EVENTS or self.size + len(event.text) > MAX_BYTES
        return not is_full and id not in self.ids

    def add(self, event: Written, id: str | None) -> None:
        self.events.append(event)
        self.size += len(event.text) + 1
        if id is not None:
            self.ids.add(id)


class Publishing:
    """One file on its way to one topic."""

    def __init__(
        self,
        session: Session,
        path: str,
        file: str,
        *,
        patience_s: float,
        tell: Callable[[str], None],
        progress: Callable[[int, int], None] = lambda _events, _bytes: None,
    ) -> None:
        self.accepted = 0
        self.requests = 0
        self.retries = 0
        self.line = 0  # of the bad event, or the first one that is in the air; 0 for neither
        self._session = session
        self._path = path
        self._file = file
        self._patience_s = patience_s
        self._tell = tell
        self._progress = progress

    def run(self, events: Iterable[Written | None]) -> None:
        """Publish all of them, or raise Refused at the first that is bad, and BusAway when patience ends."""
        bulk = Bulk()
        try:
            for event in events:
                if event is None:
                    bulk = self._send(bulk)
                    continue
                id = self._check(event)
                if not bulk.takes(event, id):
                    bulk = self._send(bulk)
                bulk.add(event, id)
        except BadEvent as error:
            self._send(bulk)
            self.line = error.line
            raise self._bad(error.reason) from None
        self._send(bulk)

    def post(self, body: bytes, *, has_ids: bool) -> Answer:
        """One request, again and again while the bus is away; any other answer ends it."""
        deadline = time.monotonic() + self._patience_s
        pause_s = PAUSE_LEAST_S
        while True:
            after_s = 0.0
            try:
                self.requests += 1
                answer = self._session.ask("POST", self._path, body)
                if answer.status not in BUSY:
                    return answer
                error: RoutemasterError = self._session.error(answer)
                after_s = _seconds(answer.headers.get("retry-after", ""))
            except BusAway as away:
                if self.requests == 1 and not away.was_sent:
                    raise  # there is nobody: that is told at once
                error = away
            wait_s = max(after_s, pause_s * random.uniform(0.5, 1.0))  # noqa: S311 (jitter, not a secret)
            if time.monotonic() + wait_s > deadline:
                raise BusAway(f"{error}; given up after {self._patience_s:.0f} s", was_sent=True)
            self._tell_of_retry(error, has_ids)
            time.sleep(wait_s)
            pause_s = min(PAUSE_MOST_S, pause_s * 2)

    def _tell_of_retry(self, error: RoutemasterError, has_ids: bool) -> None:
        self.retries += 1
        if self.retries == 1:
            again = (
                "events with an id are stored once" if has_ids else "events without an id may be stored twice"
            )
            self._tell(f"{error}; sent again until it is in: {again}")

    def _check(self, event: Written) -> str | None:
        """The event's id; BadEvent where no bus would take it."""
        try:
            return parse_one(event.text, MAX_DATA).id
        except InvalidInput as error:
            raise BadEvent(event.line, str(error)) from None

    def _send(self, bulk: Bulk) -> Bulk:
        """Publish a bulk, and return the next one."""
        self._send_events(bulk.events, has_ids=len(bulk.ids) == len(bulk.events))
        return Bulk()

    def _send_events(self, events: list[Written], *, has_ids: bool) -> None:
        if not events:
            return
        self.line = events[0].line
        answer = self.post(b"[" + b",".join(event.text for event in events) + b"]", has_ids=has_ids)
        if answer.status < 300:
            self.accepted += len(events)
            self.line = 0
            self._progress(len(events), sum(len(event.text) + 1 for event in events))
            return
        if answer.status == 413 and len(events) > 1:
            half = len(events) // 2
            self._send_events(events[:half], has_ids=has_ids)
            self._send_events(events[half:], has_ids=has_ids)
            return
        index = index_of(answer)
        if index is None or not 0 <= index < len(events):
            raise self._refused(answer)
        self._send_events(events[:index], has_ids=has_ids)
        self.line = events[index].line
        raise self._bad(told(answer).replace(f" of event {index}", "", 1))

    def _refused(self, answer: Answer) -> RoutemasterError:
        error = self._session.error(answer)
        return type(error)(f"{self._file}, line {self.line}: {error}")

    def _bad(self, reason: str) -> Refused:
        return Refused(f"{self._file}, line {self.line}: {reason}")


def _seconds(text: str) -> float:
    return min(60.0, float(text)) if text.isascii() and text.isdigit() else 0.0
