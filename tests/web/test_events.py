"""Where an event came from and what became of it."""

import contextlib
import time

import pytest

from routemaster.uid import ALPHABET, Maker, encode
from routemaster.web.events import MOST_WAITING
from tests.bus import Bus
from tests.conftest import MakeBus, MakeClient
from tests.receiver import Inbox
from tests.until import until
from tests.web.problem import is_problem
from tests.wire import Caller, line_to, request

NOWHERE = "http://127.0.0.1:9/"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
HOUR_MS = 3_600_000


def shown(caller: Caller, uid: str) -> dict:
    answer = caller.get(f"/events/{uid}")
    assert (answer.status, answer.kind) == (200, "application/json"), answer
    return answer.json


def states(trail: dict) -> dict[str, str]:
    return {row["subscriber"]: row["state"] for row in trail["subscribers"]}


def until_state(bus: Bus, uid: str, subscriber: Caller, state: str) -> dict:
    """The row of a subscriber, once it is in this state."""
    until(lambda: states(shown(bus.root, uid)).get(subscriber.id) == state, f"{uid} to be {state}")
    return next(row for row in shown(bus.root, uid)["subscribers"] if row["subscriber"] == subscriber.id)


# Where it came from


def test_every_key_is_there(bus: Bus, publisher: Caller, topic: str):
    before = time.time_ns() // 1_000_000
    uid = publisher.publish(
        topic, "https://example.com/7", "create", data={"a": [1.0, {"b": None}]}, environment=12, id="key-7"
    )
    trail = shown(bus.root, uid)
    assert before <= trail["received_at"] <= time.time_ns() // 1_000_000
    assert len(trail["generation"]) == 20
    assert 1 <= trail["seq"] <= bus.accepted()
    assert trail == {
        "id": uid,
        "kind": "event",
        "topic": topic,
        "type": "create",
        "url": "https://example.com/7",
        "environment": "12",
        "address": f"12:{topic}:create",
        "publisher": publisher.id,
        "key": "key-7",
        "traceparent": None,
        "t": trail["t"],
        "received_at": trail["received_at"],
        "generation": trail["generation"],
        "seq": trail["seq"],
        "data": {"a": [1.0, {"b": None}]},
        "archived": None,
        "subscribers": [],
        "attempts_looked_at": {"since": None, "until": None},
    }


def test_what_was_not_given_is_null_and_data_comes_as_it_was_sent(bus: Bus, publisher: Caller, topic: str):
    plain = shown(bus.root, publisher.publish(topic, timestamp=5))
    assert [plain[name] for name in ("key", "traceparent", "data")] == [None, None, None]
    assert (plain["environment"], plain["t"]) == ("default", 5)
    body = b'{"type":"update","url":"https://example.com/1","data":{"n": 12345678901234567890.10}}'
    answer = publisher.post(f"/topics/{topic}", body, content_type="application/json", traceparent=TRACE)
    answer = bus.root.get(f"/events/{answer.headers['routemaster-event-id']}")
    assert b'"data":{"n": 12345678901234567890.10}' in answer.body
    assert answer.json["traceparent"] == TRACE


