"""/topics: what there is, and deleting one. Publishing to them is Ingest's."""

import msgspec

from routemaster.store.registry import Registry
from routemaster.web.calls import CLIENT, EMPTY, READERS, ROOT, Answer, Call, Operation
from routemaster.web.problem import Problem


class TopicRow(msgspec.Struct):
    name: str
    publisher: str | None
    events: int


class Topics:
    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def operations(self) -> list[Operation]:
        deletes = [
            Operation(
                method="DELETE",
                path=path,
                summary="Delete a topic: its subscribers are unsubscribed, what is queued stays.",
                roles=(ROOT, CLIENT),
                gives={204: None, 404: None},
                act=self._delete,
            )
            for path in ("/topics/{topic}", "/topic/{topic}")
        ]
        return [
            Operation(
                method="GET",
                path="/topics",
                summary="All topics, who publishes to each, and how many events there have been.",
                roles=READERS,
                gives={200: list[TopicRow]},
                act=self._list,
            ),
            *deletes,
        ]

    async def _list(self, call: Call) -> Answer:
        return Answer(200, [TopicRow(*row) for row in await self._registry.topics()])

    async def _delete(self, call: Call) -> Answer:
        owner = "" if call.client.role == ROOT else call.client.id
        outcome = await self._registry.delete_topic(call.names["topic"], owner)
        if outcome == "unknown":
            raise Problem(404, "there is no such topic")
        if outcome == "denied":
            raise Problem(403, "only the publisher of a topic may delete it")
        return EMPTY
