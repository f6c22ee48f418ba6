"""UDP datagrams to one receiver: lines, as many as fit into each.

Nothing waits for a receiver and nothing is sent again: what does not get through is lost. A name is looked
up again now and then, one look at a time, so that a name server that hangs holds one thread and no more.
"""

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterable, Iterator
from typing import Any

MAX_BYTES = 1432  # of a packet that crosses an Ethernet whole
BURST, PAUSE_S = 16, 0.002  # many subscribers make many packets: a receiver's buffer is small
LOOK_UP_AGAIN_S = 60.0
LOOK_UP_PATIENCE_S = 2.0
Address = tuple[socket.AddressFamily, Any]


class Datagrams:
    def __init__(self, host: str, port: int) -> None:
        self.receiver = f"{host}:{port}"
        self._host = host
        self._port = port
        self._known: Address | None = None
        self._known_at = 0.0
        self._look: asyncio.Task[Address] | None = None

    async def send(self, lines: Iterable[str]) -> None:
        family, address = await self._address()
        with socket.socket(family, socket.SOCK_DGRAM) as to:
            to.setblocking(False)
            to.connect(address)
            for number, packet in enumerate(packets(lines), 1):
                # A full buffer, or word that nobody listens.
                with contextlib.suppress(BlockingIOError, ConnectionRefusedError):
                    to.send(packet)
                if number % BURST == 0:
                    await asyncio.sleep(PAUSE_S)

    async def _address(self) -> Address:
        if self._known is not None and time.monotonic() - self._known_at < LOOK_UP_AGAIN_S:
            return self._known
        if self._look is None:
            self._look = asyncio.create_task(self._look_up())
        done, _ = await asyncio.wait([self._look], timeout=LOOK_UP_PATIENCE_S)
        if not done:
            raise OSError(f"{self._host} cannot be looked up in time")
        look, self._look = self._look, None
        self._known, self._known_at = look.result(), time.monotonic()
        return self._known

    async def _look_up(self) -> Address:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_DGRAM)
        family, _, _, _, address = found[0]
        return family, address


def packets(lines: Iterable[str]) -> Iterator[bytes]:
    """The lines in their order, in packets of at most MAX_BYTES; one that fits in none is left out."""
    held: list[bytes] = []
    size = 0
    for text in lines:
        line = text.encode()
        if len(line) > MAX_BYTES:
            continue
        if held and size + len(line) > MAX_BYTES:
            yield b"\n".join(held)
            held, size = [], 0
        held.append(line)
        size += len(line) + 1
    if held:
        yield b"\n".join(held)
