"""The original's Go client: its requests as net/http writes them. It sends no content type, an empty
password, and the body `null` where it has none, also with GET and DELETE. 200, 201 and 204 are successes.
"""

import pytest

from tests.bus import Bus
from tests.receiver import Inbox
from tests.wire import Answer, Caller, basic, line_to

CALLBACK = "https://127.0.0.1:9/events"
ENTITY = "https://app.example.com/orders/1"


def call(bus: Bus, method: str, path: str, caller: Caller, body: bytes = b"null") -> Answer:
    host, port = bus.address()
    lines = [
        f"{method} {path} HTTP/1.1",
        f"Host: {host}:{port}",
        "User-Agent: Go-http-client/1.1",
        f"Content-Length: {len(body)}",
        f"Authorization: {basic(caller.token or '', '')}",
        "Accept-Encoding: gzip",
    ]
    with line_to(bus.address()) as line:
        line.send("\r\n".join([*lines, "", ""]).encode() + body)
        return line.read(method)


def is_success(answer: Answer) -> bool:
    assert answer.status in (200, 201, 204), answer
    return True


@pytest.mark.parametrize("type", ["create", "update", "delete", "noop"])
def test_it_pushes(bus: Bus, publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox, type: str):
    subscriber.subscribe(inbox.url, topic, timeout=0)
    for body in (
        f'{{"type":"{type}","url":"{ENTITY}"}}',
        f'{{"type":"{type}","url":"{ENTITY}","timestamp":1510000000000,"data":{{"a":1}}}}',
    ):
        assert is_success(call(bus, "POST", f"/topics/{topic}", publisher, body.encode()))
    first, second = inbox.until_events(2)
    assert "data" not in first
    assert (second["t"], second["data"]) == (1510000000000, {"a": 1})


def test_it_subscribes_and_ends_that(bus: Bus, subscriber: Caller):
    topics = [bus.topic(), bus.topic()]
    for more in ("", ',"timeout":100,"max":10'):
        body = f'{{"topics":["{topics[0]}","{topics[1]}"],"callback":"{CALLBACK}","uuid":"token"{more}}}'
        assert is_success(call(bus, "POST", "/subscription", subscriber, body.encode()))
    assert is_success(call(bus, "DELETE", f"/subscriber/topics/{topics[0]}", subscriber))
    assert bus.subscriber(subscriber)["topics"] == topics[1:]
    assert is_success(call(bus, "DELETE", "/subscriber", subscriber))
    assert call(bus, "DELETE", "/subscriber", subscriber).status == 404


def test_it_deletes_a_topic_by_the_singular_path(bus: Bus, publisher: Caller, topic: str):
    publisher.publish(topic)
    assert is_success(call(bus, "DELETE", f"/topic/{topic}", publisher))
    assert bus.owner_and_events(topic) is None


def test_it_reads_topics(bus: Bus, publisher: Caller, subscriber: Caller, topic: str):
    """Its fields are texts and numbers; null leaves a text empty."""
    unclaimed = bus.topic()
    publisher.publish(topic)
    subscriber.subscribe(CALLBACK, unclaimed)
    answer = call(bus, "GET", "/topics", publisher)
    assert is_success(answer)
    assert "content-encoding" not in answer.headers
    rows = {row["name"]: row for row in answer.json}
    assert (rows[topic]["publisher"], rows[topic]["events"]) == (publisher.id, 1)
    assert rows[unclaimed]["publisher"] is None


def test_it_manages_tokens(bus: Bus):
    made = call(bus, "POST", "/api_tokens", bus.root, b'{"name":"service"}')
    assert is_success(made)
    assert isinstance(made.json["token"], str)
    listed = call(bus, "GET", "/api_tokens", bus.root)
    assert is_success(listed)
    assert all(isinstance(row[name], str) for row in listed.json for name in ("name", "token"))
    assert is_success(call(bus, "DELETE", f"/api_tokens/{made.json['token']}", bus.root))


def test_an_error_has_a_text(bus: Bus, publisher: Caller, topic: str):
    """It puts the whole body into its error."""
    answer = call(bus, "POST", f"/topics/{topic}", publisher, b'{"type":"created","url":"x"}')
    assert answer.status == 400
    assert answer.body


def test_several_calls_over_one_connection(bus: Bus, publisher: Caller, topic: str):
    """A body that nobody reads must not be taken for the next request."""
    host, port = bus.address()
    who = basic(publisher.token or "", "")
    head = f"Host: {host}:{port}\r\nContent-Length: 4\r\nAuthorization: {who}\r\n\r\n"
    with line_to(bus.address()) as line:
        for method, path in (("GET", "/topics"), ("DELETE", f"/topic/{topic}"), ("GET", "/pulse")) * 2:
            line.send(f"{method} {path} HTTP/1.1\r\n{head}null".encode())
            assert line.read(method).status in (200, 204, 404)
