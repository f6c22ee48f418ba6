"""/api_tokens: clients come and go."""

import json
import re

import pytest

from tests.bus import Bus
from tests.conftest import MakeBus, MakeClient
from tests.receiver import Inbox
from tests.web.problem import is_problem

EVENT = {"type": "create", "url": "https://example.com/1"}


def test_a_new_token_is_shown_once(bus: Bus):
    created = bus.root.post("/api_tokens", {"name": "billing"})
    assert created.status == 201
    assert created.kind == "application/json"
    assert set(created.json) == {"name", "token", "client"}
    assert created.json["name"] == "billing"
    assert re.fullmatch(r"billing--[A-Za-z0-9_-]+", created.json["token"])
    assert re.fullmatch(r"billing--[A-Za-z0-9_-]{12}", created.json["client"])
    listed = bus.root.get("/api_tokens")
    assert listed.kind == "application/json"
    row = {"name": "billing", "token": created.json["client"], "role": "client", "grants": None}
    assert row in listed.json
    assert created.json["token"].encode() not in listed.body
    bus.root.delete(f"/api_tokens/{created.json['client']}")


def test_the_token_itself_is_nowhere_in_the_store_or_the_logs(bus: Bus, client: MakeClient, topic: str):
    caller = client()
    assert caller.token
    caller.publish(topic)
    held = b"".join(dump for key in bus.redis.keys(bus.key("*")) if (dump := bus.redis.dump(key)))
    assert caller.id.encode() in held
    assert caller.token.encode() not in held
    assert caller.token not in bus.log


def test_there_is_nothing_to_list_before_the_first(make_bus: MakeBus):
    bus = make_bus(workers=0)
    listed = bus.root.get("/api_tokens")
    assert (listed.status, listed.body) == (204, b"")
    bus.client()
    assert len(bus.root.get("/api_tokens").json) == 1


def test_a_monitor_says_its_role(bus: Bus, client: MakeClient):
    monitor = client("grafana", "monitor")
    assert {"monitor"} == {
        row["role"] for row in bus.root.get("/api_tokens").json if row["token"] == monitor.id
    }


def test_a_token_may_be_given(bus: Bus, topic: str):
    wanted = "billing--6ba7b810-9dad-11d1-80b4-00c04fd430c8"
    created = bus.root.post("/api_tokens", {"name": "billing", "token": wanted})
    assert created.status == 201
    assert created.json["token"] == wanted
    bus.caller(wanted).publish(topic)
    again = bus.root.post("/api_tokens", {"name": "other", "token": wanted})
    assert is_problem(again, 409, "token")
    assert bus.root.delete(f"/api_tokens/{wanted}").status == 204


def test_the_root_key_is_nobody_elses_token(bus: Bus):
    assert is_problem(bus.root.post("/api_tokens", {"name": "x", "token": bus.root_key}), 409, "token")


def test_null_optional_fields_count_as_absent(bus: Bus):
    created = bus.root.post("/api_tokens", {"name": "billing", "token": None, "role": None})
    assert created.status == 201, created
    bus.root.delete(f"/api_tokens/{created.json['client']}")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "name"),
        ({"name": ""}, "name"),
        ({"name": "with space"}, "name"),
        ({"name": 5}, "name"),
        ({"name": "x", "token": "short"}, "token"),
        ({"name": "x", "token": "a" * 65}, "token"),
        ({"name": "x", "token": "with.dots.in.it"}, "token"),
        ({"name": "x", "role": "root"}, "role"),
        ({"name": "x", "role": "king"}, "role"),
        ({"name": "x", "nonsense": 1}, "nonsense"),
        ([], "body"),
        (b"{", "body"),
        (b"\xff", "body"),
        (b"", "body"),
    ],
)
def test_what_is_malformed_is_named(bus: Bus, body: object, field: str):
    before = bus.root.get("/api_tokens").body
    assert is_problem(bus.root.post("/api_tokens", body), 400, field)
    assert bus.root.get("/api_tokens").body == before


def test_deleting_what_does_not_exist_is_fine(bus: Bus):
    assert bus.root.delete("/api_tokens/nobody--0123456789").status == 204


@pytest.mark.parametrize("by", ["secret", "client id"])
def test_a_deleted_token_is_refused_everywhere_from_the_answer_on(bus: Bus, by: str):
    for _ in range(5):
        caller = bus.client()
        elsewhere = caller.at(bus.address(1))
        topic = bus.topic()
        caller.publish(topic)
        elsewhere.publish(topic)
        gone = bus.root.delete(f"/api_tokens/{caller.token if by == 'secret' else caller.id}")
        assert (gone.status, gone.body) == (204, b"")
        for web in (elsewhere, caller):
            assert is_problem(web.post(f"/topics/{topic}", EVENT), 401)
            assert is_problem(web.get("/topics"), 401)
        elsewhere.close()
        assert bus.owner_and_events(topic) == (None, 2)


def test_a_new_token_is_known_everywhere_from_the_answer_on(bus: Bus, client: MakeClient):
    for _ in range(5):
        elsewhere = client().at(bus.address(1))
        elsewhere.publish(bus.topic())
        elsewhere.close()


def test_a_client_that_goes_leaves_its_topics_unclaimed(bus: Bus, client: MakeClient, topic: str):
    first = bus.client()
    first.publish(topic)
    bus.forget(first)
    assert bus.owner_and_events(topic) == (None, 1)
    second = client()
    second.publish(topic)
    assert bus.owner_and_events(topic) == (second.id, 2)


def test_a_client_that_goes_takes_its_subscription_along(
    bus: Bus, client: MakeClient, topic: str, inbox: Inbox
):
    publisher, gone, stays = client(), bus.client(), client()
    gone.subscribe(f"{inbox.url}", topic, timeout=3_600_000, max=1000)
    stays.subscribe(inbox.url, topic, timeout=0)
    publisher.publish(topic)
    assert bus.subscriber(gone)["events"]["queued"] == 1
    bus.forget(gone)
    listed = bus.root.get("/subscriptions").json
    assert gone.id not in json.dumps(listed)
    publisher.publish(topic)
    inbox.until_events(2)
    assert not bus.redis.sismember(bus.key("subscribers"), gone.id)
    assert bus.redis.smembers(bus.key(f"subscribers:{topic}")) == {stays.id.encode()}
