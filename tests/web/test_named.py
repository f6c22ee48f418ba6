"""Several subscriptions of one client, by name; and root's way to anybody's."""

import pytest

from routemaster.web.subscriptions import MAX_PATTERNS, MAX_SUBSCRIPTIONS
from tests.bus import Bus
from tests.conftest import MakeClient
from tests.receiver import Inbox, Receiver
from tests.until import until
from tests.web.problem import is_problem
from tests.wire import Caller

NOWHERE = "http://127.0.0.1:9/"
CALLS = [
    ("DELETE", ""),
    ("DELETE", "/topics/{topic}"),
    ("POST", "/pause"),
    ("POST", "/resume"),
    ("POST", "/test"),
    ("GET", "/dead"),
    ("POST", "/dead/retry"),
    ("DELETE", "/dead"),
]


def rows(bus: Bus, caller: Caller) -> dict[str | None, dict]:
    return {row["name"]: row for row in bus.root.get("/subscriptions").json if row["client"] == caller.id}


def test_each_has_its_own_list_callback_and_copies(
    bus: Bus, publisher: Caller, subscriber: Caller, receiver: Receiver
):
    first, second = bus.topic(), bus.topic()
    inboxes = [receiver.inbox() for _ in range(3)]
    subscriber.subscribe(inboxes[0].url, first, timeout=0)
    subscriber.subscribe(inboxes[1].url, first, second, timeout=0, name="reports", uuid="other")
    subscriber.subscribe(inboxes[2].url, second, timeout=0, name="a-b_9", max=1)
    ids = [publisher.publish(first), publisher.publish(second)]
    assert [event["id"] for event in inboxes[0].until_events(1)] == ids[:1]
    assert [event["id"] for event in inboxes[1].until_events(2)] == ids
    assert [event["id"] for event in inboxes[2].until_events(1)] == ids[1:]
    assert inboxes[1].deliveries[0].credentials == "other:other"
    known = rows(bus, subscriber)
    assert set(known) == {None, "reports", "a-b_9"}
    assert known[None]["subscriber"] == subscriber.id
    assert known["reports"]["subscriber"] == f"{subscriber.id}.reports"
    assert known["reports"]["topics"] == sorted([first, second])


def test_a_client_has_a_bounded_number_of_them(bus: Bus, subscriber: Caller, client: MakeClient, topic: str):
    """With 2,000 of 64 lanes, deleting the client held the store up for half a second."""
    for n in range(MAX_SUBSCRIPTIONS):
        subscriber.subscribe(NOWHERE, topic, name=f"n{n}")
    wanted = {"topics": [topic], "callback": NOWHERE, "uuid": "u"}
    for name in ("another", None):
        refused = subscriber.post("/subscription", {**wanted, "name": name})
        assert is_problem(refused, 400, field="name")
    subscriber.subscribe(NOWHERE, topic, name="n0", max=7)
    client().subscribe(NOWHERE, topic, name="another")
    assert subscriber.delete("/subscriber?name=n0").status == 204
    subscriber.subscribe(NOWHERE, topic, name="another")


