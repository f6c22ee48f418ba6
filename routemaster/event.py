"""Events as publishers send them and as subscribers receive them.

Parsing is one strict decode of the whole body; only when that fails is the body looked at again,
slowly, to say which field of which event is wrong and what was expected. Encoding happens once,
here: these bytes are what the store queues, the log keeps and the worker joins.
"""

import re
from base64 import urlsafe_b64encode
from collections.abc import Callable
from hashlib import blake2b
from itertools import groupby
from typing import Annotated, Any, Literal, cast, get_args

import msgspec

from routemaster.address import DEFAULT_ENVIRONMENT, environment_text
from routemaster.errors import InvalidInput

Type = Literal["create", "update", "delete", "noop"]
TYPES: tuple[str, ...] = get_args(Type)
MAX_URL = 1024
SEPARATOR = b",\n"  # between events, in batches, blocks and bodies; no event holds a line break
MAX_TIMESTAMP_MS = 253_402_300_799_999  # the end of the year 9999
URL = re.compile(r"(?i:https?)://[^\s/?#\x00-\x20\x7f][^\s\x00-\x20\x7f]*")
KEY = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


class Event(msgspec.Struct, forbid_unknown_fields=True):
    """What a publisher sends. `id` is its idempotency key; elsewhere it is called `key`."""

    type: Type
    url: str
    timestamp: Annotated[int, msgspec.Meta(ge=0, le=MAX_TIMESTAMP_MS)] | None = None
    data: msgspec.Raw = msgspec.Raw(b"")
    environment: str | int | None = None
    id: str | None = None


class Delivered(msgspec.Struct):
    """What a subscriber receives. `id` is the UID that we gave."""

    topic: str
    type: str
    url: str
    t: int
    data: msgspec.Raw | msgspec.UnsetType
    id: str
    key: str | msgspec.UnsetType = msgspec.UNSET
    traceparent: str | msgspec.UnsetType = msgspec.UNSET


class ChannelEvent(msgspec.Struct, forbid_unknown_fields=True):
    """What a publisher sends in the channel dialect."""

    event: Literal["created", "updated", "deleted"]
    url: str


class ChannelDelivered(msgspec.Struct):
    """What a subscriber receives in the channel format; `t` is the time of reception."""

    channel: str
    event: str
    url: str
    t: int


CHANNEL_WORDS = {"create": "created", "update": "updated", "delete": "deleted", "noop": "updated"}
_TYPE_OF: dict[str, Type] = {"created": "create", "updated": "update", "deleted": "delete"}
_encoder = msgspec.json.Encoder()
_decode_one = msgspec.json.Decoder(Event).decode
_many = msgspec.json.Decoder(list[Event])
_raws = msgspec.json.Decoder(list[msgspec.Raw])
_lines = msgspec.json.Decoder(Event)
_FIELDS = tuple(field.name for field in msgspec.structs.fields(Event))
_VISIBLE = bytes(range(0x20, 0x7F))
_NOWHERE = re.compile(r" https://(?:[ /?#]|$)")
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def parse_one(body: bytes, max_data: int) -> Event:
    try:
        event = _decode_one(body)
        if is_usable(event, max_data) and (body.isascii() or body.decode()):
            return event
    except _UNREADABLE:
        pass
    field, expected = _problem(_read(body)) or _what_is_left(body, max_data)
    raise InvalidInput(field, expected)


def parse_channel(body: bytes) -> Event:
    """One event in the channel dialect, where any other field is refused."""
    try:
        wanted = msgspec.json.decode(body, type=ChannelEvent)
        if is_url(wanted.url) and (body.isascii() or body.decode()):
            return Event(_TYPE_OF[wanted.event], wanted.url)
    except _UNREADABLE:
        pass
    value = _read(body)
    if not isinstance(value, dict):
        raise InvalidInput("body", "a JSON object")
    fields = cast(dict[str, Any], value)
    for name in fields:
        if name not in ("event", "url"):
            raise InvalidInput(name, "no other fields than event and url")
    event = fields.get("event")
    if not isinstance(event, str) or event not in _TYPE_OF:
        raise InvalidInput("event", f"one of {', '.join(_TYPE_OF)}")
    if not _is_url(fields.get("url")):
        raise InvalidInput("url", _RULES["url"][1])
    raise InvalidInput("body", "each field once")


