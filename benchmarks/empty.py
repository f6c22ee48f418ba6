"""The empty handler: the same server and settings as the web process, answering 200 to anything.

Its rate is the unit of every publishing figure. `python -m benchmarks.empty FD`.
"""

import socket
import sys
from typing import Any

import uvloop

from routemaster.web.server import Limits, serve

_START = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]}
_BODY = {"type": "http.response.body", "body": b""}


async def empty(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send(_START)
    await send(_BODY)


if __name__ == "__main__":
    limits = Limits(header_bytes=2**15, body_bytes=2**23, body_ms=10_000, held_bytes=2**26)
    uvloop.run(serve(empty, [socket.socket(fileno=int(sys.argv[1]))], limits))
