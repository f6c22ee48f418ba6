"""A web process: wiring, the server's limits, and how it starts and stops."""

import asyncio
import socket
from typing import Any

import structlog
import uvicorn
import uvloop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from routemaster.errors import RoutemasterError
from routemaster.settings import Settings
from routemaster.store.check import check
from routemaster.store.link import Link
from routemaster.store.publish import Limits
from routemaster.store.registry import Registry
from routemaster.uid import Maker
from routemaster.web.access import Access
from routemaster.web.asgi import HungUp, Receive, Scope, Send, answer_problem
from routemaster.web.control import Control
from routemaster.web.flusher import Flusher
from routemaster.web.ingest import PREFIX, Ingest
from routemaster.web.problem import Problem, body_of, problem_of

log = structlog.get_logger("web")
KEEP_ALIVE_S = 60
SWEEP_S = 5.0


class App:
    """The ASGI application: publishing first, everything else behind it."""

    def __init__(self, ingest: Ingest, control: Control) -> None:
        self._ingest = ingest
        self._control = control

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        publishing = scope["method"] == "POST" and scope["path"].startswith(PREFIX)
        try:
            await (self._ingest if publishing else self._control)(scope, receive, send)
        except HungUp:
            return
        except Problem as problem:
            await answer_problem(send, problem)
        except RoutemasterError as error:
            await answer_problem(send, problem_of(error))


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


def run(settings: Settings, *, sockets: list[socket.socket] | None) -> int:
    """Serve until SIGTERM or SIGINT."""
    return uvloop.run(_serve(settings, sockets))


async def _serve(settings: Settings, sockets: list[socket.socket] | None) -> int:
    link = Link(settings.redis_url)
    await _open(link, settings.redis_prefix)
    uids = Maker()
    registry = Registry(link, settings.redis_prefix, uids)
    access = Access(registry, settings.root_key)
    await access.refresh()
    limits = Limits(
        settings.idempotency_window_s * 1000, settings.idempotency_max_ids, settings.log_max_bytes
    )
    flusher = Flusher(link, settings.redis_prefix, access, uids, limits)
    flusher.start()
    app = App(
        Ingest(settings, access, flusher, uids),
        Control(settings, link, registry, access),
    )
    LimitedProtocol.max_header_bytes = settings.max_header_bytes
    server = uvicorn.Server(
        uvicorn.Config(
            app,  # pyright: ignore[reportArgumentType]
            host=settings.host,
            port=settings.port,
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
        await flusher.stop()
        await link.close()
    return 0


async def _open(link: Link, namespace: str) -> None:
    """Wait for the store: a web process that starts before it comes up by itself."""
    while True:
        try:
            await link.open()
            await check(link, namespace)
            return
        except RoutemasterError as error:
            await link.close()
            if type(error).__name__ != "StoreAway":
                raise
            log.warning("the store is away", reason=str(error))
            await asyncio.sleep(0.2)
