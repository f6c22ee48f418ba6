"""Several callers at one moment."""

import threading
from collections.abc import Callable
from typing import TypeVar

from tests.wire import Caller

_T = TypeVar("_T")


def race(callers: list[Caller], act: Callable[[Caller], _T]) -> list[_T]:
    """Each acts on a thread of its own, all after the same signal; what came of it, in their order."""
    return all_at_once([lambda caller=caller: act(caller) for caller in callers])


def all_at_once(acts: list[Callable[[], _T]]) -> list[_T]:
    barrier = threading.Barrier(len(acts))
    done: dict[int, _T] = {}

    def run(n: int) -> None:
        barrier.wait()
        done[n] = acts[n]()

    threads = [threading.Thread(target=run, args=(n,)) for n in range(len(acts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [done[n] for n in range(len(acts))]
