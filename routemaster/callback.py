"""Callbacks: which URLs may be delivered to. Pure rules; who resolves a name asks here about each
address that it found, when the callback is registered and again when it is connected to.
"""

import ipaddress
from functools import lru_cache
from urllib.parse import urlsplit

from routemaster.event import MAX_URL, URL

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


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
    if not parts.hostname or parts.username is not None:
        return None
    return parts.hostname, port or (443 if parts.scheme.lower() == "https" else 80)


@lru_cache(4096)
def is_allowed(text: str, networks: tuple[Network, ...]) -> bool:
    """Whether an address may be connected to: a public one, or one that the settings allow."""
    try:
        address: Address = ipaddress.ip_address(text.split("%", 1)[0])
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if address.is_global and not address.is_multicast:
        return True
    return any(address.version == network.version and address in network for network in networks)
