"""Asking a store that may be away for a moment: again, with pauses that grow and are never the same twice."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from routemaster.errors import StoreAway

PATIENCE_S = 30.0
LEAST_PAUSE_S, MOST_PAUSE_S = 0.05, 2.0
_T = TypeVar("_T")


async def patiently(call: Callable[[], Awaitable[_T]]) -> _T:
    """What is asked must be fit to be repeated: a call whose answer was lost may have been done."""
    end, pause_s = time.monotonic() + PATIENCE_S, LEAST_PAUSE_S
    while True:
        try:
            return await call()
        except StoreAway:
            if time.monotonic() + pause_s > end:
                raise
        await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 (jitter, not a secret)
        pause_s = min(MOST_PAUSE_S, 2 * pause_s)
