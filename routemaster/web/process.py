"""A web process: wiring, and how it starts and stops."""

import asyncio
import socket

import uvloop

from routemaster.settings import Settings
from routemaster.store.check import wait_for
from routemaster.store.link import Link
from routemaster.store.publish import Limits as FlushLimits
from routemaster.store.registry import Registry
from routemaster.uid import Maker
from routemaster.web.access import Access
from routemaster.web.asgi import HungUp, Receive, Scope, Send, answer_problem
from routemaster.web.control import Control
from routemaster.web.flusher import Flusher
from routemaster.web.ingest import Ingest
from routemaster.web.problem import problem_of
from routemaster.web.server import Limits, serve


class App:
    """The ASGI application: everything but publishing, which the server hands to Ingest itself."""

    def __init__(self, control: Control) -> None:
        self._control = control

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._control(scope, receive, send)
        except HungUp:
            return
        except Exception as error:
            await answer_problem(send, problem_of(error))


def run(settings: Settings, *, sockets: list[socket.socket] | None) -> int:
    """Serve until SIGTERM or SIGINT."""
    return uvloop.run(_serve(settings, sockets))


async def _serve(settings: Settings, sockets: list[socket.socket] | None) -> int:
    link = Link(settings.redis_url, silence_s=0.7)
    link.open()
    uids = Maker()
    registry = Registry(link, settings.redis_prefix, uids)
    access = Access(registry, settings.root_key)
    checked = asyncio.create_task(_check(link, settings.redis_prefix, access))
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
            posts=Ingest(settings, access, flusher, uids),
            needs=checked,
            host=settings.host,
            port=settings.port,
        )
    finally:
        checked.cancel()
        await flusher.stop()
        await link.close()
    return 0


async def _check(link: Link, namespace: str, access: Access) -> None:
    """Requests are answered 503 until the store is there and fit; one that is unfit ends the process."""
    await wait_for(link, namespace)
    access.open()
