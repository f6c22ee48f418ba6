"""POST /topics/:name, one event."""

import json
import re
import time

import pytest

from routemaster.uid import Maker
from tests.bus import Bus
from tests.conftest import MakeBus
from tests.receiver import Inbox
from tests.web.problem import is_problem
from tests.wire import Caller

URL = "https://example.com/widgets/1"
EVENT = {"type": "create", "url": URL}


def test_one_event_is_answered_200_with_nothing_in_it(publisher: Caller, topic: str):
    answer = publisher.post(f"/topics/{topic}", EVENT)
    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["content-length"] == "0"
    assert re.fullmatch(r"[-0-9A-Z_a-z]{20}", answer.headers["routemaster-event-id"])
    assert "transfer-encoding" not in answer.headers


def test_its_id_sorts_by_time(publisher: Caller, topic: str):
    ids = [Maker()(), *(publisher.publish(topic) for _ in range(20)), Maker()()]
    assert ids[1:-1] == sorted(ids[1:-1])
    assert ids[0][:8] <= ids[1][:8] <= ids[-1][:8]


@pytest.mark.parametrize("kind", ["create", "update", "delete", "noop"])
def test_every_type_is_taken(publisher: Caller, topic: str, kind: str):
    publisher.publish(topic, type=kind)


def test_a_body_without_a_content_type_is_json(publisher: Caller, topic: str):
    assert publisher.post(f"/topics/{topic}", json.dumps(EVENT).encode()).status == 200


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "APPLICATION/JSON"])
def test_the_content_type_may_say_more(publisher: Caller, topic: str, kind: str):
    assert publisher.post(f"/topics/{topic}", EVENT, content_type=kind).status == 200


def test_null_optional_fields_count_as_absent(publisher: Caller, topic: str):
    absent = dict.fromkeys(("timestamp", "data", "environment", "id"))
    assert publisher.post(f"/topics/{topic}", {**EVENT, **absent}).status == 200


