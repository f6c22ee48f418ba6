"""Dead letters: batches that were given up after their subscriber's last attempt."""

from typing import NamedTuple

import msgspec

from routemaster.store.deliveries import body_of
from routemaster.store.link import Link
from routemaster.store.script import Script

_LIST = Script("list_dead")
_RETRY = Script("retry_dead")
_DELETE = Script("delete_dead")
STEP = 200


class Detail(msgspec.Struct):
    attempts: int
    why: str
    code: int


class DeadBatch(NamedTuple):
    id: str
    died_at: int
    created_at: int
    detail: Detail
    body: bytes  # the events, as they were sent


class Dead:
    """None stands for a subscription that is not there."""

    def __init__(self, link: Link, namespace: str) -> None:
        self._link = link
        self._namespace = namespace

    async def show(self, subscriber: str, most: int) -> list[DeadBatch] | None:
        reply = await self._link.run(_LIST, self._namespace, subscriber, most)
        if reply is None:
            return None
        return [
            DeadBatch(
                row[0].decode(),
                int(float(row[1])),
                int(row[3]),
                msgspec.json.decode(row[2], type=Detail),
                body_of(row[4:]),
            )
            for row in reply
        ]

    async def retry(self, subscriber: str, batches: list[str] | None) -> int | None:
        if batches is None:
            return await self._step_by_step(_RETRY, subscriber)
        retried = 0
        for start in range(0, max(1, len(batches)), STEP):
            step = batches[start : start + STEP]
            reply = await self._link.run(_RETRY, self._namespace, subscriber, "", len(step), *step)
            if reply is None:
                return None
            retried += int(reply[0])
        return retried

    async def delete(self, subscriber: str) -> int | None:
        return await self._step_by_step(_DELETE, subscriber)

    async def _step_by_step(self, script: Script, subscriber: str) -> int | None:
        """All that was dead at the first step, some at a time, so that no call holds the store for long."""
        total, before = 0, ""
        while True:
            reply = await self._link.run(script, self._namespace, subscriber, before, STEP)
            if reply is None:
                return None
            total += int(reply[0])
            before = str(int(float(reply[1])))
            if int(reply[0]) < STEP:
                return total
