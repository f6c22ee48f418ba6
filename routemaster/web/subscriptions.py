"""Push subscriptions: making, changing and ending them."""

import asyncio
import re
import socket
from typing import Annotated

import msgspec

from routemaster.callback import host_of, is_allowed
from routemaster.errors import InvalidInput
from routemaster.settings import Settings
from routemaster.store.registry import Registry
from routemaster.web.calls import EMPTY, Answer, Call, Operation
from routemaster.web.problem import Problem, unauthorized

MAX_TIMEOUT_MS = 3_600_000
MAX_EVENTS = 10_000
MAX_LANES = 64


class NewSubscription(msgspec.Struct, forbid_unknown_fields=True):
    topics: list[str]
    callback: str
    uuid: str
    timeout: Annotated[int, msgspec.Meta(ge=0, le=MAX_TIMEOUT_MS)] | None = None
    max: Annotated[int, msgspec.Meta(ge=1)] | None = None
    parallelism: Annotated[int, msgspec.Meta(ge=1, le=MAX_LANES)] | None = None


class Subscriptions:
    def __init__(self, settings: Settings, registry: Registry) -> None:
        self._settings = settings
        self._registry = registry
        self._topic = re.compile(f"[a-z_]{{1,{settings.max_topic_name}}}")

    def operations(self) -> list[Operation]:
        subscribes = [
            Operation(
                method="POST",
                path=path,
                summary="Subscribe, or change the subscription: its list of topics is replaced.",
                takes=NewSubscription,
                gives={204: None},
                act=self._subscribe,
            )
            for path in ("/subscription", "/subscriber")
        ]
        return [
            *subscribes,
            Operation(
                method="DELETE",
                path="/subscriber",
                summary="End the subscription, and what is queued for it.",
                gives={204: None, 404: None},
                act=self._unsubscribe,
            ),
            Operation(
                method="DELETE",
                path="/subscriber/topics/{topic}",
                summary="Take one topic off the list.",
                gives={204: None, 404: None},
                act=self._unsubscribe_topic,
            ),
        ]

    async def _subscribe(self, call: Call) -> Answer:
        wanted = await call.parse(NewSubscription)
        for topic in wanted.topics:
            if not self._topic.fullmatch(topic):
                expected = f"names of 1 to {self._settings.max_topic_name} lowercase letters or underscores"
                raise InvalidInput("topics", expected)
        if not 1 <= len(wanted.uuid) <= 256 or not wanted.uuid.isprintable() or ":" in wanted.uuid:
            raise InvalidInput("uuid", "1 to 256 printable characters without a colon")
        await self._check_callback(wanted.callback)
        fields: dict[str, str | int] = {
            "callback": wanted.callback,
            "uuid": wanted.uuid,
            "timeout": 500 if wanted.timeout is None else wanted.timeout,
            "max_events": min(MAX_EVENTS, wanted.max or 100),
        }
        known = await self._registry.subscribe(
            call.client.id, call.client.id, wanted.parallelism or 1, fields, sorted(set(wanted.topics))
        )
        if not known:  # deleted while its request was being read
            raise unauthorized()
        return EMPTY

    async def _check_callback(self, callback: str) -> None:
        where = host_of(callback)
        if where is None:
            raise InvalidInput("callback", "an http or https URL without credentials")
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(2):
                found = await loop.getaddrinfo(*where, type=socket.SOCK_STREAM)
        except (OSError, TimeoutError, UnicodeError):
            return  # a name that is not known yet: it is checked again when it is connected to
        for _, _, _, _, address in found:
            if not is_allowed(str(address[0]), self._settings.allow_private_callbacks):
                raise InvalidInput(
                    "callback",
                    "a public address (ROUTEMASTER_ALLOW_PRIVATE_CALLBACKS lists private networks to allow)",
                )

    async def _unsubscribe(self, call: Call) -> Answer:
        if not await self._registry.unsubscribe(call.client.id):
            raise Problem(404, "this client has no subscription")
        return EMPTY

    async def _unsubscribe_topic(self, call: Call) -> Answer:
        if not await self._registry.unsubscribe(call.client.id, call.names["topic"]):
            raise Problem(404, "this client is not subscribed to that topic")
        return EMPTY
