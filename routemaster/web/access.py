"""Who is asking: credentials against the snapshot, and keeping the snapshot fresh.

A refusal is never given from a snapshot that might be old: the epoch is compared first, one
look for all who wait. The root key is known to the process alone and is not in the store.
"""

import asyncio
import base64
import binascii
import time

from routemaster.credential import digest_of, is_same, token_of
from routemaster.errors import StoreAway
from routemaster.store.clients import Client, Clients
from routemaster.store.link import Link
from routemaster.store.registry import Registry
from routemaster.web import digest
from routemaster.web.problem import Problem
from routemaster.web.snapshot import MEMO_LIMIT, Snapshot

OPEN_PATIENCE_S = 0.5
MEMO_HEADER_BYTES = 512
ROOT = Client("root", "root", "root", ())
Who = tuple[Client, str]  # and the digest of the token that it came with; '' for root's key
Headers = dict[bytes, bytes]


class Access:
    def __init__(self, link: Link, registry: Registry, clients: Clients, root_key: str | None) -> None:
        self.snapshot = Snapshot(b"", {}, {}, {})
        self._link = link
        self._registry = registry
        self._clients = clients
        self._root_key = root_key
        self._root_token = token_of(root_key, ROOT.id, ROOT.name) if root_key else None
        self._nonces = digest.Nonces(b"")
        self._nonces_of = -1  # the connection that their key came by
        self._opened = asyncio.Event()
        self._look: asyncio.Task[None] | None = None  # asking the store now
        self._next_look: asyncio.Task[None] | None = None  # not sent yet

    def open(self) -> None:
        """The store is one that we can run on: it may be asked from here on."""
        self._opened.set()

    async def refresh(self) -> None:
        """Make the snapshot as new as the store was when this was asked. Those who ask before a look
        has left share it; who asks after that needs the next one: what was revoked in between is
        not in it."""
        if self._next_look is None:
            self._next_look = asyncio.create_task(self._look_after(self._look))
        await asyncio.shield(self._next_look)

    async def _look_after(self, earlier: asyncio.Task[None] | None) -> None:
        if earlier is not None:
            await asyncio.wait([earlier])
        self._look, self._next_look = self._next_look, None
        await self._load()

    async def _load(self) -> None:
        try:
            async with asyncio.timeout(OPEN_PATIENCE_S):
                await self._opened.wait()
        except TimeoutError:
            raise StoreAway("the store has not answered since this process started") from None
        if await self._registry.epoch() == self.snapshot.epoch:
            return
        self.snapshot = self.snapshot.changed(await self._registry.read(self.snapshot.epoch))

    # By the snapshot alone

    def who(self, header: bytes | None) -> Who | None:
        """The client of an Authorization header that holds a token, by the snapshot."""
        if header is None:
            return None
        snapshot = self.snapshot
        known = snapshot.credentials.get(header)
        if known is None:
            known, is_lasting = self._look_up(snapshot, header)
            memo = snapshot.credentials
            if (
                known is not None
                and is_lasting
                and len(header) <= MEMO_HEADER_BYTES
                and len(memo) < MEMO_LIMIT
            ):
                memo[header] = known
        return known

    def holds(self, token_digest: str) -> bool:
        """Whether a token that was good once still is."""
        bearer = self.snapshot.by_digest.get(token_digest)
        return bearer is not None and bearer.token.holds(_now_ms())

    def is_root_key(self, secret: str) -> bool:
        return self._root_key is not None and is_same(secret, self._root_key)

    def _look_up(self, snapshot: Snapshot, header: bytes) -> tuple[Who | None, bool]:
        """Who it is, and whether that lasts as long as the snapshot."""
        for secret in _tokens_in(header):
            if self.is_root_key(secret):
                return (ROOT, ""), True
            bearer = snapshot.by_digest.get(digest_of(secret))
            if bearer is not None and bearer.token.holds(_now_ms()):
                return (bearer.client, bearer.token.digest), bearer.token.ends_at == 0
        return None, False

    # By a fresh one

    async def identify(self, headers: Headers, method: str, target: bytes, *, spends: bool = True) -> Who:
        """Who asks, by a snapshot that is fresh; or the refusal of a stranger. `spends` is for the one
        time that a request is let through: a Digest counts once."""
        await self.refresh()
        header = headers.get(b"authorization")
        who = self.who(header)
        if who is not None:
            return who
        await self._read_nonce_key()
        response = None if header is None else digest.read(header, target)
        if response is None:
            raise self.unauthorized()
        who = self._proven(response, method)
        if who is None:
            raise self.unauthorized()
        if not self._nonces.is_fresh(response.nonce, _now_ms()) or response.number >= digest.MOST_COUNTS:
            raise self.unauthorized(is_stale=True)
        if not spends:
            return who
        good_for_ms = digest.LIFE_MS + digest.AHEAD_MS
        if not await self._clients.spend_nonce(response.nonce, response.number, good_for_ms):
            raise self.unauthorized(is_stale=True)
        who = self._proven(response, method)  # the snapshot may be another one by now
        if who is None:
            raise self.unauthorized()
        return who

    def unauthorized(self, *, is_stale: bool = False) -> Problem:
        offers = self._nonces.challenges(_now_ms(), is_stale=is_stale)
        return Problem(
            401,
            "a known token is needed: as Basic, as Bearer, or by Digest",
            [(b"www-authenticate", offer) for offer in offers],
        )

    def _proven(self, response: digest.Response, method: str) -> Who | None:
        if response.user == ROOT.id and self._root_token is not None:
            ha1 = digest.ha1_of(self._root_token, response.algorithm, is_id=True)
            if response.is_by(ha1, method):
                return ROOT, ""
        client = self.snapshot.named(response.user)
        for token in client.tokens if client is not None else ():
            ha1 = digest.ha1_of(
                token, response.algorithm, is_id=client is not None and client.id == response.user
            )
            if client is not None and token.holds(_now_ms()) and response.is_by(ha1, method):
                return client, token.digest
        return None

    async def _read_nonce_key(self) -> None:
        """Once for each connection: the store may be another one by then."""
        connected = self._link.connected
        if self._nonces_of != connected:
            self._nonces = digest.Nonces(await self._clients.nonce_key())
            self._nonces_of = connected


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _tokens_in(header: bytes) -> list[str]:
    """The tokens that a header may carry: Basic's username first, then its password; or Bearer's."""
    try:
        scheme, _, value = header.decode("ascii").strip().partition(" ")
        if scheme.lower() == "bearer":
            return [value.strip()]
        if scheme.lower() == "basic":
            user, _, password = base64.b64decode(value.strip(), validate=True).decode().partition(":")
            return [text for text in (user, password) if text]
    except (UnicodeDecodeError, binascii.Error, ValueError):
        pass
    return []
