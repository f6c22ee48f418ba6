"""Errors as answers: problem+json, and the one table that maps our errors to HTTP."""

import re
from http import HTTPStatus
from typing import Any

import msgspec
import structlog

from routemaster.errors import InvalidInput, RoutemasterError, StoreError, StoreUnfit

log = structlog.get_logger("web")
TITLES = {
    308: "Only over https",
    400: "Bad request",
    401: "Credentials needed",
    403: "Not allowed",
    404: "Not found",
    405: "Method not allowed",
    408: "Too slow",
    409: "Conflict",
    413: "Too large",
    415: "Unsupported media type",
    429: "Too many",
    500: "Failed",
    503: "The store is away",
}

REASONS = {status: HTTPStatus(status).phrase for status in TITLES}

Headers = list[tuple[bytes, bytes]]
MAX_REASON = 500
_UNPRINTABLE = re.compile(rb"[^\x20-\x7e]")


class Problem(Exception):
    """An answer that is not what was asked for."""

    def __init__(self, status: int, detail: str, headers: Headers | None = None, **more: Any) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers: Headers = headers or []
        self.more = more


def problem_of(error: Exception) -> Problem:
    """The answer that an error becomes. One that nobody foresaw is logged, and told no more of."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, InvalidInput):
        more: dict[str, Any] = {"field": error.field, "expected": error.expected}
        if error.index is not None:
            more["index"] = error.index
        return Problem(400, str(error), **more)
    if isinstance(error, StoreUnfit):  # waiting will not help: somebody has to read this
        log.error("the store refuses what is asked of it", reason=str(error))
    if isinstance(error, StoreError):
        return Problem(503, "the store cannot take this now; try again", [(b"retry-after", b"1")])
    if isinstance(error, RoutemasterError):
        return Problem(400, str(error))
    log.error("a request failed", exc_info=error)
    return Problem(500, "this should not have happened; the log says more")


def rendered(problem: Problem, *, is_empty: bool = False) -> tuple[Headers, bytes]:
    """Headers and body. In the channel dialect answers are empty, and the reason is in a header."""
    if is_empty:
        reason = problem.detail.encode("ascii", "backslashreplace")[:MAX_REASON]
        return [(b"routemaster-reason", _UNPRINTABLE.sub(b"?", reason))], b""
    body = msgspec.json.encode(
        {
            "type": "about:blank",
            "title": TITLES.get(problem.status, "Error"),
            "status": problem.status,
            "detail": problem.detail,
            **problem.more,
        }
    )
    return [(b"content-type", b"application/problem+json")], body
