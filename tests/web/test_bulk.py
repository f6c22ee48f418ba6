"""POST /topics/:name, many events: all of them or none."""

import json

import pytest

from tests.bus import Bus
from tests.receiver import Inbox
from tests.web.problem import is_problem
from tests.wire import Answer, Caller

NDJSON = "application/x-ndjson"
FORMS = ["array", "lines"]


def event(n: int, **more: object) -> dict[str, object]:
    return {"type": "update", "url": f"https://example.com/{n}", **more}


def send(caller: Caller, topic: str, events: list[object], form: str) -> Answer:
    if form == "array":
        return caller.post(f"/topics/{topic}", events)
    lines = b"".join(json.dumps(item).encode() + b"\n" for item in events)
    return caller.post(f"/topics/{topic}", lines, content_type=NDJSON)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("count", [1, 2, 250])
def test_all_are_accepted_and_delivered_in_order(
    bus: Bus, publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox, form: str, count: int
):
    subscriber.subscribe(inbox.url, topic, timeout=0)
    answer = send(publisher, topic, [event(n) for n in range(count)], form)
    assert answer.status == 200
    assert answer.kind == "application/json"
    assert answer.json == {"accepted": count}
    assert bus.owner_and_events(topic) == (publisher.id, count)
    inbox.until_events(count)
    assert inbox.urls == [f"https://example.com/{n}" for n in range(count)]
    assert len({item["id"] for item in inbox.events}) == count


def test_lines_may_be_blank_and_the_last_may_be_open(bus: Bus, publisher: Caller, topic: str):
    lines = b"\n\n".join(json.dumps(event(n)).encode() for n in range(3))
    answer = publisher.post(f"/topics/{topic}", lines, content_type=NDJSON + "; charset=utf-8")
    assert answer.json == {"accepted": 3}


def test_an_array_may_start_with_white_space(publisher: Caller, topic: str):
    body = b" \r\n\t" + json.dumps([event(1)]).encode()
    assert publisher.post(f"/topics/{topic}", body).json == {"accepted": 1}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("bad", "field"),
    [
        ({"type": "explode", "url": "https://example.com/"}, "type"),
        ({"type": "update"}, "url"),
        ({"type": "update", "url": "https://example.com/", "data": {"a": "x" * 5000}}, "data"),
        ({"type": "update", "url": "https://example.com/", "nonsense": 1}, "nonsense"),
        ({"type": "update", "url": "https://example.com/", "id": "a b"}, "id"),
        (5, "body"),
    ],
)
def test_the_first_bad_event_is_named_and_nothing_stored(
    bus: Bus, publisher: Caller, topic: str, form: str, bad: object, field: str
):
    before = bus.accepted()
    events = [event(0), event(1), bad, event(3), {"type": "worse"}]
    assert is_problem(send(publisher, topic, events, form), 400, field, index=2)
    assert bus.accepted() == before
    assert bus.owner_and_events(topic) is None


def test_a_line_that_is_no_json_is_named(bus: Bus, publisher: Caller, topic: str):
    lines = b"\n".join([json.dumps(event(0)).encode(), b"{broken", json.dumps(event(2)).encode()])
    answer = publisher.post(f"/topics/{topic}", lines, content_type=NDJSON)
    assert is_problem(answer, 400, "body", index=1)
    assert bus.owner_and_events(topic) is None


def test_the_first_bad_line_is_named_also_when_a_later_one_is_no_json(publisher: Caller, topic: str):
    lines = b"\n".join([json.dumps(event(0)).encode(), b'{"type": "explode"}', b"{broken"])
    assert is_problem(publisher.post(f"/topics/{topic}", lines, content_type=NDJSON), 400, index=1)


def test_blank_lines_do_not_count(publisher: Caller, topic: str):
    lines = b"\n\n\n".join([json.dumps(event(0)).encode(), b"{broken"])
    assert is_problem(publisher.post(f"/topics/{topic}", lines, content_type=NDJSON), 400, index=1)


@pytest.mark.parametrize(
    ("body", "kind"),
    [(b"[]", "application/json"), (b" [ ] ", "application/json"), (b"", NDJSON), (b"\n\n", NDJSON)],
)
def test_an_empty_one_is_refused(bus: Bus, publisher: Caller, topic: str, body: bytes, kind: str):
    assert is_problem(publisher.post(f"/topics/{topic}", body, content_type=kind), 400, "body")
    assert bus.owner_and_events(topic) is None


@pytest.mark.parametrize("form", FORMS)
def test_ten_thousand_are_taken_and_one_more_is_not(bus: Bus, publisher: Caller, topic: str, form: str):
    events: list[object] = [event(n) for n in range(10_001)]
    assert is_problem(send(publisher, topic, events, form), 400, "body")
    assert bus.owner_and_events(topic) is None
    assert send(publisher, topic, events[1:], form).json == {"accepted": 10_000}
    assert bus.owner_and_events(topic) == (publisher.id, 10_000)


def test_an_array_with_a_stray_end_is_refused_whole(bus: Bus, publisher: Caller, topic: str):
    body = json.dumps([event(0), event(1)]).encode()
    for broken in (body[:-1], body + b"]", body.replace(b"}, {", b"}{")):
        assert is_problem(publisher.post(f"/topics/{topic}", broken), 400, "body")
    assert bus.owner_and_events(topic) is None


def test_more_than_8_mib_is_too_large(bus: Bus, publisher: Caller, topic: str):
    body = b"[" + b" " * (8 * 2**20) + b"]"
    assert is_problem(publisher.post(f"/topics/{topic}", body), 413)
    full = json.dumps([event(1)]).encode().ljust(8 * 2**20)
    assert publisher.post(f"/topics/{topic}", full).json == {"accepted": 1}
