"""HTTP Digest (RFC 7616, qop=auth): nonces that any web process can check, and reading what a client sends.

A nonce says when it was made and carries a MAC by a key that all web processes share, so none has to be kept;
that each count is used once is the store's to tell (`Nonces.spend`).
"""

import base64
import binascii
import hmac
import re
import secrets
import struct
from typing import NamedTuple

from routemaster.credential import ALGORITHMS, REALM, Token, hashed, is_same
from routemaster.web.target import origin_form

LIFE_MS = 300_000
AHEAD_MS = 60_000  # by how much another process's clock may be ahead of ours
MOST_COUNTS = 16_384  # requests that one nonce serves
_HEAD = struct.Struct(">Q8s")
_MAC_BYTES = 16
_PARAMETER = re.compile(r'([a-zA-Z0-9_*-]{1,20})\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))\s*(?:,\s*|$)')
_COUNT = re.compile(r"[0-9a-fA-F]{8}")


class Nonces:
    def __init__(self, key: bytes) -> None:
        self._key = key

    def make(self, now_ms: int) -> str:
        head = _HEAD.pack(now_ms, secrets.token_bytes(8))
        return base64.urlsafe_b64encode(head + self._mac(head)).decode()

    def is_fresh(self, nonce: str, now_ms: int) -> bool:
        """Whether one of us made it, lately (clocks of two machines may differ a little)."""
        try:
            raw = base64.b64decode(nonce.encode("ascii"), b"-_", validate=True)
        except (binascii.Error, UnicodeEncodeError):
            return False
        if len(raw) != _HEAD.size + _MAC_BYTES:
            return False
        head = raw[: _HEAD.size]
        made_ms: int = _HEAD.unpack(head)[0]
        return (
            hmac.compare_digest(self._mac(head), raw[_HEAD.size :]) and -AHEAD_MS < now_ms - made_ms < LIFE_MS
        )

    def challenges(self, now_ms: int, *, is_stale: bool) -> list[bytes]:
        """WWW-Authenticate offers. MD5 comes first, against RFC 7616: clients that know nothing else look at
        the first offer only, and those that know more take what they like best."""
        nonce = self.make(now_ms)
        stale = ", stale=true" if is_stale else ""
        offers = [
            f'Digest realm="{REALM}", qop="auth", algorithm={algorithm}, nonce="{nonce}"{stale}'
            for algorithm in reversed(ALGORITHMS)
        ]
        return [offer.encode() for offer in [*offers, f'Basic realm="{REALM}", charset="UTF-8"']]

    def _mac(self, head: bytes) -> bytes:
        return hmac.digest(self._key, head, "sha256")[:_MAC_BYTES]


class Response(NamedTuple):
    """What a client sends in answer to a challenge."""

    user: str
    nonce: str
    number: int  # the client's count of requests with this nonce
    algorithm: str
    proof: str
    expected_by: tuple[str, str, str, str]  # nonce, count, cnonce, qop: as they were written
    target: str

    def is_by(self, ha1: str, method: str) -> bool:
        ha2 = hashed(self.algorithm, method, self.target)
        return is_same(hashed(self.algorithm, ha1, *self.expected_by, ha2), self.proof.lower())


def read(header: bytes, target: bytes) -> Response | None:
    """The response in an Authorization header, if it is a whole one and for this request's target."""
    try:
        scheme, _, text = header.decode("utf-8").strip().partition(" ")
    except UnicodeDecodeError:
        return None
    if scheme.lower() != "digest":
        return None
    given = _parameters(text.strip())
    if given is None or given.get("realm") != REALM or given.get("qop") != "auth":
        return None
    algorithm = given.get("algorithm", "MD5").upper()
    count = given.get("nc", "")
    needed = ("username", "nonce", "uri", "response", "cnonce")
    if (
        algorithm not in ALGORITHMS
        or not _COUNT.fullmatch(count)
        or any(name not in given for name in needed)
    ):
        return None
    # An empty query is not told from none by who serves the call; it is none.
    if origin_form(given["uri"].encode()).removesuffix(b"?") != target.removesuffix(b"?"):
        return None
    return Response(
        given["username"],
        given["nonce"],
        int(count, 16),
        algorithm,
        given["response"],
        (given["nonce"], count, given["cnonce"], "auth"),
        given["uri"],
    )


def ha1_of(token: Token, algorithm: str, *, is_id: bool) -> str:
    return (token.by_id if is_id else token.by_name)[ALGORITHMS.index(algorithm)]


def _parameters(text: str) -> dict[str, str] | None:
    """The parameters of a header; None where it is none, or names one twice."""
    found: dict[str, str] = {}
    at = 0
    while at < len(text):
        match = _PARAMETER.match(text, at)
        if match is None or match[1].lower() in found:
            return None
        quoted, bare = match[2], match[3]
        found[match[1].lower()] = re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else bare
        at = match.end()
    return found
