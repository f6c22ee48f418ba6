"""POST /topics/:name and /channel/:name, the path that every event takes. No task and no machinery per
request.

Parses, checks and encodes; the flusher stores. An answer is sent only once the events are in the
store for every subscriber.
"""

import re
import time
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from routemaster.errors import InvalidInput
from routemaster.event import (
    KEY,
    MAX_TIMESTAMP_MS,
    TRACEPARENT,
    Event,
    Type,
    address_of,
    encode_event,
    encode_events,
    fingerprint,
    key_field,
    parse_channel,
    parse_many,
    parse_one,
    runs_of,
)
from routemaster.settings import Settings
from routemaster.store.clients import Client
from routemaster.uid import Maker
from routemaster.web.access import Access
from routemaster.web.calls import Operation
from routemaster.web.flush import Publish
from routemaster.web.flusher import Flusher, not_granted, not_owner
from routemaster.web.problem import Problem
from routemaster.web.server import Post
from routemaster.web.shapes import Environment, EventKey, EventUrl
from routemaster.web.tls import HttpsOnly

MAX_EVENTS = 10_000
_NDJSON = b"application/x-ndjson"
# The last is what `curl -d` says when it is told nothing.
_JSON = (b"application/json", b"text/json", b"application/x-www-form-urlencoded")
_ONE_STORED = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nroutemaster-event-id: "
_CHANNEL_STORED = b"HTTP/1.1 204 No Content\r\n\r\n"
_MANY_STORED = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"


class EventShape(msgspec.Struct, rename={"kind": "type"}, forbid_unknown_fields=True):
    """What the document says of an event; `Event` is what it is decoded as, without a regex on the way."""

    kind: Type
    url: EventUrl
    timestamp: Annotated[int, Meta(ge=0, le=MAX_TIMESTAMP_MS, description="ms; else when it came")] | None = (
        None
    )
    data: Annotated[dict[str, Any], Meta(description="travels along; small")] | None = None
    environment: Environment | Annotated[int, Meta(description="as its decimal form")] | None = None
    id: EventKey | None = None


class ChannelShape(msgspec.Struct, forbid_unknown_fields=True):
    event: Literal["created", "updated", "deleted"]
    url: EventUrl


PUBLISHING = [
    Operation(
        method="POST",
        path="/topics/{topic}",
        summary="Publish one event, or many; the first client to publish to a topic owns it.",
        takes=EventShape | Annotated[list[EventShape], Meta(min_length=1, max_length=MAX_EVENTS)],
        kinds={"application/x-ndjson": str},
        gives={200: None, 409: None},
        notes='Of a single event the answer is empty; of many it is {"accepted": n}.',
        headers={"routemaster-event-id": "the UID of a single event"},
        act=None,
    ),
    Operation(
        method="POST",
        path="/channel/{channel}",
        summary="Publish one event in the channel dialect.",
        takes=ChannelShape,
        gives={204: None},
        is_empty=True,
        act=None,
    ),
]


