"""When a batch goes: full, or `timeout` after its first event."""

import time

from tests.bus import Bus
from tests.receiver import Inbox
from tests.wire import Caller

HOUR_MS = 3_600_000


def test_an_hour_and_fifty_one_event_then_49_more_are_delivered_at_once(
    bus: Bus, publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    subscriber.subscribe(inbox.url, topic, timeout=HOUR_MS, max=50)
    urls = [f"https://example.com/{n}" for n in range(51)]
    publisher.publish(topic, url=urls[0])
    assert bus.subscriber(subscriber)["events"]["queued"] == 1
    publisher.publish_many(topic, urls[1:50])
    (delivery,) = inbox.until_deliveries(1)
    assert delivery.urls == urls[:50]
    publisher.publish(topic, url=urls[50])
    inbox.until(lambda: bus.subscriber(subscriber)["events"]["queued"] == 1, "the rest to wait")
    assert len(inbox.deliveries) == 1


def test_it_goes_when_it_is_full_though_events_come_one_by_one(
    publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    subscriber.subscribe(inbox.url, topic, timeout=HOUR_MS, max=3)
    for n in range(6):
        publisher.publish(topic, url=f"https://example.com/{n}")
    deliveries = inbox.until_deliveries(2)
    assert [len(delivery.events) for delivery in deliveries] == [3, 3]


def test_it_goes_when_its_timeout_is_over_and_not_before(
    publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    subscriber.subscribe(inbox.url, topic, timeout=400)
    began = time.monotonic()
    ids = [publisher.publish(topic) for _ in range(3)]
    (delivery,) = inbox.until_deliveries(1)
    assert delivery.arrived_at - began >= 0.39
    assert [event["id"] for event in delivery.events] == ids


def test_a_bulk_fills_many(publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox):
    subscriber.subscribe(inbox.url, topic, timeout=0, max=100)
    urls = [f"https://example.com/{n}" for n in range(1000)]
    publisher.publish_many(topic, urls)
    inbox.until_events(1000)
    assert inbox.urls == urls
    assert [len(delivery.events) for delivery in inbox.deliveries] == [100] * 10


def test_a_shorter_timeout_holds_for_what_waits(
    publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    subscriber.subscribe(inbox.url, topic, timeout=HOUR_MS)
    event = publisher.publish(topic)
    subscriber.subscribe(inbox.url, topic, timeout=0)
    assert [item["id"] for item in inbox.until_events(1)] == [event]


def test_a_smaller_max_holds_for_what_waits(publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox):
    subscriber.subscribe(inbox.url, topic, timeout=HOUR_MS, max=100)
    ids = [publisher.publish(topic) for _ in range(3)]
    subscriber.subscribe(inbox.url, topic, timeout=HOUR_MS, max=3)
    assert [item["id"] for item in inbox.until_events(3)] == ids


def test_a_delivery_in_the_air_takes_no_new_events(
    publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    inbox.answer(200, hangs=True)
    subscriber.subscribe(inbox.url, topic, timeout=0, max=100)
    first = publisher.publish(topic)
    inbox.until_deliveries(1)
    later = [publisher.publish(topic) for _ in range(3)]
    inbox.release()
    inbox.until_events(4)
    assert [event["id"] for event in inbox.deliveries[0].events] == [first]
    assert [event["id"] for event in inbox.events] == [first, *later]
