"""Monitoring: what there is and how it does. Reads only."""

import msgspec

from routemaster.errors import StoreError
from routemaster.store.link import Link
from routemaster.store.registry import Client, Registry, SubscriberRow
from routemaster.web.calls import EMPTY, READERS, ROOT, Answer, Call, Operation
from routemaster.web.problem import problem_of


class Health(msgspec.Struct):
    pass


class Queued(msgspec.Struct):
    sent: int
    queued: int
    oldest: int | None  # when the oldest batch was begun


class Subscriber(msgspec.Struct):
    subscriber: str
    uuid: str | None  # a password: for its owner and root
    callback: str
    max_events: int
    timeout: int
    topics: list[str]
    events: Queued
    health_points: int
    last_attempted_at: int | None
    parallelism: int
    paused: bool


class Monitoring:
    def __init__(self, link: Link, registry: Registry) -> None:
        self._link = link
        self._registry = registry

    def operations(self) -> list[Operation]:
        return [
            *(
                Operation(
                    method="GET",
                    path=path,
                    summary="Whether this process serves.",
                    roles=(),
                    gives={200: Health},
                    act=self._health,
                )
                for path in ("/health", "/health/ping", "/health/ping.json")
            ),
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
                path="/pulse",
                summary="Whether the store answers.",
                roles=READERS,
                gives={204: None},
                act=self._pulse,
            ),
        ]

    async def _health(self, call: Call) -> Answer:
        return Answer(200, Health())

    async def _subscribers(self, call: Call) -> Answer:
        return Answer(200, [_subscriber(row, call.client) for row in await self._registry.subscribers()])

    async def _pulse(self, call: Call) -> Answer:
        try:
            await self._link.call("PING")
        except StoreError as error:
            raise problem_of(error) from None
        return EMPTY


def _subscriber(row: SubscriberRow, asker: Client) -> Subscriber:
    return Subscriber(
        subscriber=row.id,
        uuid=row.uuid if asker.role == ROOT or asker.id == row.client else None,
        callback=row.callback,
        max_events=row.max_events,
        timeout=row.timeout_ms,
        topics=row.topics,
        events=Queued(row.sent, row.queued, row.oldest),
        health_points=row.health_points,
        last_attempted_at=row.last_attempted_at,
        parallelism=row.parallelism,
        paused=row.paused,
    )
