"""Dead letters of push subscriptions: looking at them, sending them again, deleting them."""

from typing import Any

import msgspec

from routemaster.errors import InvalidInput
from routemaster.store.dead import Dead, DeadBatch
from routemaster.uid import is_uid
from routemaster.web.calls import Answer, Call, Operation
from routemaster.web.shapes import Uid
from routemaster.web.subscriptions import for_both, no_subscription, subscriber_of

SHOWN, MOST_SHOWN = 100, 1_000
MOST_IDS = 10_000


class DeadRow(msgspec.Struct):
    id: str  # of the batch: its webhook-id
    created_at: int
    died_at: int
    attempts: int
    why: str
    code: int  # the last answer's status; 0 when there was none
    events: msgspec.Raw


class DeadShape(msgspec.Struct):
    """What the document says of a row: events are sent on as they are, so their type cannot tell."""

    id: str
    created_at: int
    died_at: int
    attempts: int
    why: str
    code: int
    events: list[dict[str, Any]]


class Retry(msgspec.Struct, forbid_unknown_fields=True):
    ids: list[Uid] | None = None


class Retried(msgspec.Struct):
    retried: int


class Deleted(msgspec.Struct):
    deleted: int


class DeadLetters:
    def __init__(self, dead: Dead) -> None:
        self._dead = dead

    def operations(self) -> list[Operation]:
        return [
            *for_both(
                "GET",
                "/dead",
                "Batches that were given up, longest dead first.",
                self._list,
                {200: list[DeadShape]},
                query=("limit",),
            ),
            *for_both(
                "POST",
                "/dead/retry",
                "Queue them again: those named, or all.",
                self._retry,
                {200: Retried},
                takes=Retry,
                needs_body=False,
            ),
            *for_both("DELETE", "/dead", "Delete them all for good.", self._delete, {200: Deleted}),
        ]

    async def _list(self, call: Call) -> Answer:
        limit = call.query.get("limit", str(SHOWN))
        if not (limit.isascii() and limit.isdigit() and len(limit) < 5 and 1 <= int(limit) <= MOST_SHOWN):
            raise InvalidInput("limit", f"a whole number from 1 to {MOST_SHOWN}")
        found = await self._dead.show(subscriber_of(call), int(limit))
        if found is None:
            raise no_subscription()
        return Answer(200, [_row(batch) for batch in found])

    async def _retry(self, call: Call) -> Answer:
        ids = (await call.parse_if_any(Retry)).ids
        if ids is not None and (len(ids) > MOST_IDS or not all(is_uid(id) for id in ids)):
            raise InvalidInput("ids", f"at most {MOST_IDS} ids of dead batches, as GET has them")
        retried = await self._dead.retry(subscriber_of(call), ids)
        if retried is None:
            raise no_subscription()
        return Answer(200, Retried(retried))

    async def _delete(self, call: Call) -> Answer:
        deleted = await self._dead.delete(subscriber_of(call))
        if deleted is None:
            raise no_subscription()
        return Answer(200, Deleted(deleted))


def _row(batch: DeadBatch) -> DeadRow:
    detail = batch.detail
    return DeadRow(
        batch.id,
        batch.created_at,
        batch.died_at,
        detail.attempts,
        detail.why,
        detail.code,
        msgspec.Raw(batch.body),
    )
