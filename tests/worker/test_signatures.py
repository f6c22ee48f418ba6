"""Signed deliveries: what a receiver that uses Standard Webhooks' own library accepts."""

import json

import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from tests.bus import Bus
from tests.conftest import MakeBus
from tests.receiver import Delivery, Inbox, Receiver
from tests.wire import Caller

OLD, NEW, OTHER = ("whsec_" + letter * 32 for letter in "ABC")


def is_signed_with(delivery: Delivery, secret: str) -> bool:
    try:
        assert Webhook(secret).verify(delivery.body, delivery.headers) == json.loads(delivery.body)
    except WebhookVerificationError:
        return False
    return True


def signatures(delivery: Delivery) -> list[str]:
    return delivery.headers["webhook-signature"].split(" ")


def test_the_library_accepts_it(publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox):
    subscriber.subscribe(inbox.url, topic, timeout=0, signing_secret=OLD)
    publisher.publish(topic, data={"text": "é🚌"})
    (delivery,) = inbox.until_deliveries(1)
    assert is_signed_with(delivery, OLD)
    assert not is_signed_with(delivery, NEW)
    (signature,) = signatures(delivery)
    assert signature.startswith("v1,")


def test_another_body_id_or_time_is_not_accepted(
    publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    subscriber.subscribe(inbox.url, topic, timeout=0, signing_secret=OLD)
    publisher.publish(topic)
    (delivery,) = inbox.until_deliveries(1)
    later = str(int(delivery.headers["webhook-timestamp"]) + 1)
    for forged in (
        Delivery(delivery.path, delivery.headers, delivery.body.replace(b"update", b"delete"), 0),
        Delivery(delivery.path, {**delivery.headers, "webhook-id": "x"}, delivery.body, 0),
        Delivery(delivery.path, {**delivery.headers, "webhook-timestamp": later}, delivery.body, 0),
    ):
        assert not is_signed_with(forged, OLD)


def test_every_attempt_is_signed_anew_under_the_same_id(
    publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    inbox.answer_next(500, 500)
    subscriber.subscribe(inbox.url, topic, timeout=0, signing_secret=OLD)
    publisher.publish(topic)
    deliveries = inbox.until_deliveries(3)
    assert len({delivery.id for delivery in deliveries}) == 1
    assert all(is_signed_with(delivery, OLD) for delivery in deliveries)


def test_a_secret_without_its_prefix_will_do(publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox):
    subscriber.subscribe(inbox.url, topic, timeout=0, signing_secret=OLD.removeprefix("whsec_"))
    publisher.publish(topic)
    assert is_signed_with(inbox.until_deliveries(1)[0], OLD)


def test_two_signatures_while_the_old_secret_goes_on_then_one(make_bus: MakeBus, receiver: Receiver):
    bus, inbox = make_bus(signing_grace_s=3), receiver.inbox()
    publisher, subscriber = bus.client(), bus.client()
    subscriber.subscribe(inbox.url, "widgets", timeout=0, signing_secret=OLD)
    subscriber.subscribe(inbox.url, "widgets", timeout=0, signing_secret=NEW)
    publisher.publish("widgets")
    (first,) = inbox.until_deliveries(1)
    assert len(signatures(first)) == 2
    assert is_signed_with(first, OLD)
    assert is_signed_with(first, NEW)

    def one_signature() -> bool:
        publisher.publish("widgets")
        return len(signatures(inbox.deliveries[-1])) == 1

    inbox.until(one_signature, "the old secret to end")
    last = inbox.deliveries[-1]
    assert is_signed_with(last, NEW)
    assert not is_signed_with(last, OLD)


def test_without_grace_there_is_one_at_once(make_bus: MakeBus, receiver: Receiver):
    bus, inbox = make_bus(signing_grace_s=0), receiver.inbox()
    publisher, subscriber = bus.client(), bus.client()
    subscriber.subscribe(inbox.url, "widgets", timeout=0, signing_secret=OLD)
    subscriber.subscribe(inbox.url, "widgets", timeout=0, signing_secret=NEW)
    publisher.publish("widgets")
    (delivery,) = inbox.until_deliveries(1)
    assert len(signatures(delivery)) == 1
    assert is_signed_with(delivery, NEW)


@pytest.mark.parametrize("given", [{}, {"signing_secret": None}, {"signing_secret": OLD}], ids=str)
def test_a_change_of_something_else_keeps_it(
    publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox, given: dict[str, str | None]
):
    subscriber.subscribe(inbox.url, topic, timeout=0, signing_secret=OLD)
    subscriber.subscribe(inbox.url, topic, timeout=0, max=7, **given)
    publisher.publish(topic)
    (delivery,) = inbox.until_deliveries(1)
    assert len(signatures(delivery)) == 1
    assert is_signed_with(delivery, OLD)


def test_an_empty_one_takes_it_away(
    bus: Bus, publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    subscriber.subscribe(inbox.url, topic, timeout=0, signing_secret=OLD)
    subscriber.subscribe(inbox.url, topic, timeout=0, signing_secret="")
    assert bus.subscriber(subscriber)["signed"] is False
    publisher.publish(topic)
    (delivery,) = inbox.until_deliveries(1)
    assert "webhook-signature" not in delivery.headers


def test_a_trial_is_signed_too(subscriber: Caller, topic: str, inbox: Inbox):
    subscriber.subscribe(inbox.url, topic, signing_secret=OTHER)
    assert subscriber.post("/subscriber/test").json["delivered"] is True
    assert is_signed_with(inbox.deliveries[0], OTHER)


def test_own_headers_go_along_and_ours_stay(publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox):
    own = {"X-Team": "blue", "x-empty": "", "accept": "text/plain"}
    subscriber.subscribe(inbox.url, topic, timeout=0, headers=own)
    publisher.publish(topic)
    (delivery,) = inbox.until_deliveries(1)
    assert {name: delivery.headers[name.lower()] for name in own} == own
    assert delivery.headers["content-type"] == "application/json"
    assert delivery.headers["user-agent"] == "routemaster"
    assert delivery.credentials == "secret-uuid:secret-uuid"
