"""Calls: what a handler gets, what it answers, and the table row that says so.

A handler parses, acts and answers; everything around it (credentials, roles, limits, encoding, errors,
the OpenAPI document) is done by others, from the row.
"""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from routemaster.store.clients import Client
from routemaster.web.body import parse
from routemaster.web.problem import Headers

JSON = b"application/json"
ROOT, CLIENT, MONITOR = "root", "client", "monitor"
READERS = (ROOT, CLIENT, MONITOR)
_Body = TypeVar("_Body")
_PARAMETER = re.compile(r"\{([a-z_]+)\}")


@dataclass(frozen=True, slots=True)
class Call:
    """One request, as its handler sees it."""

    client: Client
    token: str  # digest of the one that it came with
    names: dict[str, str]  # what stands at the path's parameters
    query: dict[str, str]
    read: Callable[[], Awaitable[bytes]]

    async def parse(self, kind: type[_Body]) -> _Body:
        return parse(await self.read(), kind)

    async def parse_if_any(self, kind: type[_Body]) -> _Body:
        """Where all fields are optional, so is the body."""
        return parse(await self.read() or b"{}", kind)


class Answer(NamedTuple):
    status: int
    body: Any = None  # encoded as JSON, but for bytes, which go as they are; None for an empty answer
    kind: bytes = JSON
    headers: Headers = []  # noqa: RUF012 (never changed)


Handler = Callable[[Call], Awaitable[Answer]]
EMPTY = Answer(204)


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One row: who may call it, who acts, and what the document says of it."""

    method: str
    path: str  # with {parameters}
    summary: str
    gives: dict[int, Any]  # status -> type of the body, or None; errors that every call may have are left out
    act: Handler | None  # None: the server hands it over before it gets here
    roles: tuple[str, ...] = (CLIENT,)  # empty: anybody
    takes: Any = None
    needs_body: bool = True
    query: tuple[str, ...] = ()  # names of parameters, which shapes.py describes
    is_empty: bool = False  # the channel dialect: answers have no body, errors neither
    kinds: dict[str, Any] = field(default_factory=dict[str, Any])  # other media types it takes
    headers: dict[str, str] = field(default_factory=dict[str, str])  # of its answer
    serves: str = "application/json"
    notes: str = ""

    @property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(_PARAMETER.sub(r"(?P<\1>[^/]+)", self.path))

    @property
    def parameters(self) -> list[str]:
        return _PARAMETER.findall(self.path)
