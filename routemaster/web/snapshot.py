"""The routing snapshot: what a web process knows of the registry, and the epoch it is true of.

Authentication, ownership and routing happen here, in memory. A snapshot is never changed once it
is in use, but for memos (routes, credentials) and claims that the store has confirmed.
"""

import hashlib
import zlib
from collections.abc import Iterable
from typing import NamedTuple, TypeVar

import msgspec

from routemaster.store.registry import Changes, Client, Subscription

MEMO_LIMIT = 100_000
_T = TypeVar("_T")


class Lane(NamedTuple):
    name: str
    subscriber: str
    max_events: int
    timeout_ms: int


class Route:
    """Where the events of one address go. Addresses that go to the same lanes share one."""

    __slots__ = ("lanes", "packed", "parallel", "width")

    def __init__(self, subscriptions: list[Subscription]) -> None:
        self.lanes = [lanes_of(sub)[0] for sub in subscriptions if sub.parallelism == 1]
        self.parallel = [lanes_of(sub) for sub in subscriptions if sub.parallelism > 1]
        self.packed = msgspec.msgpack.encode(self.lanes)
        self.width = len(subscriptions)

    def lane_for(self, lanes: list[Lane], url: str) -> Lane:
        """Events of one entity stay in one lane, so that their order holds."""
        return lanes[zlib.crc32(url.encode()) % len(lanes)]


def lanes_of(sub: Subscription) -> list[Lane]:
    return [
        Lane(f"{sub.id}#{sub.incarnation}.{sub.set}.{n}", sub.id, sub.max_events, sub.timeout_ms)
        for n in range(sub.parallelism)
    ]


def digest_of(token: str) -> str:
    """What is stored in place of a token. Tokens are long and random, so a plain hash serves."""
    return hashlib.sha256(token.encode()).hexdigest()


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
        self.by_digest = {digest: client for client in clients.values() for digest in client.tokens}
        self.credentials: dict[bytes, tuple[Client, str]] = {}
        self._by_topic: dict[str, list[Subscription]] = {}
        for sub in subscriptions.values():
            for topic in sub.topics:
                self._by_topic.setdefault(topic, []).append(sub)
        self._routes: dict[str, Route] = {}
        self._shared: dict[tuple[str, ...], Route] = {}

    def route(self, address: str) -> Route:
        route = self._routes.get(address)
        if route is None:
            if len(self._routes) >= MEMO_LIMIT:
                self._routes.clear()
            subs = sorted(self._by_topic.get(address.split(":")[1], ()), key=lambda sub: sub.id)
            key = tuple(sub.id for sub in subs)
            route = (
                self._shared.setdefault(key, Route(subs)) if key not in self._shared else self._shared[key]
            )
            self._routes[address] = route
        return route

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
