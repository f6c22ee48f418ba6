"""Who and what the old bus knows: clients, topics, subscriptions, and counters that have no place here."""

import secrets
from collections.abc import Callable
from typing import NamedTuple

from routemaster.callback import host_of
from routemaster.cli.importer import layout
from routemaster.cli.importer.account import Account, Count
from routemaster.cli.importer.layout import Subscriber, Unreadable
from routemaster.cli.importer.patience import patiently
from routemaster.cli.importer.source import Source, Topic
from routemaster.credential import digest_of
from routemaster.store.clients import Grants
from routemaster.store.imports import Imports
from routemaster.web.subscriptions import MAX_EVENTS
from routemaster.web.tokens import new_client


class Owner(NamedTuple):
    """A subscription that queued batches go to."""

    subscriber: str  # its id here; '' where it was not taken over
    why_not: str = ""


class Enrolment:
    def __init__(
        self, source: Source, imports: Imports, account: Account, is_root_key: Callable[[str], bool]
    ) -> None:
        self._source = source
        self._imports = imports
        self._account = account
        self._is_root_key = is_root_key
        self._clients: dict[str, str] = {}  # token -> client id; '' for one that was not taken over
        self.publishers: dict[str, str] = {}  # topic -> client id
        self.owners: dict[str, Owner] = {}  # token -> its subscription
        self.current: set[str] = set()  # batches that were still filling

    async def take(self) -> None:
        tokens = await self._source.tokens()
        topics = await self._source.topics()
        subscribers = await self._source.subscribers()
        for token, service in tokens.items():
            await self._take_client(token, service, may_call=True)
        for token in [topic.publisher for topic in topics] + subscribers:
            if token and token not in self._clients:
                await self._take_client(token, "", may_call=False)
        for topic in topics:
            await self._take_topic(topic)
        for token in subscribers:
            await self._take_subscription(token)
        await self._list_counters()

    # Clients

    async def _take_client(self, token: str, service: str, *, may_call: bool) -> None:
        """Who has a token there gets a client with it here. Who has none, and owns something, gets a client
        with a token that nobody knows: root can rotate it."""
        name = layout.name_of(token, service)
        self._clients[token] = ""
        if "\ufffd" in token or self._is_root_key(token):
            why = "it is no text" if "\ufffd" in token else "it is this bus's root key"
            self._account.leave("token", name, why)
            return
        secret = token if may_call else secrets.token_urlsafe(32)
        client, record = new_client(name, secret, "client", Grants())
        if self._account.dry_run:
            outcome, known = await patiently(lambda: self._imports.look_for_client(digest_of(token)))
            client = known or f"{name}--…"
        else:
            outcome, client = await patiently(lambda: self._imports.client(client, record, digest_of(token)))
        if outcome == "deleted":
            self._account.leave("token", name, "its client was deleted here since it was taken over")
            return
        self._clients[token] = client
        if not may_call:
            self._account.without_token.append(client)
        elif outcome == "new":
            self._account.tokens.taken += 1
        else:
            self._account.tokens.known += 1

    # Topics

    async def _take_topic(self, topic: Topic) -> None:
        publisher = self._clients.get(topic.publisher, "")
        if not layout.TOPIC.fullmatch(topic.name):
            name = topic.name[:64].encode("unicode_escape").decode()
            self._account.leave("topic", name, "expected 1 to 64 lowercase letters or underscores")
            return
        self.publishers[topic.name] = publisher
        note = f"{topic.name}:{digest_of(topic.publisher)[:16]}"
        if self._account.dry_run:
            outcome = await patiently(lambda: self._imports.look_for_topic(topic.name, publisher, note))
        else:
            outcome = await patiently(lambda: self._imports.topic(topic.name, publisher, topic.counter, note))
        if outcome == "taken":
            self._account.leave("topic", topic.name, "another client is its publisher here")
        elif outcome == "deleted":
            self._account.leave("topic", topic.name, "it was deleted here since it was taken over")
        elif outcome == "new":
            self._account.topics.taken += 1
        else:
            self._account.topics.known += 1

    # Subscriptions

    async def _take_subscription(self, token: str) -> None:
        client = self._clients.get(token, "")
        name = client or layout.name_of(token)
        try:
            subscriber = await self._source.subscriber(token)
            why_not = _problem(subscriber) if client else "its client was not taken over"
        except Unreadable as error:
            subscriber, why_not = None, f"its fields cannot be read: {error}"
        if subscriber is not None and not why_not:
            outcome = await self._make(subscriber, client)
            if outcome in ("new", "known"):
                self.owners[token] = Owner(client)
                self.current |= await self._source.current(token)
                tally = self._account.subscriptions
                tally.taken, tally.known = tally.taken + (outcome == "new"), tally.known + (outcome != "new")
                return
            why_not = "it was ended here since it was taken over"
        self._account.leave("subscription", name, why_not)
        self.owners[token] = Owner("", f"the subscription of {name} was left")

    async def _make(self, subscriber: Subscriber, client: str) -> str:
        if self._account.dry_run:
            return await patiently(lambda: self._imports.look_for_subscriber(client))
        fields: dict[str, str | int] = {
            "callback": subscriber.callback,
            "uuid": subscriber.uuid,
            "timeout": subscriber.timeout_ms,
            "max_events": min(MAX_EVENTS, subscriber.max_events),
            "health_points": subscriber.health_points,
        }
        if subscriber.last_attempted_at is not None:
            fields["last_attempted_at"] = subscriber.last_attempted_at
        topics = {topic for topic in subscriber.topics if layout.TOPIC.fullmatch(topic)}
        return await patiently(lambda: self._imports.subscriber(client, client, fields, topics))

    # What has no place here

    async def _list_counters(self) -> None:
        """A tag may be a token: those that are known are shown as their clients, others not at all."""
        try:
            counters = await self._source.counters()
        except Unreadable as error:
            self._account.notes.append(f"The counters cannot be read: {error}.")
            return
        for counter in sorted(counters, key=str):
            tags = {
                tag: (self._clients.get(value) or layout.name_of(value)) if tag == "queue" else value
                for tag, value in counter.tags.items()
            }
            self._account.counters.append(Count(counter.name, tags, counter.value))


def _problem(subscriber: Subscriber) -> str:
    if host_of(subscriber.callback) is None:
        return "its callback is no http or https URL without credentials"
    return ""
