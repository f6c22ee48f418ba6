"""Everything but publishing: finds the call's row, checks who asks, and sends what the handler answers.

Every authenticated call compares the epoch first, so that what was revoked is refused from the answer to
its revocation on.
"""

import re
from urllib.parse import parse_qsl

import msgspec

from routemaster.settings import Settings
from routemaster.store.clients import Client
from routemaster.web.access import Access, Who
from routemaster.web.asgi import HungUp, Receive, Scope, Send, answer, answer_problem, read_body
from routemaster.web.calls import Answer, Call, Operation
from routemaster.web.problem import Problem, problem_of
from routemaster.web.server import STRANGER_BYTES
from routemaster.web.tls import HttpsOnly

NOBODY = Client("", "", "", ())


class Control:
    """The ASGI application."""

    def __init__(
        self, settings: Settings, access: Access, operations: list[Operation], https: HttpsOnly | None
    ) -> None:
        self._settings = settings
        self._https = https
        self._access = access
        self._rows: list[tuple[re.Pattern[str], Operation]] = [(row.pattern, row) for row in operations]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = [(row, match) for pattern, row in self._rows if (match := pattern.fullmatch(scope["path"]))]
        try:
            self._check_tls(scope)
            row, names = await self._find(scope, found)
            await _send(send, row, await self._act(row, names, scope, receive))
        except HungUp:
            return
        except Exception as error:
            is_empty = bool(found) and found[0][0].is_empty
            problem = problem_of(error)
            if any(name == b"expect" for name, _ in scope["headers"]):
                # Who was not told to go on may leave the body out: what follows would be taken for it.
                problem.headers.append((b"connection", b"close"))
            await answer_problem(send, problem, is_empty=is_empty)

    async def _find(
        self, scope: Scope, found: list[tuple[Operation, re.Match[str]]]
    ) -> tuple[Operation, dict[str, str]]:
        method = scope["method"]
        for row, match in found:
            if row.act is not None and method in (row.method, "HEAD" if row.method == "GET" else ""):
                return row, match.groupdict()
        if not any(row.roles == () for row, _ in found):
            await self._client(scope)  # a stranger is not told what there is
        if not found:
            raise Problem(404, f"there is nothing at {scope['path'][:200]}")
        allowed = ", ".join(sorted({row.method for row, _ in found}))
        raise Problem(405, f"expected {allowed} here", [(b"allow", allowed.encode())])

    async def _act(self, row: Operation, names: dict[str, str], scope: Scope, receive: Receive) -> Answer:
        """Who asks is looked up when the body is there: what was revoked while it came is refused. Before
        that, only to let nobody unknown fill our memory."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if row.roles and _may_be_large(headers):
            await self._caller(row, scope, spends=False)
        limit, patience = self._settings.max_body_bytes, self._settings.request_timeout_ms
        body = await read_body(receive, headers, limit, patience)
        client, token = await self._caller(row, scope) if row.roles else (NOBODY, "")

        async def read() -> bytes:
            return body

        query = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
        assert row.act is not None  # noqa: S101 (`_find` sees to it)
        return await row.act(Call(client, token, names, query, read))

    async def _caller(self, row: Operation, scope: Scope, *, spends: bool = True) -> Who:
        client, token = await self._client(scope, spends=spends)
        if client.role not in row.roles:
            raise Problem(403, f"the role {client.role} may not do this")
        return client, token

    async def _client(self, scope: Scope, *, spends: bool = True) -> Who:
        headers = dict(scope["headers"])
        who = self._access.identify(headers, scope["method"], _target(scope), scope["client"], spends=spends)
        return await who

    def _check_tls(self, scope: Scope) -> None:
        if self._https is None or scope["path"].startswith("/health"):
            return
        headers = dict(scope["headers"])
        redirect = self._https.redirect(scope["scheme"], scope["client"], headers, _target(scope))
        if redirect:
            raise redirect


def _may_be_large(headers: dict[bytes, bytes]) -> bool:
    return int(headers.get(b"content-length", b"0")) > STRANGER_BYTES or b"transfer-encoding" in headers


def _target(scope: Scope) -> bytes:
    """What was asked for, as it was written."""
    query = scope["query_string"]
    return scope["raw_path"] + (b"?" + query if query else b"")


async def _send(send: Send, row: Operation, made: Answer) -> None:
    if made.body is None:
        await answer(send, made.status, made.headers)
        return
    body = made.body if isinstance(made.body, bytes) else msgspec.json.encode(made.body)
    await answer(send, made.status, [(b"content-type", made.kind), *made.headers], body)
