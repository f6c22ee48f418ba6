"""Receivers that the original published: our deliveries pass their checks, one after the other.

The Ruby drain looks at path, method, credentials, content type and keys; the Elixir drain and the Go listener
at the username; the receiver of the first Ruby releases at the password.
"""

import base64
import json

import pytest

from tests.conftest import MakeClient
from tests.receiver import Delivery, Inbox
from tests.wire import Caller

TOKEN = "drain--1e2f3a4b"


def credentials(delivery: Delivery) -> tuple[str, str]:
    scheme, _, value = delivery.headers["authorization"].partition(" ")
    assert scheme == "Basic"
    assert "\n" not in value
    user, _, password = base64.b64decode(value, validate=True).decode().partition(":")
    return user, password


@pytest.fixture
def deliveries(publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox) -> list[Delivery]:
    """One of each type, with and without all that is optional."""
    subscriber.subscribe(inbox.url, topic, timeout=0, max=3, uuid=TOKEN)
    for type in ("create", "update", "delete", "noop"):
        publisher.publish(topic, type=type)
        publisher.publish(topic, type=type, data={"a": None}, id=f"k-{type}", environment="eu", timestamp=1)
    inbox.until_events(8)
    return inbox.deliveries


def test_the_ruby_drain_takes_them(deliveries: list[Delivery], inbox: Inbox):
    for delivery in deliveries:
        assert delivery.headers["content-type"] == "application/json"  # compared as a whole
        assert credentials(delivery)[0] == TOKEN
        events = json.loads(delivery.body)
        assert isinstance(events, list)
        for event in events:
            assert all(event[name] for name in ("t", "type", "topic", "url")), event
            assert event["type"] in ("create", "update", "delete", "noop")
            assert isinstance(event["t"], int)


def test_the_elixir_drain_takes_them(deliveries: list[Delivery]):
    for delivery in deliveries:
        value = delivery.headers["authorization"]
        assert value.startswith("Basic ")
        assert base64.b64decode(value[6:], validate=True).decode().split(":")[0] == TOKEN
        assert delivery.headers["content-type"].startswith("application/json")
        known = ("type", "url", "t", "data", "topic")
        assert all(set(event) - set(known) <= {"id", "key"} for event in json.loads(delivery.body))


def test_the_go_listener_takes_them(deliveries: list[Delivery]):
    """It unmarshals into fixed types and refuses an empty list."""
    for delivery in deliveries:
        assert credentials(delivery)[0] == TOKEN
        events = json.loads(delivery.body)
        assert len(events) > 0
        assert all(isinstance(event[name], str) for event in events for name in ("topic", "type", "url"))
        assert all(isinstance(event["t"], int) for event in events)


def test_the_first_receivers_read_the_password(deliveries: list[Delivery]):
    assert {credentials(delivery)[1] for delivery in deliveries} == {TOKEN}


def test_a_body_that_is_read_by_its_length(deliveries: list[Delivery]):
    """Rack's input was not always rewindable, and none of them reads chunks."""
    for delivery in deliveries:
        assert int(delivery.headers["content-length"]) == len(delivery.body)
        assert "transfer-encoding" not in delivery.headers
        assert "content-encoding" not in delivery.headers


@pytest.mark.parametrize("status", [200, 204])
def test_what_they_answer_acknowledges(
    publisher: Caller, client: MakeClient, topic: str, inbox: Inbox, status: int
):
    """The Ruby drain ends with 204, the Elixir one with 204, the Go listener with 200."""
    inbox.answer(status)
    client().subscribe(inbox.url, topic, timeout=0, max=1, uuid=TOKEN)
    ids = [publisher.publish(topic) for _ in range(3)]
    assert [event["id"] for event in inbox.until_events(3)] == ids
    assert {delivery.attempt for delivery in inbox.deliveries} == {1}


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 415])
def test_what_they_refuse_is_sent_again(
    publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox, status: int
):
    """They answer so to what they do not like; nothing is lost when they have been put right."""
    inbox.answer_next(status, status)
    subscriber.subscribe(inbox.url, topic, timeout=0, uuid=TOKEN)
    publisher.publish(topic)
    deliveries = inbox.until_deliveries(3)
    assert len({(delivery.id, delivery.body) for delivery in deliveries}) == 1
