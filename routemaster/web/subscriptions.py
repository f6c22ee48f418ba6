"""Push subscriptions: making, changing, operating and ending them.

A client operates its own, by name where it has several; root operates anybody's, under /subscribers/….
"""

import asyncio
import re
import socket
import time
from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import Meta

from routemaster import pattern
from routemaster.callback import (
    SECRET_PREFIX,
    host_of,
    is_allowed,
    is_secret,
    is_secure,
    problem_with_headers,
)
from routemaster.errors import InvalidInput
from routemaster.event import Event, encode_channel, encode_event
from routemaster.sender import Sender
from routemaster.settings import Settings
from routemaster.store.deliveries import trial
from routemaster.store.registry import Registry, Wanted
from routemaster.uid import Maker
from routemaster.web.access import Access
from routemaster.web.calls import CLIENT, EMPTY, ROOT, Answer, Call, Handler, Operation
from routemaster.web.problem import Problem
from routemaster.web.shapes import Callback, Pattern, Secret, SubscriptionName, Topic, Uuid

MAX_TIMEOUT_MS = 3_600_000
MAX_EVENTS = 10_000
MAX_LANES = 64
MAX_TOPICS = 10_000
# Of one client. What it has is ended in one step, and each new address is held against all patterns.
MAX_SUBSCRIPTIONS = 100
MAX_PATTERNS = 200
NAME = re.compile(r"[a-z0-9_-]{1,32}")

Timeout = Annotated[int, Meta(ge=0, le=MAX_TIMEOUT_MS, description="ms that a batch waits for more (500)")]
Most = Annotated[int, Meta(ge=1, description="events in a batch, at most (100)")]
Parallelism = Annotated[int, Meta(ge=1, le=MAX_LANES, description="lanes, each in order per entity URL (1)")]
Rate = Annotated[float, Meta(ge=0.001, le=10_000, description="deliveries a second, at most")]
Attempts = Annotated[int, Meta(ge=1, le=1_000_000, description="then a batch goes to the dead letters")]


class NewSubscription(msgspec.Struct, forbid_unknown_fields=True):
    callback: Callback
    uuid: Uuid
    topics: list[Topic] | None = None
    timeout: Timeout | None = None
    max: Most | None = None
    name: SubscriptionName | None = None
    match: Pattern | list[Pattern] | None = None
    parallelism: Parallelism | None = None
    max_rate: Rate | None = None
    signing_secret: Secret | None = None
    headers: dict[str, str] | None = None
    max_attempts: Attempts | None = None
    paused: bool | None = None


class Tried(msgspec.Struct):
    delivered: bool
    code: int  # what the callback answered; 0 for nothing
    why: str
    ms: int


