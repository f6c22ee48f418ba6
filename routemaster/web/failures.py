"""Failed logins: an address that guesses has to wait.

Each address may fail so often a minute; then what it sends is not even looked at for a while, right or wrong,
but for credentials that were good here before: who shares an address with a guesser goes on.
Bounded: of the addresses that failed lately only so many are remembered.
"""

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable

from routemaster.settings import Network

MOST_ADDRESSES = 10_000
WINDOW_S = 60.0


class Failures:
    """A bucket for each address, which drains at the allowed rate. `most` is 0 for no limit."""

    def __init__(
        self, most: int, proxies: tuple[Network, ...] = (), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = most
        self._proxies = proxies
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # how full, and when that was

    def note(self, source: str) -> None:
        if not self._most:
            return
        self._buckets[source] = (self._level(source) + 1, self._clock())
        self._buckets.move_to_end(source)
        if len(self._buckets) > MOST_ADDRESSES:
            self._buckets.popitem(last=False)

    def wait_s(self, source: str) -> float:
        """How long this address has to wait; 0 for not at all."""
        if not self._most or source not in self._buckets:
            return 0.0
        return max(0.0, (self._level(source) - self._most + 1) * WINDOW_S / self._most)

    def source_of(self, peer: tuple[str, int] | None, headers: dict[bytes, bytes]) -> str:
        """Whose failure it is: the peer's, or where that is a proxy we trust, whoever it names last."""
        known = _address(peer[0]) if peer else None
        if known is None:
            return ""
        forwarded = headers.get(b"x-forwarded-for", b"").decode("latin-1").split(",")
        while self._is_proxy(known) and forwarded:
            known = _address(forwarded.pop().strip()) or known
        if isinstance(known, ipaddress.IPv6Address):  # who has one has all of its network
            return str(ipaddress.ip_network((known, 64), strict=False))
        return str(known)

    def _level(self, source: str) -> float:
        level, at = self._buckets.get(source, (0.0, 0.0))
        return max(0.0, level - (self._clock() - at) * self._most / WINDOW_S)

    def _is_proxy(self, known: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
        return any(known.version == network.version and known in network for network in self._proxies)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        known = ipaddress.ip_address(text.split("%", 1)[0])
    except ValueError:
        return None
    if isinstance(known, ipaddress.IPv6Address) and known.ipv4_mapped:
        return known.ipv4_mapped
    return known
