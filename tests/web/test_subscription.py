"""/subscription and /subscriber: who receives what."""

import pytest

from tests.bus import Bus
from tests.conftest import MakeClient
from tests.receiver import Inbox
from tests.until import until
from tests.web.problem import is_problem
from tests.wire import Caller

NOWHERE = "http://127.0.0.1:9/"
WANTED = {"topics": ["widgets"], "callback": NOWHERE, "uuid": "secret"}


@pytest.mark.parametrize("path", ["/subscription", "/subscriber"])
def test_subscribing_is_answered_204(bus: Bus, subscriber: Caller, topic: str, path: str):
    answer = subscriber.post(path, {"topics": [topic], "callback": NOWHERE, "uuid": "secret"})
    assert (answer.status, answer.body) == (204, b"")
    assert "content-length" not in answer.headers or answer.headers["content-length"] == "0"
    row = bus.subscriber(subscriber)
    assert row["topics"] == [topic]
    assert row["callback"] == NOWHERE
    assert (row["timeout"], row["max_events"]) == (500, 100)


@pytest.mark.parametrize(
    ("given", "held"),
    [
        ({"timeout": None, "max": None}, (500, 100)),
        ({"timeout": 0, "max": 1}, (0, 1)),
        ({"timeout": 3_600_000, "max": 1000}, (3_600_000, 1000)),
    ],
)
def test_timeout_and_max_are_kept(
    bus: Bus, subscriber: Caller, topic: str, given: dict[str, int | None], held: tuple[int, int]
):
    subscriber.subscribe(NOWHERE, topic, **given)
    row = bus.subscriber(subscriber)
    assert (row["timeout"], row["max_events"]) == held


def test_a_body_without_a_content_type_is_json(subscriber: Caller, topic: str):
    body = b'{"topics": ["%s"], "callback": "http://127.0.0.1:9/", "uuid": "u"}' % topic.encode()
    assert subscriber.post("/subscription", body).status == 204


def test_an_unknown_topic_is_created_unclaimed(bus: Bus, subscriber: Caller, topic: str):
    assert bus.owner_and_events(topic) is None
    subscriber.subscribe(NOWHERE, topic)
    assert bus.owner_and_events(topic) == (None, 0)


def test_subscribing_again_replaces_the_list(
    bus: Bus, publisher: Caller, subscriber: Caller, inbox: Inbox, client: MakeClient
):
    first, second, third = bus.topic(), bus.topic(), bus.topic()
    subscriber.subscribe(NOWHERE, first, second)
    subscriber.subscribe(inbox.url, second, third, timeout=0, max=7, uuid="another")
    row = bus.subscriber(subscriber)
    assert row["topics"] == sorted([second, third])
    assert (row["callback"], row["timeout"], row["max_events"]) == (inbox.url, 0, 7)
    assert row["uuid"] == "another"
    for topic in (first, second, third):
        publisher.publish(topic, url=f"https://example.com/{topic}")
    inbox.until_events(2)
    assert inbox.urls == [f"https://example.com/{second}", f"https://example.com/{third}"]


