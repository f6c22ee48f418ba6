"""Who is asking: credentials against the snapshot, and keeping the snapshot fresh.

A refusal is never given from a snapshot that might be old: the epoch is compared first, one
look for all who wait. The root key is known to the process alone and is not in the store.
"""

import asyncio
import base64
import binascii
import hmac

from routemaster.errors import StoreAway
from routemaster.store.registry import Client, Registry
from routemaster.web.snapshot import MEMO_LIMIT, Snapshot, digest_of

OPEN_PATIENCE_S = 0.5
MEMO_HEADER_BYTES = 512
ROOT = Client("root", "root", "root", ())


class Access:
    def __init__(self, registry: Registry, root_key: str | None) -> None:
        self.registry = registry
        self.snapshot = Snapshot(b"", {}, {}, {})
        self._root = root_key.encode() if root_key else None
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
        if await self.registry.epoch() == self.snapshot.epoch:
            return
        self.snapshot = self.snapshot.changed(await self.registry.read(self.snapshot.epoch))

    def who(self, header: bytes | None) -> tuple[Client, str] | None:
        """The client of an Authorization header and the digest of its token, by the snapshot."""
        if header is None:
            return None
        snapshot = self.snapshot
        known = snapshot.credentials.get(header)
        if known is None:
            known = self._look_up(snapshot, header)
            memo = snapshot.credentials
            if known is not None and len(header) <= MEMO_HEADER_BYTES and len(memo) < MEMO_LIMIT:
                memo[header] = known
        return known

    def _look_up(self, snapshot: Snapshot, header: bytes) -> tuple[Client, str] | None:
        for token in _tokens_in(header):
            if self._root is not None and hmac.compare_digest(token.encode(), self._root):
                return ROOT, ""
            digest = digest_of(token)
            client = snapshot.by_digest.get(digest)
            if client is not None:
                return client, digest
        return None


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
