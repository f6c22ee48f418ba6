"""One delivery, as it comes over the wire."""

import json
import re
import time

import pytest

from tests.bus import Bus
from tests.conftest import MakeBus, MakeClient
from tests.receiver import Inbox, Receiver
from tests.until import until
from tests.wire import Caller


def test_its_headers_and_body_are_those_of_the_contract(
    publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    subscriber.subscribe(inbox.url, topic, timeout=0, uuid="1b4e28ba-2fa1")
    before = time.time()
    first = publisher.publish(
        topic, url="https://example.com/1", type="create", timestamp=5, data={"a": [1]}, id="k:1"
    )
    (delivery,) = inbox.until_deliveries(1)
    assert delivery.path == inbox.path
    headers = delivery.headers
    assert headers["content-type"] == "application/json"
    assert int(headers["content-length"]) == len(delivery.body)
    assert "transfer-encoding" not in headers
    assert delivery.credentials == "1b4e28ba-2fa1:1b4e28ba-2fa1"
    assert re.fullmatch(r"[-0-9A-Z_a-z]{20}", headers["webhook-id"])
    assert int(before) <= int(headers["webhook-timestamp"]) <= time.time()
    assert headers["routemaster-attempt"] == "1"
    lane, generation, number = headers["routemaster-sequence"].split("/")
    assert lane.startswith(subscriber.id)
    assert re.fullmatch(r"[-0-9A-Z_a-z]{20}", generation)
    assert number == "1"
    assert "routemaster-replay" not in headers
    assert "webhook-signature" not in headers
    assert "traceparent" not in headers
    assert json.loads(delivery.body) == [
        {
            "topic": topic,
            "type": "create",
            "url": "https://example.com/1",
            "t": 5,
            "data": {"a": [1]},
            "id": first,
            "key": "k:1",
        }
    ]


def test_what_was_not_given_is_not_there(publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox):
    subscriber.subscribe(inbox.url, topic, timeout=0)
    publisher.publish(topic, data=None, id=None, environment="staging")
    (event,) = inbox.until_events(1)
    assert set(event) == {"topic", "type", "url", "t", "id"}


def test_events_come_in_the_order_of_reception_and_at_most_max_at_once(
    publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    subscriber.subscribe(inbox.url, topic, timeout=0, max=7)
    urls = [f"https://example.com/{n}" for n in range(100)]
    for n in range(30):
        publisher.publish(topic, url=urls[n])
    publisher.publish_many(topic, urls[30:])
    inbox.until_events(100)
    assert inbox.urls == urls
    assert all(1 <= len(delivery.events) <= 7 for delivery in inbox.deliveries)
    assert any(len(delivery.events) == 7 for delivery in inbox.deliveries)
    assert inbox.most_in_air == 1


def test_its_number_rises_by_one_per_batch(publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox):
    subscriber.subscribe(inbox.url, topic, timeout=0, max=1)
    publisher.publish_many(topic, [f"https://example.com/{n}" for n in range(10)])
    deliveries = inbox.until_deliveries(10)
    sequences = [delivery.headers["routemaster-sequence"].rsplit("/", 1) for delivery in deliveries]
    assert len({where for where, _ in sequences}) == 1
    assert [int(number) for _, number in sequences] == list(range(1, 11))
    assert len({delivery.id for delivery in deliveries}) == 10


def test_every_subscriber_gets_every_event(
    publisher: Caller, client: MakeClient, topic: str, receiver: Receiver
):
    inboxes = [receiver.inbox() for _ in range(5)]
    for inbox in inboxes:
        client().subscribe(inbox.url, topic, timeout=0)
    ids = [publisher.publish(topic) for _ in range(10)]
    for inbox in inboxes:
        assert [event["id"] for event in inbox.until_events(10)] == ids


def test_one_delivery_may_hold_several_topics(bus: Bus, publisher: Caller, subscriber: Caller, inbox: Inbox):
    topics = [bus.topic(), bus.topic()]
    subscriber.subscribe(inbox.url, *topics, timeout=3_600_000, max=4)
    ids = [publisher.publish(topic) for topic in topics * 2]
    (delivery,) = inbox.until_deliveries(1)
    assert [(event["topic"], event["id"]) for event in delivery.events] == list(
        zip(topics * 2, ids, strict=True)
    )


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_any_2xx_acknowledges(
    bus: Bus, publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox, status: int
):
    inbox.answer(status)
    subscriber.subscribe(inbox.url, topic, timeout=0)
    publisher.publish(topic)
    inbox.until(lambda: bus.subscriber(subscriber)["events"]["queued"] == 0, "the acknowledgement")
    assert [delivery.attempt for delivery in inbox.deliveries] == [1]
    assert bus.subscriber(subscriber)["events"]["sent"] == 1
    assert bus.subscriber(subscriber)["health_points"] == 100


def test_a_large_answer_does_no_harm(publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox):
    inbox.answer(200, body=b"x" * 2**20)
    subscriber.subscribe(inbox.url, topic, timeout=0, max=1)
    for n in range(3):
        publisher.publish(topic, url=f"https://example.com/{n}")
    inbox.until_events(3)
    assert inbox.urls == [f"https://example.com/{n}" for n in range(3)]


def test_connections_are_used_again(publisher: Caller, subscriber: Caller, topic: str, receiver: Receiver):
    inbox = receiver.inbox()
    subscriber.subscribe(inbox.url, topic, timeout=0, max=1)
    publisher.publish(topic)
    inbox.until_events(1)
    before = receiver.connections
    publisher.publish_many(topic, [f"https://example.com/{n}" for n in range(50)])
    inbox.until_events(51)
    assert receiver.connections - before <= 5


def test_every_attempt_is_recorded(bus: Bus, publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox):
    inbox.answer_next(500)
    subscriber.subscribe(inbox.url, topic, timeout=0)
    publisher.publish(topic)

    def records() -> list[dict]:
        entries = bus.redis.xrange(bus.key("log:deliveries"))
        found = [json.loads(line) for _, block in entries for line in block[b"e"].split(b",\n")]
        return [record for record in found if record["subscriber"] == subscriber.id]

    until(lambda: len(records()) == 2, "two records")
    batch = inbox.deliveries[0].id
    assert [
        (record["batch"], record["attempt"], record["status"], record["code"], record["events"])
        for record in records()
    ] == [(batch, 1, "failed", 500, 1), (batch, 2, "delivered", 200, 1)]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_private_address_is_not_connected_to_where_it_is_not_allowed(
    make_bus: MakeBus, receiver: Receiver, host: str
):
    """Allowed when it was registered, and not any more: what counts is where the connection goes."""
    bus = make_bus(workers=0)
    inbox = receiver.inbox()
    publisher, subscriber = bus.client(), bus.client()
    subscriber.subscribe(inbox.url.replace("127.0.0.1", host), "widgets", timeout=0)
    publisher.publish("widgets")
    bus.add_worker(allow_private_callbacks="0")
    bus.start()
    until(lambda: bus.subscriber(subscriber)["health_points"] < 100, "a failed attempt")
    assert inbox.deliveries == []
    assert bus.subscriber(subscriber)["events"]["queued"] == 1
