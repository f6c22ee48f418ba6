"""Operating subscriptions: pause, resume, test, and dead letters, over HTTP."""

import json
from urllib.parse import quote

import pytest

from tests.bus import Bus
from tests.conftest import MakeClient
from tests.receiver import Inbox, Receiver, Reply
from tests.until import until
from tests.web.problem import is_problem
from tests.wire import Answer, Caller

NOWHERE = "http://127.0.0.1:9/"
NEVER = "aaaaaaaaaaaaaaaaaaaa"


def done(answer: Answer) -> bool:
    assert (answer.status, answer.body) == (204, b""), answer
    return True


def counts(bus: Bus, caller: Caller) -> dict[str, int]:
    return bus.subscriber(caller)["events"]


# Pausing


def test_paused_it_gets_nothing_and_resumed_all_of_it(
    bus: Bus, publisher: Caller, subscriber: Caller, client: MakeClient, topic: str, receiver: Receiver
):
    paused, other = receiver.inbox(), receiver.inbox()
    subscriber.subscribe(paused.url, topic, timeout=0)
    client().subscribe(other.url, topic, timeout=0)
    for _ in range(2):
        assert done(subscriber.post("/subscriber/pause"))
    ids = [publisher.publish(topic) for _ in range(3)]
    other.until_events(3)
    assert bus.subscriber(subscriber)["paused"] is True
    assert counts(bus, subscriber)["queued"] == 3
    assert paused.deliveries == []
    for _ in range(2):
        assert done(subscriber.post("/subscriber/resume"))
    assert [event["id"] for event in paused.until_events(3)] == ids
    assert {delivery.attempt for delivery in paused.deliveries} == {1}
    assert bus.subscriber(subscriber)["paused"] is False


def test_one_may_begin_paused(bus: Bus, publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox):
    subscriber.subscribe(inbox.url, topic, timeout=0, paused=True, parallelism=3)
    ids = {publisher.publish(topic, url=f"https://example.com/{n}") for n in range(9)}
    assert bus.subscriber(subscriber)["paused"] is True
    subscriber.subscribe(inbox.url, topic, timeout=0, parallelism=3)  # says nothing of it
    assert bus.subscriber(subscriber)["paused"] is True
    assert inbox.deliveries == []
    subscriber.subscribe(inbox.url, topic, timeout=0, parallelism=3, paused=False)
    assert bus.subscriber(subscriber)["paused"] is False
    assert {event["id"] for event in inbox.until_events(9)} == ids


