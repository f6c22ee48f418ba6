"""Keeps processes running.

1. Starts each child, tethered so that it cannot outlive us (tether.py), in a session of its own, so
   that a Ctrl-C in the terminal reaches us alone and the order of stopping is ours.
2. Starts again what dies, after a delay that doubles from 0.1 to 10 s and is forgotten after 30 s of life.
3. Stops in the reverse order of starting, tier by tier: SIGTERM, a time of grace, SIGKILL.

It knows nothing of what the children are.
"""

import asyncio
import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from routemaster.errors import StartFailed

TETHER = (sys.executable, "-I", "-S", str(Path(__file__).with_name("tether.py")))
HOPELESS = 5
STDERR = 2

log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class Child:
    name: str
    command: Sequence[str]
    environ: Mapping[str, str]
    pass_fds: tuple[int, ...] = ()
    grace_s: float = 25.0
    note: str = ""  # where to look when it does not stay up


@dataclass(frozen=True, kw_only=True)
class Backoff:
    least_s: float = 0.1
    most_s: float = 10.0
    forgotten_after_s: float = 30.0

    def delay_s(self, deaths: int) -> float:
        longest = min(self.least_s * 2.0 ** (deaths - 1), self.most_s)
        return longest * random.uniform(0.75, 1.0)  # noqa: S311


class Supervisor:
    def __init__(self, on_change: Callable[[dict[str, int]], None], backoff: Backoff | None = None) -> None:
        self._on_change = on_change
        self._backoff = backoff or Backoff()
        self._tiers: list[list[_Keeper]] = []

    def start(self, *children: Child) -> None:
        """Start a tier: these stop together, before all that was started earlier."""
        self._tiers.append([_Keeper(child, self._backoff, self._changed) for child in children])

    async def until(self, ready: Callable[[], Awaitable[bool]], every_s: float = 0.02) -> None:
        """Wait for `ready`; raise StartFailed if meanwhile a child dies again and again."""
        while not await ready():
            for keeper in self._keepers():
                if keeper.deaths >= HOPELESS:
                    note = f": {keeper.child.note}" if keeper.child.note else ""
                    raise StartFailed(f"{keeper.child.name} does not stay up ({keeper.last_end}){note}")
            await asyncio.sleep(every_s)

    async def stop(self) -> None:
        for tier in reversed(self._tiers):
            await asyncio.gather(*(keeper.stop() for keeper in tier))

    def kill(self) -> None:
        for keeper in self._keepers():
            keeper.kill()

    def _keepers(self) -> list["_Keeper"]:
        return [keeper for tier in self._tiers for keeper in tier]

    def _changed(self) -> None:
        self._on_change({k.child.name: k.process.pid for k in self._keepers() if k.process})


class _Keeper:
    """One child's life after life."""

    def __init__(self, child: Child, backoff: Backoff, changed: Callable[[], None]) -> None:
        self.child = child
        self.process: asyncio.subprocess.Process | None = None
        self.deaths = 0
        self.last_end = ""
        self._backoff = backoff
        self._changed = changed
        self._stopping = asyncio.Event()
        self._life = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        self._stopping.set()
        self._signal(signal.SIGTERM)
        done, _ = await asyncio.wait({self._life}, timeout=self.child.grace_s)
        if not done:
            log.warning("child killed", child=self.child.name, grace_s=self.child.grace_s)
            self.kill()
        await self._life

    def kill(self) -> None:
        """At once, with whatever it started."""
        self._stopping.set()
        if self.process:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    async def _keep(self) -> None:
        while not self._stopping.is_set():
            began = time.monotonic()
            self.last_end = await self._live_once()
            if self._stopping.is_set():
                return
            if time.monotonic() - began >= self._backoff.forgotten_after_s:
                self.deaths = 0
            self.deaths += 1
            delay_s = self._backoff.delay_s(self.deaths)
            log.warning(
                "child died",
                child=self.child.name,
                end=self.last_end,
                deaths=self.deaths,
                restart_in_ms=round(delay_s * 1000),
            )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay_s)

    async def _live_once(self) -> str:
        try:
            self.process = await asyncio.create_subprocess_exec(
                *TETHER,
                str(os.getpid()),
                *self.child.command,
                env=self.child.environ,
                pass_fds=self.child.pass_fds,
                start_new_session=True,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=STDERR,
            )
        except OSError as error:
            return f"could not be started: {error}"
        self._changed()
        if self._stopping.is_set():
            self._signal(signal.SIGTERM)
        code = await self.process.wait()
        self.process = None
        self._changed()
        return f"exit code {code}" if code >= 0 else signal.Signals(-code).name

    def _signal(self, number: signal.Signals) -> None:
        if self.process:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)
