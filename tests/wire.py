"""HTTP as the tests speak it: a caller that keeps its connection, and a bare socket for what no
well-behaved client would send. Nothing is retried: what the bus answers is what a test sees.
"""

import base64
import contextlib
import http.client
import json
import select
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

PATIENCE_S = 20.0
Address = tuple[str, int]


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]  # names in lower case
    body: bytes
    version: int = 11

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def kind(self) -> str | None:
        return self.headers.get("content-type")


def basic(user: str, password: str = "x") -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@dataclass
class Caller:
    """Calls one web process as one client. Not for several threads at once."""

    address: Address
    token: str | None
    id: str = ""
    _connection: http.client.HTTPConnection | None = field(default=None, repr=False)

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """`body` is sent as it is when it is bytes, as JSON otherwise; header names take _ for -."""
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            headers.setdefault("content_type", "application/json")
        if self.token is not None:
            headers.setdefault("authorization", basic(self.token))
        connection = self._connected()
        try:
            connection.request(
                method, path, body, {name.replace("_", "-"): value for name, value in headers.items()}
            )
            return _answer(connection.getresponse())
        except BaseException:
            self.close()
            raise

    def get(self, path: str, **headers: str) -> Answer:
        return self.call("GET", path, **headers)

    def post(self, path: str, body: Any = None, **headers: str) -> Answer:
        return self.call("POST", path, body, **headers)

    def delete(self, path: str, **headers: str) -> Answer:
        return self.call("DELETE", path, **headers)

    def publish(self, topic: str, url: str = "https://example.com/1", type: str = "update", **more: Any):
        """One event, which must be taken; answers its UID."""
        answer = self.post(f"/topics/{topic}", {"type": type, "url": url, **more})
        assert (answer.status, answer.body) == (200, b""), answer
        return answer.headers["routemaster-event-id"]

    def publish_many(self, topic: str, urls: list[str]) -> None:
        answer = self.post(f"/topics/{topic}", [{"type": "update", "url": url} for url in urls])
        assert (answer.status, answer.json) == (200, {"accepted": len(urls)}), answer

    def subscribe(self, callback: str, *topics: str, **more: Any) -> None:
        wanted = {"topics": topics, "callback": callback, "uuid": "secret-uuid", **more}
        answer = self.post("/subscription", wanted)
        assert (answer.status, answer.body) == (204, b""), answer

    def at(self, address: Address) -> "Caller":
        """The same client at another web process."""
        return Caller(address, self.token, self.id)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connected(self) -> http.client.HTTPConnection:
        held = self._connection
        if held is not None and held.sock is not None and _has_news(held.sock):
            self.close()  # the other side left while nothing was asked
        if self._connection is None:
            self._connection = http.client.HTTPConnection(*self.address, timeout=PATIENCE_S)
        return self._connection


class Line:
    """A bare connection: writes what it is told to, reads answers one by one."""

    def __init__(self, address: Address) -> None:
        self.socket = socket.create_connection(address, PATIENCE_S)
        self._file = self.socket.makefile("rb")

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read(self, method: str = "GET") -> Answer:
        return _answer(self._response(method))

    def read_line(self) -> bytes:
        return self._file.readline()

    def is_closed(self) -> bool:
        """Whether the other side ends the connection (waits for it, and for nothing else to come)."""
        try:
            return self._file.read(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
        self.socket.close()

    def _response(self, method: str) -> http.client.HTTPResponse:
        response = http.client.HTTPResponse(self.socket, method=method)
        response.fp.close()
        response.fp = _Kept(self._file)  # one buffer for all answers: pipelined ones come together
        response.begin()
        return response


class _Kept:
    """The connection's file for one response, which may close it and must not."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def close(self) -> None:
        pass


@contextlib.contextmanager
def line_to(address: Address) -> Iterator[Line]:
    line = Line(address)
    try:
        yield line
    finally:
        line.close()


def request(
    method: str, path: str, token: str | None = None, body: bytes = b"", *headers: str, version: str = "1.1"
) -> bytes:
    """The bytes of a request as most clients write it."""
    lines = [f"{method} {path} HTTP/{version}", "host: bus", *headers]
    if token is not None:
        lines.append(f"authorization: {basic(token)}")
    if body:
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def _answer(response: http.client.HTTPResponse) -> Answer:
    body = response.read()
    headers = {name.lower(): value for name, value in response.getheaders()}
    return Answer(response.status, headers, body, response.version)


def _has_news(held: socket.socket) -> bool:
    return bool(select.select([held], [], [], 0)[0])