class Ingest:
    def __init__(
        self, settings: Settings, access: Access, flusher: Flusher, uids: Maker, https: HttpsOnly | None
    ) -> None:
        self._https = https
        self._max_data = settings.max_event_data
        self._access = access
        self._flusher = flusher
        self._uids = uids
        self._topic = re.compile(f"[a-z_]{{1,{settings.max_topic_name}}}")
        self._bad_topic = InvalidInput(
            "topic", f"1 to {settings.max_topic_name} lowercase letters or underscores"
        )

    async def admit(self, post: Post) -> None:
        """Refuse a large body of somebody unknown before it is read."""
        headers = dict(post.headers)
        self._check_tls(post, headers)
        if self._access.who(headers.get(b"authorization"), post.peer, headers) is None:
            await self._access.identify(headers, "POST", post.target, post.peer, spends=False)

    def take(self, post: Post) -> None:
        """Accept a request by the snapshot; what that would refuse is looked at with a fresh one."""
        headers = dict(post.headers)
        if self._https is not None:
            self._check_tls(post, headers)
        who = self._access.who(headers.get(b"authorization"), post.peer, headers)
        if who is None or self._refusal(who[0], post.topic) is not None:
            post.later(self._take_fresh(post, headers))
        else:
            self._accept(post, headers, *who)

    async def _take_fresh(self, post: Post, headers: dict[bytes, bytes]) -> None:
        who = await self._access.identify(headers, "POST", post.target, post.peer)
        refusal = self._refusal(who[0], post.topic)
        if refusal is not None:
            raise refusal
        self._accept(post, headers, *who)

    def _check_tls(self, post: Post, headers: dict[bytes, bytes]) -> None:
        redirect = self._https and self._https.redirect(post.scheme, post.peer, headers, post.target)
        if redirect:
            raise redirect

    def _refusal(self, client: Client, topic: str) -> Problem | InvalidInput | None:
        if client.role != "client":
            return Problem(403, f"the role {client.role} may not publish")
        owner = self._access.snapshot.owners.get(topic)
        if owner is None and not self._topic.fullmatch(topic):
            return self._bad_topic
        if client.grants.publish is not None and not self._access.snapshot.may_publish(client.id, topic):
            return not_granted(topic)
        return None if owner is None or owner == client.id else not_owner(topic)

    def _accept(self, post: Post, headers: dict[bytes, bytes], client: Client, digest: str) -> None:
        """Parse, encode once, and hand over to the flusher."""
        body = post.body
        kind = headers.get(b"content-type", b"application/json")
        if kind != b"application/json":
            kind = kind.split(b";", 1)[0].strip().lower()
        trace = _traceparent(headers[b"traceparent"]) if b"traceparent" in headers else None
        if post.is_channel:
            event = parse_channel(body)
            if b"idempotency-key" in headers:
                _take_key(event, headers[b"idempotency-key"])
            self._submit_one(post, client, digest, trace, event)
        elif kind == _NDJSON or body[:1] == b"[" or body.lstrip()[:1] == b"[":
            events = parse_many(body, self._max_data, MAX_EVENTS, lines=kind == _NDJSON)
            self._submit_many(post, client, digest, trace, events)
        elif kind in _JSON:
            event = parse_one(body, self._max_data)
            if b"idempotency-key" in headers:
                _take_key(event, headers[b"idempotency-key"])
            self._submit_one(post, client, digest, trace, event)
        else:
            raise Problem(415, "expected application/json or application/x-ndjson", field="content-type")

    def _submit_one(self, post: Post, client: Client, digest: str, trace: str | None, event: Event) -> None:
        topic = post.topic
        uid = self._uids()
        now_ms = time.time_ns() // 1_000_000
        line = encode_event(topic, event, uid, now_ms, trace)
        keys = None if event.id is None else [_key(client, topic, event, uid)]
        runs = [(1, address_of(topic, event.environment, event.type))]
        self._flusher.submit(
            Publish(
                post,
                _answer_channel if post.is_channel else _answer_one,
                client.id,
                digest,
                topic,
                trace,
                [line],
                [uid],
                runs,
                [event.url],
                keys,
                len(line),
                now_ms,
            )
        )

    def _submit_many(
        self, post: Post, client: Client, digest: str, trace: str | None, events: list[Event]
    ) -> None:
        topic = post.topic
        uids = self._uids.many(len(events))
        now_ms = time.time_ns() // 1_000_000
        lines = encode_events(topic, events, uids, now_ms, trace)
        runs = runs_of(topic, events)
        urls = [event.url for event in events]
        keys = _keys(client, topic, events, uids)
        size = sum(map(len, lines))
        self._flusher.submit(
            Publish(
                post,
                _answer_many,
                client.id,
                digest,
                topic,
                trace,
                lines,
                uids,
                runs,
                urls,
                keys,
                size,
                now_ms,
            )
        )


def _answer_one(publish: Publish) -> None:
    uid = publish.repeated[0] if publish.repeated else publish.uids[0]
    publish.post.answer(_ONE_STORED + uid.encode() + b"\r\n\r\n")


def _answer_channel(publish: Publish) -> None:
    publish.post.answer(_CHANNEL_STORED)


def _answer_many(publish: Publish) -> None:
    body = b'{"accepted":%d}' % len(publish.lines)
    publish.post.answer(_MANY_STORED % len(body) + body)


def _key(client: Client, topic: str, event: Event, uid: str) -> tuple[str, str]:
    """The field and the value of an event's idempotency key; empty where it has none."""
    if event.id is None:
        return "", ""
    return key_field(client.id, topic, event.id), fingerprint(event) + uid


def _keys(client: Client, topic: str, events: list[Event], uids: list[str]) -> list[tuple[str, str]] | None:
    given = [event.id for event in events if event.id is not None]
    if not given:
        return None
    if len(set(given)) < len(given):
        seen: set[str | None] = {None}
        for index, event in enumerate(events):
            if event.id is not None and event.id in seen:
                raise InvalidInput("id", "each id once in one request", index=index)
            seen.add(event.id)
    return [_key(client, topic, event, uid) for event, uid in zip(events, uids, strict=True)]


def _take_key(event: Event, header: bytes) -> None:
    key = header.decode("latin-1").strip()
    if not KEY.fullmatch(key):
        raise InvalidInput("idempotency-key", "1 to 64 letters, digits or any of _ . : -")
    if event.id is not None and event.id != key:
        raise InvalidInput("idempotency-key", "the same as the event's id, where both are given")
    event.id = key


def _traceparent(header: bytes) -> str | None:
    text = header.decode("latin-1").strip().lower()
    return text if TRACEPARENT.fullmatch(text) else None
