"""The registry: clients, topics, subscriptions. Every change of it gives the bus a new epoch."""

from typing import Any, NamedTuple

import msgspec

from routemaster.store.link import Link
from routemaster.store.script import Script
from routemaster.uid import Maker

_SNAPSHOT = Script("snapshot")
_ADD_CLIENT = Script("add_client")
_DELETE_CLIENT = Script("delete_client")
_SUBSCRIBE = Script("subscribe")
_UNSUBSCRIBE = Script("unsubscribe")
_DELETE_TOPIC = Script("delete_topic")
_LIST_TOPICS = Script("list_topics")
_LIST_SUBSCRIBERS = Script("list_subscribers")


class Client(msgspec.Struct, frozen=True):
    id: str
    name: str
    role: str
    tokens: tuple[str, ...]  # digests: the tokens themselves are nowhere


class ClientRecord(msgspec.Struct):
    name: str
    role: str
    created_at: int
    tokens: list[str]


class Subscription(msgspec.Struct, frozen=True):
    """What routing needs of a subscription."""

    id: str
    client: str
    max_events: int
    timeout_ms: int
    incarnation: str
    set: int
    parallelism: int
    topics: frozenset[str]


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
    uuid: str
    callback: str
    max_events: int
    timeout_ms: int
    health_points: int
    last_attempted_at: int | None
    parallelism: int
    paused: bool
    sent: int
    queued: int
    oldest: int | None
    topics: list[str]


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

    async def add_client(self, client: str, record: ClientRecord) -> bool:
        text = msgspec.json.encode(record)
        return bool(await self._run(_ADD_CLIENT, self._uids(), client, text, record.tokens[0]))

    async def delete_client(self, client: str, digest: str) -> bool:
        return bool(await self._run(_DELETE_CLIENT, self._uids(), client, digest))

    async def subscribe(
        self, subscriber: str, client: str, parallelism: int, fields: dict[str, str | int], topics: list[str]
    ) -> bool:
        """Whether the client is still there to subscribe."""
        flat: list[str | int] = [item for pair in fields.items() for item in pair]
        changed = await self._run(
            _SUBSCRIBE,
            self._uids(),
            subscriber,
            client,
            self._uids()[-12:],
            parallelism,
            msgspec.msgpack.encode(flat),
            *topics,
        )
        return int(changed) >= 0

    async def unsubscribe(self, subscriber: str, topic: str = "") -> bool:
        return bool(await self._run(_UNSUBSCRIBE, self._uids(), subscriber, topic))

    async def delete_topic(self, topic: str, client: str) -> str:
        """'done', 'denied' or 'unknown'."""
        return (await self._run(_DELETE_TOPIC, self._uids(), topic, client)).decode()

    async def topics(self) -> list[tuple[str, str | None, int]]:
        reply = await self._run(_LIST_TOPICS)
        return sorted((name.decode(), owner.decode() or None, int(count)) for name, owner, count in reply)

    async def subscribers(self) -> list[SubscriberRow]:
        reply = await self._run(_LIST_SUBSCRIBERS)
        return sorted((_row(fields) for fields in reply), key=lambda row: row.id)

    async def _run(self, script: Script, *args: str | bytes | int) -> Any:
        return await self._link.run(script, self._namespace, *args)


def _client(client: str, record: bytes) -> Client | None:
    if not record:
        return None
    known = msgspec.json.decode(record, type=ClientRecord)
    return Client(client, known.name, known.role, tuple(known.tokens))


def _subscription(subscriber: str, record: Any) -> Subscription | None:
    if not record:
        return None
    client, max_events, timeout, incarnation, number, parallelism, topics = record
    return Subscription(
        subscriber,
        client.decode(),
        int(max_events),
        int(timeout),
        incarnation.decode(),
        int(number),
        int(parallelism),
        frozenset(topic.decode() for topic in topics),
    )


def _row(fields: Any) -> SubscriberRow:
    text = [field.decode() if isinstance(field, bytes) else str(field) for field in fields[:13]]
    return SubscriberRow(
        id=text[0],
        client=text[1],
        uuid=text[2],
        callback=text[3],
        max_events=int(text[4]),
        timeout_ms=int(text[5]),
        health_points=int(text[6]),
        last_attempted_at=int(text[7]) if text[7] else None,
        parallelism=int(text[8]),
        paused=text[9] == "1",
        sent=int(text[10]),
        queued=int(text[11]),
        oldest=int(text[12]) if text[12] else None,
        topics=sorted(topic.decode() for topic in fields[13]),
    )
