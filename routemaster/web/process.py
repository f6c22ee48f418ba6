"""A web process: wiring, and how it starts and stops."""

import asyncio
import socket

import structlog
import uvloop

from routemaster.errors import RoutemasterError
from routemaster.settings import Settings
from routemaster.store.check import check
from routemaster.store.link import Link
from routemaster.store.publish import Limits as FlushLimits
from routemaster.store.registry import Registry
from routemaster.uid import Maker
from routemaster.web.access import Access
from routemaster.web.asgi import HungUp, Receive, Scope, Send, answer_problem
from routemaster.web.control import Control
from routemaster.web.flusher import Flusher
from routemaster.web.ingest import Ingest
from routemaster.web.problem import Problem, problem_of
from routemaster.web.server import Limits, serve

log = structlog.get_logger("web")


class App:
    """The ASGI application: everything but publishing, which the server hands to Ingest itself."""

    def __init__(self, control: Control) -> None:
        self._control = control

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._control(scope, receive, send)
        except HungUp:
            return
        except Problem as problem:
            await answer_problem(send, problem)
        except RoutemasterError as error:
            await answer_problem(send, problem_of(error))


def run(settings: Settings, *, sockets: list[socket.socket] | None) -> int:
    """Serve until SIGTERM or SIGINT."""
    return uvloop.run(_serve(settings, sockets))


async def _serve(settings: Settings, sockets: list[socket.socket] | None) -> int:
    link = Link(settings.redis_url, silence_s=0.7)
    await _open(link, settings.redis_prefix)
    uids = Maker()
    registry = Registry(link, settings.redis_prefix, uids)
    access = Access(registry, settings.root_key)
    await access.refresh()
    flusher = Flusher(
        link,
        settings.redis_prefix,
        access,
        uids,
        FlushLimits(
            settings.idempotency_window_s * 1000, settings.idempotency_max_ids, settings.log_max_bytes
        ),
    )
    flusher.start()
    limits = Limits(
        header_bytes=settings.max_header_bytes,
        body_bytes=settings.max_body_bytes,
        body_ms=settings.request_timeout_ms,
        held_bytes=settings.max_pending_bytes,
    )
    try:
        await serve(
            App(Control(settings, link, registry, access)),
            sockets,
            limits,
            take_post=Ingest(settings, access, flusher, uids).take,
            host=settings.host,
            port=settings.port,
        )
    finally:
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
