"""The registry: topics, subscriptions, and reading all. Every change of it gives the bus a new epoch."""

from typing import Any, NamedTuple

import msgspec
import structlog

from routemaster.store.clients import Client, ClientRecord
from routemaster.store.link import Link
from routemaster.store.script import Script
from routemaster.uid import Maker, encode

log = structlog.get_logger("store")
_SNAPSHOT = Script("snapshot")
_SUBSCRIBE = Script("subscribe")
_UNSUBSCRIBE = Script("unsubscribe")
_DELETE_TOPIC = Script("delete_topic")
_LIST_TOPICS = Script("list_topics")
_LIST_SUBSCRIBERS = Script("list_subscribers")
_PAUSE = Script("pause")
_SPLIT = 1000  # batches that subscribe.lua may make in one call
_STEP, _STEP_LANES = 100, 250  # subscribers, and lanes, looked at in one call


class Subscription(msgspec.Struct, frozen=True):
    """What routing needs of a subscription."""

    id: str
    client: str
    max_events: int
    timeout_ms: int
    incarnation: str
    set: int
    parallelism: int
    is_channel: bool
    match: tuple[str, ...]
    topics: frozenset[str]


class Wanted(NamedTuple):
    """A subscription as it is asked for."""

    subscriber: str
    client: str
    parallelism: int
    fields: dict[str, str | int | float]  # '' takes one away
    secret: str  # '' to keep it, '-' for none
    grace_ms: int  # how long the secret before it goes on
    topics: set[str]
    token: str = ""  # digest of the one that it is asked with


class Changes(NamedTuple):
    """The registry, or what has changed in it; None stands for what is gone."""

    epoch: bytes
    is_all: bool
    clients: dict[str, Client | None]
    topics: dict[str, str | None]  # its publisher, '' while unclaimed
    subscriptions: dict[str, Subscription | None]


class SubscriberRow(NamedTuple):
    id: str
    client: str
    name: str | None
    uuid: str
    callback: str
    max_events: int
    timeout_ms: int
    topics: list[str]
    match: list[str]
    parallelism: int
    max_rate: float | None
    max_attempts: int | None
    headers: dict[str, str]
    secrets: list[tuple[str, int]]  # and until when; 0 for the one that stays
    is_channel: bool
    paused: bool
    sent: int
    failed: int
    dropped: int
    queued: int
    dead: int
    oldest: int | None
    health_points: int
    last_attempted_at: int | None
    retry_at: int | None
    why: str | None


class Registry:
    def __init__(self, link: Link, namespace: str, uids: Maker) -> None:
        self._link = link
        self._namespace = namespace
        self._uids = uids

    async def epoch(self) -> bytes | None:
        return await self._link.call("GET", f"{self._namespace}epoch")

    async def read(self, epoch: bytes) -> Changes:
        reply = await self._run(_SNAPSHOT, epoch, self._uids())
        return Changes(
            reply[0],
            reply[1] == b"all",
            {name.decode(): _client(name.decode(), record) for name, record in reply[2]},
            {name.decode(): record[0].decode() if record else None for name, record in reply[3]},
            {name.decode(): _subscription(name.decode(), record) for name, record in reply[4]},
        )

    async def subscribe(self, wanted: "Wanted", *, adds: bool = False) -> str:
        """'changed', 'same', 'gone' (the client), 'taken' (the id is another client's) or, where it only
        adds, 'unknown' (a topic)."""
        flat: list[str | int | float] = [item for pair in wanted.fields.items() for item in pair]
        outcome = b"split"
        while outcome == b"split":
            prefix, number = self._uids.range(1 + _SPLIT)
            outcome = await self._run(
                _SUBSCRIBE,
                prefix + encode(number, 5),
                wanted.subscriber,
                wanted.client,
                self._uids()[-12:],
                wanted.parallelism,
                msgspec.msgpack.encode(flat),
                wanted.secret,
                wanted.grace_ms,
                "add" if adds else "replace",
                wanted.token,
                *sorted(wanted.topics),
            )
        return outcome.decode()

    async def pause(self, subscriber: str, *, paused: bool) -> bool:
        return bool(await self._run(_PAUSE, subscriber, "1" if paused else ""))

    async def subscriber(self, subscriber: str) -> dict[str, bytes] | None:
        """The fields of one subscription."""
        flat = await self._link.call("HGETALL", f"{self._namespace}subscriber:{subscriber}")
        return {name.decode(): value for name, value in zip(flat[::2], flat[1::2], strict=True)} or None

    async def unsubscribe(self, subscriber: str, topic: str = "") -> bool:
        return bool(await self._run(_UNSUBSCRIBE, self._uids(), subscriber, topic))

    async def delete_topic(self, topic: str, client: str) -> str:
        """'done', 'denied' or 'unknown'."""
        return (await self._run(_DELETE_TOPIC, self._uids(), topic, client)).decode()

    async def topics(self) -> list[tuple[str, str | None, int]]:
        reply = await self._run(_LIST_TOPICS)
        return sorted((name.decode(), owner.decode() or None, int(count)) for name, owner, count in reply)

    async def subscribers(self) -> list[SubscriberRow]:
        """All of them, read in steps: one that comes or goes meanwhile may be missing."""
        names: list[bytes] = await self._link.call("SMEMBERS", f"{self._namespace}subscribers")
        left = sorted(name.decode() for name in names)
        found: list[SubscriberRow] = []
        while left:
            rows: list[Any] = await self._run(_LIST_SUBSCRIBERS, _STEP_LANES, *left[:_STEP])
            found += [_row(fields) for fields in rows if fields]
            left = left[len(rows) :]
        return found

    async def _run(self, script: Script, *args: str | bytes | int) -> Any:
        return await self._link.run(script, self._namespace, *args)


