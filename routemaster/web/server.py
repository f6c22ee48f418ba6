"""The HTTP server: uvicorn with our limits on headers and on slow senders."""

import asyncio
import socket
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from routemaster.web.problem import Problem, body_of

KEEP_ALIVE_S = 60
SWEEP_S = 5.0


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with a bound on headers; `Sweeper` closes connections that send too slowly."""

    max_header_bytes = 32 * 2**10

    def data_received(self, data: bytes) -> None:
        cycle = self.cycle
        super().data_received(data)
        if self.cycle is not cycle:
            self._header_bytes = 0
        elif cycle is None or cycle.response_complete:  # pyright: ignore[reportUnnecessaryComparison]
            # Still in the headers of a request.
            self._header_bytes = getattr(self, "_header_bytes", 0) + len(data)
            if self._header_bytes > self.max_header_bytes:
                self.send_400_response("The headers are too large.")

    def send_400_response(self, msg: str) -> None:
        body = body_of(Problem(400, msg))
        head = (
            "HTTP/1.1 400 Bad Request\r\ncontent-type: application/problem+json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


class Sweeper:
    """Closes connections that have been in the middle of a request's headers for two sweeps."""

    def __init__(self, server: uvicorn.Server) -> None:
        self._server = server
        self._seen: dict[Any, Any] = {}

    async def run(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            waiting: dict[Any, Any] = {}
            for protocol in list(self._server.server_state.connections):
                cycle = getattr(protocol, "cycle", None)
                idle = getattr(protocol, "timeout_keep_alive_task", None) is not None
                if (cycle is None or cycle.response_complete) and not idle:
                    if protocol in self._seen and self._seen[protocol] is cycle:
                        protocol.transport.close()  # pyright: ignore[reportAttributeAccessIssue]
                    else:
                        waiting[protocol] = cycle
            self._seen = waiting


async def serve(
    app: Any,
    sockets: list[socket.socket] | None,
    *,
    host: str = "",
    port: int = 0,
    max_header_bytes: int = 2**15,
) -> None:
    """Serve until SIGTERM or SIGINT; requests under way are finished first."""
    LimitedProtocol.max_header_bytes = max_header_bytes
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            host=host,
            port=port,
            http=LimitedProtocol,
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=20,
            backlog=4096,
        )
    )
    sweeper = asyncio.create_task(Sweeper(server).run(), name="sweeper")
    try:
        await server.serve(sockets=sockets)
    finally:
        sweeper.cancel()
