"""/api_tokens: clients, their tokens, and what they may publish and read. Root alone calls these.

A token is shown in the answer that makes it and never again; elsewhere a client is known by its id.
"""

import re
import secrets
import time
from typing import Annotated, Literal

import msgspec

from routemaster.credential import digest_of, token_of
from routemaster.errors import InvalidInput
from routemaster.pattern import check_globs
from routemaster.settings import TOKEN
from routemaster.store.clients import Client, ClientRecord, Clients, Grants
from routemaster.web.access import Access
from routemaster.web.calls import EMPTY, ROOT, Answer, Call, Operation
from routemaster.web.problem import Problem
from routemaster.web.shapes import ClientName, TokenText

NAME = re.compile(r"[A-Za-z0-9_.-]{1,48}")
MOST_GRACE_S = 31_536_000


class NewToken(msgspec.Struct, forbid_unknown_fields=True):
    name: ClientName
    token: TokenText | None = None
    role: Literal["client", "monitor"] | None = None
    grants: Grants | None = None


class Rotation(msgspec.Struct, forbid_unknown_fields=True):
    grace_s: Annotated[int, msgspec.Meta(ge=0, le=MOST_GRACE_S)] | None = None
    token: TokenText | None = None


class Change(msgspec.Struct, forbid_unknown_fields=True):
    grants: Grants | None


class TokenRow(msgspec.Struct):
    name: str
    token: str  # the client id: the secret is shown once, when it is made
    role: str
    grants: Grants | None


class CreatedToken(msgspec.Struct):
    name: str
    token: str
    client: str


class Tokens:
    def __init__(self, clients: Clients, access: Access) -> None:
        self._clients = clients
        self._access = access

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
                method="POST",
                path="/api_tokens/{client}/rotate",
                summary="Give a client a new token; its others end after grace_s (0).",
                roles=(ROOT,),
                takes=Rotation,
                needs_body=False,
                gives={201: CreatedToken, 404: None, 409: None},
                act=self._rotate,
            ),
            Operation(
                method="PATCH",
                path="/api_tokens/{client}",
                summary="Change what a client may publish and read; null for all.",
                roles=(ROOT,),
                takes=Change,
                gives={204: None, 404: None},
                act=self._change,
            ),
            Operation(
                method="DELETE",
                path="/api_tokens/{client}",
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
        return Answer(200, [_row(client) for client in clients])

    async def _create(self, call: Call) -> Answer:
        wanted = await call.parse(NewToken)
        if not NAME.fullmatch(wanted.name):
            raise InvalidInput("name", "1 to 48 letters, digits or any of _ . -")
        grants = _checked(wanted.grants)
        secret = self._secret(wanted.token, wanted.name)
        client, record = new_client(wanted.name, secret, wanted.role or "client", grants)
        if not await self._clients.add(client, record):
            raise _in_use()
        return Answer(201, CreatedToken(wanted.name, secret, client))

    async def _rotate(self, call: Call) -> Answer:
        wanted = await call.parse_if_any(Rotation)
        client = self._access.snapshot.clients.get(call.names["client"])
        if client is None:
            raise _no_client()
        secret = self._secret(wanted.token, client.name)
        token = token_of(secret, client.id, client.name)
        outcome = await self._clients.rotate(client.id, token, (wanted.grace_s or 0) * 1000)
        if outcome == "taken":
            raise _in_use()
        if outcome == "unknown":
            raise _no_client()
        return Answer(201, CreatedToken(client.name, secret, client.id))

    async def _change(self, call: Call) -> Answer:
        wanted = await call.parse(Change)
        if not await self._clients.grant(call.names["client"], _checked(wanted.grants)):
            raise _no_client()
        return EMPTY

    async def _delete(self, call: Call) -> Answer:
        name = call.names["client"]
        await self._clients.delete(name, digest_of(name))
        return EMPTY

    def _secret(self, given: str | None, name: str) -> str:
        """The token that was asked for, or a new one."""
        made = f"{name[:30].replace('.', '-')}--{secrets.token_hex(16)}"
        secret = made if given is None else given
        if not TOKEN.fullmatch(secret):
            raise InvalidInput("token", "8 to 64 letters, digits, _ or -")
        if self._access.is_root_key(secret):
            raise _in_use()
        return secret


def new_client(name: str, secret: str, role: str, grants: Grants) -> tuple[str, ClientRecord]:
    """A client that is not there yet: its id, and its record with its first token."""
    client = f"{name}--{secrets.token_hex(6)}"
    text = "" if grants == Grants() else msgspec.json.encode(grants).decode()
    token = token_of(secret, client, name)
    return client, ClientRecord(name, role, time.time_ns() // 1_000_000, [token], text)


async def seed(clients: Clients, tokens: tuple[str, ...]) -> None:
    """Make a client for each token that ROUTEMASTER_CLIENTS names, unless there was one for it before."""
    for secret in tokens:
        before, dashes, _ = secret.partition("--")
        name = before[:48] if before and dashes else "client"  # without a name it is all secret
        await clients.seed(*new_client(name, secret, "client", Grants()))


def _row(client: Client) -> TokenRow:
    grants = None if client.grants == Grants() else client.grants
    return TokenRow(client.name, client.id, client.role, grants)


def _checked(grants: Grants | None) -> Grants:
    found = grants or Grants()
    check_globs("grants.publish", found.publish or ())
    check_globs("grants.read", found.read or ())
    return found


def _in_use() -> Problem:
    return Problem(409, "this token is in use; expected another one", field="token")


def _no_client() -> Problem:
    return Problem(404, "there is no such client; GET /api_tokens lists them")
