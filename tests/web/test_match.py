"""Patterns over addresses: RE2, beside topics or instead of them."""

import time

import pytest

from tests.bus import Bus
from tests.conftest import MakeClient
from tests.receiver import Inbox, Receiver
from tests.web.problem import is_problem
from tests.wire import Caller

NOWHERE = "http://127.0.0.1:9/"


def match(subscriber: Caller, callback: str, *patterns: str, **more: object) -> None:
    wanted = {"match": patterns, "callback": callback, "uuid": "u", "timeout": 0, **more}
    answer = subscriber.post("/subscription", wanted)
    assert answer.status == 204, answer


def test_a_pattern_receives_what_it_matches(
    bus: Bus, publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    match(subscriber, inbox.url, f"^eu[0-9]+:{topic}:(create|delete)$")
    publisher.publish(topic, type="create")
    publisher.publish(topic, type="update", environment="eu1")
    ids = [
        publisher.publish(topic, type="create", environment="eu1"),
        publisher.publish(topic, type="delete", environment="eu22"),
    ]
    publisher.publish(topic, type="delete", environment="us1")
    last = publisher.publish(topic, type="delete", environment="eu3")
    assert [event["id"] for event in inbox.until_events(3)] == [*ids, last]


def test_it_is_searched_anywhere_and_a_single_one_needs_no_list(
    publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    answer = subscriber.post(
        "/subscription", {"match": topic[2:], "callback": inbox.url, "uuid": "u", "timeout": 0}
    )
    assert answer.status == 204
    event = publisher.publish(topic)
    assert [item["id"] for item in inbox.until_events(1)] == [event]


def test_one_copy_however_many_match(
    bus: Bus, publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    match(subscriber, inbox.url, topic, f":{topic}:", "default", topics=[topic])
    ids = [publisher.publish(topic) for _ in range(3)]
    publisher.publish_many(topic, [f"https://example.com/{n}" for n in range(5)])
    assert [event["id"] for event in inbox.until_events(8)][:3] == ids
    assert bus.subscriber(subscriber)["events"]["queued"] + bus.subscriber(subscriber)["events"]["sent"] == 8


def test_together_with_topics(bus: Bus, publisher: Caller, subscriber: Caller, inbox: Inbox):
    by_name, by_pattern, neither = bus.topic("named"), bus.topic("matched"), bus.topic("other")
    match(subscriber, inbox.url, f":{by_pattern}:", topics=[by_name])
    assert bus.subscriber(subscriber)["topics"] == [by_name]
    assert bus.owner_and_events(by_pattern) is None
    ids = [publisher.publish(topic) for topic in (by_name, neither, by_pattern, by_name)]
    del ids[1]
    assert [event["id"] for event in inbox.until_events(3)] == ids


def test_a_change_holds_from_the_answer_on_at_every_web_process(
    bus: Bus, publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    elsewhere = publisher.at(bus.address(1))
    expected = []
    for n in range(4):
        wants = n % 2 == 0
        match(subscriber, inbox.url, f":{topic}:" if wants else "never matched")
        event = elsewhere.publish(topic)
        expected += [event] if wants else []
    elsewhere.close()
    assert [event["id"] for event in inbox.until_events(2)] == expected


def test_a_topic_made_later_is_matched(publisher: Caller, subscriber: Caller, bus: Bus, inbox: Inbox):
    prefix = bus.topic("later")
    match(subscriber, inbox.url, f":{prefix}_[a-z]:")
    ids = [publisher.publish(f"{prefix}_{letter}") for letter in "abc"]
    assert [event["id"] for event in inbox.until_events(3)] == ids


@pytest.mark.parametrize(
    ("pattern", "place"),
    [
        ("a(b", "a(b"),
        ("[z-a]", "z-a"),
        ("a**", "**"),
        ("(?=look)", "(?="),
        (r"(a)\1", r"\1"),
        ("a{1001}", "{1001}"),
        (r"\p{Nonsense}", "Nonsense"),
    ],
)
def test_a_bad_pattern_is_400_and_the_place_is_quoted(bus: Bus, subscriber: Caller, pattern: str, place: str):
    body = {"match": ["fine", pattern], "callback": NOWHERE, "uuid": "u"}
    answer = subscriber.post("/subscription", body)
    assert is_problem(answer, 400, "match")
    assert place in answer.json["expected"], answer
    assert subscriber.id not in [row["subscriber"] for row in bus.root.get("/subscriptions").json]


@pytest.mark.parametrize("pattern", ["((a{100}){100}){100}", r"(\pL{50}){20}" * 10, "\ud800"])
def test_a_pattern_that_takes_too_much_is_400(subscriber: Caller, pattern: str):
    body = {"match": pattern, "callback": NOWHERE, "uuid": "u"}
    assert is_problem(subscriber.post("/subscription", body), 400)


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*$", "(.*a){12}b", "^(([a-z])+.)+[A-Z]([a-z])+$"])
def test_a_catastrophic_one_is_harmless(
    publisher: Caller, client: MakeClient, topic: str, receiver: Receiver, pattern: str
):
    """A backtracking matcher would be at it for years."""
    inbox = receiver.inbox()
    match(client("evil"), NOWHERE, pattern, timeout=3_600_000)
    client("good").subscribe(inbox.url, topic, timeout=0)
    started = time.monotonic()
    event = publisher.publish(topic, environment="a" * 63 + "9")
    assert time.monotonic() - started < 5
    assert [item["id"] for item in inbox.until_events(1)] == [event]


def test_the_list_shows_them(bus: Bus, subscriber: Caller):
    match(subscriber, NOWHERE, "^a:", "é$")
    assert bus.subscriber(subscriber)["match"] == ["^a:", "é$"]
