"""A load generator: keep-alive connections that each send a request as soon as the last is answered.

One thread around epoll with requests that are bytes already, so that it takes a fraction of what a
server in Python takes and does not become what is measured. It runs as a process of its own:
`python -m benchmarks.load HOST PORT CONNECTIONS SECONDS [RATE] <requests.msgpack`, one JSON line out.
With a rate, requests leave on schedule (an answer's delay does not hold back the next) and latency
counts from the schedule; NOW in a request becomes the time at which it leaves.
"""

import json
import select
import socket
import subprocess
import sys
import time
from typing import Any

import msgspec

NOW = b"9999999999999999999"


class Line:
    """One connection and what it waits for."""

    __slots__ = ("missing", "number", "sent_at", "sock", "tail")

    def __init__(self, host: str, port: int, number: int) -> None:
        self.sock = socket.create_connection((host, port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.tail = b""
        self.number = number
        self.sent_at = 0.0


def length_of(head: bytes) -> int:
    at = head.lower().find(b"content-length:")
    return int(head[at + 15 : head.find(b"\r", at)]) if at >= 0 else 0


def whole(line: Line) -> tuple[int, int] | None:
    """Status and size of the answer at the front of what came, once all of it is there."""
    end = line.tail.find(b"\r\n\r\n")
    if end < 0:
        return None
    size = end + 4 + length_of(line.tail[: end + 2])
    return (int(line.tail[9:12]), size) if len(line.tail) >= size else None


def open_lines(host: str, port: int, connections: int) -> tuple[select.epoll, dict[int, Line]]:
    poll = select.epoll()
    lines: dict[int, Line] = {}
    for number in range(connections):
        line = Line(host, port, number)
        lines[line.sock.fileno()] = line
        poll.register(line.sock, select.EPOLLIN)
    return poll, lines


def drive(host: str, port: int, connections: int, seconds: float, requests: list[bytes]) -> dict[str, Any]:
    """Closed loop: as many requests as the server takes; with no seconds, each request once."""
    count = len(requests)
    poll, lines = open_lines(host, port, connections if seconds else min(connections, count))
    done, most, statuses = 0, 0 if seconds else count, {}
    latencies: list[float] = []
    clock = time.perf_counter
    started = now = clock()
    deadline = started + (seconds or 600)
    sent = 0
    for line in lines.values():
        line.sent_at = clock()
        line.sock.sendall(requests[sent % count])
        sent += 1
    while now < deadline and not (most and done >= most):
        for fd, _ in poll.poll(1.0):
            line = lines[fd]
            data = line.sock.recv(65536)
            if not data:
                raise SystemExit("the server hung up")
            line.tail = line.tail + data if line.tail else data
            answer = whole(line)
            if answer is None:
                continue
            status, size = answer
            line.tail = line.tail[size:]
            statuses[status] = statuses.get(status, 0) + 1
            done += 1
            now = clock()
            latencies.append(now - line.sent_at)
            if most and sent >= most:
                continue
            line.sent_at = now
            line.sock.sendall(requests[sent % count])
            sent += 1
        now = clock()
    elapsed = now - started
    for line in lines.values():
        line.sock.close()
    return summary(done, elapsed, statuses, latencies)


def pace(
    host: str, port: int, rate: float, seconds: float, requests: list[bytes], connections: int
) -> dict[str, Any]:
    """Open loop: one request every 1/rate seconds, on whichever connection is free."""
    poll, lines = open_lines(host, port, connections)
    free = list(lines.values())
    done, statuses, latencies = 0, {}, []
    clock = time.perf_counter
    started = clock()
    sent, most = 0, int(rate * seconds)
    while done < most and clock() < started + seconds + 10:
        due = started + sent / rate
        while sent < most and due <= clock() and free:
            line = free.pop()
            line.sent_at = due
            text = requests[sent % len(requests)]
            line.sock.sendall(text.replace(NOW, b"%019d" % time.time_ns()))
            sent += 1
            due = started + sent / rate
        wait = max(0.0, due - clock()) if sent < most and free else 0.1
        for fd, _ in poll.poll(wait if wait >= 0.0005 else 0):
            line = lines[fd]
            line.tail += line.sock.recv(65536)
            answer = whole(line)
            if answer is None:
                continue
            line.tail = line.tail[answer[1] :]
            statuses[answer[0]] = statuses.get(answer[0], 0) + 1
            latencies.append(clock() - line.sent_at)
            done += 1
            free.append(line)
    return summary(done, clock() - started, statuses, latencies)


def summary(done: int, elapsed: float, statuses: dict[int, int], latencies: list[float]) -> dict[str, Any]:
    latencies.sort()
    at = {f"p{q}": 1000 * latencies[min(len(latencies) - 1, len(latencies) * q // 100)] for q in (50, 99)}
    at["most"] = 1000 * latencies[-1]
    return {"requests": done, "seconds": elapsed, "rate": done / elapsed, "statuses": statuses, **at}


def request(method: str, path: str, token: str, body: bytes, *headers: str) -> bytes:
    """The bytes of one request."""
    lines = [f"{method} {path} HTTP/1.1", "host: localhost", f"authorization: Bearer {token}"]
    lines += [*headers, f"content-length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


def run(
    host: str,
    port: int,
    requests: list[bytes],
    *,
    connections: int = 64,
    seconds: float = 5.0,
    rate: float = 0,
) -> dict[str, Any]:
    """Generate load from a process of its own and give back what it saw."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.load", host, str(port), str(connections), str(seconds), str(rate)],
        input=msgspec.msgpack.encode(requests),
        stdout=subprocess.PIPE,
        check=True,
    )
    result: dict[str, Any] = json.loads(done.stdout)
    if set(result["statuses"]) != {"200"}:
        raise RuntimeError(f"not every answer was a 200: {result['statuses']}")
    return result


if __name__ == "__main__":
    where, port_text, connections_text, seconds_text, rate_text = sys.argv[1:]
    wanted = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=list[bytes])
    args = (float(seconds_text), wanted)
    if float(rate_text):
        print(json.dumps(pace(where, int(port_text), float(rate_text), *args, int(connections_text))))
    else:
        print(json.dumps(drive(where, int(port_text), int(connections_text), *args)))
