"""`routemaster subscribe` and `unsubscribe`, and what deliveries look like then."""

import base64
import secrets
from pathlib import Path

import pytest

from tests.bus import Bus
from tests.cli.commands import Commands
from tests.conftest import MakeClient
from tests.receiver import Inbox
from tests.wire import Caller

SIGNING = "whsec_" + base64.b64encode(bytes(range(32))).decode()


def subscriptions(shop: Caller) -> dict[str | None, dict]:
    return {row["name"]: row for row in shop.get("/subscriptions").json if row["client"] == shop.id}


def test_events_come_with_the_uuid_that_was_printed(
    as_shop: Commands, shop: Caller, client: MakeClient, inbox: Inbox, topic: str
):
    ran = as_shop.ok("subscribe", "--topic", topic, "--callback", inbox.url, "--timeout", "0")
    label, uuid = ran.out.split()
    assert label == "uuid"
    client("publisher").publish(topic)
    (delivery,) = inbox.until_deliveries(1)
    assert delivery.credentials == f"{uuid}:{uuid}"


def test_all_options_arrive(as_shop: Commands, shop: Caller, inbox: Inbox, topic: str, tmp_path: Path):
    (tmp_path / "headers").write_text("X-Key: secret-key\n\nX-Other: a:b\n")
    (tmp_path / "signing").write_text(SIGNING + "\n")
    ran = as_shop.having(SIGNING, "secret-key", "given-uuid").ok(
        *("subscribe", "--name", "audit", "--topic", topic, "--topic", "other_topic", "--match", ":delete$"),
        *("--callback", inbox.url, "--uuid", "-", "--timeout", "250", "--max", "7", "--parallelism", "3"),
        *("--max-rate", "2.5", "--max-attempts", "9", "--header", "X-Team: shop", "--header-file", "headers"),
        *("--signing-secret", "signing", "--paused"),
        stdin="given-uuid\n",
    )
    assert ran.out == ran.err == ""
    row = subscriptions(shop)["audit"]
    wanted = {
        "callback": inbox.url,
        "uuid": "given-uuid",
        "topics": sorted(["other_topic", topic]),
        "match": [":delete$"],
        "timeout": 250,
        "max_events": 7,
        "parallelism": 3,
        "max_rate": 2.5,
        "max_attempts": 9,
        "headers": {"X-Team": "shop", "X-Key": "secret-key", "X-Other": "a:b"},
        "signed": True,
        "paused": True,
    }
    assert {name: row[name] for name in wanted} | {"topics": sorted(row["topics"])} == wanted


def test_again_it_keeps_uuid_secret_and_pause_and_replaces_the_rest(
    as_shop: Commands, shop: Caller, inbox: Inbox, topic: str
):
    first = as_shop.having(SIGNING, signing_secret=SIGNING).ok(
        *("subscribe", "--topic", topic, "--callback", inbox.url, "--max", "7", "--paused", "--json")
    )
    again = as_shop.ok("subscribe", "--topic", "other_topic", "--callback", inbox.url, "--json")
    assert again.json == {"name": None, "callback": inbox.url, "uuid": None}
    row = subscriptions(shop)[None]
    assert (row["uuid"], row["signed"], row["paused"]) == (first.json["uuid"], True, True)
    assert (row["topics"], row["max_events"]) == (["other_topic"], 100)
    as_shop.ok("subscribe", "--topic", topic, "--callback", inbox.url, "--unsigned", "--not-paused")
    row = subscriptions(shop)[None]
    assert (row["uuid"], row["signed"], row["paused"]) == (first.json["uuid"], False, False)


def test_named_subscriptions_have_uuids_of_their_own(
    as_shop: Commands, shop: Caller, inbox: Inbox, topic: str
):
    for name in ((), ("--name", "a"), ("--name", "b")):
        as_shop.ok("subscribe", "--topic", topic, "--callback", inbox.url, *name)
    assert len({row["uuid"] for row in subscriptions(shop).values()}) == 3
    as_shop.ok("unsubscribe", "--name", "a", "--yes")
    assert set(subscriptions(shop)) == {None, "b"}


def test_topics_are_taken_off_and_the_subscription_ended(
    as_shop: Commands, shop: Caller, inbox: Inbox, bus: Bus
):
    topics = [bus.topic() for _ in range(3)]
    shop.subscribe(inbox.url, *topics)
    as_shop.ok("unsubscribe", "--topic", topics[0], "--topic", topics[1])
    assert subscriptions(shop)[None]["topics"] == [topics[2]]
    assert as_shop("unsubscribe", "--topic", topics[0]).code == 5
    asked = as_shop("unsubscribe")
    assert asked.code == 2 and "--yes" in asked.err
    assert None in subscriptions(shop)
    as_shop.ok("unsubscribe", "--yes")
    assert subscriptions(shop) == {}
    assert as_shop("unsubscribe", "--yes").code == 5


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("--callback", "http://127.0.0.1:1/"), 2, "--topic"),
        (("--topic", "a"), 2, "--callback"),
        (("--topic", "A", "--callback", "http://127.0.0.1:1/"), 5, "topics: expected"),
        (("--topic", "a", "--callback", "gopher://x"), 5, "callback: expected an http or https URL"),
        (("--match", "(", "--callback", "http://127.0.0.1:1/"), 5, "match: expected RE2 patterns"),
        (("--topic", "a", "--callback", "http://127.0.0.1:1/", "--timeout", "-1"), 2, "--timeout"),
        (("--topic", "a", "--callback", "http://127.0.0.1:1/", "--max-rate", "nan"), 2, "--max-rate"),
        (("--topic", "a", "--callback", "http://127.0.0.1:1/", "--header", "no-colon"), 2, "NAME: VALUE"),
        (
            ("--topic", "a", "--callback", "http://127.0.0.1:1/", "--header", "Host: x"),
            5,
            "headers: expected",
        ),
        (
            ("--topic", "a", "--callback", "http://127.0.0.1:1/", "--signing-secret", "none"),
            2,
            "No such file",
        ),
        (
            ("--topic", "a", "--callback", "http://127.0.0.1:1/", "--signing-secret", "-", "--uuid", "-"),
            2,
            "another source: --uuid reads standard input",
        ),
        (
            ("--topic", "a", "--callback", "http://127.0.0.1:1/", "--signing-secret", "-"),
            2,
            "a file that is not empty",
        ),
        (
            ("--topic", "a", "--callback", "http://127.0.0.1:1/", "--signing-secret", "-", "--unsigned"),
            2,
            "--unsigned",
        ),
    ],
)
def test_what_cannot_be_is_told_with_what_was_expected(
    as_shop: Commands, args: tuple[str, ...], code: int, said: str
):
    ran = as_shop("subscribe", *args)
    assert ran.code == code, ran
    assert said in ran.err


def test_a_bad_signing_secret_is_not_shown(as_shop: Commands, topic: str):
    bad = secrets.token_hex(8)
    ran = as_shop.having(bad)(
        "subscribe", "--topic", topic, "--callback", "http://127.0.0.1:1/", signing_secret=bad
    )
    assert ran.code == 5
    assert "signing_secret: expected whsec_" in ran.err
