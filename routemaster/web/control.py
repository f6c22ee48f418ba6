"""Everything but publishing: tokens, subscriptions, topics, health. A table of calls.

Each handler parses, acts and answers. Every authenticated call compares the epoch first, so that
what was revoked is refused from the answer to its revocation on.
"""

import asyncio
import re
import secrets
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec

from routemaster.callback import host_of, is_allowed
from routemaster.errors import InvalidInput, StoreError
from routemaster.settings import TOKEN, Settings
from routemaster.store.link import Link
from routemaster.store.registry import Client, ClientRecord, Registry, SubscriberRow
from routemaster.web.access import Access
from routemaster.web.asgi import Receive, Scope, Send, answer, answer_json, read_body
from routemaster.web.problem import Problem, problem_of, unauthorized
from routemaster.web.snapshot import digest_of

NAME = re.compile(r"[A-Za-z0-9_.-]{1,48}")
MAX_TIMEOUT_MS = 3_600_000
MAX_EVENTS = 10_000
MAX_LANES = 64
_Body = TypeVar("_Body")


class NewToken(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    token: str | None = None
    role: str | None = None


class NewSubscription(msgspec.Struct, forbid_unknown_fields=True):
    topics: list[str]
    callback: str
    uuid: str
    timeout: Annotated[int, msgspec.Meta(ge=0, le=MAX_TIMEOUT_MS)] | None = None
    max: Annotated[int, msgspec.Meta(ge=1)] | None = None
    parallelism: Annotated[int, msgspec.Meta(ge=1, le=MAX_LANES)] | None = None


class Call(NamedTuple):
    """One request, as its handler sees it."""

    client: Client
    names: tuple[str, ...]
    read: Callable[[], Awaitable[bytes]]
    send: Send


Handler = Callable[[Call], Awaitable[None]]


class Control:
    def __init__(self, settings: Settings, link: Link, registry: Registry, access: Access) -> None:
        self._settings = settings
        self._link = link
        self._registry = registry
        self._access = access
        self._topic = re.compile(f"[a-z_]{{1,{settings.max_topic_name}}}")
        root, client, reader = ("root",), ("client",), ("root", "client", "monitor")
        self._calls: list[tuple[str, re.Pattern[str], tuple[str, ...], Handler]] = [
            ("GET", re.compile(r"/api_tokens"), root, self._list_tokens),
            ("POST", re.compile(r"/api_tokens"), root, self._create_token),
            ("DELETE", re.compile(r"/api_tokens/([^/]+)"), root, self._delete_token),
            ("POST", re.compile(r"/subscri(?:ption|ber)"), client, self._subscribe),
            ("DELETE", re.compile(r"/subscriber"), client, self._unsubscribe),
            ("DELETE", re.compile(r"/subscriber/topics/([^/]+)"), client, self._unsubscribe_topic),
            ("DELETE", re.compile(r"/topics?/([^/]+)"), ("root", "client"), self._delete_topic),
            ("GET", re.compile(r"/topics"), reader, self._list_topics),
            ("GET", re.compile(r"/subscri(?:ption|ber)s"), reader, self._list_subscribers),
            ("GET", re.compile(r"/pulse"), reader, self._pulse),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method, path = scope["method"], scope["path"]
        if path in ("/health", "/health/ping", "/health/ping.json"):
            if method not in ("GET", "HEAD"):
                raise Problem(405, "expected GET here", [(b"allow", b"GET, HEAD")])
            await answer_json(send, b"{}")
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        client = await self._client(headers)
        found = [(row, match) for row in self._calls if (match := row[1].fullmatch(path))]
        if not found:
            raise Problem(404, f"there is nothing at {path[:200]}")
        for (verb, _, roles, handler), match in found:
            if verb == method or (verb == "GET" and method == "HEAD"):
                if client.role not in roles:
                    raise Problem(403, f"the role {client.role} may not do this")

                async def read() -> bytes:
                    limit, patience = self._settings.max_body_bytes, self._settings.request_timeout_ms
                    return await read_body(receive, headers, limit, patience)

                await handler(Call(client, match.groups(), read, send))
                return
        more = {"POST"} if path.startswith("/topics/") else set[str]()  # taken by Ingest
        allowed = ", ".join(sorted({row[0] for row, _ in found} | more))
        raise Problem(405, f"expected {allowed} here", [(b"allow", allowed.encode())])

    async def _client(self, headers: dict[bytes, bytes]) -> Client:
        await self._access.refresh()
        who = self._access.who(headers.get(b"authorization"))
        if who is None:
            raise unauthorized()
        return who[0]

    # Tokens

    async def _list_tokens(self, call: Call) -> None:
        clients = sorted(self._access.snapshot.clients.values(), key=lambda client: client.id)
        if not clients:
            await answer(call.send, 204, [])
            return
        rows = [
            {"name": client.name, "token": client.id, "role": client.role, "grants": None}
            for client in clients
        ]
        await answer_json(call.send, msgspec.json.encode(rows))

    async def _create_token(self, call: Call) -> None:
        wanted = _parse(await call.read(), NewToken)
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
        if token == self._settings.root_key or not await self._registry.add_client(client, record):
            raise Problem(409, "this token is in use; expected another one", field="token")
        body = msgspec.json.encode({"name": wanted.name, "token": token, "client": client})
        await answer_json(call.send, body, 201)

    async def _delete_token(self, call: Call) -> None:
        name = call.names[0]
        await self._registry.delete_client(name, digest_of(name))
        await answer(call.send, 204, [])

    # Subscriptions

    async def _subscribe(self, call: Call) -> None:
        wanted = _parse(await call.read(), NewSubscription)
        for topic in wanted.topics:
            if not self._topic.fullmatch(topic):
                expected = f"names of 1 to {self._settings.max_topic_name} lowercase letters or underscores"
                raise InvalidInput("topics", expected)
        if not 1 <= len(wanted.uuid) <= 256 or not wanted.uuid.isprintable() or ":" in wanted.uuid:
            raise InvalidInput("uuid", "1 to 256 printable characters without a colon")
        await self._check_callback(wanted.callback)
        fields: dict[str, str | int] = {
            "callback": wanted.callback,
            "uuid": wanted.uuid,
            "timeout": 500 if wanted.timeout is None else wanted.timeout,
            "max_events": min(MAX_EVENTS, wanted.max or 100),
        }
        known = await self._registry.subscribe(
            call.client.id, call.client.id, wanted.parallelism or 1, fields, sorted(set(wanted.topics))
        )
        if not known:  # deleted while its request was being read
            raise unauthorized()
        await answer(call.send, 204, [])

    async def _check_callback(self, callback: str) -> None:
        where = host_of(callback)
        if where is None:
            raise InvalidInput("callback", "an http or https URL without credentials")
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(2):
                found = await loop.getaddrinfo(*where, type=socket.SOCK_STREAM)
        except (OSError, TimeoutError, UnicodeError):
            return  # a name that is not known yet: it is checked again when it is connected to
        for _, _, _, _, address in found:
            if not is_allowed(str(address[0]), self._settings.allow_private_callbacks):
                raise InvalidInput(
                    "callback",
                    "a public address (ROUTEMASTER_ALLOW_PRIVATE_CALLBACKS lists private networks to allow)",
                )

    async def _unsubscribe(self, call: Call) -> None:
        if not await self._registry.unsubscribe(call.client.id):
            raise Problem(404, "this client has no subscription")
        await answer(call.send, 204, [])

    async def _unsubscribe_topic(self, call: Call) -> None:
        if not await self._registry.unsubscribe(call.client.id, call.names[0]):
            raise Problem(404, "this client is not subscribed to that topic")
        await answer(call.send, 204, [])

    async def _list_subscribers(self, call: Call) -> None:
        rows = [_subscriber(row, call.client) for row in await self._registry.subscribers()]
        await answer_json(call.send, msgspec.json.encode(rows))

    # Topics

    async def _list_topics(self, call: Call) -> None:
        rows = [
            {"name": name, "publisher": publisher, "events": events}
            for name, publisher, events in await self._registry.topics()
        ]
        await answer_json(call.send, msgspec.json.encode(rows))

    async def _delete_topic(self, call: Call) -> None:
        owner = "" if call.client.role == "root" else call.client.id
        outcome = await self._registry.delete_topic(call.names[0], owner)
        if outcome == "unknown":
            raise Problem(404, "there is no such topic")
        if outcome == "denied":
            raise Problem(403, "only the publisher of a topic may delete it")
        await answer(call.send, 204, [])

    # Health

    async def _pulse(self, call: Call) -> None:
        try:
            await self._link.call("PING")
        except StoreError as error:
            raise problem_of(error) from None
        await answer(call.send, 204, [])


def _subscriber(row: SubscriberRow, asker: Client) -> dict[str, Any]:
    return {
        "subscriber": row.id,
        "uuid": row.uuid if asker.role == "root" or asker.id == row.client else None,
        "callback": row.callback,
        "max_events": row.max_events,
        "timeout": row.timeout_ms,
        "topics": row.topics,
        "events": {"sent": row.sent, "queued": row.queued, "oldest": row.oldest},
        "health_points": row.health_points,
        "last_attempted_at": row.last_attempted_at,
        "parallelism": row.parallelism,
        "paused": row.paused,
    }


_WHERE = re.compile(r"^(.*?)(?: - at `\$\.?([^`\[]*)[^`]*`)?$", re.DOTALL)


def _parse(body: bytes, kind: type[_Body]) -> _Body:
    try:
        body.decode()
        return msgspec.json.decode(body, type=kind)
    except (UnicodeDecodeError, RecursionError):
        raise InvalidInput("body", "JSON text in UTF-8") from None
    except msgspec.ValidationError as error:
        match = _WHERE.match(str(error))
        text, field = (match[1], match[2]) if match else (str(error), None)
        named = re.search(r"field `([^`]+)`", text)
        raise InvalidInput(field or (named[1] if named else "body"), f"what it should hold: {text}") from None
    except msgspec.DecodeError as error:
        raise InvalidInput("body", f"valid JSON ({error})") from None