def parse_many(body: bytes, max_data: int, max_events: int, *, lines: bool) -> list[Event]:
    try:
        events = _lines.decode_lines(body) if lines else _many.decode(body)
        sound = body.isascii() or bool(body.decode())
        if sound and 0 < len(events) <= max_events and are_usable(events, max_data):
            return events
    except _UNREADABLE:
        pass
    raise _explain_many(body, max_data, max_events, lines=lines)


def are_usable(events: list[Event], max_data: int) -> bool:
    """`is_usable` for all of them. What most requests look like is told from all events' texts joined,
    ten times as fast as event by event."""
    if _are_plain(events, max_data):
        return True
    return all(is_usable(event, max_data) for event in events)


def _are_plain(events: list[Event], max_data: int) -> bool:
    """Whether all URLs are https ones in ASCII, all data are objects on one line, and there is nothing else
    to check. A space and a NUL can stand in for a boundary: neither may be in what is joined."""
    size = len(events)
    urls = [event.url for event in events]
    joined = " " + " ".join(urls)
    if (
        not joined.isascii()
        or joined.encode().translate(None, _VISIBLE)  # something else than these
        or joined.count(" ") != size
        or joined.count(" https://") != size
        or _NOWHERE.search(joined)
        or max(map(len, urls)) > MAX_URL
    ):
        return False
    data = [event.data for event in events]
    sizes = list(map(len, data))
    texts = b"\0" + b"\0".join(data)
    if (
        texts.count(b"\0{") + sizes.count(0) != size
        or b"\n" in texts
        or b"\r" in texts
        or max(sizes) > max_data
    ):
        return False
    others = [event.environment for event in events]
    others += [event.id for event in events]
    return others.count(None) == 2 * size


def is_url(url: str) -> bool:
    return len(url) <= MAX_URL and URL.fullmatch(url) is not None


def is_usable(event: Event, max_data: int) -> bool:
    """Whether the values are in range; also brings `data` into the one-line form the log needs."""
    if not is_url(event.url):
        return False
    data = event.data
    if data:
        raw = bytes(data)
        if raw == b"null":
            event.data = msgspec.Raw(b"")
        elif raw[0] != 123:
            return False
        elif len(raw) > max_data or b"\n" in raw or b"\r" in raw:
            raw = msgspec.json.format(raw, indent=-1)
            event.data = msgspec.Raw(raw)
            if len(raw) > max_data:
                return False
    if event.id is not None and KEY.fullmatch(event.id) is None:
        return False
    return event.environment is None or environment_text(event.environment) is not None


def encode_event(topic: str, event: Event, uid: str, now_ms: int, traceparent: str | None) -> bytes:
    """An event as it is delivered."""
    return _encoder.encode(
        Delivered(
            topic,
            event.type,
            event.url,
            now_ms if event.timestamp is None else event.timestamp,
            event.data or msgspec.UNSET,
            uid,
            event.id or msgspec.UNSET,
            msgspec.UNSET if traceparent is None else traceparent,
        )
    )


def encode_events(
    topic: str, events: list[Event], uids: list[str], now_ms: int, traceparent: str | None
) -> list[bytes]:
    """Each event as it is delivered; none of these holds a line break."""
    trace = msgspec.UNSET if traceparent is None else traceparent
    delivered = [
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
        for event, uid in zip(events, uids, strict=True)
    ]
    return _encoder.encode_lines(delivered).split(b"\n")[:-1]


def encode_channel(topic: str, runs: list[tuple[int, str]], urls: list[str], received_at: int) -> list[bytes]:
    """Each event in the channel format; `runs` has their addresses, of which the type is taken."""
    words = [CHANNEL_WORDS[address.rsplit(":", 1)[1]] for events, address in runs for _ in range(events)]
    delivered = [
        ChannelDelivered(topic, word, url, received_at) for word, url in zip(words, urls, strict=True)
    ]
    return _encoder.encode_lines(delivered).split(b"\n")[:-1]


def runs_of(topic: str, events: list[Event]) -> list[tuple[int, str]]:
    """The events' addresses: how many in a row have the same one."""
    types = [event.type for event in events]
    environments = [event.environment for event in events]
    if types.count(types[0]) == len(events) and environments.count(None) == len(events):
        return [(len(events), address_of(topic, None, types[0]))]
    kinds = zip(environments, types, strict=True)
    return [(len(list(run)), address_of(topic, *kind)) for kind, run in groupby(kinds)]


