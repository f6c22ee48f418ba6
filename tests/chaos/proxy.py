"""A proxy that loses, holds and delays what passes through it, when told to.

In front of the store it knows where commands and replies begin and end, so that the reply to one command
can be lost after the command has run: what no client can tell from a command that never ran. In front of
anything else it passes on what it reads, and can hold a connection at a given text.
"""

import asyncio
import contextlib
import random
import shutil
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from routemaster.store.script import Script
from tests.until import DEADLINE_S, until

FOREVER = 10**9
CHUNK = 256 * 2**10
Split = Callable[[bytes], tuple[list[bytes], bytes]]


@dataclass
class Fault:
    """What becomes of requests with these texts, or of their replies. Replies that are errors pass:
    nothing ran for them."""

    texts: tuple[bytes, ...]
    reply_text: bytes = b""
    times: int = 1
    loses: bool = False
    holds_request: bool = False
    delay_s: float = 0.0
    chance: float = 1.0
    then: Callable[[], object] | None = None  # called when a reply was lost, on the proxy's thread
    hits: int = 0
    released: threading.Event = field(default_factory=threading.Event)

    def release(self) -> None:
        """Let go what is held; nothing more is."""
        self.times = 0
        self.released.set()

    def until(self, hits: int = 1) -> None:
        until(lambda: self.hits >= hits, f"{hits} hits of {self.texts}; there were {self.hits}")

    def fits(self, request: bytes) -> bool:
        return self.hits < self.times and all(text in request for text in self.texts)

    def fits_reply(self, reply: bytes, dice: random.Random) -> bool:
        return (
            self.hits < self.times
            and not reply.startswith(b"-")
            and self.reply_text in reply
            and (self.chance == 1.0 or dice.random() < self.chance)
        )


class Where(NamedTuple):
    """A socket file, or a host and a port."""

    path: str = ""
    host: str = ""
    port: int = 0


