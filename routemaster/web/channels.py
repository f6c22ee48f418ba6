"""The channel dialect's /queue: the earliest published form of a subscription. Strict, and silent: its
answers have no body, errors neither.

It makes a subscription whose deliveries are in the channel format, for good. To one that is there it adds
channels and changes nothing else. Publishing (/channel) is Ingest's.
"""

from typing import Annotated

import msgspec

from routemaster.errors import InvalidInput
from routemaster.store.registry import Registry, Wanted
from routemaster.web.calls import Answer, Call, Operation
from routemaster.web.shapes import Callback, Topic, Uuid
from routemaster.web.subscriptions import MAX_EVENTS, Most, Subscriptions, Timeout, answer_to


class NewQueue(msgspec.Struct, forbid_unknown_fields=True):
    channels: Annotated[list[Topic], msgspec.Meta(extra_json_schema={"minItems": 1})]
    callback: Callback
    uuid: Uuid
    timeout: Timeout | None = None
    max: Most | None = None


class Channels:
    def __init__(self, registry: Registry, subscriptions: Subscriptions) -> None:
        self._registry = registry
        self._subscriptions = subscriptions

    def operations(self) -> list[Operation]:
        return [
            Operation(
                method="POST",
                path="/queue",
                summary="Subscribe to channels that are there, in the channel dialect.",
                takes=NewQueue,
                gives={204: None, 404: None},
                is_empty=True,
                act=self._subscribe,
            )
        ]

    async def _subscribe(self, call: Call) -> Answer:
        wanted = await call.parse(NewQueue)
        if not wanted.channels:
            raise InvalidInput("channels", "at least one name")
        self._subscriptions.check_topics("channels", wanted.channels)
        self._subscriptions.check_uuid(wanted.uuid)
        await self._subscriptions.check_callback(wanted.callback)
        fields: dict[str, str | int | float] = {
            "callback": wanted.callback,
            "uuid": wanted.uuid,
            "timeout": 500 if wanted.timeout is None else wanted.timeout,
            "max_events": min(MAX_EVENTS, wanted.max or 100),
            "format": "channel",
        }
        client = call.client.id
        outcome = await self._registry.subscribe(
            Wanted(client, client, 1, fields, "", 0, set(wanted.channels), call.token), adds=True
        )
        return answer_to(outcome)
