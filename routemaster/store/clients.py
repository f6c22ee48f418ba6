"""Clients: who may call the bus, by which tokens, and what they may publish and read.

Tokens are kept as hashes only. Every change gives the bus a new epoch, so that it holds on every web process
from the answer on.
"""

import secrets
from typing import Annotated, Any

import msgspec

from routemaster.credential import Token
from routemaster.pattern import GLOB
from routemaster.store.link import Link
from routemaster.store.script import Script
from routemaster.uid import Maker

_ADD = Script("add_client")
_SEED = Script("seed_client")
_ROTATE = Script("rotate_client")
_GRANT = Script("grant_client")
_DELETE = Script("delete_client")
_NONCE_KEY = Script("nonce_key")
_SPEND_NONCE = Script("spend_nonce")


Glob = Annotated[str, msgspec.Meta(extra_json_schema={"pattern": f"^{GLOB.pattern}$"})]


class Grants(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Globs; None stands for all."""

    publish: tuple[Glob, ...] | None = None  # of topics
    read: tuple[Glob, ...] | None = None  # of addresses


class Client(msgspec.Struct, frozen=True):
    id: str
    name: str
    role: str
    tokens: tuple[Token, ...]
    grants: Grants = Grants()


class ClientRecord(msgspec.Struct):
    """A client as it is kept."""

    name: str
    role: str
    created_at: int
    tokens: list[Token]
    grants: str = ""  # JSON

    def client(self, id: str) -> Client:
        grants = msgspec.json.decode(self.grants, type=Grants) if self.grants else Grants()
        return Client(id, self.name, self.role, tuple(self.tokens), grants)


class Clients:
    def __init__(self, link: Link, namespace: str, uids: Maker) -> None:
        self._link = link
        self._namespace = namespace
        self._uids = uids

    async def add(self, client: str, record: ClientRecord) -> bool:
        """False when the token or the client is there already."""
        return bool(await self._run(_ADD, client, msgspec.json.encode(record), record.tokens[0].digest))

    async def seed(self, client: str, record: ClientRecord) -> bool:
        """As `add`, but a token that was named before is left alone, even if it is gone."""
        return bool(await self._run(_SEED, client, msgspec.json.encode(record), record.tokens[0].digest))

    async def rotate(self, client: str, token: Token, grace_ms: int) -> str:
        """'done', 'unknown' (the client) or 'taken' (the token)."""
        text = msgspec.json.encode(token)
        return (await self._run(_ROTATE, client, text, token.digest, grace_ms)).decode()

    async def grant(self, client: str, grants: Grants) -> bool:
        text = b"" if grants == Grants() else msgspec.json.encode(grants)
        return bool(await self._run(_GRANT, client, text))

    async def delete(self, client: str, digest: str) -> bool:
        return bool(await self._run(_DELETE, client, digest))

    async def nonce_key(self) -> bytes:
        """What all web processes sign their nonces with."""
        return await self._link.run(_NONCE_KEY, self._namespace, secrets.token_bytes(32))

    async def spend_nonce(self, nonce: str, count: int, life_ms: int) -> bool:
        return bool(await self._link.run(_SPEND_NONCE, self._namespace, nonce, count, life_ms))

    async def _run(self, script: Script, *args: str | bytes | int) -> Any:
        return await self._link.run(script, self._namespace, self._uids(), *args)
