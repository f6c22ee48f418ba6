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
from routemaster.web.calls import Operation
from routemaster.web.control import Control
from routemaster.web.flusher import Flusher
from routemaster.web.ingest import PUBLISHING, Ingest
from routemaster.web.monitoring import Monitoring
from routemaster.web.server import Limits, serve
from routemaster.web.subscriptions import Subscriptions
from routemaster.web.tokens import Tokens
from routemaster.web.topics import Topics


def operations(settings: Settings, link: Link, registry: Registry, access: Access) -> list[Operation]:
    """All calls that there are."""
    return [
        *Tokens(registry, access, settings.root_key).operations(),
        *PUBLISHING,
        *Subscriptions(settings, registry).operations(),
        *Topics(registry).operations(),
        *Monitoring(link, registry).operations(),
    ]


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
            Control(settings, access, operations(settings, link, registry, access)),
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
