"""POST /topics/:name, the path that every event takes. Raw ASGI, no per-request machinery.

Parses, checks and encodes; the flusher stores. An answer is sent only once the events are in the
store for every subscriber.
"""

import asyncio
import re
import time

import msgspec

from routemaster.address import DEFAULT_ENVIRONMENT, environment_text
from routemaster.errors import InvalidInput
from routemaster.event import (
    KEY,
    TRACEPARENT,
    Delivered,
    Event,
    encode_delivered,
    fingerprint,
    key_field,
    parse_many,
    parse_one,
)
from routemaster.settings import Settings
from routemaster.store.registry import Client
from routemaster.uid import Maker
from routemaster.web.access import Access
from routemaster.web.asgi import Receive, Scope, Send, answer_json, read_body
from routemaster.web.flusher import Flusher, Publish, not_owner
from routemaster.web.problem import Problem, unauthorized

PREFIX = "/topics/"
MAX_EVENTS = 10_000
_NDJSON = b"application/x-ndjson"
_JSON = (b"application/json", b"text/json")
_EMPTY: dict[str, object] = {"type": "http.response.body", "body": b""}


class Ingest:
    def __init__(self, settings: Settings, access: Access, flusher: Flusher, uids: Maker) -> None:
        self._settings = settings
        self._access = access
        self._flusher = flusher
        self._uids = uids
        self._topic = re.compile(f"[a-z_]{{1,{settings.max_topic_name}}}")
        self._loop = asyncio.get_running_loop()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        settings = self._settings
        headers: dict[bytes, bytes] = dict(scope["headers"])
        topic: str = scope["path"][len(PREFIX) :]
        if self._topic.fullmatch(topic) is None:
            await self._publisher(headers)
            raise _bad_topic(settings.max_topic_name)
        client, digest = self._access.who(headers.get(b"authorization")) or await self._publisher(headers)
        if client.role != "client":
            await self._publisher(headers)
        owner = self._access.snapshot.owners.get(topic)
        if owner is not None and owner != client.id:
            await self._access.refresh()
            if self._access.snapshot.owners.get(topic, client.id) != client.id:
                raise not_owner(topic)
        body = await read_body(receive, headers, settings.max_body_bytes, settings.request_timeout_ms)
        if self._flusher.pending_bytes + len(body) > settings.max_pending_bytes:
            raise Problem(503, "too much is waiting for the store; try again", [(b"retry-after", b"1")])
        kind = headers.get(b"content-type", b"application/json").split(b";", 1)[0].strip().lower()
        if kind == _NDJSON or body[:1] == b"[" or body.lstrip()[:1] == b"[":
            events = parse_many(body, settings.max_event_data, MAX_EVENTS, lines=kind == _NDJSON)
            await self._store(topic, client, digest, headers, events)
            await answer_json(send, b'{"accepted":%d}' % len(events))
            return
        if kind not in _JSON:
            raise Problem(415, "expected application/json or application/x-ndjson", field="content-type")
        event = parse_one(body, settings.max_event_data)
        if b"idempotency-key" in headers:
            _take_key(event, headers[b"idempotency-key"])
        uid = await self._store(topic, client, digest, headers, [event])
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(b"content-length", b"0"), (b"routemaster-event-id", uid.encode())],
            }
        )
        await send(_EMPTY)

    async def _publisher(self, headers: dict[bytes, bytes]) -> tuple[Client, str]:
        """Who publishes, by a snapshot that is fresh: a refusal must not come from an old one."""
        await self._access.refresh()
        who = self._access.who(headers.get(b"authorization"))
        if who is None:
            raise unauthorized()
        if who[0].role != "client":
            raise Problem(403, f"the role {who[0].role} may not publish")
        return who

    async def _store(
        self, topic: str, client: Client, digest: str, headers: dict[bytes, bytes], events: list[Event]
    ) -> str:
        """Hand the events to the flusher and wait until they are stored; the first one's UID."""
        traceparent = _traceparent(headers.get(b"traceparent"))
        trace = traceparent if traceparent is not None else msgspec.UNSET
        now_ms = time.time_ns() // 1_000_000
        encoded: list[bytes] = []
        addresses: list[str] = []
        keys: list[tuple[str, str]] | None = None
        first = ""
        size = 0
        for event in events:
            uid = self._uids()
            first = first or uid
            environment = (
                DEFAULT_ENVIRONMENT if event.environment is None else environment_text(event.environment)
            )
            line = encode_delivered(
                Delivered(
                    topic,
                    event.type,
                    event.url,
                    now_ms if event.timestamp is None else event.timestamp,
                    event.data or msgspec.UNSET,
                    uid,
                    event.id or msgspec.UNSET,
                    trace,
                )
            )
            size += len(line)
            encoded.append(line)
            addresses.append(f"{environment}:{topic}:{event.type}")
            if event.id is not None:
                keys = keys or [("", "")] * len(events)
                keys[len(encoded) - 1] = (
                    key_field(client.id, topic, event.id),
                    fingerprint(event) + uid,
                )
        if keys is not None and len(events) > 1:
            _check_keys(events)
        future: asyncio.Future[dict[int, str]] = self._loop.create_future()
        self._flusher.submit(
            Publish(
                client.id,
                digest,
                topic,
                traceparent,
                encoded,
                addresses,
                [event.url for event in events],
                keys,
                size,
                future,
            )
        )
        repeated = await future
        return repeated.get(0, first)


def _bad_topic(longest: int) -> InvalidInput:
    return InvalidInput("topic", f"1 to {longest} lowercase letters or underscores")


def _take_key(event: Event, header: bytes) -> None:
    key = header.decode("latin-1").strip()
    if not KEY.fullmatch(key):
        raise InvalidInput("idempotency-key", "1 to 64 letters, digits or any of _ . : -")
    if event.id is not None and event.id != key:
        raise InvalidInput("idempotency-key", "the same as the event's id, where both are given")
    event.id = key


def _check_keys(events: list[Event]) -> None:
    """Within one request a key may stand once."""
    seen: set[str] = set()
    for index, event in enumerate(events):
        if event.id is not None:
            if event.id in seen:
                raise InvalidInput("id", "each id once in one request", index=index)
            seen.add(event.id)


def _traceparent(header: bytes | None) -> str | None:
    if header is None:
        return None
    text = header.decode("latin-1").strip().lower()
    return text if TRACEPARENT.fullmatch(text) else None
