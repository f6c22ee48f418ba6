"""Who may do what."""

import base64

import pytest

from tests.bus import Bus
from tests.conftest import MakeClient
from tests.web.problem import is_problem
from tests.wire import Caller, basic

EVENT = {"type": "create", "url": "https://example.com/1"}
SUBSCRIPTION = {"topics": ["widgets"], "callback": "http://127.0.0.1:9/", "uuid": "u"}


def test_the_token_may_be_the_username_whatever_the_password(bus: Bus, publisher: Caller, topic: str):
    assert publisher.token
    anybody = bus.caller(None)
    for password in ("x", "", publisher.token):
        given = basic(publisher.token, password)
        assert anybody.post(f"/topics/{topic}", EVENT, authorization=given).status == 200


def test_the_token_may_be_the_password_whatever_the_username(bus: Bus, publisher: Caller, topic: str):
    assert publisher.token
    anybody = bus.caller(None)
    for user in ("somebody", "", "x"):
        given = basic(user, publisher.token)
        assert anybody.post(f"/topics/{topic}", EVENT, authorization=given).status == 200


def test_the_username_is_looked_at_first(bus: Bus, client: MakeClient, topic: str):
    first, second = client(), client()
    assert first.token
    assert second.token
    both = basic(first.token, second.token)
    assert bus.caller(None).post(f"/topics/{topic}", EVENT, authorization=both).status == 200
    assert bus.owner_and_events(topic) == (first.id, 1)


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_the_token_may_be_a_bearer(bus: Bus, publisher: Caller, topic: str, scheme: str):
    anybody = bus.caller(None)
    given = f"{scheme} {publisher.token}"
    assert anybody.post(f"/topics/{topic}", EVENT, authorization=given).status == 200
    assert anybody.get("/topics", authorization=given).status == 200


def test_basic_is_known_in_any_case(bus: Bus, publisher: Caller):
    assert publisher.token
    given = basic(publisher.token).replace("Basic", "basic")
    assert bus.caller(None).get("/topics", authorization=given).status == 200


@pytest.mark.parametrize(
    "given",
    [
        None,
        "",
        "Basic",
        "Basic !!!!",
        "Basic " + base64.b64encode(b"no colon").decode(),
        "Basic " + base64.b64encode(b"\xff\xfe:\xff").decode(),
        basic("", ""),
        basic("unknown--token", "unknown--too"),
        "Bearer",
        "Bearer unknown--token",
        "Negotiate abc",
        "ünknown",
    ],
)
def test_a_missing_or_unknown_credential_gets_401(bus: Bus, topic: str, given: str | None):
    headers = {} if given is None else {"authorization": given}
    anybody = bus.caller(None)
    for answer in (
        anybody.post(f"/topics/{topic}", EVENT, **headers),
        anybody.post("/subscription", SUBSCRIPTION, **headers),
        anybody.get("/topics", **headers),
        anybody.get("/api_tokens", **headers),
        anybody.get("/pulse", **headers),
    ):
        assert is_problem(answer, 401)
        assert answer.headers["www-authenticate"].startswith("Basic ")
    assert bus.owner_and_events(topic) is None


def test_a_client_id_is_no_credential(bus: Bus, publisher: Caller):
    assert is_problem(bus.caller(publisher.id).get("/topics"), 401)


def test_root_manages_and_monitors_but_neither_publishes_nor_subscribes(bus: Bus, topic: str):
    assert bus.root.get("/topics").status == 200
    assert bus.root.get("/subscriptions").status == 200
    assert bus.root.get("/pulse").status == 204
    assert is_problem(bus.root.post(f"/topics/{topic}", EVENT), 403)
    assert is_problem(bus.root.post("/subscription", SUBSCRIPTION), 403)
    assert is_problem(bus.root.delete("/subscriber"), 403)
    assert bus.owner_and_events(topic) is None


def test_a_client_does_not_manage_clients(publisher: Caller):
    assert is_problem(publisher.get("/api_tokens"), 403)
    assert is_problem(publisher.post("/api_tokens", {"name": "another"}), 403)
    assert is_problem(publisher.delete(f"/api_tokens/{publisher.id}"), 403)
    assert publisher.get("/topics").status == 200


def test_a_monitor_only_reads(client: MakeClient, publisher: Caller, topic: str):
    publisher.publish(topic)
    monitor = client("grafana", "monitor")
    assert monitor.get("/topics").status == 200
    assert monitor.get("/subscriptions").status == 200
    assert monitor.get("/pulse").status == 204
    assert is_problem(monitor.post("/topics/monitors_own", EVENT), 403)
    assert is_problem(monitor.post("/subscription", SUBSCRIPTION), 403)
    assert is_problem(monitor.delete("/subscriber"), 403)
    assert is_problem(monitor.delete("/subscriber/topics/widgets"), 403)
    assert is_problem(monitor.delete(f"/topics/{topic}"), 403)
    assert is_problem(monitor.get("/api_tokens"), 403)