def _client(client: str, record: bytes) -> Client | None:
    if not record:
        return None
    try:
        return msgspec.json.decode(record, type=ClientRecord).client(client)
    except msgspec.DecodeError as error:
        # One damaged record must not keep everybody else out.
        log.error("a client's record cannot be read; nobody gets in as it", client=client, reason=str(error))
        return None


def _subscription(subscriber: str, record: Any) -> Subscription | None:
    if not record:
        return None
    client, max_events, timeout, incarnation, number, parallelism, form, match, topics = record
    return Subscription(
        subscriber,
        client.decode(),
        int(max_events),
        int(timeout),
        incarnation.decode(),
        int(number),
        int(parallelism),
        form == b"channel",
        tuple(_texts(match)),
        frozenset(topic.decode() for topic in topics),
    )


def _row(reply: Any) -> SubscriberRow:
    id, flat, topics, counts, oldest, retry_at, why = reply
    fields: dict[str, bytes] = {
        name.decode(): value for name, value in zip(flat[::2], flat[1::2], strict=True)
    }
    sent, failed, dropped, queued, dead = map(int, counts)

    def text(name: str) -> str:
        return fields.get(name, b"").decode()

    return SubscriberRow(
        id=id.decode(),
        client=text("client"),
        name=text("name") or None,
        uuid=text("uuid"),
        callback=text("callback"),
        max_events=int(text("max_events")),
        timeout_ms=int(text("timeout")),
        topics=sorted(topic.decode() for topic in topics),
        match=_texts(fields.get("match", b"")),
        parallelism=int(text("parallelism")),
        max_rate=float(text("max_rate")) if "max_rate" in fields else None,
        max_attempts=int(text("max_attempts")) if "max_attempts" in fields else None,
        headers=msgspec.json.decode(fields.get("headers", b"{}"), type=dict[str, str]),
        secrets=msgspec.json.decode(fields.get("secrets", b"[]"), type=list[tuple[str, int]]),
        is_channel=text("format") == "channel",
        paused="paused" in fields,
        sent=sent,
        failed=failed,
        dropped=dropped,
        queued=queued,
        dead=dead,
        oldest=int(oldest) if oldest else None,
        health_points=int(text("health_points")),
        last_attempted_at=int(text("last_attempted_at")) if "last_attempted_at" in fields else None,
        retry_at=int(retry_at) if retry_at else None,
        why=why.decode() or None,
    )


def _texts(packed: bytes) -> list[str]:
    return msgspec.json.decode(packed, type=list[str]) if packed else []