def test_a_topic_named_twice_is_delivered_once(
    publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    subscriber.subscribe(inbox.url, topic, topic, timeout=0)
    ids = [publisher.publish(topic) for _ in range(3)]
    inbox.until_events(3)
    assert [event["id"] for event in inbox.events] == ids


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"topics": None}, "topics"),
        ({"topics": "widgets"}, "topics"),
        ({"topics": ["Widgets"]}, "topics"),
        ({"topics": ["fine", "x" * 33]}, "topics"),
        ({"topics": [5]}, "topics"),
        ({"callback": None}, "callback"),
        ({"callback": 5}, "callback"),
        ({"callback": "ftp://example.com/"}, "callback"),
        ({"callback": "example.com"}, "callback"),
        ({"callback": "http://127.0.0.1:99999/"}, "callback"),
        ({"callback": "http://user:password@127.0.0.1/"}, "callback"),
        ({"uuid": None}, "uuid"),
        ({"uuid": ""}, "uuid"),
        ({"uuid": 5}, "uuid"),
        ({"timeout": -1}, "timeout"),
        ({"timeout": 3_600_001}, "timeout"),
        ({"timeout": 1.5}, "timeout"),
        ({"timeout": "500"}, "timeout"),
        ({"timeout": True}, "timeout"),
        ({"max": 0}, "max"),
        ({"max": -1}, "max"),
        ({"max": "100"}, "max"),
        ({"max": True}, "max"),
        ({"parallelism": 0}, "parallelism"),
        ({"parallelism": 65}, "parallelism"),
        ({"parallelism": "2"}, "parallelism"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_what_is_malformed_is_named(bus: Bus, subscriber: Caller, change: dict[str, object], field: str):
    before = bus.root.get("/topics").body
    assert is_problem(subscriber.post("/subscription", {**WANTED, **change}), 400, field)
    assert subscriber.id not in [row["subscriber"] for row in bus.root.get("/subscriptions").json]
    assert bus.root.get("/topics").body == before


@pytest.mark.parametrize("missing", ["topics", "callback", "uuid"])
def test_what_is_missing_is_named(subscriber: Caller, missing: str):
    body = {name: value for name, value in WANTED.items() if name != missing}
    assert is_problem(subscriber.post("/subscription", body), 400, missing)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff"])
def test_a_body_that_is_no_subscription_is_refused(subscriber: Caller, body: bytes):
    assert is_problem(subscriber.post("/subscription", body), 400, "body")


@pytest.mark.parametrize(
    "callback",
    [
        "http://127.0.0.1:9000/",
        "http://localhost:9000/",
        "http://10.0.0.1/",
        "http://192.168.1.1/",
        "http://169.254.169.254/latest/meta-data/",
        "http://[::1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://0.0.0.0/",
        "http://0/",
        "http://2130706433/",
        "http://127.1/",
    ],
)
def test_a_private_callback_is_refused_where_it_is_not_allowed(strict: Bus, callback: str):
    subscriber = strict.client()
    answer = subscriber.post("/subscription", {**WANTED, "callback": callback})
    assert is_problem(answer, 400, "callback")
    assert strict.root.get("/subscriptions").json == []


def test_unsubscribing_is_answered_204_then_404(bus: Bus, subscriber: Caller, topic: str):
    assert is_problem(subscriber.delete("/subscriber"), 404)
    subscriber.subscribe(NOWHERE, topic)
    gone = subscriber.delete("/subscriber")
    assert (gone.status, gone.body) == (204, b"")
    assert subscriber.id not in [row["subscriber"] for row in bus.root.get("/subscriptions").json]
    assert is_problem(subscriber.delete("/subscriber"), 404)
    assert bus.owner_and_events(topic) == (None, 0)


def test_one_topic_can_be_left(bus: Bus, publisher: Caller, subscriber: Caller, inbox: Inbox):
    kept, left = bus.topic(), bus.topic()
    subscriber.subscribe(inbox.url, kept, left, timeout=0)
    gone = subscriber.delete(f"/subscriber/topics/{left}")
    assert (gone.status, gone.body) == (204, b"")
    assert bus.subscriber(subscriber)["topics"] == [kept]
    assert is_problem(subscriber.delete(f"/subscriber/topics/{left}"), 404)
    publisher.publish(left)
    wanted = publisher.publish(kept)
    inbox.until_events(1)
    assert [event["id"] for event in inbox.events] == [wanted]


def test_a_subscription_with_no_topic_left_goes_on_existing(bus: Bus, subscriber: Caller, topic: str):
    subscriber.subscribe(NOWHERE, topic)
    assert subscriber.delete(f"/subscriber/topics/{topic}").status == 204
    assert bus.subscriber(subscriber)["topics"] == []
    assert subscriber.delete("/subscriber").status == 204


def test_a_topic_of_no_subscription_is_404(subscriber: Caller, topic: str):
    assert is_problem(subscriber.delete(f"/subscriber/topics/{topic}"), 404)
    assert is_problem(subscriber.delete("/subscriber/topics/Never%20a%20topic"), 404)


def test_what_was_queued_goes_with_the_subscription(
    bus: Bus, publisher: Caller, subscriber: Caller, topic: str
):
    subscriber.subscribe(NOWHERE, topic, timeout=3_600_000)
    publisher.publish(topic)
    assert subscriber.delete("/subscriber").status == 204

    def left() -> list[bytes]:
        keys = bus.redis.keys(bus.key(f"*{subscriber.id}*"))
        return [key for key in keys if b"counters" not in key]

    until(lambda: not left(), "the subscription's keys to go")
    assert not bus.redis.hget(bus.key("batches:gauges:event"), subscriber.id) or (
        bus.redis.hget(bus.key("batches:gauges:event"), subscriber.id) == b"0"
    )


def test_a_subscription_counts_at_every_web_process_from_the_answer_on(
    bus: Bus, publisher: Caller, subscriber: Caller
):
    elsewhere = publisher.at(bus.address(1))
    for count in range(1, 6):
        topic = bus.topic()
        elsewhere.publish(topic)
        subscriber.subscribe(NOWHERE, topic, timeout=3_600_000, max=1000)
        elsewhere.publish(topic)
        assert bus.subscriber(subscriber)["events"]["queued"] == count
    elsewhere.close()
