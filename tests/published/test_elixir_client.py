"""The original's Elixir client: its requests as Tesla and Hackney write them. It matches on exact statuses:
200 for what it publishes and reads, 204 for what it changes.
"""

import pytest

from tests.bus import Bus
from tests.receiver import Inbox
from tests.wire import Answer, Caller, basic, line_to

CALLBACK = "https://127.0.0.1:9/events"
ENTITY = "https://app.example.com/users/1"


def call(bus: Bus, method: str, path: str, caller: Caller, body: bytes = b"") -> Answer:
    host, port = bus.address()
    lines = [
        f"{method} {path} HTTP/1.1",
        f"Host: {host}:{port}",
        f"Authorization: {basic(caller.token or '')}",
    ]
    if body:
        lines.append("content-type: application/json")
    lines += ["user-agent: routemaster-client-ex-v0.3.0", f"Content-Length: {len(body)}"]
    with line_to(bus.address()) as line:
        line.send("\r\n".join([*lines, "", ""]).encode() + body)
        return line.read(method)


@pytest.mark.parametrize("type", ["create", "update", "delete", "noop"])
def test_it_wants_exactly_200_for_an_event(
    bus: Bus, publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox, type: str
):
    subscriber.subscribe(inbox.url, topic, timeout=0)
    for body in (
        f'{{"url":"{ENTITY}","type":"{type}","timestamp":1502651912345}}',
        f'{{"url":"{ENTITY}","type":"{type}","timestamp":1502651912345,"data":{{"foo":"bar","n":[1]}}}}',
        f'{{"url":"{ENTITY}","type":"{type}","timestamp":null,"data":null}}',
    ):
        assert call(bus, "POST", f"/topics/{topic}", publisher, body.encode()).status == 200
    first, second, _ = inbox.until_events(3)
    assert (first["url"], first["type"], first["t"]) == (ENTITY, type, 1502651912345)
    assert second["data"] == {"foo": "bar", "n": [1]}


def test_an_error_has_a_status_that_is_neither(bus: Bus, publisher: Caller, topic: str):
    body = f'{{"url":"{ENTITY}","type":"created","timestamp":1502651912345}}'.encode()
    assert call(bus, "POST", f"/topics/{topic}", publisher, body).status == 400
    assert call(bus, "POST", f"/topics/{topic}", bus.caller("nobody-knows"), body).status == 401


def test_it_wants_exactly_204_for_a_subscription(bus: Bus, subscriber: Caller, topic: str):
    for options, held in (
        ('"max":null,"timeout":null', (500, 100)),
        ('"max":300,"timeout":2000', (2000, 300)),
    ):
        body = f'{{"uuid":"a-drain-token","topics":["{topic}"],{options},"callback":"{CALLBACK}"}}'
        assert call(bus, "POST", "/subscription", subscriber, body.encode()).status == 204
        row = bus.subscriber(subscriber)
        assert (row["timeout"], row["max_events"]) == held


def test_it_wants_exactly_204_or_404_for_what_it_ends(bus: Bus, publisher: Caller, topic: str):
    publisher.publish(topic)
    publisher.subscribe(CALLBACK, topic)
    for path in (f"/subscriber/topics/{topic}", "/subscriber", f"/topics/{topic}"):
        assert call(bus, "DELETE", path, publisher).status == 204
        assert call(bus, "DELETE", path, publisher).status == 404


def test_it_reads_lists_that_its_json_middleware_decodes(bus: Bus, publisher: Caller, topic: str):
    publisher.publish(topic)
    publisher.subscribe(CALLBACK, topic)
    for path in ("/topics", "/subscribers"):
        answer = call(bus, "GET", path, publisher)
        assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
        assert isinstance(answer.json, list)
    (row,) = (row for row in call(bus, "GET", "/topics", publisher).json if row["name"] == topic)
    assert (row["publisher"], row["events"]) == (publisher.id, 1)