class Subscriptions:
    def __init__(
        self, settings: Settings, access: Access, registry: Registry, sender: Sender, uids: Maker
    ) -> None:
        self._settings = settings
        self._access = access
        self._registry = registry
        self._sender = sender
        self._uids = uids
        self._topic = re.compile(f"[a-z_]{{1,{settings.max_topic_name}}}")

    def operations(self) -> list[Operation]:
        subscribes = [
            Operation(
                method="POST",
                path=path,
                summary="Subscribe, or change the subscription: its topics and options are replaced.",
                takes=NewSubscription,
                gives={204: None},
                act=self._subscribe,
            )
            for path in ("/subscription", "/subscriber")
        ]
        return [
            *subscribes,
            *for_both("DELETE", "", "End the subscription, and what is queued for it.", self._unsubscribe),
            *for_both("DELETE", "/topics/{topic}", "Take one topic off the list.", self._unsubscribe_topic),
            *for_both("POST", "/pause", "Send nothing until it is resumed; events queue up.", self._pause),
            *for_both("POST", "/resume", "Go on sending.", self._resume),
            *for_both(
                "POST", "/test", "Send one noop event now, and tell what came back.", self._test, {200: Tried}
            ),
        ]

    async def _subscribe(self, call: Call) -> Answer:
        wanted = await call.parse(NewSubscription)
        if wanted.topics is None and wanted.match is None:
            raise InvalidInput("topics", "to be present, or match")
        self.check_topics("topics", wanted.topics or [])
        self.check_uuid(wanted.uuid)
        match = [wanted.match] if isinstance(wanted.match, str) else wanted.match or []
        pattern.check("match", match)
        if wanted.name is not None and not NAME.fullmatch(wanted.name):
            raise InvalidInput("name", "1 to 32 lowercase letters, digits, _ or -")
        if wanted.signing_secret and not is_secret(wanted.signing_secret):
            expected = f"{SECRET_PREFIX} and the base64 of 24 to 64 random bytes (the value is not shown)"
            raise InvalidInput("signing_secret", expected)
        if problem := problem_with_headers(wanted.headers or {}):
            raise InvalidInput("headers", problem)
        self._check_room(call.client.id, subscriber_id(call.client.id, wanted.name), len(match))
        await self.check_callback(wanted.callback)
        fields: dict[str, str | int | float] = {
            "callback": wanted.callback,
            "uuid": wanted.uuid,
            "timeout": 500 if wanted.timeout is None else wanted.timeout,
            "max_events": min(MAX_EVENTS, wanted.max or 100),
            "name": wanted.name or "",
            "match": msgspec.json.encode(match).decode() if match else "",
            "max_rate": "" if wanted.max_rate is None else repr(wanted.max_rate),
            "max_attempts": wanted.max_attempts or "",
            "headers": msgspec.json.encode(wanted.headers).decode() if wanted.headers else "",
        }
        if wanted.paused:
            fields["paused"] = "1"
        outcome = await self._registry.subscribe(
            Wanted(
                subscriber_id(call.client.id, wanted.name),
                call.client.id,
                wanted.parallelism or 1,
                fields,
                {None: "", "": "-"}.get(wanted.signing_secret, wanted.signing_secret or ""),
                self._settings.signing_grace_s * 1000,
                set(wanted.topics or []),
                call.token,
            )
        )
        answer = answer_to(outcome)
        if wanted.paused is False:
            await self._registry.pause(subscriber_id(call.client.id, wanted.name), paused=False)
        return answer

    def _check_room(self, client: str, subscriber: str, patterns: int) -> None:
        """By the snapshot: requests at one moment may go a little over what is allowed."""
        known = self._access.snapshot.subscriptions
        others = [sub for sub in known.values() if sub.client == client and sub.id != subscriber]
        if subscriber not in known and len(others) >= MAX_SUBSCRIPTIONS:
            raise InvalidInput(
                "name", f"one of those that there are: a client has at most {MAX_SUBSCRIPTIONS}"
            )
        if patterns and patterns + sum(len(sub.match) for sub in others) > MAX_PATTERNS:
            raise InvalidInput("match", f"at most {MAX_PATTERNS} patterns in all subscriptions of a client")

    # Checks that the channel dialect has too

    def check_topics(self, field: str, topics: list[str]) -> None:
        if len(topics) > MAX_TOPICS:
            raise InvalidInput(field, f"at most {MAX_TOPICS} names")
        for topic in topics:
            if not self._topic.fullmatch(topic):
                expected = f"names of 1 to {self._settings.max_topic_name} lowercase letters or underscores"
                raise InvalidInput(field, expected)

    def check_uuid(self, uuid: str) -> None:
        if not 1 <= len(uuid) <= 256 or not uuid.isprintable() or ":" in uuid:
            raise InvalidInput("uuid", "1 to 256 printable characters without a colon")

    async def check_callback(self, callback: str) -> None:
        where = host_of(callback)
        if where is None:
            raise InvalidInput("callback", "an http or https URL without credentials")
        if self._settings.needs_https_callbacks and not is_secure(callback):
            raise InvalidInput("callback", "an https URL (ROUTEMASTER_ALLOW_HTTP_CALLBACKS allows http)")
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

    # Operating one that is there

    async def _unsubscribe(self, call: Call) -> Answer:
        if not await self._registry.unsubscribe(subscriber_of(call)):
            raise no_subscription()
        return EMPTY

    async def _unsubscribe_topic(self, call: Call) -> Answer:
        if not await self._registry.unsubscribe(subscriber_of(call), call.names["topic"]):
            raise Problem(404, "the subscription does not have that topic")
        return EMPTY

    async def _pause(self, call: Call) -> Answer:
        if not await self._registry.pause(subscriber_of(call), paused=True):
            raise no_subscription()
        return EMPTY

    async def _resume(self, call: Call) -> Answer:
        if not await self._registry.pause(subscriber_of(call), paused=False):
            raise no_subscription()
        return EMPTY

    async def _test(self, call: Call) -> Answer:
        """The event is in no topic's count and in no log: only the callback sees it."""
        fields = await self._registry.subscriber(subscriber_of(call))
        if fields is None:
            raise no_subscription()
        callback, now_ms = fields["callback"].decode(), time.time_ns() // 1_000_000
        if fields.get("format") == b"channel":
            (event,) = encode_channel("test", [(1, "default:test:noop")], [callback], now_ms)
        else:
            event = encode_event("test", Event("noop", callback), self._uids(), now_ms, None)
        outcome = await self._sender.send(trial(fields, self._uids(), event))
        return Answer(200, Tried(outcome.delivered, outcome.code, outcome.why, outcome.ms))


def for_both(
    method: str,
    path: str,
    summary: str,
    act: Handler,
    gives: dict[int, object] | None = None,
    takes: object = None,
    needs_body: bool = True,
    query: tuple[str, ...] = (),
) -> list[Operation]:
    """The same call for a client's own subscription, and for root on anybody's."""

    def row(prefix: str, roles: tuple[str, ...], which: tuple[str, ...]) -> Operation:
        return Operation(
            method=method,
            path=prefix + path,
            summary=summary,
            roles=roles,
            takes=takes,
            needs_body=needs_body,
            gives={**(gives or {204: None}), 404: None},
            query=(*which, *query),
            act=act,
        )

    return [row("/subscriber", (CLIENT,), ("name",)), row("/subscribers/{subscriber}", (ROOT,), ())]


def subscriber_id(client: str, name: str | None) -> str:
    return f"{client}.{name}" if name else client


def subscriber_of(call: Call) -> str:
    """Which subscription a call is about."""
    if "subscriber" in call.names:
        return call.names["subscriber"]
    name = call.query.get("name")
    if name is not None and not NAME.fullmatch(name):
        raise InvalidInput("name", "1 to 32 lowercase letters, digits, _ or -")
    return subscriber_id(call.client.id, name)


def no_subscription() -> Problem:
    return Problem(404, "there is no such subscription")


def answer_to(outcome: str) -> Answer:
    """What came of a subscription that was asked for."""
    refusals: dict[str, Callable[[], Problem]] = {
        "gone": lambda: Problem(401, "the token was revoked meanwhile"),
        "taken": lambda: Problem(409, "another client has a subscription of this id", field="name"),
        "unknown": lambda: Problem(404, "there is no such channel", field="channels"),
    }
    if outcome in refusals:
        raise refusals[outcome]()
    return EMPTY
