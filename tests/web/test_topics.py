"""Topics: listing and deleting them."""

import pytest

from tests.bus import Bus
from tests.conftest import MakeBus, MakeClient
from tests.receiver import Inbox
from tests.web.problem import is_problem
from tests.wire import Caller

NOWHERE = "http://127.0.0.1:9/"


def test_an_empty_list_is_a_list(make_bus: MakeBus):
    bus = make_bus(workers=0)
    listed = bus.root.get("/topics")
    assert (listed.status, listed.kind, listed.json) == (200, "application/json", [])


def test_every_topic_has_every_key(bus: Bus, publisher: Caller, subscriber: Caller):
    claimed, unclaimed = bus.topic(), bus.topic()
    publisher.publish_many(claimed, ["https://example.com/1", "https://example.com/2"])
    subscriber.subscribe(NOWHERE, unclaimed)
    listed = bus.root.get("/topics")
    assert (listed.status, listed.kind) == (200, "application/json")
    assert {"name": claimed, "publisher": publisher.id, "events": 2} in listed.json
    assert {"name": unclaimed, "publisher": None, "events": 0} in listed.json
    assert all(set(row) == {"name", "publisher", "events"} for row in listed.json)


@pytest.mark.parametrize("path", ["/topics", "/topic"])
def test_its_owner_deletes_it(bus: Bus, publisher: Caller, topic: str, path: str):
    publisher.publish(topic)
    gone = publisher.delete(f"{path}/{topic}")
    assert (gone.status, gone.body) == (204, b"")
    assert bus.owner_and_events(topic) is None
    assert is_problem(publisher.delete(f"{path}/{topic}"), 404)


def test_root_deletes_any(bus: Bus, publisher: Caller, topic: str):
    publisher.publish(topic)
    assert bus.root.delete(f"/topics/{topic}").status == 204
    assert bus.owner_and_events(topic) is None


def test_others_may_not(bus: Bus, client: MakeClient, subscriber: Caller, publisher: Caller, topic: str):
    publisher.publish(topic)
    subscriber.subscribe(NOWHERE, topic)
    assert is_problem(subscriber.delete(f"/topics/{topic}"), 403)
    assert bus.owner_and_events(topic) == (publisher.id, 1)


def test_nobody_but_root_deletes_an_unclaimed_one(bus: Bus, subscriber: Caller, topic: str):
    subscriber.subscribe(NOWHERE, topic)
    assert is_problem(subscriber.delete(f"/topics/{topic}"), 403)
    assert bus.root.delete(f"/topics/{topic}").status == 204


def test_an_unknown_one_is_404(bus: Bus, publisher: Caller, topic: str):
    assert is_problem(publisher.delete(f"/topics/{topic}"), 404)
    assert is_problem(bus.root.delete("/topics/Never%20a%20topic"), 404)


def test_subscribers_are_unsubscribed_and_queued_events_stay(
    bus: Bus, publisher: Caller, subscriber: Caller, inbox: Inbox
):
    doomed, kept = bus.topic(), bus.topic()
    subscriber.subscribe(inbox.url, doomed, kept, timeout=3_600_000, max=3)
    before = publisher.publish(doomed)
    assert publisher.delete(f"/topics/{doomed}").status == 204
    assert bus.subscriber(subscriber)["topics"] == [kept]
    assert bus.subscriber(subscriber)["events"]["queued"] == 1
    publisher.publish(doomed)  # makes it anew, with nobody subscribed
    after = [publisher.publish(kept), publisher.publish(kept)]
    inbox.until_events(3)
    assert [event["id"] for event in inbox.events] == [before, *after]


def test_a_deleted_topic_is_free_at_every_web_process(bus: Bus, client: MakeClient):
    first, second = client(), client()
    elsewhere = second.at(bus.address(1))
    for _ in range(5):
        topic = bus.topic()
        first.publish(topic)
        assert elsewhere.post(f"/topics/{topic}", {"type": "noop", "url": NOWHERE}).status == 403
        assert first.delete(f"/topics/{topic}").status == 204
        elsewhere.publish(topic)
        assert bus.owner_and_events(topic) == (second.id, 1)
    elsewhere.close()