def test_each_event_of_a_flush_is_told_from_its_neighbours(
    bus: Bus, publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    """By those whose data speaks of another event, too."""
    uids = [publisher.publish(topic, f"https://example.com/{n}") for n in range(3)]
    subscriber.subscribe(inbox.url, topic, timeout=0)
    speaking = [
        {"type": "update", "url": f"https://example.com/{n}", "data": {"of": {"id": uid}, "id": uid}}
        for n, uid in enumerate(uids, 3)
    ]
    assert publisher.post(f"/topics/{topic}", speaking).status == 200
    for event in inbox.until_events(3):
        trail = shown(bus.root, event["id"])
        assert (trail["url"], trail["data"]) == (event["url"], event["data"])
    for n, uid in enumerate(uids):
        assert shown(bus.root, uid)["url"] == f"https://example.com/{n}"


def test_a_bulk_of_ten_thousand_is_searched(
    bus: Bus, publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    subscriber.subscribe(inbox.url, topic, timeout=0, max=10_000)
    publisher.publish_many(topic, [f"https://example.com/{n}" for n in range(10_000)])
    events = inbox.until_events(10_000)
    for n in (0, 1, 4_999, 9_998, 9_999):
        trail = shown(bus.root, events[n]["id"])
        assert trail["url"] == f"https://example.com/{n}"
        assert trail["seq"] - n == shown(bus.root, events[0]["id"])["seq"]
    until_state(bus, events[7]["id"], subscriber, "delivered")


# What is not there


@pytest.mark.parametrize(
    "id", ["x", "A" * 19, "A" * 21, "A" * 19 + "!", "A" * 19 + "%20", "A" * 19 + "%C3%A9"]
)
def test_what_is_no_uid_is_400(bus: Bus, publisher: Caller, id: str):
    for caller in (bus.root, publisher):
        assert is_problem(caller.get(f"/events/{id}"), 400, "id")


@pytest.mark.parametrize(
    "uid",
    [
        Maker()(),
        ALPHABET[0] * 20,
        ALPHABET[-1] * 20,
        encode(time.time_ns() // 1_000_000 - HOUR_MS, 8) + "A" * 12,
    ],
    ids=["just now", "the epoch", "the end of time", "an hour ago"],
)
def test_an_event_that_the_log_does_not_have_is_404_and_says_so(
    bus: Bus, publisher: Caller, topic: str, uid: str
):
    publisher.publish(topic)
    answer = bus.root.get(f"/events/{uid}")
    assert is_problem(answer, 404)
    assert "log" in answer.json["detail"]


def test_an_empty_log_has_no_event(make_bus: MakeBus):
    assert is_problem(make_bus(workers=0).root.get(f"/events/{Maker()()}"), 404)


# Who may see it


def test_a_client_sees_what_it_published_and_what_it_may_read(bus: Bus, client: MakeClient, topic: str):
    publisher, reader, stranger, monitor = client(), client(), client(), client("grafana", "monitor")
    for caller, globs in ((reader, [f"eu:{topic}:*"]), (stranger, [f"us:{topic}:*"]), (publisher, [])):
        answer = bus.root.call("PATCH", f"/api_tokens/{caller.id}", {"grants": {"read": globs}})
        assert answer.status in (200, 204), answer
    uid = publisher.publish(topic, environment="eu")
    for caller in (bus.root, publisher, reader, monitor, client()):
        assert shown(caller, uid)["id"] == uid
    refused, absent = stranger.get(f"/events/{uid}"), stranger.get(f"/events/{Maker()()}")
    assert is_problem(refused, 404)
    assert refused.body == absent.body
    assert bus.caller(None).get(f"/events/{uid}").status == 401


def test_what_a_monitor_may_read_bounds_what_it_sees(bus: Bus, client: MakeClient, topic: str):
    publisher, monitor = client(), client("grafana", "monitor")
    assert bus.root.call("PATCH", f"/api_tokens/{monitor.id}", {"grants": {"read": ["us:*"]}}).status == 204
    assert is_problem(monitor.get(f"/events/{publisher.publish(topic, environment='eu')}"), 404)
    assert monitor.get(f"/events/{publisher.publish(topic, environment='us')}").status == 200


# What became of it


def test_an_event_that_waits_is_queued(bus: Bus, publisher: Caller, subscriber: Caller, topic: str):
    subscriber.subscribe(NOWHERE, topic, timeout=HOUR_MS, max=3)
    uids = [publisher.publish(topic) for _ in range(2)]
    rows = [shown(bus.root, uid)["subscribers"] for uid in uids]
    assert rows[0] == rows[1]  # in one batch
    batch = rows[0][0]["batch"]
    assert rows[0] == [{"subscriber": subscriber.id, "state": "queued", "batch": batch, "attempts": []}]
    assert len(batch) == 20


def test_an_event_in_the_air_and_delivered(
    bus: Bus, publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    inbox.answer(hangs=True)
    subscriber.subscribe(inbox.url, topic, timeout=0)
    before = time.time_ns() // 1_000_000
    uid = publisher.publish(topic)
    (delivery,) = inbox.until_deliveries(1)
    row = until_state(bus, uid, subscriber, "in the air")
    assert (row["batch"], row["attempts"]) == (delivery.id, [])
    inbox.release()
    row = until_state(bus, uid, subscriber, "delivered")
    assert row["batch"] == delivery.id
    (attempt,) = row["attempts"]
    assert before <= attempt.pop("at") <= time.time_ns() // 1_000_000
    assert attempt.pop("ms") >= 0
    assert attempt == {"attempt": 1, "status": "delivered", "code": 200, "why": "ok"}


def test_every_attempt_is_told(bus: Bus, publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox):
    inbox.answer_next(500, 404)
    subscriber.subscribe(inbox.url, topic, timeout=0)
    uid = publisher.publish(topic)
    row = until_state(bus, uid, subscriber, "delivered")
    told = [(attempt["attempt"], attempt["status"], attempt["code"]) for attempt in row["attempts"]]
    assert told == [(1, "failed", 500), (2, "failed", 404), (3, "delivered", 200)]
    assert [attempt["why"] for attempt in row["attempts"]] == ["status", "status", "ok"]
    times = [attempt["at"] for attempt in row["attempts"]]
    assert times == sorted(times)


def test_a_failed_attempt_leaves_it_queued(
    bus: Bus, publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    inbox.answer(503, headers={"Retry-After": "3600"})
    subscriber.subscribe(inbox.url, topic, timeout=0)
    uid = publisher.publish(topic)
    until(lambda: bus.subscriber(subscriber)["events"]["failed"] == 1, "an attempt")
    row = until_state(bus, uid, subscriber, "queued")
    (attempt,) = row["attempts"]
    assert (attempt["status"], attempt["code"], attempt["why"]) == ("failed", 503, "retry-after")


def test_dead_queued_again_and_dead_for_good(
    bus: Bus, publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    inbox.answer(500)
    subscriber.subscribe(inbox.url, topic, timeout=0, max=1, max_attempts=1)
    uid = publisher.publish(topic)
    batch = until_state(bus, uid, subscriber, "dead")["batch"]
    inbox.answer(503, headers={"Retry-After": "3600"})
    subscriber.subscribe(inbox.url, topic, timeout=0, max=1, max_attempts=2)
    later = publisher.publish(topic)  # ahead of it in the lane, which rests from here on
    until_state(bus, later, subscriber, "queued")
    until(lambda: bus.subscriber(subscriber)["events"]["failed"] == 2, "the second failure")
    assert subscriber.post("/subscriber/dead/retry").json == {"retried": 1}
    assert until_state(bus, uid, subscriber, "queued")["batch"] == batch
    assert until_state(bus, later, subscriber, "queued")["batch"] != batch
    subscriber.delete("/subscriber")
    row = until_state(bus, uid, subscriber, "failed")
    assert [attempt["code"] for attempt in row["attempts"]] == [500]


def test_events_beside_it_are_not_taken_for_it(bus: Bus, client: MakeClient, inbox: Inbox):
    """A batch with holes: what lies between its first and its last event is not all in it."""
    publisher, subscriber = client("publisher"), client("subscriber")
    one, other, two = bus.topic(), bus.topic(), bus.topic()
    subscriber.subscribe(inbox.url, one, two, timeout=HOUR_MS, max=2)
    first, between, last = (publisher.publish(topic) for topic in (one, other, two))
    inbox.until_events(2)
    for uid in (first, last):
        until_state(bus, uid, subscriber, "delivered")
    assert shown(bus.root, between)["subscribers"] == []


def test_lanes_by_entity_and_after_a_change_of_their_number(
    bus: Bus, publisher: Caller, subscriber: Caller, topic: str
):
    subscriber.subscribe(NOWHERE, topic, timeout=HOUR_MS, parallelism=5)
    old = [publisher.publish(topic, f"https://example.com/{n}") for n in range(12)]
    subscriber.subscribe(NOWHERE, topic, timeout=HOUR_MS, parallelism=3)
    new = [publisher.publish(topic, f"https://example.com/{n}") for n in range(12)]
    batches = {uid: shown(bus.root, uid)["subscribers"][0] for uid in old + new}
    assert {row["state"] for row in batches.values()} <= {"queued", "in the air"}
    assert {batches[uid]["batch"] for uid in old}.isdisjoint({batches[uid]["batch"] for uid in new})


def test_who_subscribed_later_is_unknown_and_who_left_is_told_by_attempts(
    bus: Bus, publisher: Caller, client: MakeClient, topic: str, inbox: Inbox
):
    gone, later = client("gone"), client("later")
    gone.subscribe(inbox.url, topic, timeout=0)
    uid = publisher.publish(topic)
    until_state(bus, uid, gone, "delivered")
    assert gone.delete("/subscriber").status == 204
    later.subscribe(NOWHERE, topic, timeout=HOUR_MS)
    assert states(shown(bus.root, uid)) == {gone.id: "delivered", later.id: "unknown"}


def test_subscriptions_by_pattern_count(bus: Bus, publisher: Caller, subscriber: Caller, topic: str):
    wanted = {"match": f"^eu:{topic}:", "callback": NOWHERE, "uuid": "secret", "timeout": HOUR_MS}
    assert subscriber.post("/subscription", wanted).status == 204
    assert states(shown(bus.root, publisher.publish(topic, environment="eu"))) == {subscriber.id: "queued"}
    assert states(shown(bus.root, publisher.publish(topic, environment="us"))) == {}


def test_only_so_many_wait_for_their_turn(make_bus: MakeBus):
    """They come at one moment: while the process was stopped."""
    bus = make_bus(workers=0)
    asked = request("GET", f"/events/{Maker()()}", bus.root_key)
    (web,) = bus.webs
    with contextlib.ExitStack() as stack:
        lines = [stack.enter_context(line_to(bus.address())) for _ in range(3 * MOST_WAITING)]
        web.freeze()
        for line in lines:
            line.send(asked)
        web.thaw()
        answers = [line.read() for line in lines]
    assert {answer.status for answer in answers} == {404, 503}
    assert all(is_problem(answer, answer.status) for answer in answers)
    assert {answer.headers.get("retry-after") for answer in answers if answer.status == 503} == {"1"}
    assert bus.root.get(f"/events/{Maker()()}").status == 404
