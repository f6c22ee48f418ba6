"""How the original wrote its store, in its last layout: names of keys, and what their values mean. No I/O.

A message in a batch is MessagePack `[code, {letter: value, …}]`: `e` for an event, with its timestamp (t),
topic (o), type (y), URL (u) and data (d). What cannot be read raises Unreadable, which never shows a token.
"""

import re
from typing import Any, NamedTuple, cast

import msgspec

from routemaster.errors import RoutemasterError
from routemaster.event import MAX_TIMESTAMP_MS, TYPES

PREFIXES = ("", "rm:")  # of its last version, and of those before
TOKENS = "api_tokens:by_token"
BATCH_KEYS = ("batches:", "batch:")  # in the same two versions
HEADER = 3  # items of a batch before its messages
TOPIC = re.compile(r"[a-z_]{1,64}")
SIGNS = ("topics", "subscribers", "batches:index", TOKENS)  # any of these: somebody's bus
OURS = "layout"  # a key that only we write
OLDER = ("subscriptions", "batches:early:by_subscriber", "batches:early:by_deadline", "batches:ready:queue")
EVENT, OTHERS = "e", ("p", "k")  # pings and kills were never delivered


class Unreadable(RoutemasterError):
    """Its text says what is wrong."""


class Message(NamedTuple):
    topic: str
    type: str
    url: str
    t: int
    data: msgspec.Raw  # JSON on one line; empty where there is none


class Head(NamedTuple):
    """The first items of a batch."""

    subscriber: str
    created_at: int
    attempts: int


def read_head(items: list[bytes]) -> Head:
    if len(items) < HEADER:
        raise Unreadable(f"it has {len(items)} items, fewer than the {HEADER} that each batch begins with")
    created_at, attempts = (_whole(item) for item in items[1:HEADER])
    if created_at is None or attempts is None:
        raise Unreadable("its time of creation or its attempts are no numbers")
    return Head(text_of(items[0]), created_at, attempts)


def read_message(item: bytes) -> Message | None:
    """None for what is no event."""
    try:
        code, fields = msgspec.msgpack.decode(item)
        code, fields = _plain(code), _plain(fields)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError, ValueError):
        raise Unreadable("it is not the MessagePack of a code and its fields") from None
    if code in OTHERS:
        return None
    if code != EVENT or not isinstance(fields, dict):
        raise Unreadable("it is of no kind that is known")
    return _event(cast(dict[str, Any], fields))


def _event(fields: dict[str, Any]) -> Message:
    topic, kind, url, data = (fields.get(name) for name in "oyud")
    t = _time(fields.get("t"))
    if not isinstance(topic, str) or not TOPIC.fullmatch(topic):
        raise Unreadable("its topic is none")
    if kind not in TYPES:
        raise Unreadable("its type is none of " + ", ".join(TYPES))
    if not isinstance(url, str) or not url:
        raise Unreadable("it has no URL")
    if t is None:
        raise Unreadable("its timestamp is none")
    if data is not None and not isinstance(data, dict):
        raise Unreadable("its data is no object")
    try:
        raw = b"" if data is None else msgspec.json.encode(data)
        url.encode()
    except (TypeError, ValueError, RecursionError):
        raise Unreadable("its data or URL cannot be written as JSON") from None
    return Message(topic, cast(str, kind), url, t, msgspec.Raw(raw))


def _time(value: Any) -> int | None:
    """Publishers could give a time of their own, and nothing made sure that it was a number."""
    if isinstance(value, float) and value == value and abs(value) < MAX_TIMESTAMP_MS:
        value = int(value)
    if isinstance(value, str):
        value = _whole(value.encode())
    return value if type(value) is int and 0 <= value <= MAX_TIMESTAMP_MS else None


def _plain(value: Any) -> Any:
    """Text as text: what Ruby held as bytes was written as binary."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, dict):
        found = cast(dict[Any, Any], value)
        return {_plain(name): _plain(item) for name, item in found.items()}
    if isinstance(value, list):
        return [_plain(item) for item in cast(list[Any], value)]
    return value


class Subscriber(NamedTuple):
    """A subscription as it was there; `token` stands for the client that it belongs to."""

    token: str
    callback: str
    uuid: str
    timeout_ms: int
    max_events: int
    health_points: int
    last_attempted_at: int | None
    topics: frozenset[str]


def read_subscriber(token: str, fields: dict[bytes, bytes], topics: set[str]) -> Subscriber:
    """Numbers that are none count as absent, as they did there."""

    def number(name: bytes, otherwise: int, least: int, most: int) -> int:
        found = _whole(fields.get(name, b""))
        return otherwise if found is None else max(least, min(most, found))

    return Subscriber(
        token,
        text_of(fields.get(b"callback", b"")),
        text_of(fields.get(b"uuid", b"")),
        number(b"timeout", 500, 0, 3_600_000),
        number(b"max_events", 100, 1, 2**53),
        number(b"health_points", 100, 0, 100),
        _whole(fields.get(b"last_attempted_at", b"")),
        frozenset(topics),
    )


class Counter(NamedTuple):
    """A counter as it was there: it was emptied every few seconds, when it was reported."""

    name: str
    tags: dict[str, str]
    value: int


def read_counter(field: bytes, value: bytes) -> Counter:
    try:
        name, tags = _plain(msgspec.msgpack.decode(field))
        return Counter(str(name), {str(tag): str(item) for tag, item in tags}, int(value))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError, ValueError):
        raise Unreadable("it is not the MessagePack of a name and its tags") from None


def text_of(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise Unreadable("it is no text") from None


def name_of(token: str, service: str = "") -> str:
    """What a client is to be called in public: never the token, nor the part of it that is secret."""
    name, dashes, _ = token.partition("--")
    if not dashes:
        name = "" if service == token else service.partition("--")[0]
    return re.sub(r"[^A-Za-z0-9_.-]", "-", name)[:48] or "client"


def _whole(value: bytes) -> int | None:
    return int(value) if re.fullmatch(rb"-?[0-9]{1,18}", value) else None
