"""The receiving end: answers every delivery at once and counts. `python -m benchmarks.sink FD`.

`GET /stats` tells what came since the last time it was asked. Events whose data hold `"ns": <time>`
have their age taken. A path that begins with /never is never answered.
"""

import asyncio
import re
import socket
import sys
import time

import msgspec
import uvloop

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
NS = re.compile(rb'"ns":([0-9]{19})')


class Stats(msgspec.Struct):
    requests: int = 0
    events: int = 0
    first: float = 0.0
    last: float = 0.0
    ages_ms: list[float] = []


class Sink(asyncio.Protocol):
    stats = Stats()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._tail = b""

    def data_received(self, data: bytes) -> None:
        tail = self._tail + data
        while True:
            end = tail.find(b"\r\n\r\n")
            if end < 0:
                break
            head = tail[:end].lower()
            at = head.find(b"content-length:")
            size = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(tail) < end + 4 + size:
                break
            self._answer(tail[:end], tail[end + 4 : end + 4 + size])
            tail = tail[end + 4 + size :]
        self._tail = tail

    def _answer(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"GET /stats"):
            text = msgspec.json.encode(Sink.stats)
            Sink.stats = Stats()
            self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(text) + text)
            return
        if head.startswith(b"POST /never"):
            return
        stats = Sink.stats
        now = time.time()
        stats.requests += 1
        stats.events += body.count(b'"topic":')
        stats.first = stats.first or now
        stats.last = now
        if b'"ns":' in body:
            now_ns = time.time_ns()
            stats.ages_ms += [(now_ns - int(sent)) / 1e6 for sent in NS.findall(body)]
        self._transport.write(OK)


async def main(fd: int) -> None:
    server = await asyncio.get_running_loop().create_server(Sink, sock=socket.socket(fileno=fd))
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