@pytest.mark.parametrize(
    ("event", "field"),
    [
        ({"url": URL}, "type"),
        ({"type": "explode", "url": URL}, "type"),
        ({"type": "created", "url": URL}, "type"),
        ({"type": None, "url": URL}, "type"),
        ({"type": ["create"], "url": URL}, "type"),
        ({"type": "create"}, "url"),
        ({"type": "create", "url": None}, "url"),
        ({"type": "create", "url": ""}, "url"),
        ({"type": "create", "url": "ftp://example.com/"}, "url"),
        ({"type": "create", "url": "//example.com/"}, "url"),
        ({"type": "create", "url": "https://"}, "url"),
        ({"type": "create", "url": "https://example.com/a b"}, "url"),
        ({"type": "create", "url": "https://example.com/\n"}, "url"),
        ({"type": "create", "url": "https://example.com/" + "x" * 1005}, "url"),
        ({"type": "create", "url": 5}, "url"),
        ({**EVENT, "timestamp": -1}, "timestamp"),
        ({**EVENT, "timestamp": 1.5}, "timestamp"),
        ({**EVENT, "timestamp": "1700000000000"}, "timestamp"),
        ({**EVENT, "timestamp": True}, "timestamp"),
        ({**EVENT, "timestamp": 10**30}, "timestamp"),
        ({**EVENT, "data": []}, "data"),
        ({**EVENT, "data": "text"}, "data"),
        ({**EVENT, "data": 5}, "data"),
        ({**EVENT, "data": {"long": "x" * 4096}}, "data"),
        ({**EVENT, "environment": ""}, "environment"),
        ({**EVENT, "environment": "with space"}, "environment"),
        ({**EVENT, "environment": "with:colon"}, "environment"),
        ({**EVENT, "environment": "x" * 65}, "environment"),
        ({**EVENT, "environment": 1.5}, "environment"),
        ({**EVENT, "environment": True}, "environment"),
        ({**EVENT, "id": ""}, "id"),
        ({**EVENT, "id": "with space"}, "id"),
        ({**EVENT, "id": "x" * 65}, "id"),
        ({**EVENT, "id": 5}, "id"),
        ({**EVENT, "nonsense": 1}, "nonsense"),
        ({**EVENT, "Type": "create"}, "Type"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_stored(
    bus: Bus, publisher: Caller, topic: str, event: object, field: str
):
    before = bus.accepted()
    assert is_problem(publisher.post(f"/topics/{topic}", event), 400, field)
    assert bus.accepted() == before
    assert bus.owner_and_events(topic) is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"null",
        b"5",
        b'"text"',
        b"{",
        b'{"type": "create", "url": "https://example.com/"} {}',
        b'{"type": "create", "url": "https://example.com/", "data": ' + b'{"a":' * 5000 + b"1" + b"}" * 5001,
        b'{"type": "create", "url": "https://example.com/\xff"}',
        b"\xff\xfe",
        b"type=create&url=https://example.com/",
    ],
)
def test_a_body_that_is_no_event_is_refused(bus: Bus, publisher: Caller, topic: str, body: bytes):
    answer = publisher.post(f"/topics/{topic}", body)
    assert is_problem(answer, 400)
    assert answer.json["field"] in ("body", "data", "url")
    assert bus.owner_and_events(topic) is None


@pytest.mark.parametrize(
    "name", ["x" * 33, "Widgets", "widgets1", "wid-gets", "a%20b", "caf%C3%A9", "%00", "a%2Fb", "a/b", ""]
)
def test_a_bad_name_is_refused(bus: Bus, publisher: Caller, name: str):
    before = [row["name"] for row in bus.root.get("/topics").json]
    assert is_problem(publisher.post(f"/topics/{name}", EVENT), 400, "topic")
    assert [row["name"] for row in bus.root.get("/topics").json] == before


def test_a_name_of_32_is_taken(bus: Bus, publisher: Caller):
    publisher.publish(bus.topic().ljust(32, "_"))


def test_a_name_may_be_percent_encoded_and_a_query_does_not_matter(bus: Bus, publisher: Caller, topic: str):
    encoded = "".join(f"%{ord(letter):02x}" for letter in topic)
    assert publisher.post(f"/topics/{encoded}?a=b", EVENT).status == 200
    assert bus.owner_and_events(topic) == (publisher.id, 1)


def test_a_url_of_1024_is_taken(publisher: Caller, topic: str):
    publisher.publish(topic, url="https://example.com/".ljust(1024, "x"))
    publisher.publish(topic, url="HTTP://EXAMPLE.COM")


def test_data_up_to_its_limit_is_delivered_as_it_came(
    publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    subscriber.subscribe(inbox.url, topic, timeout=0)
    full = {"text": "x" * (4096 - len('{"text": ""}'))}
    assert len(json.dumps(full)) == 4096
    odd = {"ü": "\u2028\n\t\"'", "nested": [{"a": None}, 1.5, 12345678901234567890], "": {}}
    for data in (full, odd, {}):
        publisher.publish(topic, data=data)
    pretty = json.dumps({**EVENT, "data": odd}, indent=4, ensure_ascii=False)
    assert publisher.post(f"/topics/{topic}", pretty.encode()).status == 200
    assert [event["data"] for event in inbox.until_events(4)] == [full, odd, {}, odd]


def test_the_limits_of_names_and_data_are_settings(make_bus: MakeBus):
    bus = make_bus(workers=0, max_topic_name=64, max_event_data=64)
    publisher = bus.client()
    publisher.publish("x" * 64, data={"a": "x" * 55})
    assert is_problem(publisher.post(f"/topics/{'x' * 65}", EVENT), 400, "topic")
    assert is_problem(publisher.post("/topics/x", {**EVENT, "data": {"a": "x" * 60}}), 400, "data")


def test_the_time_is_the_publishers_or_that_of_reception(
    publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    subscriber.subscribe(inbox.url, topic, timeout=0)
    publisher.publish(topic, timestamp=0)
    publisher.publish(topic, timestamp=1_500_000_000_123)
    before = time.time_ns() // 1_000_000
    publisher.publish(topic)
    after = time.time_ns() // 1_000_000
    times = [event["t"] for event in inbox.until_events(3)]
    assert times[:2] == [0, 1_500_000_000_123]
    assert before <= times[2] <= after


def test_an_environment_is_text_or_a_whole_number(bus: Bus, publisher: Caller, topic: str):
    for environment in ("production", "eu-1.prod_2", 0, 42, "x" * 64):
        publisher.publish(topic, environment=environment)
    blocks = bus.redis.xrevrange(bus.key("log:events"), count=5)
    side = [json.loads(block[b"s"])[0][4] for _, block in reversed(blocks)]
    assert side == ["production", "eu-1.prod_2", "0", "42", "x" * 64]


def test_a_traceparent_goes_along(bus: Bus, publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox):
    subscriber.subscribe(inbox.url, topic, timeout=0, max=1)
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    assert publisher.post(f"/topics/{topic}", EVENT, traceparent=trace).status == 200
    assert publisher.post(f"/topics/{topic}", EVENT, traceparent="nonsense").status == 200
    assert publisher.post(f"/topics/{topic}", EVENT).status == 200
    inbox.until_events(3)
    assert [delivery.headers.get("traceparent") for delivery in inbox.deliveries] == [trace, None, None]
    (_, third), (_, second), (_, first) = bus.redis.xrevrange(bus.key("log:events"), count=3)
    assert [json.loads(block[b"s"])[0][5] for block in (first, second, third)] == [trace, None, None]


def test_an_answered_event_is_in_the_store_for_every_subscriber(
    bus: Bus, publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    subscriber.subscribe(inbox.url, topic, timeout=3_600_000, max=1000)
    for count in range(1, 6):
        before = bus.accepted()
        publisher.publish(topic)
        assert bus.accepted() == before + 1
        assert bus.redis.hget(bus.key("batches:gauges:event"), subscriber.id) == str(count).encode()
