"""Deliveries in the channel format, alone and beside the usual one."""

import json
import time

import pytest

from tests.bus import Bus
from tests.conftest import MakeClient
from tests.receiver import Inbox, Receiver
from tests.wire import Caller


def queue(subscriber: Caller, callback: str, *channels: str, **more: object) -> None:
    wanted = {"channels": channels, "callback": callback, "uuid": "secret-uuid", "timeout": 0, **more}
    answer = subscriber.post("/queue", wanted)
    assert (answer.status, answer.body) == (204, b""), answer


def test_a_delivery_has_just_the_fields_of_the_dialect(
    publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    publisher.publish(topic)
    queue(subscriber, inbox.url, topic)
    before = time.time() * 1000
    publisher.publish(topic, "https://example.com/7", "create", timestamp=5, data={"a": 1}, id="k")
    (delivery,) = inbox.until_deliveries(1)
    (event,) = json.loads(delivery.body)
    assert before - 1 <= event.pop("t") <= time.time() * 1000  # of reception, whatever timestamp was given
    assert event == {"channel": topic, "event": "created", "url": "https://example.com/7"}
    assert delivery.headers["content-type"] == "application/json"
    assert delivery.credentials == "secret-uuid:secret-uuid"
    assert delivery.headers["content-length"] == str(len(delivery.body))
    assert "transfer-encoding" not in delivery.headers
    assert {"webhook-id", "webhook-timestamp", "routemaster-attempt"} <= set(delivery.headers)


def test_every_type_in_the_words_of_the_dialect(
    publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    publisher.publish(topic)
    queue(subscriber, inbox.url, topic)
    for type in ("create", "update", "delete", "noop"):
        publisher.publish(topic, type=type)
    events = inbox.until_events(4)
    assert [event["event"] for event in events] == ["created", "updated", "deleted", "updated"]


@pytest.mark.parametrize("status", [200, 204])
def test_200_and_204_acknowledge(
    bus: Bus, publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox, status: int
):
    publisher.publish(topic)
    queue(subscriber, inbox.url, topic)
    inbox.answer(status)
    publisher.publish(topic)
    inbox.until(lambda: bus.subscriber(subscriber)["events"]["queued"] == 0, "the acknowledgement")
    assert len(inbox.deliveries) == 1
    assert bus.subscriber(subscriber)["events"]["sent"] == 1


@pytest.mark.parametrize("status", [201, 202, 206, 299, 304, 500])
def test_nothing_else_does(
    bus: Bus, publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox, status: int
):
    publisher.publish(topic)
    queue(subscriber, inbox.url, topic)
    inbox.answer_next(status)
    publisher.publish(topic)
    first, second = inbox.until_deliveries(2)
    assert (first.id, first.body) == (second.id, second.body)
    inbox.until(lambda: bus.subscriber(subscriber)["events"]["queued"] == 0, "the acknowledgement")
    assert bus.subscriber(subscriber)["health_points"] == 99


def test_both_formats_of_one_topic_side_by_side(
    bus: Bus, publisher: Caller, client: MakeClient, topic: str, receiver: Receiver
):
    usual, early, parallel = receiver.inbox(), receiver.inbox(), receiver.inbox()
    publisher.publish(topic)
    client().subscribe(usual.url, topic, timeout=0)
    queue(client(), early.url, topic)
    several = client()
    queue(several, parallel.url, topic)
    several.subscribe(parallel.url, topic, timeout=0, parallelism=3)
    urls = [f"https://example.com/{n}" for n in range(60)]
    for url in urls[:20]:
        assert publisher.post(f"/channel/{topic}", {"event": "updated", "url": url}).status == 204
    publisher.publish_many(topic, urls[20:])
    assert [event["url"] for event in usual.until_events(60)] == urls
    assert [event["url"] for event in early.until_events(60)] == urls
    assert sorted(event["url"] for event in parallel.until_events(60)) == sorted(urls)
    assert {frozenset(event) for event in usual.events} == {frozenset({"topic", "type", "url", "t", "id"})}
    assert {frozenset(event) for inbox in (early, parallel) for event in inbox.events} == {
        frozenset({"channel", "event", "url", "t"})
    }


def test_a_bulk_with_repeated_keys(publisher: Caller, client: MakeClient, topic: str, receiver: Receiver):
    usual, early = receiver.inbox(), receiver.inbox()
    publisher.publish(topic)
    client().subscribe(usual.url, topic, timeout=0)
    queue(client(), early.url, topic)
    events = [
        {"type": "update", "url": f"https://example.com/{n}", "id": f"k{n}", "data": {"n": "é" * (n % 5)}}
        for n in range(30)
    ]
    assert publisher.post(f"/topics/{topic}", events[5:10]).json == {"accepted": 5}
    assert publisher.post(f"/topics/{topic}", events[3:20]).json == {"accepted": 17}
    assert publisher.post(f"/topics/{topic}", events).json == {"accepted": 30}
    order = [*range(5, 10), 3, 4, *range(10, 20), 0, 1, 2, *range(20, 30)]
    expected = [f"https://example.com/{n}" for n in order]
    assert [event["url"] for event in usual.until_events(30)] == expected
    assert [event["url"] for event in early.until_events(30)] == expected


def test_a_wide_request_with_both_formats(
    bus: Bus, publisher: Caller, client: MakeClient, topic: str, receiver: Receiver
):
    """4 MiB × lanes and more go in several flushes; each event goes once, and in order."""
    usual, early = receiver.inbox(), receiver.inbox()
    publisher.publish(topic)
    client().subscribe(usual.url, topic, timeout=0, max=10_000)
    queue(client(), early.url, topic, max=10_000)
    for _ in range(3):
        queue(client(), early.url + "-not-there", topic, timeout=3_600_000, max=10_000)
    urls = [f"https://example.com/{n}" for n in range(3_000)]
    events = [{"type": "update", "url": url, "data": {"x": "y" * 500}} for url in urls]
    answer = publisher.post(f"/topics/{topic}", events)
    assert (answer.status, answer.json) == (200, {"accepted": 3_000})
    assert [event["url"] for event in usual.until_events(3_000)] == urls
    assert [event["url"] for event in early.until_events(3_000)] == urls


def test_several_channels_in_one_delivery(bus: Bus, publisher: Caller, subscriber: Caller, inbox: Inbox):
    channels = [bus.topic(), bus.topic()]
    for channel in channels:
        publisher.publish(channel)
    queue(subscriber, inbox.url, *channels, timeout=3_600_000, max=4)
    for channel in channels * 2:
        publisher.publish(channel)
    (delivery,) = inbox.until_deliveries(1)
    assert [event["channel"] for event in delivery.events] == channels * 2