def address_of(topic: str, environment: str | int | None, type: str) -> str:
    return f"{DEFAULT_ENVIRONMENT if environment is None else environment}:{topic}:{type}"


def fingerprint(event: Event) -> str:
    """Eight characters that tell a retried event from another one that bears the same key."""
    head = f"{event.type}\n{event.url}\n{event.timestamp}\n{event.environment!r}\n"
    return _text(blake2b(head.encode() + bytes(event.data), digest_size=6).digest())


def key_field(client: str, topic: str, key: str) -> str:
    """Twenty characters that stand for an idempotency key, scoped to client and topic."""
    return _text(blake2b(f"{client}\n{topic}\n{key}".encode(), digest_size=15).digest())


def _text(digest: bytes) -> str:
    """As text: the store's MessagePack does not know binary strings."""
    return urlsafe_b64encode(digest).decode()


# The slow half: nothing below runs for a request that is accepted.


def _read(body: bytes) -> Any:
    try:
        body.decode()
        return msgspec.json.decode(body)
    except UnicodeDecodeError as error:
        raise InvalidInput("body", f"UTF-8 text (byte {error.start} is not)") from None
    except RecursionError:
        raise InvalidInput("body", "JSON that is nested less deeply") from None
    except msgspec.DecodeError as error:
        raise InvalidInput("body", f"valid JSON ({error})") from None


def _what_is_left(body: bytes, max_data: int) -> tuple[str, str]:
    """When nothing else is wrong with an event that was refused."""
    data = msgspec.json.decode(body, type=dict[str, msgspec.Raw]).get("data", b"")
    if data and len(msgspec.json.format(bytes(data), indent=-1)) > max_data:
        return "data", f"at most {max_data} bytes of JSON"
    return "body", "each field once"


def _explain_many(body: bytes, max_data: int, max_events: int, *, lines: bool) -> InvalidInput:
    """The first thing that is wrong, in the order of the events."""
    if lines:
        items = [line for line in body.split(b"\n") if line.strip()]
    else:
        try:
            items = [bytes(item) for item in _raws.decode(body)]
            body.decode()
        except _UNREADABLE:
            _read(body)
            return InvalidInput("body", "an array of events")
    if not items:
        return InvalidInput("body", "at least one event")
    if len(items) > max_events:
        return InvalidInput("body", f"at most {max_events} events, not {len(items)}")
    for index, item in enumerate(items):
        try:
            parse_one(item, max_data)
        except InvalidInput as error:
            return InvalidInput(error.field, error.expected, index=index)
    return InvalidInput("body", "JSON text in UTF-8")


def _problem(value: Any) -> tuple[str, str] | None:
    """The first thing wrong with one decoded event: its field and what was expected."""
    if not isinstance(value, dict):
        return "body", "a JSON object"
    fields = cast(dict[str, Any], value)
    for name in fields:
        if name not in _FIELDS:
            return name, f"no such field; the fields are {', '.join(_FIELDS)}"
    for name in ("type", "url"):
        if name not in fields:
            return name, "to be present"
    given: dict[str, Any] = {name: item for name, item in fields.items() if item is not None}
    for name, (fits, expected) in _RULES.items():
        if (name in given or name in ("type", "url")) and not fits(given.get(name)):
            return name, expected
    return None


def _is_key(value: Any) -> bool:
    return isinstance(value, str) and KEY.fullmatch(value) is not None


def _is_url(value: Any) -> bool:
    return isinstance(value, str) and is_url(value)


def _is_time(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_TIMESTAMP_MS


def _is_environment(value: Any) -> bool:
    return type(value) in (str, int) and environment_text(value) is not None


_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "type": (lambda value: isinstance(value, str) and value in TYPES, f"one of {', '.join(TYPES)}"),
    "url": (_is_url, f"an http or https URL of at most {MAX_URL} characters"),
    "timestamp": (_is_time, "milliseconds since the epoch, a whole number"),
    "data": (lambda value: isinstance(value, dict), "a JSON object"),
    "environment": (_is_environment, "a whole number, or 1 to 64 letters, digits or any of _ . -"),
    "id": (_is_key, "1 to 64 letters, digits or any of _ . : -"),
}
