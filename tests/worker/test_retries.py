"""A delivery that failed is sent again: the same batch, later."""

import time
from email.utils import formatdate

import pytest

from tests.bus import Bus
from tests.conftest import MakeBus, MakeClient
from tests.receiver import Inbox, Receiver, Reply
from tests.until import until
from tests.wire import Caller


@pytest.mark.parametrize(
    "failure",
    [
        Reply(400),
        Reply(404),
        Reply(410),
        Reply(500),
        Reply(503),
        Reply(304),
        Reply(hangs_up=True),
    ],
    ids=lambda reply: "hang-up" if reply.hangs_up else str(reply.status),
)
def test_whatever_is_not_2xx_is_a_failure(
    bus: Bus, publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox, failure: Reply
):
    inbox.answer_next(failure)
    subscriber.subscribe(inbox.url, topic, timeout=0)
    publisher.publish(topic)
    first, second = inbox.until_deliveries(2)
    assert (first.attempt, second.attempt) == (1, 2)
    assert first.id == second.id
    assert first.body == second.body
    inbox.until(lambda: bus.subscriber(subscriber)["events"]["queued"] == 0, "the acknowledgement")
    assert len(inbox.deliveries) == 2


def test_every_attempt_has_the_same_id_number_and_events(
    bus: Bus, publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    inbox.answer_next(500, 500, 500)
    subscriber.subscribe(inbox.url, topic, timeout=0, max=3)
    publisher.publish_many(topic, [f"https://example.com/{n}" for n in range(3)])
    deliveries = inbox.until_deliveries(4)
    assert [delivery.attempt for delivery in deliveries] == [1, 2, 3, 4]
    assert len({(delivery.id, delivery.body) for delivery in deliveries}) == 1
    assert len({delivery.headers["routemaster-sequence"] for delivery in deliveries}) == 1


def test_a_failed_batch_holds_just_its_own_though_new_events_came(
    publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    inbox.answer_next(Reply(500, hangs=True), 500)
    subscriber.subscribe(inbox.url, topic, timeout=0, max=100)
    own = [publisher.publish(topic)]
    inbox.until_deliveries(1)
    newer = [publisher.publish(topic) for _ in range(5)]
    inbox.release()
    inbox.until(lambda: newer[-1] in [event["id"] for event in inbox.events], "the newest event")
    for delivery in inbox.deliveries[:3]:
        assert [event["id"] for event in delivery.events] == own
    assert len({delivery.id for delivery in inbox.deliveries[:3]}) == 1
    rest = [event["id"] for delivery in inbox.deliveries[3:] for event in delivery.events]
    assert rest == newer


def test_what_comes_after_waits_its_turn(publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox):
    inbox.answer_next(500, 500, 200, 500)
    subscriber.subscribe(inbox.url, topic, timeout=0, max=1)
    urls = [f"https://example.com/{n}" for n in range(4)]
    publisher.publish_many(topic, urls)
    inbox.until(lambda: inbox.urls[-1:] == urls[-1:], "the last")
    assert inbox.urls == [urls[0], urls[0], urls[0], urls[1], urls[1], urls[2], urls[3]]


def test_the_first_retry_waits_at_least_the_timeout(
    publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    inbox.answer_next(500)
    subscriber.subscribe(inbox.url, topic, timeout=400, max=1)
    publisher.publish(topic)
    first, second = inbox.until_deliveries(2)
    assert second.arrived_at - first.arrived_at >= 0.39


def test_redirects_are_not_followed(
    publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox, receiver: Receiver
):
    elsewhere = receiver.inbox()
    for status in (301, 302, 303, 307, 308):
        inbox.answer_next(Reply(status, {"location": elsewhere.url}))
    subscriber.subscribe(inbox.url, topic, timeout=0)
    publisher.publish(topic)
    deliveries = inbox.until_deliveries(6)
    assert [delivery.attempt for delivery in deliveries] == [1, 2, 3, 4, 5, 6]
    assert elsewhere.deliveries == []


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_honoured(
    publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox, status: int
):
    inbox.answer_next(Reply(status, {"retry-after": "1"}))
    subscriber.subscribe(inbox.url, topic, timeout=0, max=1)
    publisher.publish(topic)
    first, second = inbox.until_deliveries(2)
    assert second.arrived_at - first.arrived_at >= 0.99
    assert second.id == first.id


def test_retry_after_may_be_a_date(publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox):
    when = int(time.time()) + 2
    inbox.answer_next(Reply(503, {"retry-after": formatdate(when, usegmt=True)}))
    subscriber.subscribe(inbox.url, topic, timeout=0)
    publisher.publish(topic)
    inbox.until_deliveries(2)
    assert time.time() >= when - 0.01


def test_events_that_come_meanwhile_do_not_shorten_it(
    publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    inbox.answer_next(Reply(429, {"retry-after": "1"}))
    subscriber.subscribe(inbox.url, topic, timeout=0, max=1)
    publisher.publish(topic)
    inbox.until_deliveries(1)
    publisher.publish_many(topic, [f"https://example.com/{n}" for n in range(5)])
    first, second = inbox.until_deliveries(2)[:2]
    assert second.arrived_at - first.arrived_at >= 0.99
    inbox.until_events(7)


@pytest.mark.parametrize("value", ["nonsense", "-1", "", "1e3"])
def test_a_retry_after_that_means_nothing_does_no_harm(
    publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox, value: str
):
    inbox.answer_next(Reply(503, {"retry-after": value}))
    subscriber.subscribe(inbox.url, topic, timeout=0)
    publisher.publish(topic)
    inbox.until_deliveries(2)


def test_health_falls_by_two_and_recovers_by_one(
    bus: Bus, publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    def health() -> int:
        return bus.subscriber(subscriber)["health_points"]

    inbox.answer_next(500, 500, Reply(500, hangs=True))
    subscriber.subscribe(inbox.url, topic, timeout=0, max=1)
    assert health() == 100
    publisher.publish(topic)
    inbox.until_deliveries(3)
    assert health() == 96
    inbox.release()
    until(lambda: bus.subscriber(subscriber)["events"]["sent"] == 1, "the acknowledgement")
    assert health() == 95
    publisher.publish_many(topic, [f"https://example.com/{n}" for n in range(7)])
    until(lambda: bus.subscriber(subscriber)["events"]["sent"] == 8, "the rest")
    assert health() == 100


def test_no_answer_in_time_is_a_failure(make_bus: MakeBus, receiver: Receiver):
    bus = make_bus(delivery_timeout_ms=300, lease_ms=2000)
    inbox = receiver.inbox()
    inbox.answer_next(Reply(200, hangs=True))
    publisher, subscriber = bus.client(), bus.client()
    subscriber.subscribe(inbox.url, "widgets", timeout=0)
    publisher.publish("widgets")
    first, second = inbox.until_deliveries(2)
    assert (first.attempt, second.attempt) == (1, 2)
    assert second.id == first.id
    until(lambda: bus.subscriber(subscriber)["events"]["queued"] == 0, "the acknowledgement")
    assert bus.subscriber(subscriber)["health_points"] == 99
    inbox.release()


def test_a_callback_that_is_put_right_gets_what_waited(
    bus: Bus, publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    nobody_listens = "http://127.0.0.1:9/"
    subscriber.subscribe(nobody_listens, topic, timeout=0)
    event = publisher.publish(topic)
    until(lambda: bus.subscriber(subscriber)["health_points"] < 100, "a failed attempt")
    subscriber.subscribe(inbox.url, topic, timeout=0)
    assert [item["id"] for item in inbox.until_events(1)] == [event]
    assert inbox.deliveries[0].attempt > 1


def test_a_subscriber_that_never_answers_does_not_delay_another(
    publisher: Caller, client: MakeClient, topic: str, receiver: Receiver
):
    silent, prompt = receiver.inbox("silent"), receiver.inbox("prompt")
    silent.answer(200, hangs=True)
    client().subscribe(silent.url, topic, timeout=0, max=1)
    client().subscribe(prompt.url, topic, timeout=0, max=1)
    ids = [publisher.publish(topic) for _ in range(50)]
    assert [event["id"] for event in prompt.until_events(50)] == ids
    assert silent.in_air == 1
    assert len(silent.deliveries) == 1
    silent.release()
    assert [event["id"] for event in silent.until_events(50)] == ids


def test_a_subscriber_that_always_fails_does_not_delay_another(
    publisher: Caller, client: MakeClient, topic: str, receiver: Receiver
):
    failing, fine = receiver.inbox("failing"), receiver.inbox("fine")
    failing.answer(500)
    client().subscribe(failing.url, topic, timeout=0, max=1)
    client().subscribe(fine.url, topic, timeout=0, max=1)
    ids = [publisher.publish(topic) for _ in range(50)]
    assert [event["id"] for event in fine.until_events(50)] == ids
    assert {event["id"] for event in failing.events} == {ids[0]}
