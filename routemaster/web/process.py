"""A web process: wiring, and how it starts and stops."""

import asyncio
import socket

import structlog
import uvloop

from routemaster.errors import StoreAway, StoreFull
from routemaster.sender import Sender
from routemaster.settings import Settings
from routemaster.store.check import wait_for
from routemaster.store.clients import Clients
from routemaster.store.dead import Dead
from routemaster.store.figures import Reader
from routemaster.store.link import Link
from routemaster.store.publish import Limits as FlushLimits
from routemaster.store.registry import Registry
from routemaster.store.trace import Trace
from routemaster.uid import Maker
from routemaster.web.access import Access
from routemaster.web.calls import Operation
from routemaster.web.channels import Channels
from routemaster.web.control import Control
from routemaster.web.dead_letters import DeadLetters
from routemaster.web.events import Events
from routemaster.web.flusher import Flusher
from routemaster.web.ingest import PUBLISHING, Ingest
from routemaster.web.metrics import Metrics
from routemaster.web.monitoring import Monitoring
from routemaster.web.openapi import Docs
from routemaster.web.pulse import Pulse
from routemaster.web.server import Limits, serve
from routemaster.web.subscriptions import Subscriptions
from routemaster.web.tls import Certificate, HttpsOnly
from routemaster.web.tokens import Tokens, seed
from routemaster.web.topics import Topics

log = structlog.get_logger("web")
SEED_AGAIN_S = 0.5


def operations(
    settings: Settings,
    link: Link,
    registry: Registry,
    clients: Clients,
    access: Access,
    sender: Sender,
    uids: Maker,
) -> list[Operation]:
    """All calls that there are."""
    subscriptions = Subscriptions(settings, access, registry, sender, uids)
    reader = Reader(link, settings.redis_prefix, settings.redis_max_mem)
    calls = [
        *Tokens(clients, access).operations(),
        *PUBLISHING,
        *subscriptions.operations(),
        *DeadLetters(Dead(link, settings.redis_prefix)).operations(),
        *Channels(registry, subscriptions).operations(),
        *Topics(registry).operations(),
        *Monitoring(registry).operations(),
        *Pulse(link, reader, settings.scaling_threshold, settings.scaling_deadline).operations(),
        *Metrics(reader).operations(),
        *Events(Trace(link, settings.redis_prefix), access).operations(),
    ]
    return [*calls, *Docs(calls).operations()]


def run(settings: Settings, *, sockets: list[socket.socket] | None) -> int:
    """Serve until SIGTERM or SIGINT."""
    return uvloop.run(_serve(settings, sockets))


async def _serve(settings: Settings, sockets: list[socket.socket] | None) -> int:
    certificate = (
        Certificate(settings.tls_cert, settings.tls_key) if settings.tls_cert and settings.tls_key else None
    )
    https = HttpsOnly(settings.trusted_proxies) if settings.needs_tls else None
    link = Link(settings.redis_url, silence_s=0.7)
    link.open()
    uids = Maker()
    registry = Registry(link, settings.redis_prefix, uids)
    clients = Clients(link, settings.redis_prefix, uids)
    access = Access(link, registry, clients, settings.root_key)
    checked = asyncio.create_task(_check(link, settings, clients, access))
    flusher = Flusher(
        link,
        settings.redis_prefix,
        access,
        uids,
        FlushLimits(
            settings.idempotency_window_s * 1000,
            settings.idempotency_max_ids,
            settings.log_max_bytes,
            settings.redis_replicas,
            settings.redis_replicas_timeout_ms if settings.redis_replicas else 0,
        ),
    )
    flusher.start()
    limits = Limits(
        header_bytes=settings.max_header_bytes,
        body_bytes=settings.max_body_bytes,
        body_ms=settings.request_timeout_ms,
        held_bytes=settings.max_pending_bytes,
    )
    sender = Sender(settings)
    sender.open()
    watching = asyncio.create_task(certificate.watch()) if certificate else None
    calls = operations(settings, link, registry, clients, access, sender, uids)
    try:
        await serve(
            Control(settings, access, calls, https),
            sockets,
            limits,
            posts=Ingest(settings, access, flusher, uids, https),
            needs=checked,
            tls=certificate.context if certificate else None,
            host=settings.host,
            port=settings.port,
        )
    finally:
        checked.cancel()
        if watching:
            watching.cancel()
        await flusher.stop()
        await sender.close()
        await link.close()
    return 0


async def _check(link: Link, settings: Settings, clients: Clients, access: Access) -> None:
    """Requests are answered 503 until the store is there and fit; one that is unfit ends the process. One
    that is full is fit for what frees memory: then it is only the tokens that wait."""
    await wait_for(link, settings.redis_prefix, settings.redis_replicas)
    while True:
        try:
            await seed(clients, settings.clients)
            break
        except (StoreAway, StoreFull) as error:
            log.warning("the tokens of ROUTEMASTER_CLIENTS wait for the store", reason=str(error))
            if isinstance(error, StoreFull):
                access.open()
            await asyncio.sleep(SEED_AGAIN_S)
    access.open()
