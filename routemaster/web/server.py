"""The HTTP server: uvicorn with our limits, and a short way for publishing.

Uvicorn's protocol makes a task, a scope and several messages for each request. A publish needs none
of these: its request is handed to `take_post` as soon as its body is there, and its answer is written
when the store has it. Everything else goes to the ASGI application as usual. Limits on headers,
bodies and slow senders hold for both.
"""

import asyncio
import contextlib
import signal
import socket
import ssl
import typing
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any
from urllib.parse import unquote_to_bytes

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from routemaster.web.problem import REASONS, Problem, problem_of, rendered
from routemaster.web.target import origin_form

KEEP_ALIVE_S = 60
SWEEP_S = 5.0
LINGER_S = 1.0
STRANGER_BYTES = 64 * 2**10
POSTS = (b"/topics/", b"/channel/")
UPGRADING = (b"upgrade", b"http2-settings", b"connection")


class Limits:
    """What a request may take; set once, before the server starts."""

    def __init__(self, *, header_bytes: int, body_bytes: int, body_ms: int, held_bytes: int) -> None:
        self.header_bytes = header_bytes
        self.body_bytes = body_bytes
        self.body_s = body_ms / 1000
        self.held_bytes = held_bytes
        self.held = 0  # bytes of publishes that are not answered yet, in the whole process


class Posts(typing.Protocol):
    """Who takes publishes: `admit` raises for one who may not send a large body, `take` gets it whole."""

    async def admit(self, post: "Post") -> None: ...

    def take(self, post: "Post") -> None: ...


class _Deaf:
    def set(self) -> None:
        """Uvicorn wakes the reader of a body with this; a Post is handed over whole."""


class Post:
    """One POST /topics/… or /channel/…: what came, and the one answer that it gets.

    To uvicorn's protocol it looks like one of its own request-response cycles.
    """

    __slots__ = (
        "_protocol",
        "_size",
        "_timer",
        "body",
        "chunks",
        "complete",
        "disconnected",
        "early",
        "headers",
        "is_channel",
        "keep_alive",
        "response_complete",
        "target",
        "topic",
        "turn",
    )
    message_event = _Deaf()

    def __init__(
        self,
        protocol: "Protocol",
        topic: str,
        headers: list[tuple[bytes, bytes]],
        keep_alive: bool,
        is_channel: bool,
    ):
        self._protocol = protocol
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None
        self.topic = topic
        self.target = protocol.url
        self.headers = headers
        self.chunks: list[bytes] = []
        self.body = b""
        self.keep_alive = keep_alive
        self.is_channel = is_channel  # the channel dialect: answers are empty
        self.turn = True  # False while an earlier request on the connection has no answer yet
        self.early: bytes | None = None  # an answer that waits for its turn
        self.complete = False
        self.disconnected = False
        self.response_complete = False

    @property
    def scheme(self) -> str:
        return str(self._protocol.scheme)

    @property
    def peer(self) -> tuple[str, int] | None:
        return self._protocol.client

    def feed(self, chunk: bytes) -> None:
        if self.response_complete or self.early is not None:
            return
        limits = self._protocol.limits
        self.chunks.append(chunk)
        self._size += len(chunk)
        limits.held += len(chunk)
        if self._size > limits.body_bytes:
            self.refuse(Problem(413, f"the body has more than {limits.body_bytes} bytes"))
        elif limits.held > limits.held_bytes:
            self.refuse(
                Problem(503, "too much is waiting for the store; try again", [(b"retry-after", b"1")])
            )

    def end(self) -> None:
        """The body is there: hand the request over, if it is its turn."""
        if self.response_complete or self.early is not None:
            return
        chunks = self.chunks
        self.body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self.complete = True
        if self._timer is not None:
            self._timer.cancel()
        if self.turn:
            self.attempt(self._protocol.take_post, self)

    def take_turn(self) -> None:
        self.turn = True
        if self.early is not None:
            self.answer(self.early)
        elif self.complete:
            self.attempt(self._protocol.take_post, self)

    def attempt(self, act: Callable[..., None], *args: Any) -> None:
        """Act on the request; whatever goes wrong is its answer."""
        try:
            act(*args)
        except Exception as error:
            self.refuse(problem_of(error))

    def later(self, act: Coroutine[Any, Any, None]) -> None:
        """Act on the request in a task: for what has to ask the store first."""
        task = asyncio.create_task(self._attempt_later(act))
        self._protocol.tasks.add(task)
        task.add_done_callback(self._protocol.tasks.discard)

    async def _attempt_later(self, act: Coroutine[Any, Any, None]) -> None:
        try:
            await act
        except Exception as error:
            self.refuse(problem_of(error))

    def watch(self) -> None:
        """The rest of the body has to come in time."""
        if self._timer is None and not self.response_complete:
            limits = self._protocol.limits
            self._timer = asyncio.get_running_loop().call_later(limits.body_s, self._too_slow)

    def _too_slow(self) -> None:
        within_ms = round(self._protocol.limits.body_s * 1000)
        self.refuse(Problem(408, f"the body did not come within {within_ms} ms"))

    def refuse(self, problem: Problem) -> None:
        if not self.complete or problem.status in (408, 413):
            self.keep_alive = False  # what is left of the body is not read
        self.answer(response(problem, is_empty=self.is_channel))

    def answer(self, head: bytes) -> None:
        """Send the one answer: a status line, headers, an empty line and the body."""
        if self.response_complete:
            return
        if not self.turn and not self.disconnected:
            self.early = head
            return
        self.response_complete = True
        if self._timer is not None:
            self._timer.cancel()
        self.chunks.clear()
        protocol = self._protocol
        protocol.limits.held -= self._size
        if not self.disconnected:
            protocol.send(head, self.keep_alive)


