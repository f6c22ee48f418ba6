"""Callbacks: which URLs may be delivered to, and what may go along. Pure rules; who resolves a name asks
here about each address that it found, when the callback is registered and again when it is connected to.
"""

import binascii
import ipaddress
import re
from base64 import b64decode
from functools import lru_cache
from urllib.parse import urlsplit

from routemaster.event import MAX_URL, URL

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
# Names in other scripts are written in Punycode: who connects would map them to ASCII after the check
# here, and what comes out may be an address.
HOST = re.compile(r"[a-z0-9._:-]+")
SECRET_PREFIX = "whsec_"  # noqa: S105 (what all secrets begin with)
MAX_HEADERS = 20
MAX_HEADER_BYTES = 4096
# Those that say what a delivery is, whose it is, and how it is framed, are ours.
HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
HEADER_VALUE = re.compile(r"[\x20-\x7e]*")
_OUR_HEADERS = re.compile(
    r"(?i)(webhook-|routemaster-|proxy-).*|content-.*|host|connection|keep-alive|te|trailer|transfer-encoding"
    r"|upgrade|expect|authorization|traceparent|accept-encoding|user-agent|cookie"
)
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_NAT64_LOCAL = ipaddress.IPv6Network("64:ff9b:1::/48")
_COMPATIBLE = ipaddress.IPv6Network("::/96")


@lru_cache(4096)
def host_of(callback: str) -> tuple[str, int] | None:
    """Host and port of a callback, or None when it is not an http or https URL."""
    if len(callback) > MAX_URL or not URL.fullmatch(callback):
        return None
    try:
        parts = urlsplit(callback)
        port = parts.port
    except ValueError:
        return None
    if not parts.hostname or not HOST.fullmatch(parts.hostname) or parts.username is not None:
        return None
    return parts.hostname, port or (443 if parts.scheme.lower() == "https" else 80)


def is_secure(callback: str) -> bool:
    return callback[:6].lower() == "https:"


def is_secret(text: str) -> bool:
    """Whether it can sign, as Standard Webhooks has it: base64 of 24 to 64 bytes, with or without prefix."""
    try:
        return 24 <= len(b64decode(text.removeprefix(SECRET_PREFIX), validate=True)) <= 64
    except (binascii.Error, ValueError):
        return False


def problem_with_headers(headers: dict[str, str]) -> str | None:
    """What was expected of them, where they cannot go with deliveries."""
    size = sum(len(name) + len(value) for name, value in headers.items())
    if len(headers) > MAX_HEADERS or size > MAX_HEADER_BYTES:
        return f"at most {MAX_HEADERS} headers of {MAX_HEADER_BYTES} bytes in all"
    for name, value in headers.items():
        if not HEADER_NAME.fullmatch(name):
            return f"names of headers; {name[:100]!r} is none"
        if _OUR_HEADERS.fullmatch(name):
            return f"headers that a delivery does not have of itself; {name} it has"
        if not HEADER_VALUE.fullmatch(value):
            return f"printable ASCII as the value of {name}"
    if len({name.lower() for name in headers}) < len(headers):
        return "each header once"
    return None


@lru_cache(4096)
def is_allowed(text: str, networks: tuple[Network, ...]) -> bool:
    """Whether an address may be connected to: a public one, or one that the settings allow."""
    try:
        address: Address = ipaddress.ip_address(text.split("%", 1)[0])
    except ValueError:
        return False
    if any(address.version == network.version and address in network for network in networks):
        return True
    if isinstance(address, ipaddress.IPv6Address):
        if address.is_site_local or address in _NAT64_LOCAL:
            return False
        inner = _embedded(address)
        if inner is not None:
            return is_allowed(str(inner), networks)
    return address.is_global and not address.is_multicast


def _embedded(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that an IPv6 one leads to: mapped, 6to4, NAT64, or the old compatible form."""
    if address in _NAT64 or (address in _COMPATIBLE and int(address) > 1):
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour
