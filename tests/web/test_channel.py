"""The channel dialect: /channel and /queue. Strict, and silent: answers have no body, errors neither."""

import pytest

from tests.bus import Bus
from tests.conftest import MakeBus, MakeClient
from tests.receiver import Inbox
from tests.wire import Answer, Caller, line_to, request

NOWHERE = "http://127.0.0.1:9/"
EVENT = {"event": "created", "url": "https://example.com/1"}


def is_empty(answer: Answer, status: int, reason: str | None = None) -> bool:
    """Fails with the answer at hand; an error says why in a header."""
    assert answer.status == status, answer
    assert answer.body == b"", answer
    assert "content-type" not in answer.headers, answer
    assert answer.headers.get("content-length", "0") == "0", answer
    if status == 204:
        assert "routemaster-reason" not in answer.headers, answer
    else:
        said = answer.headers["routemaster-reason"]
        assert said.isascii(), said
        assert said.isprintable(), said
        assert reason is None or reason in said, said
    return True


# Publishing


@pytest.mark.parametrize(
    ("event", "type"), [("created", "create"), ("updated", "update"), ("deleted", "delete")]
)
def test_an_event_is_taken_with_204(
    bus: Bus, publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox, event: str, type: str
):
    subscriber.subscribe(inbox.url, topic, timeout=0)
    assert is_empty(publisher.post(f"/channel/{topic}", {**EVENT, "event": event}), 204)
    (came,) = inbox.until_events(1)
    assert (came["topic"], came["type"], came["url"]) == (topic, type, EVENT["url"])
    assert bus.owner_and_events(topic) == (publisher.id, 1)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"event": "created"}, "url"),
        ({"url": "https://example.com/1"}, "event"),
        ({**EVENT, "event": "create"}, "event"),
        ({**EVENT, "event": "noop"}, "event"),
        ({**EVENT, "event": None}, "event"),
        ({**EVENT, "event": ["created"]}, "event"),
        ({**EVENT, "url": None}, "url"),
        ({**EVENT, "url": 5}, "url"),
        ({**EVENT, "url": "ftp://example.com/"}, "url"),
        ({**EVENT, "url": "https://example.com/" + "x" * 1005}, "url"),
        ({**EVENT, "t": 5}, "t"),
        ({**EVENT, "timestamp": 5}, "timestamp"),
        ({**EVENT, "data": None}, "data"),
        ({**EVENT, "id": "a"}, "id"),
        ({**EVENT, "\n\u00e9": 1}, None),
        ([EVENT], "body"),
        ([], "body"),
        ("created", "body"),
    ],
    ids=str,
)
def test_what_is_not_exactly_an_event_is_400(
    bus: Bus, publisher: Caller, topic: str, body: object, field: str | None
):
    assert is_empty(publisher.post(f"/channel/{topic}", body), 400, field)
    assert bus.owner_and_events(topic) is None


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff", b'{"event": "created", "url": "https://\xff/"}', b"[" * 5000]
)
def test_what_is_no_json_is_400(publisher: Caller, topic: str, body: bytes):
    assert is_empty(publisher.post(f"/channel/{topic}", body), 400, "body")


def test_an_url_of_1024_characters_fits(publisher: Caller, topic: str):
    url = "https://example.com/" + "x" * 1004
    assert is_empty(publisher.post(f"/channel/{topic}", {**EVENT, "url": url}), 204)


@pytest.mark.parametrize("name", ["Widgets", "widgets1", "x" * 33, "wid-gets", "%20", "a/b", ""])
def test_a_bad_name_is_400(publisher: Caller, name: str):
    answer = publisher.post(f"/channel/{name}", EVENT)
    assert is_empty(answer, 400, "topic")


def test_the_same_topics_in_both_dialects(bus: Bus, publisher: Caller, client: MakeClient, topic: str):
    publisher.publish(topic)
    assert is_empty(publisher.post(f"/channel/{topic}", EVENT), 204)
    other = client("other")
    assert is_empty(other.post(f"/channel/{topic}", EVENT), 403, topic)
    second = bus.topic()
    assert is_empty(other.post(f"/channel/{second}", EVENT), 204)
    assert publisher.post(f"/topics/{second}", {"type": "noop", "url": NOWHERE}).status == 403
    assert bus.owner_and_events(topic) == (publisher.id, 2)


def test_who_may_not_is_told_so_silently(bus: Bus, client: MakeClient, topic: str):
    for answer in (
        bus.caller(None).post(f"/channel/{topic}", EVENT),
        bus.caller("nobody--0123456789").post(f"/channel/{topic}", EVENT),
    ):
        assert is_empty(answer, 401)
        assert "Basic" in answer.headers["www-authenticate"]
    assert is_empty(bus.root.post(f"/channel/{topic}", EVENT), 403)
    assert is_empty(client(role="monitor").post(f"/channel/{topic}", EVENT), 403)


def test_other_methods_are_405(publisher: Caller, topic: str):
    for method in ("GET", "PUT", "DELETE", "PATCH"):
        answer = publisher.call(method, f"/channel/{topic}")
        assert is_empty(answer, 405)
        assert answer.headers["allow"] == "POST"


def test_too_large_a_body_is_413(strict: Bus):
    publisher = strict.client()
    with line_to(strict.address()) as line:
        line.send(request("POST", "/channel/widgets", publisher.token, b"", "content-length: 2000000"))
        assert is_empty(line.read("POST"), 413)


def test_a_retried_one_is_stored_once(bus: Bus, publisher: Caller, topic: str):
    for _ in range(2):
        assert is_empty(publisher.post(f"/channel/{topic}", EVENT, idempotency_key="k1"), 204)
    assert bus.owner_and_events(topic) == (publisher.id, 1)
    other = {**EVENT, "event": "deleted"}
    assert is_empty(publisher.post(f"/channel/{topic}", other, idempotency_key="k1"), 409)
    assert is_empty(publisher.post(f"/channel/{topic}", EVENT, idempotency_key="no good"), 400, "idempotency")


def test_pipelined_ones_are_answered_in_order(bus: Bus, publisher: Caller, topic: str):
    good = b'{"event":"created","url":"https://example.com/1"}'
    with line_to(bus.address()) as line:
        line.send(
            request("POST", f"/channel/{topic}", publisher.token, good)
            + request("POST", f"/channel/{topic}", publisher.token, b"{}")
            + request("GET", "/pulse", publisher.token)
            + request("POST", f"/channel/{topic}", publisher.token, good)
        )
        assert [line.read("POST").status for _ in range(4)] == [204, 400, 204, 204]


def test_while_the_store_is_away_it_is_503_and_empty(make_bus: MakeBus, topic: str):
    bus = make_bus(workers=0, redis_url="redis://127.0.0.1:9/")
    answer = bus.caller("somebody--012345").post("/channel/widgets", EVENT)
    assert is_empty(answer, 503)
    assert answer.headers["retry-after"]


# Subscribing


def wanted(*channels: str, **more: object) -> dict[str, object]:
    return {"channels": channels, "callback": NOWHERE, "uuid": "secret", **more}


def test_subscribing_is_answered_204(bus: Bus, publisher: Caller, subscriber: Caller):
    channels = [bus.topic(), bus.topic()]
    for channel in channels:
        publisher.publish(channel)
    assert is_empty(subscriber.post("/queue", wanted(*channels)), 204)
    row = bus.subscriber(subscriber)
    assert row["topics"] == sorted(channels)
    assert (row["timeout"], row["max_events"], row["format"]) == (500, 100, "channel")
    assert (row["callback"], row["uuid"]) == (NOWHERE, "secret")


def test_timeout_and_max_are_kept(bus: Bus, publisher: Caller, subscriber: Caller, topic: str):
    publisher.publish(topic)
    assert is_empty(subscriber.post("/queue", wanted(topic, timeout=7, max=3)), 204)
    row = bus.subscriber(subscriber)
    assert (row["timeout"], row["max_events"]) == (7, 3)


def test_null_timeout_and_max_count_as_absent(bus: Bus, publisher: Caller, subscriber: Caller, topic: str):
    publisher.publish(topic)
    assert is_empty(subscriber.post("/queue", wanted(topic, timeout=None, max=None)), 204)
    row = bus.subscriber(subscriber)
    assert (row["timeout"], row["max_events"]) == (500, 100)


