"""The routing snapshot: what a web process knows of the registry, and the epoch it is true of.

Authentication, ownership and routing happen here, in memory. A snapshot is never changed once it
is in use, but for memos (routes, credentials) and claims that the store has confirmed.
"""

import zlib
from collections.abc import Iterable
from typing import NamedTuple, TypeVar

import msgspec

from routemaster.credential import Token
from routemaster.pattern import glob_matches, matches
from routemaster.store.clients import Client
from routemaster.store.registry import Changes, Subscription

MEMO_LIMIT = 100_000
TOPIC_FORMAT, CHANNEL_FORMAT = 1, 2  # as the flush knows them
_T = TypeVar("_T")


class Lane(NamedTuple):
    name: str
    subscriber: str
    max_events: int
    timeout_ms: int
    format: int = TOPIC_FORMAT


class Route:
    """Where the events of one address go. Addresses that go to the same lanes share one."""

    __slots__ = ("has_channel", "lanes", "opens", "packed", "parallel", "width")

    def __init__(self, subscriptions: list[Subscription]) -> None:
        self.lanes = [lanes_of(sub)[0] for sub in subscriptions if sub.parallelism == 1]
        self.parallel = [lanes_of(sub) for sub in subscriptions if sub.parallelism > 1]
        self.packed = msgspec.msgpack.encode(self.lanes)
        self.width = len(subscriptions)
        self.opens = sum(1 / sub.max_events for sub in subscriptions)
        self.has_channel = any(sub.is_channel for sub in subscriptions)

    def lane_for(self, lanes: list[Lane], url: str) -> Lane:
        """Events of one entity stay in one lane, so that their order holds."""
        return lanes[zlib.crc32(url.encode()) % len(lanes)]


def lanes_of(sub: Subscription) -> list[Lane]:
    form = CHANNEL_FORMAT if sub.is_channel else TOPIC_FORMAT
    return [
        Lane(f"{sub.id}#{sub.incarnation}.{sub.set}.{n}", sub.id, sub.max_events, sub.timeout_ms, form)
        for n in range(sub.parallelism)
    ]


class Bearer(NamedTuple):
    """Who a token stands for."""

    client: Client
    token: Token


class Snapshot:
    def __init__(
        self,
        epoch: bytes,
        clients: dict[str, Client],
        owners: dict[str, str],
        subscriptions: dict[str, Subscription],
    ) -> None:
        self.epoch = epoch
        self.clients = clients
        self.owners = owners
        self.subscriptions = subscriptions
        self.by_digest = {
            token.digest: Bearer(client, token) for client in clients.values() for token in client.tokens
        }
        self.credentials: dict[bytes, tuple[Client, str]] = {}
        self._by_name: dict[str, list[Client]] | None = None
        self._by_topic: dict[str, list[Subscription]] = {}
        for sub in subscriptions.values():
            for topic in sub.topics:
                self._by_topic.setdefault(topic, []).append(sub)
        self._matching = [sub for sub in subscriptions.values() if sub.match]
        self._routes: dict[str, Route] = {}
        self._shared: dict[tuple[str, ...], Route] = {}
        self._granted: dict[tuple[str, str], bool] = {}

    def route(self, address: str) -> Route:
        route = self._routes.get(address)
        if route is None:
            if len(self._routes) >= MEMO_LIMIT:
                self._routes.clear()
            subs = self._subscriptions_of(address)
            key = tuple(sub.id for sub in subs)
            route = (
                self._shared.setdefault(key, Route(subs)) if key not in self._shared else self._shared[key]
            )
            self._routes[address] = route
        return route

    def _subscriptions_of(self, address: str) -> list[Subscription]:
        """Who receives what comes at an address: one copy each, however they ask for it."""
        found = {sub.id: sub for sub in self._by_topic.get(address.split(":")[1], ())}
        for sub in self._matching:
            if sub.id not in found and matches(sub.match, address):
                found[sub.id] = sub
        return [found[id] for id in sorted(found) if self.may_read(found[id].client, address)]

    def named(self, user: str) -> Client | None:
        """The client of this id, or of this name where only one bears it."""
        known = self.clients.get(user)
        if known is not None:
            return known
        if self._by_name is None:
            self._by_name = {}
            for client in self.clients.values():
                self._by_name.setdefault(client.name, []).append(client)
        bearers = self._by_name.get(user, [])
        return bearers[0] if len(bearers) == 1 else None

    def may_publish(self, client: str, topic: str) -> bool:
        granted = self._granted.get((client, topic))
        if granted is None:
            known = self.clients.get(client)
            granted = known is not None and (
                known.grants.publish is None or glob_matches(known.grants.publish, topic)
            )
            if len(self._granted) < MEMO_LIMIT:
                self._granted[client, topic] = granted
        return granted

    def may_read(self, client: str, address: str) -> bool:
        known = self.clients.get(client)
        return known is None or known.grants.read is None or glob_matches(known.grants.read, address)

    def changed(self, changes: Changes) -> "Snapshot":
        """The snapshot after these changes."""
        if changes.is_all:
            return Snapshot(
                changes.epoch,
                dict(_present(changes.clients.items())),
                {topic: owner for topic, owner in changes.topics.items() if owner},
                dict(_present(changes.subscriptions.items())),
            )
        clients, owners, subs = dict(self.clients), dict(self.owners), dict(self.subscriptions)
        _apply(clients, changes.clients)
        _apply(owners, {topic: owner or None for topic, owner in changes.topics.items()})
        _apply(subs, changes.subscriptions)
        return Snapshot(changes.epoch, clients, owners, subs)


def _present(items: Iterable[tuple[str, _T | None]]) -> Iterable[tuple[str, _T]]:
    return ((name, value) for name, value in items if value is not None)


def _apply(known: dict[str, _T], changes: dict[str, _T | None]) -> None:
    for name, value in changes.items():
        if value is None:
            known.pop(name, None)
        else:
            known[name] = value
