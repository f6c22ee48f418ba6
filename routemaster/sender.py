"""Sending one batch over HTTP, and what its answer means. Knows nothing of the store."""

import asyncio
import hmac
import socket
import time
from base64 import b64decode, b64encode
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any, NamedTuple

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult

from routemaster.callback import SECRET_PREFIX, Network, host_of, is_allowed, is_secure
from routemaster.event import SEPARATOR
from routemaster.settings import Settings
from routemaster.store.deliveries import Delivery

MAX_RETRY_AFTER_MS = 3_600_000
MAX_ANSWER_BYTES = 64 * 2**10
MAX_ANSWER_S = 1.0
CHANNEL_SUCCESS = (200, 204)
_TRACE = b'"traceparent":"'
_TRACE_LENGTH = 55


class Outcome(NamedTuple):
    delivered: bool
    code: int  # HTTP status, 0 when there was no answer
    why: str  # 'ok', 'status', 'timeout', 'refused', 'blocked', 'insecure', 'retry-after'
    ms: int
    retry_after_ms: int = 0


class GuardedResolver(AbstractResolver):
    """Resolves names, and leaves out addresses that callbacks may not reach: what was allowed when
    the callback was registered may resolve to something else now."""

    def __init__(self, networks: tuple[Network, ...]) -> None:
        self._networks = networks
        self._resolver = aiohttp.ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found = await self._resolver.resolve(host, port, family)
        allowed = [result for result in found if is_allowed(result["host"], self._networks)]
        if not allowed:
            raise OSError(f"{host} resolves to no address that callbacks may reach")
        return allowed

    async def close(self) -> None:
        await self._resolver.close()


class Sender:
    def __init__(self, settings: Settings) -> None:
        self._networks = settings.allow_private_callbacks
        self._needs_https = settings.needs_https_callbacks
        self._timeout = aiohttp.ClientTimeout(
            total=settings.delivery_timeout_ms / 1000, sock_connect=settings.connect_timeout_ms / 1000
        )
        self._session: aiohttp.ClientSession | None = None
        self._credentials: dict[str, str] = {}

    def open(self) -> None:
        connector = aiohttp.TCPConnector(
            limit=0, resolver=GuardedResolver(self._networks), ttl_dns_cache=10, keepalive_timeout=30
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=self._timeout,
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept-Encoding", "Accept"),
        )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def send(self, delivery: Delivery) -> Outcome:
        session = self._session
        if session is None:
            raise RuntimeError("the sender is not open")
        started = time.monotonic()

        def outcome(delivered: bool, code: int, why: str, retry_after_ms: int = 0) -> Outcome:
            return Outcome(delivered, code, why, int((time.monotonic() - started) * 1000), retry_after_ms)

        where = host_of(delivery.callback)
        if where is None or (_is_literal(where[0]) and not is_allowed(where[0], self._networks)):
            return outcome(False, 0, "blocked")
        if self._needs_https and not is_secure(delivery.callback):
            return outcome(False, 0, "insecure")
        body = delivery.body
        try:
            async with session.post(
                delivery.callback, data=body, headers=self._headers(delivery, body), allow_redirects=False
            ) as response:
                code = response.status
                retry_after_ms = (
                    _retry_after_ms(response.headers.get("Retry-After")) if code in (429, 503) else 0
                )
                await _discard(response)
        except TimeoutError:
            return outcome(False, 0, "timeout")
        except (aiohttp.ClientError, OSError, ValueError):
            return outcome(False, 0, "refused")
        if code in CHANNEL_SUCCESS if delivery.format == "channel" else 200 <= code < 300:
            return outcome(True, code, "ok")
        return outcome(False, code, "retry-after" if retry_after_ms else "status", retry_after_ms)

    def _headers(self, delivery: Delivery, body: bytes) -> dict[str, str]:
        now_s = int(time.time())
        headers = {
            "Content-Type": "application/json",
            "Authorization": self._basic(delivery.uuid),
            "User-Agent": "routemaster",
            "webhook-id": delivery.batch,
            "webhook-timestamp": str(now_s),
            "routemaster-attempt": str(delivery.attempt),
        }
        if delivery.lane:
            headers["routemaster-sequence"] = f"{delivery.lane}/{delivery.generation}/{delivery.sequence}"
        else:
            headers["routemaster-test"] = "1"
        if delivery.headers:
            headers |= _own_headers(delivery.headers)
        if delivery.secrets:
            headers["webhook-signature"] = _signatures(delivery.secrets, delivery.batch, now_s, body)
        if delivery.is_replay:
            headers["routemaster-replay"] = "1"
        if trace := _shared_trace(body, delivery.events):
            headers["traceparent"] = trace
        return headers

    def _basic(self, uuid: str) -> str:
        """Old receivers read the password, new ones the username: both are the uuid."""
        known = self._credentials.get(uuid)
        if known is None:
            if len(self._credentials) > 10_000:
                self._credentials.clear()
            known = "Basic " + b64encode(f"{uuid}:{uuid}".encode()).decode()
            self._credentials[uuid] = known
        return known


async def _discard(response: aiohttp.ClientResponse) -> None:
    """Read the body so that the connection can be used again, but not without end: the status has
    said what there is to say."""
    size = response.content_length or 0
    try:
        async with asyncio.timeout(MAX_ANSWER_S):
            while size <= MAX_ANSWER_BYTES and (chunk := await response.content.readany()):
                size += len(chunk)
    except (TimeoutError, aiohttp.ClientError):
        size = MAX_ANSWER_BYTES + 1
    if size > MAX_ANSWER_BYTES:
        response.close()


@lru_cache(4096)
def _own_headers(packed: bytes) -> dict[str, str]:
    return msgspec.json.decode(packed, type=dict[str, str])


@lru_cache(4096)
def _keys(packed: bytes) -> list[tuple[bytes, int]]:
    secrets = msgspec.json.decode(packed, type=list[tuple[str, int]])
    return [(b64decode(secret.removeprefix(SECRET_PREFIX)), until_ms) for secret, until_ms in secrets]


def _signatures(packed: bytes, batch: str, now_s: int, body: bytes) -> str:
    """As Standard Webhooks has it: one for each secret that is valid now, so that a receiver can change."""
    content = b"%s.%d.%s" % (batch.encode(), now_s, body)
    keys = [key for key, until_ms in _keys(packed) if until_ms == 0 or until_ms > now_s * 1000]
    signatures = [b64encode(hmac.digest(key, content, "sha256")).decode() for key in keys]
    return " ".join(f"v1,{signature}" for signature in signatures)


def _shared_trace(body: bytes, events: int) -> str | None:
    """The traceparent of a batch whose events all have the same one (it is each event's last field)."""
    tail = body[-(len(_TRACE) + _TRACE_LENGTH + 3) : -1]
    if tail.startswith(_TRACE) and body.count(tail + SEPARATOR) == events - 1:
        return tail[len(_TRACE) : -2].decode()
    return None


def _is_literal(host: str) -> bool:
    return ":" in host or host.replace(".", "").isdigit()


def _retry_after_ms(header: str | None) -> int:
    if not header:
        return 0
    if header.strip().isdigit():
        return min(MAX_RETRY_AFTER_MS, int(header.strip()[:9]) * 1000)
    try:
        at: Any = parsedate_to_datetime(header)
        return max(0, min(MAX_RETRY_AFTER_MS, int((at.timestamp() - time.time()) * 1000)))
    except (TypeError, ValueError):
        return 0
