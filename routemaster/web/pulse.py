"""Whether the bus lives, and whether it needs more workers: for load balancers and autoscalers."""

import asyncio

import msgspec

from routemaster.errors import StoreError
from routemaster.store.figures import Reader
from routemaster.store.link import Link
from routemaster.web.calls import EMPTY, READERS, Answer, Call, Operation
from routemaster.web.problem import problem_of

BUSY_S = 1.0


class Health(msgspec.Struct):
    pass


class Pulse:
    def __init__(self, link: Link, reader: Reader, threshold: int, deadline_ms: int) -> None:
        self._link = link
        self._reader = reader
        self._threshold = threshold
        self._deadline_ms = deadline_ms

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
            Operation(
                method="GET",
                path="/pulse",
                summary="Whether the store answers.",
                roles=READERS,
                gives={204: None},
                act=self._pulse,
            ),
            Operation(
                method="GET",
                path="/pulse/scaling",
                summary="Answers at once, or a second later when many jobs are due: for autoscalers.",
                roles=READERS,
                gives={204: None},
                act=self._scaling,
            ),
        ]

    async def _health(self, call: Call) -> Answer:
        return Answer(200, Health())

    async def _pulse(self, call: Call) -> Answer:
        try:
            await self._link.call("PING")
        except StoreError as error:
            raise problem_of(error) from None
        return EMPTY

    async def _scaling(self, call: Call) -> Answer:
        if await self._reader.due_jobs(self._deadline_ms) > self._threshold:
            await asyncio.sleep(BUSY_S)
        return EMPTY
