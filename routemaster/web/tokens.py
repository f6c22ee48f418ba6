"""/api_tokens: clients and their tokens. Root alone calls these."""

import re
import secrets
import time

import msgspec

from routemaster.errors import InvalidInput
from routemaster.settings import TOKEN
from routemaster.store.registry import ClientRecord, Registry
from routemaster.web.access import Access
from routemaster.web.calls import EMPTY, ROOT, Answer, Call, Operation
from routemaster.web.problem import Problem
from routemaster.web.snapshot import digest_of

NAME = re.compile(r"[A-Za-z0-9_.-]{1,48}")


class NewToken(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    token: str | None = None
    role: str | None = None


class TokenRow(msgspec.Struct):
    name: str
    token: str  # the client id: the secret is shown once, when it is made
    role: str
    grants: None


class CreatedToken(msgspec.Struct):
    name: str
    token: str
    client: str


class Tokens:
    def __init__(self, registry: Registry, access: Access, root_key: str | None) -> None:
        self._registry = registry
        self._access = access
        self._root_key = root_key

    def operations(self) -> list[Operation]:
        return [
            Operation(
                method="GET",
                path="/api_tokens",
                summary="All clients.",
                roles=(ROOT,),
                gives={200: list[TokenRow], 204: None},
                act=self._list,
            ),
            Operation(
                method="POST",
                path="/api_tokens",
                summary="Make a client and its first token, which is shown this once.",
                roles=(ROOT,),
                takes=NewToken,
                gives={201: CreatedToken, 409: None},
                act=self._create,
            ),
            Operation(
                method="DELETE",
                path="/api_tokens/{token}",
                summary="Delete a token, or a client with all it has.",
                roles=(ROOT,),
                gives={204: None},
                act=self._delete,
            ),
        ]

    async def _list(self, call: Call) -> Answer:
        clients = sorted(self._access.snapshot.clients.values(), key=lambda client: client.id)
        if not clients:
            return EMPTY
        return Answer(200, [TokenRow(client.name, client.id, client.role, None) for client in clients])

    async def _create(self, call: Call) -> Answer:
        wanted = await call.parse(NewToken)
        if not NAME.fullmatch(wanted.name):
            raise InvalidInput("name", "1 to 48 letters, digits or any of _ . -")
        role = wanted.role or "client"
        if role not in ("client", "monitor"):
            raise InvalidInput("role", "client or monitor")
        token = wanted.token or f"{wanted.name[:30].replace('.', '-')}--{secrets.token_hex(16)}"
        if not TOKEN.fullmatch(token):
            raise InvalidInput("token", "8 to 64 letters, digits, _ or -")
        client = f"{wanted.name}--{secrets.token_hex(6)}"
        record = ClientRecord(wanted.name, role, time.time_ns() // 1_000_000, [digest_of(token)])
        if token == self._root_key or not await self._registry.add_client(client, record):
            raise Problem(409, "this token is in use; expected another one", field="token")
        return Answer(201, CreatedToken(wanted.name, token, client))

    async def _delete(self, call: Call) -> Answer:
        name = call.names["token"]
        await self._registry.delete_client(name, digest_of(name))
        return EMPTY