def test_an_unknown_channel_is_404_and_nothing_is_made(
    bus: Bus, publisher: Caller, subscriber: Caller, topic: str
):
    publisher.publish(topic)
    never = bus.topic("never")
    assert is_empty(subscriber.post("/queue", wanted(topic, never)), 404, "channel")
    assert bus.owner_and_events(never) is None
    assert subscriber.id not in [row["subscriber"] for row in bus.root.get("/subscriptions").json]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"channels": []}, "channels"),
        ({"channels": None}, "channels"),
        ({"channels": "widgets"}, "channels"),
        ({"channels": ["Widgets"]}, "channels"),
        ({"callback": "example.com"}, "callback"),
        ({"callback": None}, "callback"),
        ({"uuid": ""}, "uuid"),
        ({"uuid": "a:b"}, "uuid"),
        ({"uuid": None}, "uuid"),
        ({"timeout": -1}, "timeout"),
        ({"timeout": 3_600_001}, "timeout"),
        ({"timeout": "500"}, "timeout"),
        ({"max": 0}, "max"),
        ({"topics": ["widgets"]}, "topics"),
        ({"name": "other"}, "name"),
        ({"parallelism": 2}, "parallelism"),
        ({"match": "x"}, "match"),
    ],
    ids=str,
)
def test_what_is_malformed_or_extra_is_400(
    bus: Bus, publisher: Caller, subscriber: Caller, topic: str, change: dict[str, object], field: str
):
    publisher.publish(topic)
    assert is_empty(subscriber.post("/queue", {**wanted(topic), **change}), 400, field)
    assert subscriber.id not in [row["subscriber"] for row in bus.root.get("/subscriptions").json]


@pytest.mark.parametrize("missing", ["channels", "callback", "uuid"])
def test_what_is_missing_is_400(subscriber: Caller, topic: str, missing: str):
    body = {name: value for name, value in wanted(topic).items() if name != missing}
    assert is_empty(subscriber.post("/queue", body), 400, missing)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff"])
def test_a_body_that_is_no_subscription_is_400(subscriber: Caller, body: bytes):
    assert is_empty(subscriber.post("/queue", body), 400, "body")


def test_who_may_not_subscribe_is_told_so_silently(bus: Bus, client: MakeClient, topic: str):
    assert is_empty(bus.caller(None).post("/queue", wanted(topic)), 401)
    assert is_empty(bus.root.post("/queue", wanted(topic)), 403)
    assert is_empty(client(role="monitor").post("/queue", wanted(topic)), 403)
    for method in ("GET", "PUT", "DELETE"):
        assert is_empty(client().call(method, "/queue"), 405)


def test_too_large_a_subscription_is_413(strict: Bus):
    subscriber = strict.client()
    assert is_empty(subscriber.post("/queue", wanted("x" * 2_000_000)), 413)


def test_a_private_callback_is_400(strict: Bus):
    assert is_empty(strict.client().post("/queue", wanted("widgets")), 400, "callback")


def test_to_one_that_exists_it_adds_and_changes_nothing_else(
    bus: Bus, publisher: Caller, subscriber: Caller, inbox: Inbox
):
    first, second = bus.topic(), bus.topic()
    publisher.publish(second)
    subscriber.subscribe(inbox.url, first, timeout=0, max=7, parallelism=2)
    before = bus.subscriber(subscriber)
    assert is_empty(subscriber.post("/queue", wanted(second, timeout=900, max=1)), 204)
    after = bus.subscriber(subscriber)
    assert after == {**before, "topics": sorted([first, second])}
    publisher.publish(second)
    (came,) = inbox.until_events(1)
    assert came["topic"] == second  # in the format that it had


def test_it_is_for_good_and_subscription_changes_the_rest(
    bus: Bus, publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    publisher.publish(topic)
    assert is_empty(subscriber.post("/queue", wanted(topic)), 204)
    subscriber.subscribe(inbox.url, topic, timeout=0)
    assert bus.subscriber(subscriber)["format"] == "channel"
    publisher.publish(topic)
    assert inbox.until_events(1)[0]["channel"] == topic


def test_after_unsubscribing_one_may_choose_again(
    bus: Bus, publisher: Caller, subscriber: Caller, topic: str
):
    publisher.publish(topic)
    assert is_empty(subscriber.post("/queue", wanted(topic)), 204)
    assert subscriber.delete("/subscriber").status == 204
    subscriber.subscribe(NOWHERE, topic)
    assert bus.subscriber(subscriber)["format"] == "topic"
