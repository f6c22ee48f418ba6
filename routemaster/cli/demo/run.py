"""The run: a folder, the bus, who takes part, the screen while it lasts, and the account of it.

Ctrl-C, SIGTERM and SIGHUP end it in order. The first stops publishing and waits for the queues, the
second does not wait for them, the third kills the bus. The account is given each time.
"""

import asyncio
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec
import uvloop
from rich.console import Console
from rich.live import Live

from routemaster.cli.demo import account, screen
from routemaster.cli.demo.account import Account
from routemaster.cli.demo.bus import DemoBus
from routemaster.cli.demo.cast import PUBLISHERS, SUBSCRIBERS
from routemaster.cli.demo.ledger import Ledger
from routemaster.cli.demo.publisher import Publisher
from routemaster.cli.demo.subscriber import Subscriber
from routemaster.cli.demo.watch import Watch
from routemaster.errors import SettingError, StartFailed

EMPTY_S = 30.0
FRAME_S = 0.25
LINE_S = 2.0
REQUEST_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Plan:
    seconds: float
    folder: Path | None = None  # kept; without one, a temporary one is made and removed
    as_json: bool = False


def run(plan: Plan) -> int:
    """The exit code: 0 only when nothing was lost and order held."""
    console = Console(force_terminal=sys.stdout.isatty(), highlight=False, soft_wrap=True)
    result = uvloop.run(_Demo(plan, console).run())
    if plan.as_json:
        print(msgspec.json.encode(result).decode())
    else:
        console.print(account.draw(result))
    return 0 if result.ok else 1


class _Token(msgspec.Struct):
    token: str


class _Demo:
    def __init__(self, plan: Plan, console: Console) -> None:
        self._plan = plan
        self._console = console
        self._folder = _make(plan.folder)
        self._bus = DemoBus(self._folder)
        self._ledger = Ledger(
            [part.topic for part in PUBLISHERS], {part.name: part.topics for part in SUBSCRIBERS}
        )
        self._subscribers = [Subscriber(part, self._ledger, seconds=plan.seconds) for part in SUBSCRIBERS]
        self._signals = 0
        self._stopping = asyncio.Event()
        self._hurrying = asyncio.Event()
        self._trouble = ""

    async def run(self) -> Account:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal)
        # What is entered first is left last: subscribers answer for as long as there is a bus.
        async with AsyncExitStack() as stack:
            if self._plan.folder is None:
                stack.callback(_remove, self._folder)
            for subscriber in self._subscribers:
                stack.push_async_callback(subscriber.close)
                await subscriber.open()
            stack.push_async_callback(self._bus.stop)
            if not self._plan.as_json:
                self._console.print("Starting a bus of its own …", style="dim")
            await _first(self._bus.start(), self._stopping.wait())
            if self._stopping.is_set():
                raise StartFailed("stopped before the bus was up")
            await self._perform(stack)
        return account.settle(self._ledger, started_at=self._bus.started_at, trouble=self._trouble)

    def _on_signal(self) -> None:
        self._signals += 1
        self._stopping.set()
        if self._signals == 2:
            self._hurrying.set()
        elif self._signals > 2:
            self._bus.kill()

    async def _perform(self, stack: AsyncExitStack) -> None:
        root = await stack.enter_async_context(_session(self._bus.root_key()))
        publishers = [
            Publisher(part, self._bus.url, await self._client(part.name, root, stack), self._ledger)
            for part in PUBLISHERS
        ]
        watch = Watch(self._ledger, self._bus.url, root, seconds=self._plan.seconds)
        for subscriber in self._subscribers:
            session = await self._client(subscriber.part.name, root, stack)
            await _ask(session, f"{self._bus.url}/subscription", subscriber.subscription())
            subscriber.begin()
        await _first(self._play(publishers, watch), watch.run(), self._show(watch))

    async def _play(self, publishers: list[Publisher], watch: Watch) -> None:
        await self._publish(publishers)
        watch.phase = "emptying"
        await self._empty(watch)

    async def _client(
        self, name: str, root: aiohttp.ClientSession, stack: AsyncExitStack
    ) -> aiohttp.ClientSession:
        """A session with a token of its own."""
        answer = await _ask(root, f"{self._bus.url}/api_tokens", {"name": name})
        token = msgspec.json.decode(answer, type=_Token).token
        return await stack.enter_async_context(_session(token))

    async def _publish(self, publishers: list[Publisher]) -> None:
        """For the time that is planned, or until told to stop; what is under way then is finished."""
        publishing = asyncio.gather(*(publisher.run(self._stopping) for publisher in publishers))
        try:
            await _first(
                asyncio.shield(publishing),
                asyncio.sleep(self._plan.seconds),
                self._stopping.wait(),
                self._lose_bus(),
            )
            self._stopping.set()
            await _first(asyncio.shield(publishing), self._hurrying.wait(), self._lose_bus())
        finally:
            await _cancel(publishing)

    async def _empty(self, watch: Watch) -> None:
        """Wait until everything is delivered, within bounds."""
        try:
            async with asyncio.timeout(EMPTY_S):
                await _first(watch.until_empty(), self._hurrying.wait(), self._lose_bus())
        except TimeoutError:
            self._trouble = f"the queues were not empty {EMPTY_S:.0f} s after the last publish"
        if self._hurrying.is_set() and any(map(self._ledger.missing, self._ledger.received)):
            self._trouble = "it was stopped before the queues were empty"

    async def _lose_bus(self) -> None:
        self._trouble = await self._bus.ended()

    async def _show(self, watch: Watch) -> None:
        """For as long as it is not cancelled."""
        if self._plan.as_json:
            await asyncio.Event().wait()
        if not self._console.is_terminal or self._console.is_dumb_terminal:
            await asyncio.sleep(LINE_S / 2)
            while True:
                print(screen.line(watch.snapshot()), flush=True)
                await asyncio.sleep(LINE_S)
        with Live(console=self._console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(screen.draw(watch.snapshot(), *self._console.size), refresh=True)
                await asyncio.sleep(FRAME_S)


async def _first(*parts: Awaitable[object]) -> None:
    """Until one of them is done; the others are cancelled."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await _cancel(*tasks)
    for task in done:
        task.result()


async def _cancel(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _session(token: str) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        headers={"Authorization": f"Bearer {token}"}, timeout=aiohttp.ClientTimeout(total=REQUEST_S)
    )


async def _ask(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> bytes:
    try:
        async with session.post(url, json=body) as answer:
            said = await answer.read()
            if answer.status < 300:
                return said
            reason = f"answered {answer.status} {said.decode(errors='replace')}"
    except (aiohttp.ClientError, TimeoutError) as error:
        reason = f"did not answer: {error!r}"
    raise StartFailed(f"POST {urlsplit(url).path} of the demo's bus {reason}")


def _make(folder: Path | None) -> Path:
    """A folder with nothing in it: a demo does not touch a bus that is there."""
    if folder is None:
        return Path(tempfile.mkdtemp(prefix="routemaster-demo-"))
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not any(folder.iterdir()):
            return folder.absolute()
    except OSError as error:
        raise SettingError(
            "--dir", str(folder), f"a folder that can be made and written ({error.strerror})"
        ) from None
    raise SettingError("--dir", str(folder), "a new or empty folder: the demo runs a bus of its own there")


def _remove(folder: Path) -> None:
    """Also when the bus was killed and its store is still on its way out."""
    deadline = time.monotonic() + 5.0
    while folder.exists() and time.monotonic() < deadline:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.05 if folder.exists() else 0)