def test_all_of_a_client_have_a_bounded_number_of_patterns(bus: Bus, subscriber: Caller):
    for n in range(MAX_PATTERNS // 50):
        subscriber.subscribe(NOWHERE, name=f"n{n}", match=["nothing$"] * 50)
    wanted = {"callback": NOWHERE, "uuid": "u", "name": "another", "match": "nothing$"}
    assert is_problem(subscriber.post("/subscription", wanted), 400, field="match")
    subscriber.subscribe(NOWHERE, name="n0", match=["nothing$"] * 49)
    assert subscriber.post("/subscription", wanted).status == 204


@pytest.mark.parametrize("name", ["", "Reports", "x" * 33, "a.b", "a b", "a/b", 5, True])
def test_a_bad_name_is_told(bus: Bus, subscriber: Caller, topic: str, name: object):
    wanted = {"topics": [topic], "callback": NOWHERE, "uuid": "u", "name": name}
    assert is_problem(subscriber.post("/subscription", wanted), 400, "name")
    assert rows(bus, subscriber) == {}


@pytest.mark.parametrize(("method", "path"), CALLS, ids=str)
@pytest.mark.parametrize("name", ["", "Reports", "a.b"])
def test_a_bad_name_is_told_in_every_call(subscriber: Caller, topic: str, method: str, path: str, name: str):
    subscriber.subscribe(NOWHERE, topic)
    target = f"/subscriber{path.format(topic=topic)}?name={name}"
    assert is_problem(subscriber.call(method, target), 400, "name")


@pytest.mark.parametrize(("method", "path"), CALLS, ids=str)
def test_what_is_not_there_is_404(bus: Bus, subscriber: Caller, topic: str, method: str, path: str):
    """Also where the client has others."""
    path = path.format(topic=topic)
    assert is_problem(subscriber.call(method, f"/subscriber{path}"), 404)
    subscriber.subscribe(NOWHERE, topic, name="there")
    assert is_problem(subscriber.call(method, f"/subscriber{path}"), 404)
    assert is_problem(subscriber.call(method, f"/subscriber{path}?name=missing"), 404)
    assert is_problem(bus.root.call(method, f"/subscribers/{subscriber.id}{path}"), 404)
    assert is_problem(bus.root.call(method, f"/subscribers/{subscriber.id}.missing{path}"), 404)
    assert is_problem(bus.root.call(method, f"/subscribers/%23%00{path}"), 404)
    assert set(rows(bus, subscriber)) == {"there"}


@pytest.mark.parametrize(("method", "path"), CALLS, ids=str)
def test_only_clients_operate_their_own_and_only_root_anybodys(
    bus: Bus, client: MakeClient, subscriber: Caller, topic: str, method: str, path: str
):
    subscriber.subscribe(NOWHERE, topic)
    path = path.format(topic=topic)
    monitor = client("watcher", "monitor")
    for caller in (bus.root, monitor):
        assert is_problem(caller.call(method, f"/subscriber{path}"), 403)
    for caller in (monitor, client("other"), subscriber):
        assert is_problem(caller.call(method, f"/subscribers/{subscriber.id}{path}"), 403)
    assert is_problem(bus.caller(None).call(method, f"/subscriber{path}"), 401)
    assert rows(bus, subscriber)[None]["topics"] == [topic]


@pytest.mark.parametrize(("method", "path"), CALLS, ids=str)
@pytest.mark.parametrize("by", ["name", "root"])
def test_every_call_reaches_the_one_that_is_named(
    bus: Bus, subscriber: Caller, topic: str, inbox: Inbox, method: str, path: str, by: str
):
    subscriber.subscribe(inbox.url, topic, timeout=0)
    subscriber.subscribe(inbox.url, topic, timeout=0, name="reports")
    before = rows(bus, subscriber)[None]
    path = path.format(topic=topic)
    if by == "name":
        answer = subscriber.call(method, f"/subscriber{path}?name=reports")
    else:
        answer = bus.root.call(method, f"/subscribers/{subscriber.id}.reports{path}")
    assert answer.status in (200, 204), answer
    known = rows(bus, subscriber)
    assert known[None] == before
    if (method, path) == ("DELETE", ""):
        assert "reports" not in known
    elif method == "DELETE" and path.startswith("/topics"):
        assert known["reports"]["topics"] == []
    elif path == "/pause":
        assert known["reports"]["paused"]


def test_a_client_that_goes_takes_all_of_its_own_along(bus: Bus, publisher: Caller, topic: str):
    leaving = bus.client("leaving")
    leaving.subscribe(NOWHERE, topic, timeout=3_600_000)
    leaving.subscribe(NOWHERE, topic, timeout=3_600_000, name="second")
    publisher.publish(topic)
    bus.forget(leaving)
    assert rows(bus, leaving) == {}
    until(
        lambda: not [key for key in bus.redis.keys(bus.key(f"*{leaving.id}*")) if b"counters" not in key],
        "its keys to go",
    )
    publisher.publish(topic)


def test_deleting_a_topic_unsubscribes_all_of_them_and_keeps_what_is_queued(
    bus: Bus, publisher: Caller, subscriber: Caller, topic: str, receiver: Receiver
):
    inboxes = [receiver.inbox(), receiver.inbox()]
    for inbox, name in zip(inboxes, (None, "second"), strict=True):
        subscriber.subscribe(inbox.url, topic, timeout=0, name=name, paused=True)
    event = publisher.publish(topic)
    assert publisher.delete(f"/topics/{topic}").status == 204
    assert {name: row["topics"] for name, row in rows(bus, subscriber).items()} == {None: [], "second": []}
    assert bus.owner_and_events(topic) is None
    for name in ("", "?name=second"):
        assert subscriber.post(f"/subscriber/resume{name}").status == 204
    for inbox in inboxes:
        assert [item["id"] for item in inbox.until_events(1)] == [event]


def test_null_counts_as_absent_for_every_optional_field(bus: Bus, subscriber: Caller, topic: str):
    optional = [
        "timeout",
        "max",
        "name",
        "match",
        "parallelism",
        "max_rate",
        "signing_secret",
        "headers",
        "max_attempts",
        "paused",
    ]
    subscriber.subscribe(NOWHERE, topic, **dict.fromkeys(optional))
    row = rows(bus, subscriber)[None]
    assert (row["timeout"], row["max_events"], row["parallelism"]) == (500, 100, 1)
    assert (row["match"], row["max_rate"], row["max_attempts"]) == ([], None, None)
    assert (row["signed"], row["paused"], row["format"], row["headers"]) == (False, False, "topic", {})


def test_options_are_replaced_as_the_list_is(bus: Bus, subscriber: Caller, topic: str):
    options = {
        "match": ["^eu:"],
        "parallelism": 3,
        "max_rate": 2.5,
        "headers": {"x-team": "a"},
        "max_attempts": 4,
        "timeout": 7,
        "max": 8,
    }
    subscriber.subscribe(NOWHERE, topic, **options)
    row = rows(bus, subscriber)[None]
    assert {**options, "max": 8} == {
        **{name: row[name] for name in options if name != "max"},
        "max": row["max_events"],
    }
    subscriber.subscribe(NOWHERE, topic)
    row = rows(bus, subscriber)[None]
    assert (row["match"], row["parallelism"], row["max_rate"]) == ([], 1, None)
    assert (row["headers"], row["max_attempts"], row["timeout"]) == ({}, None, 500)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"max_rate": 0}, "max_rate"),
        ({"max_rate": -1}, "max_rate"),
        ({"max_rate": 1e-9}, "max_rate"),
        ({"max_rate": 10_001}, "max_rate"),
        ({"max_rate": "5"}, "max_rate"),
        ({"max_rate": True}, "max_rate"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_attempts": 1.5}, "max_attempts"),
        ({"max_attempts": 1_000_001}, "max_attempts"),
        ({"paused": "yes"}, "paused"),
        ({"paused": 1}, "paused"),
        ({"match": 5}, "match"),
        ({"match": [5]}, "match"),
        ({"match": ""}, "match"),
        ({"match": ["x" * 501]}, "match"),
        ({"match": ["x"] * 51}, "match"),
        ({"signing_secret": "short"}, "signing_secret"),
        ({"signing_secret": "whsec_"}, "signing_secret"),
        ({"signing_secret": "whsec_" + "A" * 31}, "signing_secret"),
        ({"signing_secret": "whsec_" + "A" * 28}, "signing_secret"),
        ({"signing_secret": "whsec_" + "A" * 88}, "signing_secret"),
        ({"signing_secret": "whsec_" + "-" * 32}, "signing_secret"),
        ({"signing_secret": 5}, "signing_secret"),
        ({"headers": []}, "headers"),
        ({"headers": {"x-a": 5}}, "headers"),
        ({"headers": {"x a": "b"}}, "headers"),
        ({"headers": {"": "b"}}, "headers"),
        ({"headers": {"x-a": "b\r\nx-c: d"}}, "headers"),
        ({"headers": {"x-a": "é"}}, "headers"),
        ({"headers": {"x-a": "\u0000"}}, "headers"),
        ({"headers": {"x-a": "b", "X-A": "c"}}, "headers"),
        ({"headers": {f"x-{n}": "b" for n in range(21)}}, "headers"),
        ({"headers": {"x-a": "b" * 4100}}, "headers"),
        ({"uuid": "a:b"}, "uuid"),
        ({"uuid": "a\nb"}, "uuid"),
        ({"format": "channel"}, "format"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_is_malformed_is_named(bus: Bus, subscriber: Caller, topic: str, change: dict, field: str):
    wanted = {"topics": [topic], "callback": NOWHERE, "uuid": "u", **change}
    answer = subscriber.post("/subscription", wanted)
    assert answer.status == 400, answer
    assert answer.json["field"].split(".")[0] == field, answer
    assert rows(bus, subscriber) == {}
    assert bus.owner_and_events(topic) is None


@pytest.mark.parametrize(
    "name",
    [
        "Authorization",
        "content-type",
        "Content-Length",
        "content-encoding",
        "Transfer-Encoding",
        "Host",
        "Connection",
        "Expect",
        "webhook-id",
        "Webhook-Signature",
        "webhook-anything",
        "routemaster-attempt",
        "Routemaster-Sequence",
        "traceparent",
        "User-Agent",
        "Cookie",
        "Proxy-Authorization",
        "Upgrade",
    ],
)
def test_our_own_headers_cannot_be_overridden(subscriber: Caller, topic: str, name: str):
    wanted = {"topics": [topic], "callback": NOWHERE, "uuid": "u", "headers": {name: "x"}}
    assert is_problem(subscriber.post("/subscription", wanted), 400, "headers")


def test_a_secret_is_never_shown(bus: Bus, subscriber: Caller, topic: str):
    secret = "whsec_" + "c2VjcmV0LXRoYXQtbm9ib2R5LXNlZXMh"
    bad = secret[:-1] + "!"
    refused = subscriber.post(
        "/subscription", {"topics": [topic], "callback": NOWHERE, "uuid": "u", "signing_secret": bad}
    )
    assert is_problem(refused, 400, "signing_secret")
    subscriber.subscribe(NOWHERE, topic, signing_secret=secret)
    assert rows(bus, subscriber)[None]["signed"] is True
    for caller in (bus.root, subscriber):
        assert b"c2VjcmV0" not in caller.get("/subscriptions").body
    assert b"c2VjcmV0" not in refused.body
    assert "c2VjcmV0" not in bus.log


def test_headers_and_uuid_are_shown_to_owner_and_root_alone(
    bus: Bus, client: MakeClient, subscriber: Caller, topic: str
):
    subscriber.subscribe(NOWHERE, topic, headers={"x-key": "hush"}, uuid="hush-hush")
    for caller in (bus.root, subscriber):
        assert b"hush-hush" in caller.get("/subscriptions").body
    for caller in (client("other"), client("watcher", "monitor")):
        assert b"hush" not in caller.get("/subscriptions").body


@pytest.mark.parametrize("absent", [{}, {"topics": None}, {"topics": None, "match": None}])
def test_topics_or_match_must_be_there(subscriber: Caller, absent: dict):
    assert is_problem(
        subscriber.post("/subscription", {"callback": NOWHERE, "uuid": "u", **absent}), 400, "topics"
    )
