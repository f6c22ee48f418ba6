"""Credentials as they are kept: hashes of tokens, from which no token can be told.

A token is long and random, so a plain SHA-256 stands for it. For HTTP Digest there are the HA1s of RFC 7616,
as htdigest files have them, once for each name that its bearer may give: the client id and the name.
"""

import hashlib
import hmac

import msgspec

REALM = "routemaster"
ALGORITHMS = ("SHA-256", "MD5")  # in the order in which they are kept


class Token(msgspec.Struct, frozen=True):
    digest: str
    ends_at: int  # ms; 0 for one that does not end
    by_id: tuple[str, ...]  # HA1s, one for each algorithm
    by_name: tuple[str, ...]

    def holds(self, now_ms: int) -> bool:
        return self.ends_at == 0 or self.ends_at > now_ms


def token_of(secret: str, client: str, name: str) -> Token:
    return Token(digest_of(secret), 0, _ha1s(client, secret), _ha1s(name, secret))


def digest_of(secret: str) -> str:
    """What is stored in place of a token."""
    return hashlib.sha256(secret.encode()).hexdigest()


def hashed(algorithm: str, *parts: str) -> str:
    """H(a:b:…) of RFC 7616."""
    text = ":".join(parts).encode()
    if algorithm == "MD5":
        return hashlib.md5(text, usedforsecurity=False).hexdigest()  # what old clients know
    return hashlib.sha256(text).hexdigest()


def is_same(text: str, other: str) -> bool:
    """Compares in a time that tells nothing."""
    return hmac.compare_digest(text.encode(), other.encode())


def _ha1s(user: str, secret: str) -> tuple[str, ...]:
    return tuple(hashed(algorithm, user, REALM, secret) for algorithm in ALGORITHMS)
