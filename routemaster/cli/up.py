"""`routemaster up`: a whole bus from one folder.

Brings up the store, then web and worker, says when it is ready, and stays until it is told to stop.
The listening socket is ours and shared by all web processes: while one of them is started again,
connections wait instead of being refused. A store that dies is started again alone; web and worker
find it again by themselves.
"""

import asyncio
import contextlib
import errno
import os
import signal
import socket
import ssl
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

import structlog

from routemaster import settings
from routemaster.cli.embedded import EmbeddedStore
from routemaster.cli.folder import Bus, Folder
from routemaster.cli.supervisor import Child, Supervisor
from routemaster.errors import StartFailed
from routemaster.settings import PREFIX, Settings

LOOPBACK = "127.0.0.0/8,::1/128"
BACKLOG = 2048
PATIENCE_S = 10.0

log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class Plan:
    folder: Path
    settings: Settings
    environ: dict[str, str]
    web: int = 1
    program: tuple[str, ...] = (sys.executable, "-P", "-m", "routemaster")


def up(plan: Plan) -> None:
    folder = Folder(plan.folder)
    try:
        with listen(plan.settings.host, plan.settings.port) as listener:
            asyncio.run(_Up(plan, folder, listener).run())
    finally:
        folder.release()


class _Up:
    def __init__(self, plan: Plan, folder: Folder, listener: socket.socket) -> None:
        self._plan = plan
        self._folder = folder
        self._listener = listener
        self._environ = dict(plan.environ)
        self._embedded: EmbeddedStore | None = None
        if not plan.environ.get(PREFIX + "REDIS_URL"):
            self._embedded = EmbeddedStore(folder.path, plan.settings.redis_max_mem)
        self._supervisor = Supervisor(self._announce)
        self._complete_environ()
        settings.load(self._environ)

    async def run(self) -> None:
        staying = asyncio.create_task(self._bring_up_and_stay())
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal, number, staying)
        try:
            await asyncio.wait({staying})
            if not staying.cancelled():
                staying.result()
        finally:
            await self._supervisor.stop()
            if self._embedded:
                self._embedded.remove()

    def _on_signal(self, number: signal.Signals, staying: asyncio.Task[None]) -> None:
        if not staying.done():
            print("stopping …", file=sys.stderr)
            staying.cancel()
        elif number == signal.SIGINT:
            self._supervisor.kill()

    async def _bring_up_and_stay(self) -> None:
        if self._embedded:
            self._supervisor.start(self._embedded.prepare(self._environ, self._folder.lock_fd))
            await self._supervisor.until(self._embedded.answers)
        self._supervisor.start(*self._web(), self._worker())
        await self._supervisor.until(self._healthy(), every_s=0.05)
        print(self._ready_message(), flush=True)
        await asyncio.Event().wait()

    def _complete_environ(self) -> None:
        host, port = self._listener.getsockname()[:2]
        self._environ[PREFIX + "PORT"] = str(port)
        if self._embedded:
            self._environ[PREFIX + "REDIS_URL"] = self._embedded.url
        if ip_address(host).is_loopback and PREFIX + "ALLOW_PRIVATE_CALLBACKS" not in self._environ:
            self._environ[PREFIX + "ALLOW_PRIVATE_CALLBACKS"] = LOOPBACK
        if not (self._environ.get(PREFIX + "ROOT_KEY") or self._environ.get(PREFIX + "ROOT_KEY_FILE")):
            self._folder.make_root_key()
            self._environ[PREFIX + "ROOT_KEY_FILE"] = str(self._folder.root_key)

    def _web(self) -> list[Child]:
        fd = self._listener.fileno()
        return [
            Child(
                name=f"web-{n}",
                command=(*self._plan.program, "web", "--fd", str(fd)),
                environ=self._environ,
                pass_fds=(fd,),
            )
            for n in range(1, self._plan.web + 1)
        ]

    def _worker(self) -> Child:
        return Child(
            name="worker-1",
            command=(*self._plan.program, "worker", "--name", f"{self._folder.id}-worker-1"),
            environ=self._environ,
        )

    def _healthy(self) -> Callable[[], Awaitable[bool]]:
        host, port = reachable(self._listener)
        complain_at = time.monotonic() + PATIENCE_S
        root_key = settings.load(self._environ).root_key or ""
        is_secure = self._plan.settings.tls_cert is not None

        async def healthy() -> bool:
            nonlocal complain_at
            status = await get_status(host, port, "/pulse", root_key, is_secure=is_secure)
            if time.monotonic() > complain_at:
                complain_at += PATIENCE_S
                log.warning("not healthy yet", answer=status)
            return status in ("200", "204", "308")  # the last: it serves, behind a proxy that has the TLS

        return healthy

    def _announce(self, pids: dict[str, int]) -> None:
        store_url = self._environ[PREFIX + "REDIS_URL"]
        self._folder.announce(
            Bus(url=self._url, store_url=store_url, pid=os.getpid(), pids=pids, tls_cert=self._tls_cert)
        )

    @property
    def _tls_cert(self) -> str | None:
        cert = self._plan.settings.tls_cert
        return str(Path(cert).absolute()) if cert else None

    @property
    def _url(self) -> str:
        return url_of(self._listener, "https" if self._tls_cert else "http")

    def _ready_message(self) -> str:
        url = self._url
        key_file = self._environ.get(PREFIX + "ROOT_KEY_FILE")
        if self._environ.get(PREFIX + "ROOT_KEY"):
            where, credential = f"from {PREFIX}ROOT_KEY", f"${PREFIX}ROOT_KEY"
        else:
            where, credential = f"in {key_file}", f"$(cat '{key_file}')"
        trust = f" --cacert '{self._tls_cert}'" if self._tls_cert else ""
        return (
            f"Routemaster is up at {url}\n"
            f"  folder    {self._folder.path}\n"
            f"  root key  {where}\n"
            "  archive   none: there is no pipeline, events are kept until they are delivered\n"
            f"{self._https_notice()}"
            "Create a token for a service:\n"
            f'  curl{trust} -u "{credential}:" {url}/api_tokens'
            """ -d '{"name": "my-service"}'"""
        )

    def _https_notice(self) -> str:
        if self._tls_cert or not self._plan.settings.needs_tls:
            return ""
        return (
            "  https     required on this address, and served by nobody yet: put a proxy in front, give\n"
            f"            --tls-cert and --tls-key, or set {PREFIX}REQUIRE_TLS=0\n"
        )


