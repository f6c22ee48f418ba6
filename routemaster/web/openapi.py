"""The OpenAPI 3.1 document, made from the table of calls: what a row says is what is served, so the document
cannot fall behind. A call that needs more words has them in its row.
"""

import re
from importlib.metadata import version
from typing import Any

import msgspec

from routemaster.web.calls import READERS, Answer, Call, Operation
from routemaster.web.shapes import PARAMETERS

PROBLEM = "application/problem+json"
_PATH = re.compile(r"\{([a-z_]+)\}")
_REF = "#/components/schemas/{name}"
_CREDENTIALS: list[dict[str, list[str]]] = [{"basic": []}, {"bearer": []}, {"digest": []}]

REASONS = {
    200: "Done.",
    201: "Made.",
    204: "Done; there is nothing to say.",
    308: "Only https is served.",
    400: "Something is malformed; the answer names the field and what was expected.",
    401: "A known credential is needed.",
    403: "This credential may not do that.",
    404: "There is no such thing.",
    405: "Another method is expected here.",
    408: "The body did not come in time.",
    409: "It conflicts with what is there.",
    413: "The body is too large.",
    415: "The body is of another type than expected.",
    429: "Too many unknown credentials came from this address.",
    503: "The store is away, or full; try again.",
}
_HEADERS = {
    308: {"location": "the same under https"},
    401: {"www-authenticate": "what is offered: Digest (MD5, SHA-256) and Basic"},
    405: {"allow": "the methods there are"},
    429: {"retry-after": "seconds"},
    503: {"retry-after": "seconds"},
}


class ProblemShape(msgspec.Struct, rename={"kind": "type"}):
    """What every error looks like (RFC 9457)."""

    kind: str
    title: str
    status: int
    detail: str
    field: str | msgspec.UnsetType = msgspec.UNSET
    expected: str | msgspec.UnsetType = msgspec.UNSET
    index: int | msgspec.UnsetType = msgspec.UNSET


class Docs:
    """Serves the document, and a page that shows it."""

    def __init__(self, operations: list[Operation]) -> None:
        self._operations = [*operations, *self.operations()]
        self._document: bytes | None = None

    def operations(self) -> list[Operation]:
        return [
            Operation(
                method="GET",
                path="/openapi.json",
                summary="This document.",
                roles=READERS,
                gives={200: dict[str, Any]},
                act=self._show,
            ),
            Operation(
                method="GET",
                path="/docs",
                summary="This document, for people.",
                roles=READERS,
                gives={200: str},
                serves="text/html; charset=utf-8",
                act=self._page,
            ),
        ]

    async def _show(self, call: Call) -> Answer:
        if self._document is None:
            self._document = msgspec.json.encode(document(self._operations))
        return Answer(200, self._document)

    async def _page(self, call: Call) -> Answer:
        from routemaster.web.docs import page  # a page that few ask for

        return Answer(200, page(document(self._operations)).encode(), b"text/html; charset=utf-8")


def document(operations: list[Operation]) -> dict[str, Any]:
    types = [ProblemShape, *(kind for row in operations for kind in _types_of(row))]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    known = dict(zip(map(repr, types), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for row in operations:
        paths.setdefault(row.path, {})[row.method.lower()] = _operation(row, known)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Routemaster",
            "version": version("routemaster-bus"),
            "description": "An event bus over HTTP.",
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [{"url": "/"}],
        "security": _CREDENTIALS,
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "basic": {
                    "type": "http",
                    "scheme": "basic",
                    "description": "The token as user name, with any password; or as password.",
                },
                "bearer": {"type": "http", "scheme": "bearer"},
                "digest": {
                    "type": "http",
                    "scheme": "digest",
                    "description": "The client id as user name, the token as password.",
                },
            },
        },
    }


def _types_of(row: Operation) -> list[Any]:
    given = [kind for kind in row.gives.values() if kind is not None]
    return [*given, *([row.takes] if row.takes is not None else []), *row.kinds.values()]


def _operation(row: Operation, known: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "operationId": _name(row),
        "summary": row.summary,
        "tags": [row.path.split("/")[1].removesuffix(".json")],
        "parameters": _parameters(row),
        "responses": {str(status): _response(row, status, known) for status in sorted(_statuses(row))},
    }
    if not row.roles:
        made["security"] = []
    else:
        made["description"] = f"For {', '.join(row.roles)}. {row.notes}".strip()
    if row.takes is not None:
        kinds = {"application/json": row.takes, **row.kinds}
        made["requestBody"] = {
            "required": row.needs_body,
            "content": {name: {"schema": known[repr(kind)]} for name, kind in kinds.items()},
        }
    return made


def _name(row: Operation) -> str:
    words = re.findall(r"[a-z_]+", row.path.removesuffix(".json")) or ["root"]
    suffix = ["json"] if row.path.endswith(".json") else []
    return "_".join([row.method.lower(), *words, *suffix])


def _parameters(row: Operation) -> list[dict[str, Any]]:
    named = [("path", name) for name in _PATH.findall(row.path)] + [("query", name) for name in row.query]
    return [
        {
            "name": name,
            "in": where,
            "required": where == "path",
            "description": PARAMETERS[name][0],
            "schema": PARAMETERS[name][1],
        }
        for where, name in named
    ]


def _statuses(row: Operation) -> set[int]:
    """What its row says, and what every call of its kind may answer."""
    always = {400, 405, 503} if row.roles else {400, 405}
    asked = {308, 401, 403, 408, 413, 429} if row.roles else {408, 413}
    return {*row.gives, *always, *asked, *({415} if row.kinds else set[int]())}


def _response(row: Operation, status: int, known: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {"description": REASONS[status]}
    headers = dict(_HEADERS.get(status, {}))
    if status < 300:
        headers |= row.headers
        kind = row.gives.get(status)
        if kind is not None:
            media = row.serves
            schema = known[repr(kind)]
            made["content"] = {media: {"schema": schema}}
    elif row.is_empty:
        headers["routemaster-reason"] = "what is wrong: answers have no body here"
    else:
        made["content"] = {PROBLEM: {"schema": known[repr(ProblemShape)]}}
    if headers:
        made["headers"] = {
            name: {"description": what, "schema": {"type": "string"}} for name, what in headers.items()
        }
    return made
