"""What the bus says of itself."""

import time

import pytest

from tests.bus import Bus
from tests.conftest import MakeBus, MakeClient
from tests.receiver import Inbox
from tests.web.problem import is_problem
from tests.wire import Caller

NOWHERE = "http://127.0.0.1:9/"
NOTHING = {"sent": 0, "queued": 0, "oldest": None, "dead": 0, "dropped": 0, "failed": 0}


def row_of(answer_json: list[dict], caller: Caller) -> dict:
    return next(row for row in answer_json if row["subscriber"] == caller.id)


@pytest.mark.parametrize("path", ["/subscriptions", "/subscribers"])
def test_an_empty_list_is_a_list(make_bus: MakeBus, path: str):
    listed = make_bus(workers=0).root.get(path)
    assert (listed.status, listed.kind, listed.json) == (200, "application/json", [])


@pytest.mark.parametrize("path", ["/subscriptions", "/subscribers"])
def test_every_key_is_there_from_the_start(bus: Bus, subscriber: Caller, topic: str, path: str):
    subscriber.subscribe(NOWHERE, topic, uuid="secret")
    listed = bus.root.get(path)
    assert (listed.status, listed.kind) == (200, "application/json")
    row = row_of(listed.json, subscriber)
    assert row == {
        "subscriber": subscriber.id,
        "client": subscriber.id,
        "name": None,
        "uuid": "secret",
        "callback": NOWHERE,
        "max_events": 100,
        "timeout": 500,
        "topics": [topic],
        "match": [],
        "parallelism": 1,
        "max_rate": None,
        "max_attempts": None,
        "headers": {},
        "signed": False,
        "format": "topic",
        "paused": False,
        "events": NOTHING,
        "health_points": 100,
        "last_attempted_at": None,
        "retry_at": None,
        "why": None,
    }


def test_events_are_counted_as_they_wait_and_go(
    bus: Bus, publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    subscriber.subscribe(inbox.url, topic, timeout=3_600_000, max=3)
    before = time.time_ns() // 1_000_000
    publisher.publish(topic)
    first_by = time.time_ns() // 1_000_000
    publisher.publish(topic)
    events = bus.subscriber(subscriber)["events"]
    assert (events["sent"], events["queued"]) == (0, 2)
    assert before <= events["oldest"] <= first_by
    publisher.publish(topic)
    inbox.until(lambda: bus.subscriber(subscriber)["events"]["queued"] == 0, "the queue to empty")
    row = bus.subscriber(subscriber)
    assert row["events"] == {**NOTHING, "sent": 3}
    assert before <= row["last_attempted_at"] <= time.time_ns() // 1_000_000


def test_the_uuid_is_shown_to_its_owner_and_root_alone(bus: Bus, client: MakeClient, topic: str):
    owner, other, monitor = client(), client(), client("grafana", "monitor")
    owner.subscribe(NOWHERE, topic, uuid="secret-of-the-owner")
    for caller, shown in ((owner, True), (bus.root, True), (other, False), (monitor, False)):
        answer = caller.get("/subscriptions")
        assert row_of(answer.json, owner)["uuid"] == ("secret-of-the-owner" if shown else None)
        assert (b"secret-of-the-owner" in answer.body) == shown


def test_without_queues_no_environment_has_messages(bus: Bus, client: MakeClient, topic: str):
    publisher, monitor = client(), client("grafana", "monitor")
    publisher.publish(topic, environment="eu")
    for caller in (bus.root, publisher, monitor):
        listed = caller.get("/environments")
        assert (listed.status, listed.kind, listed.json) == (200, "application/json", [])


def test_the_pulse_is_204(bus: Bus, publisher: Caller):
    answer = publisher.get("/pulse")
    assert (answer.status, answer.body) == (204, b"")


def test_health_needs_no_credentials(bus: Bus):
    anybody = bus.caller(None)
    health = anybody.get("/health")
    assert (health.status, health.kind, health.json) == (200, "application/json", {})
    for path in ("/health/ping", "/health/ping.json"):
        assert anybody.get(path).status == 200
    assert anybody.get("/health", authorization="Bearer unknown--token").status == 200


def test_what_is_not_there_is_404(bus: Bus, publisher: Caller):
    for caller in (bus.root, publisher):
        for path in (
            "/",
            "/nonsense",
            "/topics/",
            "/subscriptions/x",
            "/health/nonsense",
            "/api_tokens/a/b/c",
        ):
            assert is_problem(caller.get(path), 404)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/topics", {"GET"}),
        ("POST", "/pulse", {"GET"}),
        ("POST", "/subscriptions", {"GET"}),
        ("GET", "/subscription", {"POST"}),
        ("PUT", "/subscriber", {"POST", "DELETE"}),
        ("PUT", "/api_tokens", {"GET", "POST"}),
        ("GET", "/api_tokens/x", {"DELETE", "PATCH"}),
        ("GET", "/topics/widgets", {"POST", "DELETE"}),
        ("PUT", "/topics/widgets", {"POST", "DELETE"}),
        ("POST", "/health", {"GET"}),
    ],
)
def test_another_method_is_405_and_says_which_are_allowed(
    bus: Bus, method: str, path: str, allowed: set[str]
):
    answer = bus.root.call(method, path)
    assert is_problem(answer, 405)
    assert allowed == {name.strip() for name in answer.headers["allow"].split(",")} - {"HEAD"}


@pytest.mark.parametrize("path", ["/topics", "/subscriptions", "/api_tokens", "/health", "/pulse"])
def test_head_is_get_without_the_body(bus: Bus, publisher: Caller, path: str):
    whole, head = bus.root.get(path), bus.root.call("HEAD", path)
    assert (head.status, head.kind, head.body) == (whole.status, whole.kind, b"")
    assert head.headers.get("content-length") == whole.headers.get("content-length")
