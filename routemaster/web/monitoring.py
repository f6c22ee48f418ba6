"""Monitoring: what there is and how it does. Reads only."""

from typing import Literal

import msgspec

from routemaster.store.clients import Client
from routemaster.store.registry import Registry, SubscriberRow
from routemaster.web.calls import READERS, ROOT, Answer, Call, Operation


class Counts(msgspec.Struct):
    sent: int
    queued: int
    oldest: int | None  # when the oldest batch was begun
    dead: int
    dropped: int
    failed: int  # attempts, not events


class Subscriber(msgspec.Struct):
    subscriber: str
    client: str
    name: str | None
    uuid: str | None  # a password: for its owner and root
    callback: str
    max_events: int
    timeout: int
    topics: list[str]
    match: list[str]
    parallelism: int
    max_rate: float | None
    max_attempts: int | None
    headers: dict[str, str] | None  # for its owner and root: they may hold a key
    signed: bool
    format: Literal["topic", "channel"]
    paused: bool
    events: Counts
    health_points: int
    last_attempted_at: int | None
    retry_at: int | None
    why: str | None


class EnvironmentQueue(msgspec.Struct):
    queue: str
    queued: int  # messages that wait
    in_flight: int  # messages that are leased
    oldest: int | None  # when the oldest of those that wait came


class Environment(msgspec.Struct):
    """An environment that has messages in pull queues. Push subscriptions do not count: their batches
    hold events of any environment."""

    environment: str
    queued: int  # in all queues together
    in_flight: int
    oldest: int | None
    queues: list[EnvironmentQueue]


class Monitoring:
    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def operations(self) -> list[Operation]:
        return [
            *(
                Operation(
                    method="GET",
                    path=path,
                    summary="All subscriptions, what is queued for each, and how it does.",
                    roles=READERS,
                    gives={200: list[Subscriber]},
                    act=self._subscribers,
                )
                for path in ("/subscriptions", "/subscribers")
            ),
            Operation(
                method="GET",
                path="/environments",
                summary="Which environments have messages queued, and where.",
                roles=READERS,
                gives={200: list[Environment]},
                act=self._environments,
            ),
        ]

    async def _subscribers(self, call: Call) -> Answer:
        return Answer(200, [_subscriber(row, call.client) for row in await self._registry.subscribers()])

    async def _environments(self, call: Call) -> Answer:
        """Only pull queues keep messages by environment: without queues there is none to show."""
        return Answer(200, list[Environment]())


def _subscriber(row: SubscriberRow, asker: Client) -> Subscriber:
    is_theirs = asker.role == ROOT or asker.id == row.client
    return Subscriber(
        subscriber=row.id,
        client=row.client,
        name=row.name,
        uuid=row.uuid if is_theirs else None,
        callback=row.callback,
        max_events=row.max_events,
        timeout=row.timeout_ms,
        topics=row.topics,
        match=row.match,
        parallelism=row.parallelism,
        max_rate=row.max_rate,
        max_attempts=row.max_attempts,
        headers=row.headers if is_theirs else None,
        signed=bool(row.secrets),
        format="channel" if row.is_channel else "topic",
        paused=row.paused,
        events=Counts(row.sent, row.queued, row.oldest, row.dead, row.dropped, row.failed),
        health_points=row.health_points,
        last_attempted_at=row.last_attempted_at,
        retry_at=row.retry_at,
        why=row.why,
    )