class Proxy:
    def __init__(self, upstream: Where, split: Split, *, seed: int = 0) -> None:
        self._upstream = upstream
        self._split = split
        self._dice = random.Random(seed)
        self._folder = Path(tempfile.mkdtemp(prefix="rm-"))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()
        self._flowing = threading.Event()
        self._flowing.set()
        self._pairs: set[_Pair] = set()
        self.faults: list[Fault] = []
        self.url = ""

    # For tests

    def lose(self, script: str, *texts: bytes, **fault: object) -> Fault:
        """The script runs, and its reply is lost with the connection."""
        return self._add((Script(script).sha.encode(), *texts), loses=True, **fault)

    def hold_reply(self, script: str, *texts: bytes, **fault: object) -> Fault:
        return self._add((Script(script).sha.encode(), *texts), **fault)

    def hold_request(self, *texts: bytes, **fault: object) -> Fault:
        """It goes on when it is released, also when who sent it has hung up by then."""
        return self._add(texts, holds_request=True, **fault)

    def delay(self, script: str, *texts: bytes, delay_s: float, **fault: object) -> Fault:
        return self._add((Script(script).sha.encode(), *texts), delay_s=delay_s, **fault)

    def watch(self, script: str, *texts: bytes) -> Fault:
        """Nothing but a count of replies."""
        return self._add((Script(script).sha.encode(), *texts), times=FOREVER, delay_s=0.001)

    def stall(self) -> None:
        """Nothing passes, in either direction; connections stay open, and new ones are taken."""
        self._flowing.clear()

    def resume(self) -> None:
        self._flowing.set()

    def abandon(self) -> None:
        """The connections there are stay open and nothing passes them ever again; new ones are well."""
        for pair in list(self._pairs):
            pair.abandoned = True

    def mend(self) -> None:
        """No faults from here on."""
        for fault in self.faults:
            fault.release()
        self.faults = []
        self.resume()

    # Life

    def start(self) -> None:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(DEADLINE_S)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(DEADLINE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _listen(self) -> None:
        if self._upstream.path:
            path = self._folder / "proxy.sock"
            self._server = await asyncio.start_unix_server(self._serve, path)
            self.url = f"unix://{path}"
        else:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
            host, port = self._server.sockets[0].getsockname()[:2]
            self.url = f"http://{host}:{port}"

    async def _close(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        writers = [writer]
        try:
            up_reader, up_writer = await self._connect()
            writers.append(up_writer)
            pair = _Pair(self)
            self._pairs.add(pair)
            try:
                back = asyncio.create_task(pair.carry_replies(up_reader, writer))
                try:
                    await asyncio.gather(pair.carry_requests(reader, up_writer), back)
                finally:
                    back.cancel()
            finally:
                self._pairs.discard(pair)
        except (OSError, _Cut, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            for each in writers:
                each.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._upstream.path:
            return await asyncio.open_unix_connection(self._upstream.path)
        return await asyncio.open_connection(self._upstream.host, self._upstream.port)

    def split(self, data: bytes) -> tuple[list[bytes], bytes]:
        return self._split(data)

    def fits_reply(self, fault: Fault, reply: bytes) -> bool:
        return fault.fits_reply(reply, self._dice)

    async def may_pass(self, pair: "_Pair") -> None:
        while pair.abandoned or not self._flowing.is_set():
            await asyncio.sleep(0.005)

    def _add(self, texts: tuple[bytes, ...], **fault: object) -> Fault:
        made = Fault(texts, **fault)  # type: ignore[arg-type]
        self.faults = [*self.faults, made]
        return made


class _Cut(Exception):
    """The connection ends here, in both directions."""


class _Pair:
    """One connection through the proxy."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._awaited: deque[list[Fault]] = deque()  # of each command that has no reply yet
        self._listens = False  # from SUBSCRIBE on, what comes is nobody's reply
        self.abandoned = False

    async def carry_requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        rest = b""
        while data := await reader.read(CHUNK):
            requests, rest = self._proxy.split(rest + data)
            for request in requests:
                faults = [fault for fault in self._proxy.faults if fault.fits(request)]
                self._listens = self._listens or b"\r\nSUBSCRIBE\r\n" in request[:40]
                self._awaited.append([fault for fault in faults if not fault.holds_request])
                for fault in faults:
                    if fault.holds_request:
                        fault.hits += 1
                        await _released(fault)
                await self._proxy.may_pass(self)
                writer.write(request)
            await writer.drain()
        writer.write_eof()

    async def carry_replies(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        rest = b""
        while data := await reader.read(CHUNK):
            replies, rest = ([data], b"") if self._listens else self._proxy.split(rest + data)
            for reply in replies:
                faults = self._awaited.popleft() if self._awaited and not self._listens else []
                for fault in faults:
                    if self._proxy.fits_reply(fault, reply):
                        await self._suffer(fault, writer)
                await self._proxy.may_pass(self)
                writer.write(reply)
            await writer.drain()
        raise _Cut

    async def _suffer(self, fault: Fault, writer: asyncio.StreamWriter) -> None:
        fault.hits += 1
        if fault.loses:
            writer.transport.abort()
            await asyncio.sleep(0)  # it is closed from here on
            if fault.then is not None:
                fault.then()
            raise _Cut
        if fault.delay_s:
            await asyncio.sleep(fault.delay_s)
        else:
            await _released(fault)


async def _released(fault: Fault) -> None:
    while not fault.released.is_set():
        await asyncio.sleep(0.002)


# Where commands and replies end


def split_chunks(data: bytes) -> tuple[list[bytes], bytes]:
    return [data], b""


def split_frames(data: bytes) -> tuple[list[bytes], bytes]:
    """Whole commands or replies of the store's protocol, and what is not whole yet."""
    frames: list[bytes] = []
    at = 0
    while (end := _end_of_frame(data, at)) is not None:
        frames.append(data[at:end])
        at = end
    return frames, data[at:]


def _end_of_frame(data: bytes, at: int) -> int | None:
    line_end = data.find(b"\r\n", at)
    if line_end < 0:
        return None
    end = line_end + 2
    kind = data[at : at + 1]
    if kind in b"+-:":
        return end
    size = int(data[at + 1 : line_end])
    if kind == b"$":
        end += size + 2 if size >= 0 else 0
        return end if end <= len(data) else None
    for _ in range(size):
        inner = _end_of_frame(data, end)
        if inner is None:
            return None
        end = inner
    return end


@contextlib.contextmanager
def running_proxy(upstream: Where, split: Split = split_frames, *, seed: int = 0) -> Iterator[Proxy]:
    proxy = Proxy(upstream, split, seed=seed)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()
