"""HTTP Digest as a client does it (RFC 7616, qop=auth), written from the RFC and not from our own code."""

import hashlib
import re
from dataclasses import dataclass, field

HASHES = {"MD5": hashlib.md5, "SHA-256": hashlib.sha256}


def challenge(offers: list[str], algorithm: str) -> dict[str, str]:
    """The parameters of the Digest offer for an algorithm."""
    (offer,) = [
        offer for offer in offers if offer.startswith("Digest ") and f"algorithm={algorithm}," in offer
    ]
    return {
        name: quoted or bare for name, quoted, bare in re.findall(r'(\w+)=(?:"([^"]*)"|([^,\s]+))', offer)
    }


@dataclass
class Login:
    """One user with one nonce, counting its requests."""

    user: str
    secret: str
    nonce: str
    algorithm: str = "SHA-256"
    realm: str = "routemaster"
    count: int = 0
    cnonce: str = field(default="0a4f113b")

    def header(self, method: str, target: str, count: int | None = None, **changed: str) -> str:
        self.count += 1
        nc = f"{self.count if count is None else count:08x}"
        ha1 = self._hash(self.user, self.realm, self.secret)
        ha2 = self._hash(method, target)
        given = {
            "username": self.user,
            "realm": self.realm,
            "nonce": self.nonce,
            "uri": target,
            "response": self._hash(ha1, self.nonce, nc, self.cnonce, "auth", ha2),
            "cnonce": self.cnonce,
        } | {name: value for name, value in changed.items() if name not in ("nc", "qop", "algorithm")}
        quoted = ", ".join(f'{name}="{value}"' for name, value in given.items())
        bare = {"algorithm": self.algorithm, "qop": "auth", "nc": nc} | {
            name: value for name, value in changed.items() if name in ("nc", "qop", "algorithm")
        }
        return f"Digest {quoted}, " + ", ".join(f"{name}={value}" for name, value in bare.items())

    def _hash(self, *parts: str) -> str:
        return HASHES[self.algorithm](":".join(parts).encode()).hexdigest()
