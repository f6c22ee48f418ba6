"""`routemaster subscribers`, `topics`, `dead` and `events`: looking at a bus and operating it."""

import json

import pytest

from tests.bus import ROOT_KEY, Bus
from tests.cli.commands import Commands
from tests.cli.page import running_page
from tests.conftest import MakeClient
from tests.receiver import Inbox
from tests.until import until
from tests.wire import Caller

NOBODY = "nobody--0123456789ab"


def row_of(commands: Commands, subscriber: str) -> list[str]:
    """Its line in the list."""
    rows = [[cell.strip() for cell in row] for row in commands.ok("subscribers").rows]
    return next(row for row in rows if row[0] == subscriber)


# Topics


def test_topics_are_listed_with_their_publishers(root: Commands, client: MakeClient, bus: Bus):
    publisher, topic = client("publisher"), bus.topic()
    publisher.publish_many(topic, ["https://a.example/"] * 1_234)
    assert [topic, publisher.id, "1,234"] in [
        [cell.strip() for cell in row] for row in root.ok("topics").rows
    ]
    (row,) = [row for row in root.ok("topics", "list", "--json").json if row["name"] == topic]
    assert row == {"name": topic, "publisher": publisher.id, "events": 1_234}


def test_a_topic_is_deleted_by_its_publisher_and_by_nobody_else(
    as_shop: Commands, shop: Caller, client: MakeClient, bus: Bus
):
    mine, other = bus.topic(), bus.topic()
    shop.publish(mine)
    client("other").publish(other)
    as_shop.ok("topics", "delete", mine, "--yes")
    ran = as_shop("topics", "delete", other, "--yes")
    assert ran.code == 5 and "only the publisher of a topic may delete it" in ran.err
    assert bus.owner_and_events(mine) is None
    assert bus.owner_and_events(other) is not None
    assert as_shop("topics", "delete", "no/such topic?", "--yes").code == 5


# Subscribers


def test_subscribers_are_listed_with_how_they_do(
    root: Commands, shop: Caller, client: MakeClient, inbox: Inbox, topic: str
):
    shop.subscribe(inbox.url, topic, timeout=0)
    assert row_of(root, shop.id) == [shop.id, topic, "idle", "100", "0", "–", "0"]
    root.ok("subscribers", "pause", shop.id)
    client("publisher").publish(topic)
    subscriber, _, state, _, queued, oldest, dead = row_of(root, shop.id)
    assert (subscriber, state, queued, dead) == (shop.id, "paused", "1", "0")
    assert oldest.endswith(("ms", "s"))
    root.ok("subscribers", "resume", shop.id)
    inbox.until_events(1)
    assert root.ok("subscribers", "--json").json == root.ok("subscribers", "list", "--json").json


def test_one_is_shown_with_its_secrets_to_whom_they_belong(
    root: Commands, as_shop: Commands, client: MakeClient, shop: Caller, inbox: Inbox, topic: str
):
    shop.subscribe(inbox.url, topic)
    shown = dict(line.split(None, 1) for line in root.ok("subscribers", "show", shop.id).out.splitlines())
    assert (shown["subscriber"], shown["uuid"], shown["topics"]) == (shop.id, "secret-uuid", topic)
    assert as_shop.ok("subscribers", "show", shop.id, "--json").json["uuid"] == "secret-uuid"
    other = client("other").token
    assert other
    assert as_shop.ok("subscribers", "show", shop.id, "--json", token=other).json["uuid"] is None
    ran = root("subscribers", "show", NOBODY)
    assert ran.code == 5 and NOBODY in ran.err


def test_ones_own_is_operated_without_an_id(
    as_shop: Commands, shop: Caller, bus: Bus, inbox: Inbox, topic: str
):
    shop.subscribe(inbox.url, topic)
    shop.subscribe(inbox.url, topic, name="audit")
    as_shop.ok("subscribers", "pause", "--name", "audit")
    paused = {
        row["name"]: row["paused"]
        for row in as_shop.ok("subscribers", "--json").json
        if row["client"] == shop.id
    }
    assert paused == {None: False, "audit": True}
    as_shop.ok("subscribers", "resume", "--name", "audit")
    as_shop.ok("subscribers", "pause")
    assert bus.subscriber(shop)["paused"]