def test_what_is_in_the_air_when_it_is_paused_is_the_last(
    bus: Bus, publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    inbox.answer_next(Reply(500, hangs=True))
    subscriber.subscribe(inbox.url, topic, timeout=0, max=1)
    ids = [publisher.publish(topic) for _ in range(3)]
    inbox.until_deliveries(1)
    assert done(subscriber.post("/subscriber/pause"))
    inbox.release()
    until(lambda: bus.subscriber(subscriber)["health_points"] == 98, "the failure to be settled")
    assert counts(bus, subscriber)["queued"] == 3
    assert len(inbox.deliveries) == 1
    assert done(subscriber.post("/subscriber/resume"))
    inbox.until_events(4)
    assert [event["id"] for event in inbox.events] == [ids[0], *ids]


def test_paused_over_a_change_of_parallelism(
    bus: Bus, publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    url = "https://example.com/one"
    subscriber.subscribe(inbox.url, topic, timeout=0, max=1, paused=True)
    ids = [publisher.publish(topic, url=url)]
    for parallelism in (4, 2):
        subscriber.subscribe(inbox.url, topic, timeout=0, max=1, parallelism=parallelism)
        ids.append(publisher.publish(topic, url=url))
    assert inbox.deliveries == []
    assert done(subscriber.post("/subscriber/resume"))
    assert [event["id"] for event in inbox.until_events(3)] == ids


def test_root_pauses_and_resumes_anybody(
    bus: Bus, publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    subscriber.subscribe(inbox.url, topic, timeout=0)
    assert done(bus.root.post(f"/subscribers/{subscriber.id}/pause"))
    event = publisher.publish(topic)
    assert bus.subscriber(subscriber)["paused"] is True
    assert done(bus.root.post(f"/subscribers/{subscriber.id}/resume"))
    assert [item["id"] for item in inbox.until_events(1)] == [event]


# Trying


def test_the_answer_says_what_the_callback_said(bus: Bus, subscriber: Caller, topic: str, inbox: Inbox):
    subscriber.subscribe(inbox.url, topic, headers={"x-team": "blue"})
    answer = subscriber.post("/subscriber/test")
    assert (answer.status, answer.kind) == (200, "application/json")
    said = answer.json
    assert said.pop("ms") >= 0
    assert said == {"delivered": True, "code": 200, "why": "ok"}
    (delivery,) = inbox.deliveries
    (event,) = json.loads(delivery.body)
    assert (event["topic"], event["type"], event["url"]) == ("test", "noop", inbox.url)
    assert set(event) == {"topic", "type", "url", "t", "id"}
    assert delivery.credentials == "secret-uuid:secret-uuid"
    assert delivery.headers["x-team"] == "blue"
    assert delivery.headers["routemaster-test"] == "1"
    assert "routemaster-sequence" not in delivery.headers


def test_nothing_is_counted(bus: Bus, subscriber: Caller, topic: str, inbox: Inbox):
    inbox.answer(500)
    subscriber.subscribe(inbox.url, topic, max_attempts=1)
    before, topics, accepted = bus.subscriber(subscriber), bus.root.get("/topics").body, bus.accepted()
    for caller, path in ((subscriber, "/subscriber/test"), (bus.root, f"/subscribers/{subscriber.id}/test")):
        answer = caller.post(path)
        assert answer.status == 200, answer
        assert (answer.json["delivered"], answer.json["code"], answer.json["why"]) == (False, 500, "status")
    assert len(inbox.deliveries) == 2
    assert bus.subscriber(subscriber) == before
    assert (bus.root.get("/topics").body, bus.accepted()) == (topics, accepted)
    assert len({delivery.id for delivery in inbox.deliveries}) == 2


@pytest.mark.parametrize(
    ("reply", "code", "why"),
    [
        (Reply(503, {"retry-after": "7"}), 503, "retry-after"),
        (Reply(302, {"location": "/"}), 302, "status"),
        (Reply(hangs_up=True), 0, "refused"),
    ],
    ids=["503", "302", "hang-up"],
)
def test_whatever_it_says(subscriber: Caller, topic: str, inbox: Inbox, reply: Reply, code: int, why: str):
    inbox.answer_next(reply)
    subscriber.subscribe(inbox.url, topic)
    answer = subscriber.post("/subscriber/test")
    assert answer.status == 200
    assert (answer.json["delivered"], answer.json["code"], answer.json["why"]) == (False, code, why)
    assert len(inbox.deliveries) == 1


def test_nobody_listens_there(subscriber: Caller, topic: str):
    subscriber.subscribe(NOWHERE, topic)
    answer = subscriber.post("/subscriber/test")
    assert (answer.status, answer.json["code"], answer.json["why"]) == (200, 0, "refused")


def test_also_while_it_is_paused_and_in_its_own_format(
    publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    publisher.publish(topic)
    wanted = {"channels": [topic], "callback": inbox.url, "uuid": "u"}
    assert done(subscriber.post("/queue", wanted))
    assert done(subscriber.post("/subscriber/pause"))
    inbox.answer_next(202)
    assert subscriber.post("/subscriber/test").json["delivered"] is False  # 200 and 204 only
    assert subscriber.post("/subscriber/test").json["delivered"] is True
    (event,) = inbox.deliveries[0].events
    assert event.pop("t") > 0
    assert event == {"channel": "test", "event": "updated", "url": inbox.url}


# Dead letters


def bury(
    bus: Bus, publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox, batches: int
) -> list[str]:
    """So many events that nobody wanted; their UIDs."""
    inbox.answer(500)
    subscriber.subscribe(inbox.url, topic, timeout=0, max=1, max_attempts=2)
    before = counts(bus, subscriber)["dead"]
    ids = [publisher.publish(topic, url=f"https://example.com/{n}") for n in range(batches)]
    until(lambda: counts(bus, subscriber)["dead"] == before + batches, "all to die")
    return ids


def dead(caller: Caller, path: str = "/subscriber/dead") -> list[dict]:
    answer = caller.get(path)
    assert (answer.status, answer.kind) == (200, "application/json"), answer
    return answer.json


def test_they_are_listed_longest_dead_first_with_what_went_wrong(
    bus: Bus, publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    ids = bury(bus, publisher, subscriber, topic, inbox, 3)
    found = dead(subscriber)
    assert [[event["id"] for event in row["events"]] for row in found] == [[id] for id in ids]
    assert all(
        set(row) == {"id", "created_at", "died_at", "attempts", "why", "code", "events"} for row in found
    )
    assert {(row["attempts"], row["why"], row["code"]) for row in found} == {(2, "status", 500)}
    assert all(row["created_at"] <= row["died_at"] for row in found)
    assert [row["id"] for row in found] == list(dict.fromkeys(delivery.id for delivery in inbox.deliveries))
    assert [delivery.attempt for delivery in inbox.deliveries] == [1, 2] * 3
    assert dead(bus.root, f"/subscribers/{subscriber.id}/dead") == found
    assert dead(subscriber, "/subscriber/dead?limit=2") == found[:2]
    assert (counts(bus, subscriber)["queued"], counts(bus, subscriber)["failed"]) == (0, 6)


@pytest.mark.parametrize("limit", ["0", "1001", "-1", "x", "", "1.5", "٣"])
def test_a_bad_limit_is_named(subscriber: Caller, topic: str, limit: str):
    subscriber.subscribe(NOWHERE, topic)
    assert is_problem(subscriber.get(f"/subscriber/dead?limit={quote(limit)}"), 400, "limit")


def test_an_empty_list_is_a_list(subscriber: Caller, topic: str):
    subscriber.subscribe(NOWHERE, topic)
    assert dead(subscriber) == []


def test_all_are_sent_again_when_the_callback_is_mended(
    bus: Bus, publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    ids = bury(bus, publisher, subscriber, topic, inbox, 3)
    batches = [row["id"] for row in dead(subscriber)]
    inbox.answer(200)
    inbox.deliveries.clear()
    answer = subscriber.post("/subscriber/dead/retry")
    assert (answer.status, answer.json) == (200, {"retried": 3})
    deliveries = inbox.until_deliveries(3)
    assert [delivery.id for delivery in deliveries] == batches
    assert [event["id"] for event in inbox.events] == ids
    assert {delivery.attempt for delivery in deliveries} == {1}
    numbers = [int(delivery.headers["routemaster-sequence"].rsplit("/", 1)[1]) for delivery in deliveries]
    assert numbers == [4, 5, 6]  # receivers have seen 1 to 3
    until(lambda: counts(bus, subscriber)["sent"] == 3, "the acknowledgements")
    assert (dead(subscriber), counts(bus, subscriber)["dead"]) == ([], 0)


def test_some_are_sent_again(bus: Bus, publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox):
    ids = bury(bus, publisher, subscriber, topic, inbox, 4)
    batches = [row["id"] for row in dead(subscriber)]
    inbox.answer(200)
    inbox.deliveries.clear()
    wanted = {"ids": [batches[2], NEVER, batches[0]]}
    assert bus.root.post(f"/subscribers/{subscriber.id}/dead/retry", wanted).json == {"retried": 2}
    inbox.until_deliveries(2)
    assert [event["id"] for event in inbox.events] == [ids[2], ids[0]]
    assert [row["id"] for row in dead(subscriber)] == [batches[1], batches[3]]
    assert subscriber.post("/subscriber/dead/retry", {"ids": []}).json == {"retried": 0}
    assert counts(bus, subscriber)["dead"] == 2


@pytest.mark.parametrize("body", [b"", b"{}", b'{"ids": null}'])
def test_without_ids_all_are_meant(
    bus: Bus, publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox, body: bytes
):
    bury(bus, publisher, subscriber, topic, inbox, 2)
    assert subscriber.post("/subscriber/dead/retry", body).json == {"retried": 2}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"ids": ["short"]}', "ids"),
        (b'{"ids": "x"}', "ids"),
        (b'{"ids": [5]}', "ids"),
        (b'{"all": true}', "all"),
        (b"[]", "body"),
        (b"{", "body"),
    ],
)
def test_a_retry_that_is_malformed_is_named(subscriber: Caller, topic: str, body: bytes, field: str):
    subscriber.subscribe(NOWHERE, topic)
    assert is_problem(subscriber.post("/subscriber/dead/retry", body), 400, field)


def test_one_that_fails_again_dies_again(
    bus: Bus, publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    bury(bus, publisher, subscriber, topic, inbox, 1)
    (first,) = dead(subscriber)
    assert subscriber.post("/subscriber/dead/retry").json == {"retried": 1}
    inbox.until_deliveries(4)
    until(lambda: dead(subscriber), "it to die again")
    (again,) = dead(subscriber)
    assert (again["id"], again["events"], again["attempts"]) == (first["id"], first["events"], 2)
    assert again["died_at"] >= first["died_at"]


def test_what_came_after_is_not_held_up(
    bus: Bus, publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    inbox.answer_next(500, 500)
    subscriber.subscribe(inbox.url, topic, timeout=0, max=1, max_attempts=2)
    urls = [f"https://example.com/{n}" for n in range(3)]
    publisher.publish_many(topic, urls)
    inbox.until_deliveries(4)
    assert inbox.urls == [urls[0], urls[0], urls[1], urls[2]]
    assert [event["url"] for row in dead(subscriber) for event in row["events"]] == urls[:1]


def test_they_can_be_deleted(bus: Bus, publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox):
    bury(bus, publisher, subscriber, topic, inbox, 2)
    answer = subscriber.delete("/subscriber/dead")
    assert (answer.status, answer.json) == (200, {"deleted": 2})
    assert (dead(subscriber), counts(bus, subscriber)["dead"]) == ([], 0)
    assert subscriber.delete("/subscriber/dead").json == {"deleted": 0}


def test_they_go_with_the_subscription(
    bus: Bus, publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    bury(bus, publisher, subscriber, topic, inbox, 2)
    assert done(subscriber.delete("/subscriber"))
    until(
        lambda: not [key for key in bus.redis.keys(bus.key(f"*{subscriber.id}*")) if b"counters" not in key],
        "the subscription's keys to go",
    )
    assert not bus.redis.hexists(bus.key("batches:gauges:dead"), subscriber.id)
    subscriber.subscribe(NOWHERE, topic)
    assert dead(subscriber) == []


def test_each_named_one_has_its_own(
    bus: Bus, publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    bury(bus, publisher, subscriber, topic, inbox, 1)
    subscriber.subscribe(NOWHERE, topic, name="second")
    assert dead(subscriber, "/subscriber/dead?name=second") == []
    assert len(dead(subscriber)) == 1