def listen(host: str, port: int) -> socket.socket:
    """A listening socket, or StartFailed with what to do about it."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise StartFailed(f"cannot listen on {host}: {error.strerror}") from None
    listener = socket.socket(family, kind, proto)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            advice = "it is in use; choose another with --port (0 takes any that is free)"
            raise StartFailed(f"cannot listen on port {port} of {host}: {advice}") from None
        raise StartFailed(f"cannot listen on port {port} of {host}: {error.strerror}") from None
    return listener


def reachable(listener: socket.socket) -> tuple[str, int]:
    """Where this machine reaches it, also when it listens on every address."""
    host, port = listener.getsockname()[:2]
    if ip_address(host).is_unspecified:
        host = "127.0.0.1" if listener.family == socket.AF_INET else "::1"
    return host, port


def url_of(listener: socket.socket, scheme: str = "http") -> str:
    host, port = reachable(listener)
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


async def get_status(host: str, port: int, path: str, token: str, *, is_secure: bool = False) -> str:
    """The status code of a GET to our own listener, or why there is none."""
    writer = None
    try:
        async with asyncio.timeout(2.0):
            trust = _any_certificate() if is_secure else None  # the socket is ours: who else could answer?
            reader, writer = await asyncio.open_connection(host, port, ssl=trust)
            head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
            writer.write(head.encode() + b"Connection: close\r\n\r\n")
            line = await reader.readline()
            return line.split()[1].decode() if line.startswith(b"HTTP/") else "no answer"
    except (OSError, TimeoutError) as error:
        return repr(error)
    finally:
        if writer:
            with contextlib.suppress(OSError):
                writer.close()


def _any_certificate() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
