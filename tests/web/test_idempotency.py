"""A publish that is tried again is taken once."""

import pytest

from tests.bus import Bus
from tests.conftest import MakeClient
from tests.race import race
from tests.receiver import Inbox
from tests.web.problem import is_problem
from tests.wire import Caller

EVENT = {"type": "create", "url": "https://example.com/1", "data": {"n": 1}}
KEYED = {**EVENT, "id": "order:17.created-1_a"}


def test_a_repeat_is_answered_alike_and_stored_once(
    bus: Bus, publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    subscriber.subscribe(inbox.url, topic, timeout=0)
    first = publisher.post(f"/topics/{topic}", KEYED)
    before = bus.accepted()
    for _ in range(3):
        again = publisher.post(f"/topics/{topic}", KEYED)
        assert (again.status, again.body) == (200, b"")
        assert again.headers["routemaster-event-id"] == first.headers["routemaster-event-id"]
    assert bus.accepted() == before
    assert bus.owner_and_events(topic) == (publisher.id, 1)
    marker = publisher.publish(topic)
    inbox.until(lambda: marker in [event["id"] for event in inbox.events], "the event after it")
    assert [event.get("key") for event in inbox.events] == [KEYED["id"], None]
    assert inbox.events[0]["id"] == first.headers["routemaster-event-id"]


def test_a_repeat_at_another_web_process_is_one_too(bus: Bus, publisher: Caller, topic: str):
    first = publisher.post(f"/topics/{topic}", KEYED)
    elsewhere = publisher.at(bus.address(1))
    again = elsewhere.post(f"/topics/{topic}", KEYED)
    elsewhere.close()
    assert again.headers["routemaster-event-id"] == first.headers["routemaster-event-id"]
    assert bus.owner_and_events(topic) == (publisher.id, 1)


@pytest.mark.parametrize(
    "other",
    [
        {"type": "update"},
        {"url": "https://example.com/2"},
        {"data": {"n": 2}},
        {"data": None},
        {"timestamp": 1},
        {"environment": "test"},
    ],
)
def test_the_same_id_with_another_body_is_a_conflict(
    bus: Bus, publisher: Caller, topic: str, other: dict[str, object]
):
    publisher.post(f"/topics/{topic}", KEYED)
    assert is_problem(publisher.post(f"/topics/{topic}", {**KEYED, **other}), 409, "id")
    assert bus.owner_and_events(topic) == (publisher.id, 1)


def test_the_id_may_be_a_header(bus: Bus, publisher: Caller, topic: str):
    first = publisher.post(f"/topics/{topic}", EVENT, idempotency_key="abc")
    again = publisher.post(f"/topics/{topic}", EVENT, idempotency_key="abc")
    in_body = publisher.post(f"/topics/{topic}", {**EVENT, "id": "abc"})
    for answer in (first, again, in_body):
        assert answer.status == 200
        assert answer.headers["routemaster-event-id"] == first.headers["routemaster-event-id"]
    assert bus.owner_and_events(topic) == (publisher.id, 1)
    other = publisher.post(f"/topics/{topic}", {**EVENT, "type": "delete"}, idempotency_key="abc")
    assert is_problem(other, 409)


@pytest.mark.parametrize("key", ["with space", "x" * 65, "é"])
def test_a_header_that_is_no_id_is_refused(bus: Bus, publisher: Caller, topic: str, key: str):
    assert is_problem(publisher.post(f"/topics/{topic}", EVENT, idempotency_key=key), 400)
    assert bus.owner_and_events(topic) is None


def test_an_id_counts_for_its_topic_alone(bus: Bus, publisher: Caller):
    for topic in (bus.topic(), bus.topic()):
        assert publisher.post(f"/topics/{topic}", {**KEYED, "data": {"topic": topic}}).status == 200
        assert bus.owner_and_events(topic) == (publisher.id, 1)


def test_an_id_counts_for_its_client_alone(bus: Bus, client: MakeClient, topic: str):
    first = bus.client()
    first.post(f"/topics/{topic}", KEYED)
    bus.forget(first)  # which leaves the topic to the next
    second = client()
    assert second.post(f"/topics/{topic}", {**KEYED, "type": "delete"}).status == 200
    assert bus.owner_and_events(topic) == (second.id, 2)


def test_a_bulk_that_is_tried_again_adds_what_is_new(
    bus: Bus, publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    subscriber.subscribe(inbox.url, topic, timeout=0)
    events = [{"type": "update", "url": f"https://example.com/{n}", "id": f"n{n}"} for n in range(6)]
    assert publisher.post(f"/topics/{topic}", events[:4]).json == {"accepted": 4}
    assert publisher.post(f"/topics/{topic}", events).json == {"accepted": 6}
    assert bus.owner_and_events(topic) == (publisher.id, 6)
    inbox.until_events(6)
    assert [event["key"] for event in inbox.events] == [f"n{n}" for n in range(6)]


def test_a_conflict_in_a_bulk_names_the_event_and_stores_none(bus: Bus, publisher: Caller, topic: str):
    publisher.post(f"/topics/{topic}", KEYED)
    events = [EVENT, EVENT, {**KEYED, "type": "delete"}, EVENT]
    assert is_problem(publisher.post(f"/topics/{topic}", events), 409, "id", index=2)
    assert bus.owner_and_events(topic) == (publisher.id, 1)


def test_an_id_twice_in_one_request_is_refused(bus: Bus, publisher: Caller, topic: str):
    events = [KEYED, EVENT, KEYED]
    assert is_problem(publisher.post(f"/topics/{topic}", events), 400, "id", index=2)
    assert bus.owner_and_events(topic) is None


def test_a_refused_event_does_not_use_up_its_id(bus: Bus, publisher: Caller, topic: str):
    assert publisher.post(f"/topics/{topic}", {**KEYED, "type": "explode"}).status == 400
    assert publisher.post(f"/topics/{topic}", KEYED).status == 200


def test_duplicates_that_race_are_taken_once(bus: Bus, publisher: Caller):
    callers = [publisher.at(bus.address(n % 2)) for n in range(8)]
    for _ in range(5):
        topic = bus.topic()
        answers = race(callers, lambda caller, topic=topic: caller.post(f"/topics/{topic}", KEYED))
        assert {answer.status for answer in answers} == {200}
        assert len({answer.headers["routemaster-event-id"] for answer in answers}) == 1
        assert bus.owner_and_events(topic) == (publisher.id, 1)
    for caller in callers:
        caller.close()