def test_a_test_tells_what_the_callback_answered(
    root: Commands, as_shop: Commands, shop: Caller, inbox: Inbox, topic: str
):
    shop.subscribe(inbox.url, topic)
    ran = root.ok("subscribers", "test", shop.id)
    assert ran.out.startswith("the callback answered 200 in ")
    assert inbox.events[0]["type"] == "noop"
    inbox.answer(503)
    ran = as_shop("subscribers", "test")
    assert ran.code == 1
    assert ran.out.startswith("the callback answered 503 in ")
    tried = as_shop("subscribers", "test", "--json")
    assert tried.code == 1
    assert (tried.json["delivered"], tried.json["code"]) == (False, 503)


@pytest.mark.parametrize("call", ["pause", "resume", "test"])
def test_nobody_cannot_be_operated(root: Commands, as_shop: Commands, call: str):
    assert root("subscribers", call, NOBODY).code == 5
    assert as_shop("subscribers", call, "--name", "none").code == 5
    assert as_shop("subscribers", call, NOBODY).code == 5  # another's: for root
    both = root("subscribers", call, NOBODY, "--name", "x")
    assert both.code == 2 and "--name" in both.err


# Dead letters


@pytest.fixture
def dead(shop: Caller, client: MakeClient, bus: Bus, inbox: Inbox, topic: str) -> Caller:
    """A client with three dead batches."""
    inbox.answer(500)
    shop.subscribe(inbox.url, topic, timeout=0, max=1, max_attempts=1)
    client("publisher").publish_many(topic, [f"https://a.example/{n}" for n in range(3)])
    until(lambda: bus.subscriber(shop)["events"]["dead"] == 3, "three dead batches")
    return shop


def test_dead_letters_are_listed(as_shop: Commands, root: Commands, dead: Caller):
    found = as_shop.ok("dead", "--json").json
    assert [row["events"][0]["url"] for row in found] == [f"https://a.example/{n}" for n in range(3)]
    assert root.ok("dead", "list", "--subscriber", dead.id, "--json").json == found
    assert as_shop.ok("dead", "--limit", "2", "--json").json == found[:2]
    rows = [[cell.strip() for cell in row] for row in as_shop.ok("dead").rows]
    assert [row[0] for row in rows] == [row["id"] for row in found]
    assert rows[0][-3:] == ["1", "1", "500"]


def test_dead_letters_are_retried_by_their_ids(as_shop: Commands, dead: Caller, inbox: Inbox):
    """Which begin with a dash."""
    ids = [row["id"] for row in as_shop.ok("dead", "--json").json]
    assert all(id.startswith("-") for id in ids)
    came = len(inbox.deliveries)
    inbox.answer(200)
    assert as_shop.ok("dead", "retry", ids[1], "--json").json == {"retried": 1}
    inbox.until_deliveries(came + 1)
    assert inbox.deliveries[-1].urls == ["https://a.example/1"]
    assert as_shop.ok("dead", "retry").out == "2 queued again\n"
    assert as_shop("dead", "retry", "short").code == 5
    inbox.until_deliveries(came + 3)


def test_a_subscriber_that_looks_like_an_id_of_a_batch_is_none(root: Commands):
    """A name of six letters makes it as long."""
    for flag in (("--subscriber", "search--0123456789ab"), ("--subscriber=search--0123456789ab",)):
        ran = root("dead", "retry", *flag, "-P6jNL3X34Nn2Dj----5")
        assert ran.code == 5 and "no such subscription" in ran.err


def test_dead_letters_are_deleted(root: Commands, as_shop: Commands, dead: Caller, bus: Bus):
    assert as_shop("dead", "delete").code == 2
    assert bus.subscriber(dead)["events"]["dead"] == 3
    assert root.ok("dead", "delete", "--subscriber", dead.id, "--yes").out == "3 deleted\n"
    assert as_shop.ok("dead", "delete", "--yes", "--json").json == {"deleted": 0}


# Events


