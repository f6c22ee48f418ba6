"""Events in a file: one JSON object a line, or a JSON array, cut into events as the bytes come.

Of the file no more is held than the chunk that was read last and the event that is not whole yet. Each event
keeps its line, by which whoever wrote the file finds it.
"""

import codecs
import json
import os
import select
from collections.abc import Iterator
from typing import NamedTuple

CHUNK = 65_536
MAX_EVENT = 2 * 2**20
PAUSE_S = 0.05
_SPACE = " \t\r\n"
_WANTED = {
    "[": "[",
    "{]": "an event (a JSON object) or ]",
    "{": "an event (a JSON object)",
    ",]": ", or ]",
    "": "nothing after the ]",
}
_BOM = b"\xef\xbb\xbf"


class Written(NamedTuple):
    """An event as it stands in the file; whether it is one is for others to say."""

    line: int
    text: bytes


class BadEvent(Exception):
    """What stands on this line is no event; where it ends, none can say."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line = line
        self.reason = reason


class Lines:
    """One event a line; empty lines are none."""

    def __init__(self) -> None:
        self._rest = b""
        self._line = 1

    def feed(self, chunk: bytes) -> Iterator[Written]:
        parts = (self._rest + chunk).split(b"\n")
        self._rest = parts.pop()
        for part in parts:
            line, self._line = self._line, self._line + 1
            _check_size(line, len(part))
            if part.strip():
                yield Written(line, part.strip())
        _check_size(self._line, len(self._rest))

    def end(self) -> Iterator[Written]:
        if self._rest.strip():
            yield Written(self._line, self._rest.strip())


class Array:
    """A JSON array of objects, over as many lines as it likes."""

    def __init__(self) -> None:
        # What is no UTF-8 goes through as it is: the event that has it is refused for it.
        self._decode = codecs.getincrementaldecoder("utf-8")("surrogateescape").decode
        self._cut = json.JSONDecoder().raw_decode
        self._text = ""
        self._line = 1
        self._next = "["  # what may come: "[", "{]" (an event or the end), "{", ",]", "" (nothing more)

    def feed(self, chunk: bytes) -> Iterator[Written]:
        return self._take(self._decode(chunk), is_all=False)

    def end(self) -> Iterator[Written]:
        yield from self._take(self._decode(b"", True), is_all=True)
        if self._next:
            raise BadEvent(self._line, "expected the array to end with ]")

    def _take(self, text: str, *, is_all: bool) -> Iterator[Written]:
        self._text += text
        at = 0
        while True:
            at = self._skip_space(at)
            if at == len(self._text):
                break
            if self._text[at] != "{" or "{" not in self._next:
                self._mark(self._text[at])
                at += 1
                continue
            try:
                end = self._cut(self._text, at)[1]
            except (ValueError, RecursionError) as error:
                if is_all or isinstance(error, RecursionError):
                    raise BadEvent(self._line, f"expected a JSON object ({_reason(error)})") from None
                break  # the rest of it is still to come
            cut = self._text[at:end]
            yield Written(self._line, cut.encode("utf-8", "surrogateescape"))
            self._line += cut.count("\n")
            self._next, at = ",]", end
        self._text = self._text[at:]
        _check_size(self._line, len(self._text))

    def _skip_space(self, at: int) -> int:
        start = at
        while at < len(self._text) and self._text[at] in _SPACE:
            at += 1
        self._line += self._text.count("\n", start, at)
        return at

    def _mark(self, mark: str) -> None:
        if mark not in self._next or mark == "{":
            raise BadEvent(self._line, f"expected {_WANTED[self._next]}")
        self._next = {"[": "{]", ",": "{", "]": ""}[mark]


def read(fd: int) -> Iterator[Written | None]:
    """The events of a file, and None where no more of it is there for the moment: a pipe may be slow, and
    what came should not wait for what may come."""
    cutter: Lines | Array | None = None
    head = b""
    for chunk in _chunks(fd):
        if chunk is None:
            yield None
            continue
        if cutter is None:
            head = (head + chunk).removeprefix(_BOM)
            if (not head.strip() and len(head) < MAX_EVENT) or head in (_BOM[:1], _BOM[:2]):
                continue
            cutter, chunk = Array() if head.lstrip()[:1] == b"[" else Lines(), head
        yield from cutter.feed(chunk)
    if cutter is None and head.strip():
        cutter = Lines()
        yield from cutter.feed(head)
    if cutter is not None:
        yield from cutter.end()


def _chunks(fd: int) -> Iterator[bytes | None]:
    while True:
        if not select.select([fd], [], [], PAUSE_S)[0]:
            yield None
            select.select([fd], [], [])
        chunk = os.read(fd, CHUNK)
        if not chunk:
            return
        yield chunk


def _check_size(line: int, size: int) -> None:
    if size > MAX_EVENT:
        raise BadEvent(line, f"expected an event of at most {MAX_EVENT} bytes")


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at line {error.lineno}, column {error.colno} of it"
    return "it is nested too deeply"
