"""A store behind TLS, with certificates of an authority of our own.

A server that can do TLS does it itself. The embedded one cannot: there a terminator stands in front of it,
as many who run a store without TLS do. What connects cannot tell the two apart.
"""

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import trustme
from redis import Redis, RedisError

from tests.failover import Server, free_port, running_server
from tests.until import until


class Certificates:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._authority = trustme.CA()
        self.ca = self._written("ca.pem", self._authority.cert_pem.bytes())
        self.cert, self.key = self.issue("127.0.0.1")

    def issue(self, name: str) -> tuple[str, str]:
        made = self._authority.issue_cert(name)
        chain = b"".join(pem.bytes() for pem in made.cert_chain_pems)
        return self._written(f"{name}.pem", chain), self._written(f"{name}.key", made.private_key_pem.bytes())

    def _written(self, name: str, data: bytes) -> str:
        path = self._folder / name
        path.write_bytes(data)
        return str(path)


@contextlib.contextmanager
def secure_store(
    folder: Path, *, asks_clients: bool = False, name: str = "127.0.0.1"
) -> Iterator[tuple[Certificates, int]]:
    """A store's certificates, and the port at which it speaks TLS."""
    certificates = Certificates(folder)
    cert, key = certificates.issue(name)
    with contextlib.ExitStack() as stack:
        port = free_port()
        with_tls = {
            "tls_port": str(port),
            "tls_cert_file": cert,
            "tls_key_file": key,
            "tls_ca_cert_file": certificates.ca,
            "tls_auth_clients": "yes" if asks_clients else "no",
        }
        native = stack.enter_context(running_server("native", save='""', **with_tls))
        if _comes_up(native):
            yield certificates, port
            return
        plain = stack.enter_context(running_server("plain", save='""'))
        plain.until_answers(plain.client())
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=certificates.ca)
        context.load_cert_chain(cert, key)
        if asks_clients:
            context.verify_mode = ssl.CERT_REQUIRED
        yield certificates, stack.enter_context(_terminator(plain.port, context))


@contextlib.contextmanager
def secure_sentinel(certificates: Certificates, primary_port: int) -> Iterator[int]:
    """A sentinel that names a port as its primary's; the port at which it speaks TLS."""
    lines = {"sentinel_monitor": f"rm 127.0.0.1 {primary_port} 9"}
    with running_server("sentinel", is_sentinel=True, **lines) as sentinel:
        sentinel.until_answers(sentinel.client())
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificates.cert, certificates.key)
        with _terminator(sentinel.port, context) as port:
            yield port


def _comes_up(server: Server) -> bool:
    redis: Redis = server.client()

    def is_settled() -> bool:
        with contextlib.suppress(RedisError):
            return bool(redis.ping())
        return not server.process.is_running

    until(is_settled, "the server to come up or to say that it knows no TLS")
    return server.process.is_running


@contextlib.contextmanager
def _terminator(to_port: int, context: ssl.SSLContext) -> Iterator[int]:
    loop = asyncio.new_event_loop()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(2**16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", to_port)
        await asyncio.gather(pump(reader, up_writer), pump(up_reader, writer))

    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    starting = asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    server = asyncio.run_coroutine_threadsafe(starting, loop).result(10)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:

        async def close() -> None:
            server.close()
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(close(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
