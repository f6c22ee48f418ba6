"""The original's Ruby client: its requests, byte for byte as its HTTP libraries write them, and what it
checks of the answers: that the status is a success, and the keys that it fetches from JSON.

Its newer releases speak through libcurl, the first ones through Net::HTTP. The token is the username, and the
password is always `x`.
"""

import json

import pytest

from tests.bus import Bus
from tests.conftest import MakeClient
from tests.receiver import Inbox
from tests.wire import Answer, Caller, basic, line_to

CALLBACK = "https://127.0.0.1:9/events"
ENTITY = "https://app.example.com/widgets/123"


def by_libcurl(
    bus: Bus, method: str, path: str, token: str | None, body: bytes = b"", kind: bool = True
) -> bytes:
    host, port = bus.address()
    lines = [
        f"{method} {path} HTTP/1.1",
        f"Host: {host}:{port}",
        "Accept: */*",
        "User-Agent: Faraday v0.15.4",
        f"Authorization: {basic(token or '')}",
    ]
    if kind:
        lines.append("Content-Type: application/json")
    if method == "POST":
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def by_net_http(
    bus: Bus, method: str, path: str, token: str | None, body: bytes = b"", kind: bool = True
) -> bytes:
    host, port = bus.address()
    lines = [
        f"{method} {path} HTTP/1.1",
        "User-Agent: Faraday v0.9.0",
        f"Authorization: {basic(token or '')}",
        *(["Content-Type: application/json"] if kind else []),
        "Accept-Encoding: gzip;q=1.0,deflate;q=0.6,identity;q=0.3",
        "Accept: */*",
        "Connection: keep-alive",
        "Keep-Alive: 30",
        f"Host: {host}:{port}",
        *([f"Content-Length: {len(body)}"] if method == "POST" else []),
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


WRITERS = pytest.mark.parametrize("write", [by_libcurl, by_net_http], ids=["libcurl", "Net::HTTP"])


def call(
    bus: Bus, write, method: str, path: str, caller: Caller, body: bytes = b"", kind: bool = True
) -> Answer:
    with line_to(bus.address()) as line:
        line.send(write(bus, method, path, caller.token, body, kind))
        return line.read(method)


def is_success(answer: Answer) -> bool:
    """What Faraday's `success?` says."""
    assert 200 <= answer.status <= 299, answer
    return True


def is_json(answer: Answer) -> bool:
    assert answer.headers["content-type"] == "application/json", answer
    return is_success(answer)


@WRITERS
def test_it_looks_for_a_pulse_when_it_is_configured(bus: Bus, publisher: Caller, write):
    answer = call(bus, write, "GET", "/pulse", publisher, kind=False)
    assert (answer.status, answer.body) == (204, b"")


@WRITERS
@pytest.mark.parametrize("type", ["create", "update", "delete", "noop"])
def test_it_publishes(
    bus: Bus, publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox, write, type: str
):
    subscriber.subscribe(inbox.url, topic, timeout=0)
    bodies = [
        f'{{"type":"{type}","url":"{ENTITY}","timestamp":null}}',
        f'{{"type":"{type}","url":"{ENTITY}","timestamp":1473081600000}}',
        f'{{"type":"{type}","url":"{ENTITY}","timestamp":null,"data":null}}',
        f'{{"type":"{type}","url":"{ENTITY}","timestamp":1473081600000,"data":{{"foo":"bar"}}}}',
    ]
    for body in bodies:
        answer = call(bus, write, "POST", f"/topics/{topic}", publisher, body.encode())
        assert is_success(answer)
        assert (answer.status, answer.body) == (200, b"")
    events = inbox.until_events(4)
    assert [event["type"] for event in events] == [type] * 4
    assert [event["t"] for event in (events[1], events[3])] == [1473081600000] * 2
    assert ["data" in event for event in events] == [False, False, False, True]
    assert events[3]["data"] == {"foo": "bar"}


@WRITERS
def test_it_goes_on_over_one_connection(bus: Bus, publisher: Caller, topic: str, write):
    body = f'{{"type":"update","url":"{ENTITY}","timestamp":null}}'.encode()
    with line_to(bus.address()) as line:
        for _ in range(5):
            line.send(write(bus, "POST", f"/topics/{topic}", publisher.token, body))
            assert is_success(line.read("POST"))
    assert bus.owner_and_events(topic) == (publisher.id, 5)


@WRITERS
def test_what_is_rejected_is_no_success(bus: Bus, client: MakeClient, publisher: Caller, topic: str, write):
    """It raises with the status in the message."""
    body = f'{{"type":"update","url":"{ENTITY}","timestamp":null}}'.encode()
    assert is_success(call(bus, write, "POST", f"/topics/{topic}", publisher, body))
    assert call(bus, write, "POST", f"/topics/{topic}", client("other"), body).status == 403
    assert call(bus, write, "POST", f"/topics/{topic}", bus.caller("nobody-knows"), body).status == 401
    assert (
        call(bus, write, "POST", f"/topics/{topic}", publisher, body.replace(b"https", b"nttps")).status
        == 400
    )


@WRITERS
def test_it_subscribes(bus: Bus, subscriber: Caller, write):
    topics = [bus.topic("widgets"), bus.topic("kitten")]
    wanted = {"topics": topics, "callback": CALLBACK, "uuid": "demo", "timeout": 60_000, "max": 500}
    body = json.dumps(wanted, separators=(",", ":")).encode()
    answer = call(bus, write, "POST", "/subscription", subscriber, body)
    assert (answer.status, answer.body) == (204, b"")
    row = bus.subscriber(subscriber)
    assert (row["topics"], row["callback"]) == (sorted(topics), CALLBACK)
    assert (row["timeout"], row["max_events"]) == (60_000, 500)


@WRITERS
def test_it_subscribes_with_the_fields_that_it_has(bus: Bus, subscriber: Caller, topic: str, write):
    for more in ("", ',"timeout":null,"max":null', ',"max":10000', ',"timeout":0'):
        body = f'{{"topics":["{topic}"],"callback":"{CALLBACK}","uuid":"demo"{more}}}'.encode()
        assert is_success(call(bus, write, "POST", "/subscription", subscriber, body))


@WRITERS
def test_it_unsubscribes_and_deletes(bus: Bus, publisher: Caller, write):
    topics = [bus.topic(), bus.topic()]
    publisher.publish(topics[0])
    publisher.subscribe(CALLBACK, *topics)
    for path in (f"/subscriber/topics/{topics[1]}", "/subscriber", f"/topics/{topics[0]}"):
        answer = call(bus, write, "DELETE", path, publisher, kind=False)
        assert (answer.status, answer.body) == (204, b"")
        assert call(bus, write, "DELETE", path, publisher, kind=False).status == 404


@WRITERS
def test_it_monitors_topics(bus: Bus, publisher: Caller, topic: str, write):
    publisher.publish(topic)
    answer = call(bus, write, "GET", "/topics", publisher)
    assert is_json(answer)
    fetched = [(row["name"], row["publisher"], row["events"]) for row in answer.json]
    assert (topic, publisher.id, 1) in fetched


@WRITERS
def test_it_monitors_subscriptions(bus: Bus, subscriber: Caller, topic: str, write):
    subscriber.subscribe(CALLBACK, topic)
    for path in ("/subscriptions", "/subscribers"):
        answer = call(bus, write, "GET", path, subscriber)
        assert is_json(answer)
        (row,) = (row for row in answer.json if row["subscriber"] == subscriber.id)
        assert (row["callback"], row["topics"]) == (CALLBACK, [topic])
        assert {"sent", "queued", "oldest"} <= set(row["events"])


@WRITERS
def test_its_command_line_manages_tokens(bus: Bus, topic: str, write):
    made = call(bus, write, "POST", "/api_tokens", bus.root, b'{"name":"demo","token":null}')
    assert (made.status, is_json(made)) == (201, True)
    token = made.json["token"]
    caller = bus.caller(token)
    given = f"given--{token[-12:]}"
    chosen = call(
        bus, write, "POST", "/api_tokens", bus.root, f'{{"name":"given","token":"{given}"}}'.encode()
    )
    assert (chosen.status, chosen.json["token"]) == (201, given)
    body = f'{{"type":"create","url":"{ENTITY}","timestamp":null}}'.encode()
    assert is_success(call(bus, write, "POST", f"/topics/{topic}", caller, body))
    listed = call(bus, write, "GET", "/api_tokens", bus.root, kind=False)
    assert is_json(listed)
    assert {"demo", "given"} <= {row["name"] for row in listed.json}
    assert all("token" in row for row in listed.json)
    for secret in (token, given):
        gone = call(bus, write, "DELETE", f"/api_tokens/{secret}", bus.root, kind=False)
        assert (gone.status, gone.body) == (204, b"")
    assert call(bus, write, "POST", f"/topics/{topic}", caller, body).status == 401