class _Outlet:
    """What uvicorn's cycle knows of its transport; it closes as we do."""

    __slots__ = ("close", "is_closing", "write")

    def __init__(self, protocol: "Protocol") -> None:
        self.write = protocol.transport.write
        self.is_closing = protocol.transport.is_closing
        self.close = protocol.close


class Protocol(HttpToolsProtocol):
    """One connection. `Sweeper` closes those that send their headers too slowly or are left idle."""

    limits: Limits
    take_post: Callable[[Post], None]
    admit: Callable[[Post], Awaitable[None]]
    takes_posts = False
    idle_since = 0.0
    header_bytes = 0  # of a request whose headers are not complete
    unread_bytes = 0  # of a body that came after its answer
    _post: Post | None = None
    _ignores = False
    _may_be_large = False
    _in_body = False
    _upgrade_method = b""

    def data_received(self, data: bytes) -> None:
        if self._ignores:
            return
        cycle, was_in_body = self.cycle, self._in_body
        self._may_be_large = self.header_bytes + len(data) > self.limits.header_bytes
        self._feed(data)
        if self._post is not None:
            self._post.watch()
        elif self.cycle is not cycle:
            self.header_bytes = 0
        elif cycle is not None and not cycle.response_complete:  # pyright: ignore[reportUnnecessaryComparison]
            return
        elif was_in_body:
            # The call was answered before its body was there: nobody reads the rest of it.
            self.unread_bytes += len(data)
            if self.unread_bytes > self.limits.body_bytes:
                self.transport.close()
        else:
            # Still in the headers of a request.
            self.header_bytes += len(data)
            if self.header_bytes > self.limits.header_bytes:
                self.send_400_response(f"The headers have more than {self.limits.header_bytes} bytes.")

    def _feed(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        parser: Any = self.parser
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._decline_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self.send_400_response("this is not a valid HTTP request")

    def _decline_upgrade(self, rest: bytes) -> None:
        """Go on in HTTP/1.1, as one may. The parser stops reading at an Upgrade header, so another one
        gets the request without it, and what came after."""
        lines = [b"%s %s HTTP/1.1" % (self._upgrade_method, self.url)]
        lines += [b"%s: %s" % header for header in self.headers if header[0] not in UPGRADING]
        self.parser = httptools.HttpRequestParser(self)
        self._feed(b"\r\n".join(lines) + b"\r\n\r\n" + rest)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        # Nobody is there to read their answers; what they held is given back.
        waiting: list[Any] = [cycle for cycle, _ in self.pipeline if isinstance(cycle, Post)]
        self.pipeline.clear()
        if self._post is not None and not self._post.complete:
            waiting.append(self._post)
        for post in waiting:
            post.disconnected = True
            post.answer(b"")

    def send_400_response(self, msg: str) -> None:
        self.transport.write(_closing(response(Problem(400, msg))))
        self.transport.close()

    # Parser callbacks

    def on_message_begin(self) -> None:
        self.url = b""
        self.expect_100_continue = False
        self.headers = []
        self._in_body = False

    def on_headers_complete(self) -> None:
        self._in_body = True
        self.unread_bytes = 0
        if self._may_be_large:
            size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if size > self.limits.header_bytes:
                raise ValueError(f"the headers have more than {self.limits.header_bytes} bytes")
        self.url = origin_form(self.url)
        parser: Any = self.parser
        if parser.should_upgrade():
            self._upgrade_method = parser.get_method()
            if self._upgrade_method == b"CONNECT":
                raise ValueError("CONNECT is for proxies")
            return
        self._upgrade_method = b""
        path = _decoded(self.url) if b"%" in self.url else self.url
        if self.takes_posts and path.startswith(POSTS) and parser.get_method() == b"POST":
            self._begin_post(path, parser.get_http_version() != "1.0" and parser.should_keep_alive())
            return
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers.extend(headers)
        super().on_headers_complete()
        self.cycle.transport = _Outlet(self)  # pyright: ignore[reportAttributeAccessIssue]

    def _begin_post(self, path: bytes, keep_alive: bool) -> None:
        is_channel = path.startswith(POSTS[1])
        topic = path[len(POSTS[is_channel]) :].split(b"?", 1)[0].decode("latin-1")
        before = self.cycle
        post = Post(self, topic, self.headers, keep_alive, is_channel)
        self.cycle = post  # pyright: ignore[reportAttributeAccessIssue]
        self._post = post
        if before is not None and not before.response_complete:  # pyright: ignore[reportUnnecessaryComparison]
            # Pipelined: it waits for the answers before it.
            post.turn = False
            self.flow.pause_reading()
            self.pipeline.appendleft((post, None))  # pyright: ignore[reportArgumentType]
        length = next((value for name, value in self.headers if name == b"content-length"), b"0")
        if int(length) > self.limits.body_bytes:
            text = f"the body has {int(length)} bytes; at most {self.limits.body_bytes} are taken"
            post.refuse(Problem(413, text))
            return
        if self.expect_100_continue:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if int(length) > STRANGER_BYTES or b"transfer-encoding" in dict(self.headers):
            # Nobody unknown gets to fill our memory with a body.
            self.flow.pause_reading()
            post.later(self._admit(post))

    async def _admit(self, post: Post) -> None:
        try:
            await self.admit(post)
        finally:
            if post.turn:
                self.flow.resume_reading()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_body:
            return  # trailers: nobody needs them, and they have no bound
        super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        if self._post is not None:
            self._post.feed(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body = False
        if self._upgrade_method:
            return
        post = self._post
        if post is not None:
            self._post = None
            post.end()
        else:
            super().on_message_complete()

    # Answers

    def pause_writing(self) -> None:
        """Who does not read answers is not listened to either."""
        super().pause_writing()
        self.flow.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.pipeline:
            self.flow.resume_reading()

    def send(self, head: bytes, keep_alive: bool) -> None:
        """Write a Post's answer and turn to what came after it."""
        transport = self.transport
        if transport.is_closing():
            return
        if not keep_alive:
            transport.write(_closing(head))
            self.close()
            return
        transport.write(head)
        self.idle_since = self.loop.time()
        if self.pipeline:
            self.on_response_complete()

    def close(self) -> None:
        """Close; where a body is still coming, let some of it come first: a client that is cut off
        while it sends does not read its answer."""
        if not self._in_body:
            self.transport.close()
        else:
            self._ignores = True
            self.flow.resume_reading()
            self.loop.call_later(LINGER_S, self.transport.close)

    def on_response_complete(self) -> None:
        if not self._ignores:
            super().on_response_complete()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        if isinstance(cycle, Post):
            cycle.take_turn()
        else:
            super()._start_asgi_task(cycle, app)


def _decoded(url: bytes) -> bytes:
    """A path as the calls see theirs; it may say any of its characters in percents."""
    path, question, query = url.partition(b"?")
    return unquote_to_bytes(path).replace(b"?", b"%3F") + question + query


def response(problem: Problem, *, is_empty: bool = False) -> bytes:
    kind, body = rendered(problem, is_empty=is_empty)
    lines = [b"HTTP/1.1 %d %s\r\n" % (problem.status, REASONS[problem.status].encode())]
    lines += [b"%s: %s\r\n" % header for header in (*problem.headers, *kind)]
    lines.append(b"content-length: %d\r\n\r\n" % len(body))
    return b"".join(lines) + body


def _closing(head: bytes) -> bytes:
    return head.replace(b"\r\n", b"\r\nconnection: close\r\n", 1)


class Server(uvicorn.Server):
    """Ends when it is told to; uvicorn's own would then die of the signal, before our clean-up."""

    def leave_if_failed(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        held = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in held.items():
                signal.signal(number, handler)


class Sweeper:
    """Closes connections that have been in the middle of a request's headers for two sweeps, and
    those that have been idle for long."""

    def __init__(self, server: uvicorn.Server) -> None:
        self._server = server
        self._seen: dict[Any, Any] = {}

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SWEEP_S)
            waiting: dict[Any, Any] = {}
            for protocol in list(self._server.server_state.connections):
                if isinstance(protocol, Protocol) and self._is_stuck(protocol, loop.time(), waiting):
                    protocol.transport.close()
            self._seen = waiting

    def _is_stuck(self, protocol: Protocol, now: float, waiting: dict[Any, Any]) -> bool:
        cycle: Any = protocol.cycle
        if cycle is not None and not cycle.response_complete:
            return False
        if isinstance(cycle, Post) and protocol.header_bytes == 0:
            return now - protocol.idle_since > KEEP_ALIVE_S
        if protocol.timeout_keep_alive_task is not None:
            return False
        if protocol in self._seen and self._seen[protocol] is cycle:
            return True
        waiting[protocol] = cycle
        return False


async def serve(
    app: Any,
    sockets: list[socket.socket] | None,
    limits: Limits,
    *,
    posts: Posts | None = None,
    needs: asyncio.Task[None] | None = None,
    tls: ssl.SSLContext | None = None,
    host: str = "",
    port: int = 0,
) -> None:
    """Serve until SIGTERM or SIGINT, or until what it needs fails; requests under way are finished first."""
    Protocol.limits = limits
    if posts is not None:
        Protocol.take_post = staticmethod(posts.take)
        Protocol.admit = staticmethod(posts.admit)
        Protocol.takes_posts = True
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=Protocol,
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=20,
        backlog=4096,
        ssl_context_factory=None if tls is None else lambda _config, _default: tls,
    )
    server = Server(config)
    if needs is not None:
        needs.add_done_callback(server.leave_if_failed)
    sweeper = asyncio.create_task(Sweeper(server).run(), name="sweeper")
    try:
        await server.serve(sockets=sockets)
        if needs is not None and needs.done():
            needs.result()
    finally:
        sweeper.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sweeper
