"""Grants: what a client may publish, and what it may receive."""

import pytest

from tests.bus import Bus
from tests.conftest import MakeClient
from tests.receiver import Inbox
from tests.web.problem import is_problem
from tests.wire import Caller

EVENT = {"type": "create", "url": "https://example.com/1"}


def grant(bus: Bus, caller: Caller, **grants: list[str] | None) -> None:
    assert bus.root.call("PATCH", f"/api_tokens/{caller.id}", {"grants": grants or None}).status == 204


def listed(bus: Bus, caller: Caller) -> dict:
    return next(row for row in bus.root.get("/api_tokens").json if row["token"] == caller.id)


def test_they_are_given_with_the_token_and_listed(bus: Bus):
    grants = {"publish": ["orders", "stock_*"], "read": ["*:orders:*"]}
    made = bus.root.post("/api_tokens", {"name": "shop", "grants": grants})
    assert made.status == 201
    (row,) = [row for row in bus.root.get("/api_tokens").json if row["token"] == made.json["client"]]
    assert row["grants"] == grants
    assert bus.root.delete(f"/api_tokens/{made.json['client']}").status == 204


def test_none_are_all(bus: Bus, publisher: Caller, topic: str):
    assert listed(bus, publisher)["grants"] is None
    publisher.publish(topic)


def test_publishing_outside_is_403_and_changes_nothing(bus: Bus, publisher: Caller, topic: str):
    other = bus.topic("other")
    grant(bus, publisher, publish=[f"{topic[:-2]}*"])
    publisher.publish(topic)
    for body in (EVENT, [EVENT, EVENT]):
        answer = publisher.post(f"/topics/{other}", body)
        assert is_problem(answer, 403)
        assert "grants" in answer.json["detail"]
    assert publisher.post(f"/channel/{other}", {"event": "created", "url": "https://e.com/1"}).status == 403
    assert bus.owner_and_events(other) is None


def test_an_empty_list_is_nothing_at_all(bus: Bus, publisher: Caller, topic: str):
    grant(bus, publisher, publish=[])
    assert listed(bus, publisher)["grants"] == {"publish": [], "read": None}
    assert is_problem(publisher.post(f"/topics/{topic}", EVENT), 403)
    rotated = bus.root.post(f"/api_tokens/{publisher.id}/rotate", {"grace_s": 60})
    assert rotated.status == 201
    assert listed(bus, publisher)["grants"] == {"publish": [], "read": None}  # also after a script rewrote it
    assert is_problem(publisher.post(f"/topics/{topic}", EVENT), 403)


def test_a_topic_that_is_owned_already_is_outside_too(bus: Bus, publisher: Caller, topic: str):
    publisher.publish(topic)
    grant(bus, publisher, publish=["another"])
    assert is_problem(publisher.post(f"/topics/{topic}", EVENT), 403)
    grant(bus, publisher)
    publisher.publish(topic)


def test_what_is_received_is_cut_to_what_may_be_read(
    bus: Bus, publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    other = bus.topic("other")
    grant(bus, subscriber, read=[f"eu:{topic}:*", f"*:{topic}:delete"])
    subscriber.subscribe(inbox.url, topic, other, timeout=0, match=[".*"])
    publisher.publish(topic, "https://example.com/us", environment="us")
    publisher.publish(topic, "https://example.com/eu", environment="eu")
    publisher.publish(other, "https://example.com/other", environment="eu")
    publisher.publish(topic, "https://example.com/deleted", "delete", environment="us")
    inbox.until_events(2)
    assert inbox.urls == ["https://example.com/eu", "https://example.com/deleted"]
    grant(bus, subscriber)
    publisher.publish(topic, "https://example.com/all", environment="us")
    inbox.until_events(3)
    assert inbox.urls[2:] == ["https://example.com/all"]


def test_each_web_process_holds_to_them_from_the_answer_on(bus: Bus, publisher: Caller, topic: str):
    other = publisher.at(bus.address(1))
    for _ in range(20):
        grant(bus, publisher, publish=["another"])
        for caller in (publisher, other):
            assert caller.post(f"/topics/{topic}", EVENT).status == 403
        grant(bus, publisher, publish=[topic])
        for caller in (other, publisher):
            assert caller.post(f"/topics/{topic}", EVENT).status == 200
    other.close()


def test_what_changes_nothing_keeps_the_epoch(bus: Bus, publisher: Caller):
    grant(bus, publisher, publish=["orders"])
    before = bus.redis.get(bus.key("epoch"))
    grant(bus, publisher, publish=["orders"])
    assert bus.redis.get(bus.key("epoch")) == before


@pytest.mark.parametrize(
    ("grants", "field"),
    [
        ({"publish": "orders"}, "grants.publish"),
        ({"publish": [1]}, "grants.publish"),
        ({"publish": [""]}, "grants.publish"),
        ({"publish": ["a b"]}, "grants.publish"),
        ({"read": ["x" * 501]}, "grants.read"),
        ({"read": ["(a+)+$"]}, "grants.read"),
        ({"read": ["a"] * 51}, "grants.read"),
        ({"write": ["a"]}, "grants.write"),
        (["orders"], "grants"),
        ("orders", "grants"),
    ],
)
def test_bad_ones_are_told(bus: Bus, client: MakeClient, grants: object, field: str):
    caller = client()
    for answer in (
        bus.root.call("PATCH", f"/api_tokens/{caller.id}", {"grants": grants}),
        bus.root.post("/api_tokens", {"name": "shop", "grants": grants}),
    ):
        assert is_problem(answer, 400, field)
    assert listed(bus, caller)["grants"] is None


def test_only_root_gives_them(publisher: Caller):
    answer = publisher.call("PATCH", f"/api_tokens/{publisher.id}", {"grants": None})
    assert is_problem(answer, 403)


def test_a_client_that_is_not_there_is_404(bus: Bus):
    assert is_problem(bus.root.call("PATCH", "/api_tokens/nobody", {"grants": None}), 404)
    assert is_problem(bus.root.call("PATCH", "/api_tokens/nobody", {}), 400, "grants")