def test_an_event_that_nobody_knows_is_refused(root: Commands):
    """Its id begins with a dash, and is no option."""
    ran = root("events", "show", "-P6jNL3X34Nn2Dj----5")
    assert ran.code == 5, ran
    assert "404" in ran.err


def test_an_event_is_followed_to_whom_it_went(
    as_shop: Commands, shop: Caller, bus: Bus, inbox: Inbox, topic: str
):
    shop.subscribe(inbox.url, topic, timeout=0)
    uid = as_shop.ok("publish", topic, "--type", "noop", "--url", "https://a.example/").out.strip()
    until(lambda: bus.subscriber(shop)["events"]["sent"] == 1, "its delivery")
    lines = as_shop.ok("events", "show", uid).out.splitlines()
    fields = dict(line.split(None, 1) for line in lines[: lines.index("")])
    assert (fields["id"], fields["topic"], fields["publisher"]) == (uid, topic, shop.id)
    row = lines[-1].split()
    assert row[:2] == [shop.id, "delivered"]
    assert "200" in row


TRACED = {
    "id": "-P6jNL3X34Nn2Dj----5",
    "topic": "orders",
    "type": "create",
    "url": "https://a.example/\x1b[31m1",
    "environment": "default",
    "address": "default:orders:create",
    "publisher": "shop--0123456789ab",
    "t": 1_700_000_000_000,
    "received_at": 1_700_000_000_123,
    "generation": "-P6jNL3X34Nn2Dj----0",
    "seq": 1234,
    "key": None,
    "traceparent": None,
    "data": {"total": [5]},
    "archived": False,
    "subscribers": [
        {
            "subscriber": "search--0123456789ab",
            "state": "delivered",
            "batch": "-P6jNL3X34Nn2Dj----6",
            "attempts": [
                {
                    "at": 1_700_000_000_200,
                    "attempt": 1,
                    "status": "failed",
                    "code": 500,
                    "ms": 3,
                    "why": "status",
                },
                {
                    "at": 1_700_000_001_200,
                    "attempt": 2,
                    "status": "delivered",
                    "code": 200,
                    "ms": 4,
                    "why": None,
                },
            ],
        },
        {"subscriber": "audit--0123456789ab", "state": "queued", "batch": None, "attempts": []},
    ],
}


def test_a_trace_shows_the_event_and_every_attempt(nowhere: Commands):
    whole, unrouted = json.dumps(TRACED).encode(), json.dumps({**TRACED, "subscribers": []}).encode()
    with running_page({f"/events/{TRACED['id']}": (200, whole)}, (200, unrouted)) as page:
        commands = nowhere.having(url=page.url, token=ROOT_KEY)
        assert commands.ok("events", "show", TRACED["id"], "--json").json == TRACED
        out = commands.ok("events", "show", TRACED["id"]).out
        assert "nobody" in commands.ok("events", "show", "-P6jNL3X34Nn2Dj----6").out
    head, table = out.split("\n\n")
    fields = dict(line.split(None, 1) for line in head.splitlines())
    assert fields["seq"] == "1234"
    assert fields["url"] == "https://a.example/\\x1b[31m1"
    assert fields["received_at"] == "2023-11-14 22:13:20.123Z"
    assert fields["data"] == '{"total":[5]}'
    assert fields["archived"] == "no"
    rows = [line.split() for line in table.splitlines()[1:]]
    assert rows[0][:4] == ["search--0123456789ab", "delivered", "-P6jNL3X34Nn2Dj----6", "1"]
    assert rows[0][-2:] == ["500", "3"]
    assert rows[1][0] == "2" and rows[1][-2:] == ["200", "4"]
    assert rows[2][:2] == ["audit--0123456789ab", "queued"]


def test_a_trace_tells_what_it_did_not_look_at(nowhere: Commands):
    trace = {**TRACED, "attempts_looked_at": {"since": 1_700_000_000_000, "until": None}}
    with running_page({}, (200, json.dumps(trace).encode())) as page:
        ran = nowhere.ok("events", "show", TRACED["id"], url=page.url, token=ROOT_KEY)
    assert ran.err == "routemaster: attempts before 2023-11-14 22:13:20.000Z were not looked at\n"
    assert "attempts_looked_at" not in ran.out
