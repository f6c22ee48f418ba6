"""TLS served directly, and sending those who came without it to https."""

import asyncio
import ipaddress
import re
import ssl
from pathlib import Path

import structlog

from routemaster.errors import SettingError
from routemaster.settings import PREFIX, Network
from routemaster.web.problem import Problem

log = structlog.get_logger("web")
LOOK_S = 2.0
_HOST = re.compile(rb"[A-Za-z0-9.:\[\]_-]{1,255}")
_TARGET = re.compile(rb"/[\x21-\x7e]*")


class Certificate:
    """A certificate and its key; when the files change, new connections get the new ones."""

    def __init__(self, cert: str, key: str) -> None:
        self._files = cert, key
        self._seen = self._stamp()
        self.context = _context(cert, key)

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            stamp = self._stamp()
            if stamp != self._seen:
                self._seen = stamp
                self._reload()

    def _reload(self) -> None:
        """What cannot be used (half of it is written, say) is left alone until it changes again."""
        try:
            _context(*self._files)
            self.context.load_cert_chain(*self._files, password=_no_password)
        except SettingError as error:
            log.error("the new certificate cannot be used; the last one stays", reason=str(error))
        else:
            log.info("the certificate was read again")

    def _stamp(self) -> list[tuple[int, int, int]]:
        found: list[tuple[int, int, int]] = []
        for name in self._files:
            try:
                status = Path(name).stat()
            except OSError:
                found.append((0, 0, 0))
            else:
                found.append((status.st_mtime_ns, status.st_size, status.st_ino))
        return found


class HttpsOnly:
    """Who came over plain HTTP is sent to the same URL under https; a proxy that we trust may say that its
    client came over https."""

    def __init__(self, proxies: tuple[Network, ...]) -> None:
        self._proxies = proxies

    def redirect(
        self, scheme: str, peer: tuple[str, int] | None, headers: dict[bytes, bytes], target: bytes
    ) -> Problem | None:
        if scheme == "https" or (self._trusts(peer) and _said(headers) == b"https"):
            return None
        host = headers.get(b"host", b"")
        if not _HOST.fullmatch(host) or not _TARGET.fullmatch(target):
            return Problem(400, "only https is served here")
        where = b"https://" + host + target
        return Problem(308, "only https is served here", [(b"location", where)])

    def _trusts(self, peer: tuple[str, int] | None) -> bool:
        try:
            address = ipaddress.ip_address(peer[0].split("%", 1)[0]) if peer else None
        except ValueError:
            return False
        if address is None:
            return False
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
            address = address.ipv4_mapped
        return any(address.version == network.version and address in network for network in self._proxies)


def _said(headers: dict[bytes, bytes]) -> bytes:
    """What the nearest proxy says: the last of several."""
    return headers.get(b"x-forwarded-proto", b"").rsplit(b",", 1)[-1].strip().lower()


def _context(cert: str, key: str) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except (OSError, ValueError) as error:
        expected = f"a certificate in PEM, with its key (without a password) in {PREFIX}TLS_KEY ({error})"
        raise SettingError(PREFIX + "TLS_CERT", cert, expected) from None
    return context


def _no_password() -> str:
    raise ValueError("the key has a password")
