"""The few types of ASGI that we use, and reading a body within its limits."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from routemaster.web.problem import Headers, Problem, rendered

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class HungUp(Exception):
    """The client went away before its request was complete."""


async def read_body(receive: Receive, headers: dict[bytes, bytes], max_bytes: int, timeout_ms: int) -> bytes:
    length = headers.get(b"content-length")
    if length is not None and int(length) > max_bytes:
        raise Problem(413, f"the body has {int(length)} bytes; at most {max_bytes} are taken")
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    raise HungUp
                chunks.append(message.get("body", b""))
                size += len(chunks[-1])
                if size > max_bytes:
                    raise Problem(413, f"the body has more than {max_bytes} bytes")
                if not message.get("more_body"):
                    return b"".join(chunks)
    except TimeoutError:
        raise Problem(
            408, f"the body did not come within {timeout_ms} ms", [(b"connection", b"close")]
        ) from None


async def answer(send: Send, status: int, headers: Headers, body: bytes = b"") -> None:
    if status != 204:
        headers = [*headers, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def answer_problem(send: Send, problem: Problem, *, is_empty: bool) -> None:
    kind, body = rendered(problem, is_empty=is_empty)
    headers = [*kind, *problem.headers]
    if problem.status == 413:
        headers.append((b"connection", b"close"))
    await answer(send, problem.status, headers, body)
