"""The command against a real bus: what the clients of the old one see of the move."""

import re
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from redis import Redis

from routemaster.cli.folder import Bus as Announced
from routemaster.cli.folder import write_private
from tests.bus import Bus, Store
from tests.cli.importer.conftest import Command, Run
from tests.cli.importer.original import Original, event_bytes, now_ms
from tests.receiver import Inbox
from tests.until import until

CLIENT = re.compile(r"[a-z-]+--[0-9a-f]{12}")


def url(n: int) -> str:
    return f"https://shop.example/{n}"


def events(first: int, last: int, topic: str = "orders") -> list[bytes]:
    return [event_bytes(topic, url(n)) for n in range(first, last + 1)]


def urls(first: int, last: int) -> list[str]:
    return [url(n) for n in range(first, last + 1)]


@pytest.fixture
def shop(original: Original) -> str:
    token = original.token("shop")
    original.topic("orders", token)
    return token


@pytest.fixture
def mail(original: Original, inbox: Inbox) -> str:
    token = original.token("mail")
    original.subscribe(token, inbox.url, "orders", timeout=0, max_events=3)
    return token


def counters(target: Bus) -> dict[str, int]:
    found = target.redis.hgetall(target.key("counters"))
    return {name.decode(): int(value) for name, value in found.items()}


def keys_of(target: Bus) -> dict[bytes, bytes | None]:
    return {key: target.redis.dump(key) for key in target.redis.scan_iter(target.key("*"))}


# What moves


def test_subscribers_receive_what_was_queued_in_order_and_then_what_is_new(
    original: Original, target: Bus, run: Run, inbox: Inbox, shop: str, mail: str
):
    for n in range(1, 9):
        original.publish(shop, "orders", url(n), t=1_600_000_000_000 + n, data={"n": n})
    ran = run()
    assert ran.is_whole
    assert ran.tallies() == {
        "tokens": (2, 0, 0),
        "topics": (1, 0, 0),
        "subscriptions": (1, 0, 0),
        "batches": (3, 0, 0),
        "events": (8, 0, 0),
    }
    target.caller(shop).publish("orders", url(9))
    received = inbox.until_events(9)
    assert inbox.urls == urls(1, 9)
    assert len({event.pop("id") for event in received}) == 9
    assert received[0] == {
        "topic": "orders",
        "type": "update",
        "url": url(1),
        "t": 1_600_000_000_001,
        "data": {"n": 1},
    }
    assert [len(delivery.events) for delivery in inbox.deliveries][:2] == [3, 3]
    assert inbox.deliveries[0].credentials == "secret-uuid:secret-uuid"


def test_tokens_work_and_are_nowhere_to_be_read(
    original: Original, target: Bus, run: Run, shop: str, mail: str
):
    original.count("delivery.events", 3, queue=mail, status="success")
    ran = run()
    (row,) = target.caller(shop).get("/topics").json
    assert CLIENT.fullmatch(row["publisher"]) and row["publisher"].startswith("shop--")
    clients = {row["token"]: row["name"] for row in target.root.get("/api_tokens").json}
    assert sorted(clients.values()) == ["mail", "shop"]
    assert all(CLIENT.fullmatch(client) for client in clients)
    shown = repr(ran) + repr(run(dry_run=True)) + repr(keys_of(target))
    assert shop not in shown and mail not in shown
    (counter,) = ran.account["counters"]
    assert counter["tags"]["queue"] in clients


def test_topics_keep_their_publisher_and_their_count(
    original: Original, target: Bus, run: Run, shop: str, mail: str
):
    for n in range(5):
        original.publish(shop, "orders", url(n))
    original.topic("unclaimed")
    run()
    rows = {row["name"]: row for row in target.root.get("/topics").json}
    assert rows["orders"]["events"] == 5
    assert rows["unclaimed"]["publisher"] is None and rows["unclaimed"]["events"] == 0
    refused = target.caller(mail).post("/topics/orders", {"type": "noop", "url": url(1)})
    assert refused.status == 403


def test_subscriptions_keep_what_they_had(original: Original, target: Bus, run: Run, mail: str, inbox: Inbox):
    original.subscribe(
        mail, inbox.url, "orders", "users", timeout=1234, max_events=7, health_points=41, last_attempted_at=99
    )
    other = original.token("other")
    original.subscribe(other, inbox.url, "users")
    run()
    rows = {row["subscriber"].partition("--")[0]: row for row in target.root.get("/subscriptions").json}
    row = rows["mail"]
    assert (row["callback"], row["uuid"], row["topics"]) == (inbox.url, "secret-uuid", ["orders", "users"])
    assert (row["timeout"], row["max_events"]) == (1234, 7)
    assert (row["health_points"], row["last_attempted_at"]) == (41, 99)
    row = rows["other"]
    assert (row["timeout"], row["max_events"]) == (500, 100)
    assert (row["health_points"], row["last_attempted_at"]) == (100, None)


def test_attempts_are_kept(original: Original, run: Run, mail: str, inbox: Inbox, target: Bus):
    bid = original.ingest(mail, *events(1, 3))
    original.fail(bid)
    original.fail(bid)
    run()
    assert inbox.until_deliveries(1)[0].attempt == 3


def test_a_batch_that_is_still_filling_goes_on_filling(
    original: Original, run: Run, shop: str, inbox: Inbox, target: Bus
):
    mail = original.token("mail")
    original.subscribe(mail, inbox.url, "orders", timeout=3_600_000, max_events=3)
    original.ingest(mail, *events(1, 5))
    original.redis.zadd(
        "batches:index", {bid: now_ms() for bid in original.redis.smembers(f"batches:current:{mail}")}
    )
    (bid,) = original.redis.smembers(f"batches:current:{mail}")
    original.redis.lset(original.batch_key(bid.decode()), 1, now_ms())
    run()
    inbox.until_deliveries(1)
    assert inbox.urls == urls(1, 3)
    target.caller(shop).publish("orders", url(6))
    inbox.until_deliveries(2)
    assert inbox.urls == urls(1, 6)


def test_a_batch_longer_than_its_subscriber_takes_now_is_cut(
    original: Original, run: Run, mail: str, inbox: Inbox, target: Bus
):
    original.fill(mail, 1, events(1, 8))
    run()
    inbox.until_events(8)
    assert inbox.urls == urls(1, 8)
    assert [len(delivery.events) for delivery in inbox.deliveries] == [3, 3, 2]


def test_a_batch_longer_than_one_reading_is_taken_in_pieces(
    original: Original, run: Run, inbox: Inbox, target: Bus
):
    mail = original.token("mail")
    original.subscribe(mail, inbox.url, "orders", timeout=0, max_events=100_000)
    original.fill(mail, 1, events(1, 2500))
    assert run().account["events"]["taken"] == 2500
    inbox.until_events(2500)
    assert inbox.urls == urls(1, 2500)


def test_the_books_balance(original: Original, run: Run, shop: str, mail: str, target: Bus, inbox: Inbox):
    inbox.answer(500)
    other = original.token("other")
    original.subscribe(other, inbox.url, "orders", "users", max_events=2)
    original.ingest(mail, *events(1, 4))
    original.ingest(other, *events(1, 4), *events(1, 3, "users"))
    run()
    counts = counters(target)
    routed = {name: count for name, count in counts.items() if name.startswith("routed:")}
    assert sorted(routed.values()) == [4, 7]
    assert (counts["accepted:orders"], counts["accepted:users"]) == (8, 3)
    assert target.accepted() == 11
    logged = [msgspec.json.decode(block[b"c"]) for _, block in target.redis.xrange(target.key("log:events"))]
    assert sum(sum(block.values()) for block in logged) == 11
    queued = target.redis.hgetall(target.key("batches:gauges:event"))
    assert {f"routed:{name.decode()}": int(count) for name, count in queued.items()} == routed


def test_an_event_can_be_traced_by_its_new_id(
    original: Original, run: Run, mail: str, shop: str, inbox: Inbox, target: Bus
):
    original.ingest(mail, *events(1, 7))
    run()
    fifth = inbox.until_events(7)[4]
    gauges, client = target.key("batches:gauges:event"), _client(target, "mail")
    until(lambda: target.redis.hget(gauges, client) == b"0", "all to be settled")
    traced = target.root.get(f"/events/{fifth['id']}").json
    assert (traced["url"], traced["seq"], traced["publisher"]) == (url(5), 5, _client(target, "shop"))
    (routed,) = traced["subscribers"]
    assert (routed["subscriber"], routed["state"]) == (client, "delivered")


def test_what_is_no_event_is_passed_over_as_it_was_there(
    original: Original, run: Run, mail: str, inbox: Inbox, target: Bus
):
    ping = msgspec.msgpack.encode(["p", {"t": 1, "d": "hello"}])
    original.ingest(mail, events(1, 1)[0], ping, events(2, 2)[0])
    assert run().account["events"]["taken"] == 2
    inbox.until_events(2)
    assert inbox.urls == urls(1, 2)


@pytest.mark.parametrize(("prefix", "batch_key"), [("", "batch:"), ("rm:", "batch:"), ("old:", "batches:")])
def test_names_of_its_versions_are_found(
    redis: Redis, run: Run, target: Bus, inbox: Inbox, prefix: str, batch_key: str
):
    original = Original(redis, prefix, batch_key)
    mail = original.token("mail")
    original.subscribe(mail, inbox.url, "orders", timeout=0)
    original.ingest(mail, *events(1, 2))
    assert run(prefix=prefix if prefix == "old:" else None).is_whole
    inbox.until_events(2)


# Who has no token


def test_who_has_no_token_is_a_client_that_gets_one_from_root(
    original: Original, run: Run, target: Bus, inbox: Inbox
):
    original.topic("orders", "shop--gone")
    original.subscribe("mail--gone", inbox.url, "orders", timeout=0)
    original.ingest("mail--gone", *events(1, 1))
    ran = run()
    assert ran.is_whole
    shop = next(client for client in ran.account["without_token"] if client.startswith("shop--"))
    inbox.until_events(1)
    assert target.caller("shop--gone").get("/topics").status == 401
    token = target.root.post(f"/api_tokens/{shop}/rotate").json["token"]
    target.caller(token).publish("orders", url(2))
    inbox.until_events(2)
    assert run().account["topics"] == {"taken": 0, "known": 1, "left": 0}


def test_a_token_without_a_name_does_not_become_one(original: Original, run: Run, target: Bus):
    original.token("4a6f8f1e-secret-uuid", token="4a6f8f1e-secret-uuid")
    original.token("billing", token="cafebabe")
    run()
    names = {row["name"] for row in target.root.get("/api_tokens").json}
    assert names == {"client", "billing"}


def test_the_root_key_is_not_taken_for_a_client(original: Original, run: Run, target: Bus, shop: str):
    original.token("root", token=target.root_key)
    ran = run(root_key=target.root_key)
    assert (ran.is_whole, ran.account["tokens"]) == (False, {"taken": 1, "known": 0, "left": 1})
    assert ran.account["left"][0]["why"] == "it is this bus's root key"


# Only looking


def test_a_dry_run_changes_nothing_and_says_what_would_be_done(
    original: Original, run: Run, target: Bus, shop: str, mail: str
):
    original.ingest(mail, *events(1, 5))
    original.fill(mail, 1, [b"damaged"])
    before = {key: value for key, value in keys_of(target).items() if b"workers" not in key}
    ran = run(dry_run=True)
    assert ran.tallies() == {
        "tokens": (2, 0, 0),
        "topics": (1, 0, 0),
        "subscriptions": (1, 0, 0),
        "batches": (2, 0, 1),
        "events": (5, 0, 1),
    }
    after = {key: value for key, value in keys_of(target).items() if b"workers" not in key}
    jobs = target.key("jobs").encode()
    assert {k: v for k, v in after.items() if not k.startswith(jobs)} == {
        k: v for k, v in before.items() if not k.startswith(jobs)
    }


def test_a_dry_run_into_an_empty_store_leaves_it_empty(
    original: Original, store: Store, target: Bus, run: Run, mail: str
):
    run(dry_run=True, redis_prefix="untouched:")
    assert store.redis.keys("untouched:*") == []


def test_the_old_store_is_only_read(
    original: Original, redis: Redis, store: Store, run: Run, mail: str, target: Bus, inbox: Inbox
):
    """By a user that may do no more, as docs/coming-from-the-original.md lists it."""
    page = Path(__file__).parents[3] / "docs" / "coming-from-the-original.md"
    listed = re.search(r"ACL SETUSER importer on >\S+ (.*)", page.read_text(encoding="utf-8"))
    assert listed
    redis.execute_command("ACL", "SETUSER", "importer", "on", ">let me in", *listed[1].split())
    try:
        original.ingest(mail, *events(1, 2500))
        before = original.dump()
        socket = store.url.removeprefix("unix://")
        ran = run(url=f"unix://importer@{socket}?db=7", password="let me in")
        assert (ran.is_whole, ran.account["events"]["taken"]) == (True, 2500)
        assert "let" not in repr(ran)
        assert original.dump() == before
        wrong = run(url=f"unix://importer:let%20me%20out@{socket}?db=7").error
        assert "--from" in wrong and "WRONGPASS" in wrong and "let" not in wrong
    finally:
        redis.execute_command("ACL", "DELUSER", "importer")


# Again


def test_again_it_adds_nothing(original: Original, run: Run, shop: str, mail: str, target: Bus, inbox: Inbox):
    for n in range(1, 6):
        original.publish(shop, "orders", url(n))
    run()
    inbox.until_events(5)
    counts = counters(target)
    ran = run()
    assert (ran.is_whole, ran.tallies()) == (
        True,
        {
            "tokens": (0, 2, 0),
            "topics": (0, 1, 0),
            "subscriptions": (0, 1, 0),
            "batches": (0, 2, 0),
            "events": (0, 5, 0),
        },
    )
    assert counters(target)["accepted:orders"] == counts["accepted:orders"] == 5
    assert target.owner_and_events("orders")[1] == 5
    target.caller(shop).publish("orders", url(6))
    inbox.until_events(6)
    assert inbox.urls == urls(1, 6)


def test_again_it_takes_what_came_since(
    original: Original, run: Run, shop: str, mail: str, target: Bus, inbox: Inbox
):
    for n in range(1, 5):
        original.publish(shop, "orders", url(n))
    run()
    for n in range(5, 10):
        original.publish(shop, "orders", url(n))
    assert run().account["events"] == {"taken": 5, "known": 4, "left": 0}
    inbox.until_events(9)
    assert inbox.urls == urls(1, 9)
    assert target.owner_and_events("orders")[1] == 9


def test_what_changed_here_since_stays_so(
    original: Original, run: Run, shop: str, mail: str, target: Bus, inbox: Inbox
):
    other = original.token("other")
    original.topic("users", other)
    original.subscribe(shop, inbox.url, "users")
    run()
    target.caller(mail).subscribe(inbox.url + "?changed", "users", timeout=77)
    rows = target.root.get("/api_tokens").json
    gone = next(row["token"] for row in rows if row["name"] == "other")
    assert target.root.delete(f"/api_tokens/{gone}").status == 204
    assert target.caller(shop).delete("/subscriber").status == 204
    original.ingest(shop, *events(1, 1, "users"))
    ran = run()
    assert not ran.is_whole
    assert {(left["what"], left["why"]) for left in ran.account["left"]} == {
        ("token", "its client was deleted here since it was taken over"),
        ("subscription", "it was ended here since it was taken over"),
        ("batch", f"the subscription of {_client(target, 'shop')} was left"),
    }
    (row,) = target.root.get("/subscriptions").json
    assert (row["callback"], row["topics"], row["timeout"]) == (inbox.url + "?changed", ["users"], 77)
    assert target.owner_and_events("users")[0] is None


def test_forgotten_it_would_be_taken_anew(
    original: Original, run: Run, command: Command, mail: str, target: Bus, inbox: Inbox
):
    original.ingest(mail, *events(1, 3))
    run()
    assert command("--forget").out == "forgotten: the notes of 1 batches\n"
    assert target.redis.keys(target.key("import:*")) == []
    assert run().account["events"]["taken"] == 3


def test_who_is_here_already_keeps_what_it_has(
    original: Original, run: Run, shop: str, target: Bus, inbox: Inbox
):
    """ROUTEMASTER_CLIENTS may have brought the token before."""
    made = target.root.post("/api_tokens", {"name": "shop", "token": shop})
    assert made.status == 201
    original.subscribe(shop, "https://old.example/", "orders")
    target.caller(shop).subscribe(inbox.url, "orders", timeout=0, parallelism=4)
    original.fill(shop, 2, events(1, 40))
    ran = run()
    assert ran.is_whole
    assert ran.account["tokens"]["known"] == ran.account["subscriptions"]["known"] == 1
    inbox.until_events(80)
    assert sorted(set(inbox.urls)) == sorted(urls(1, 40))
    assert len({delivery.headers["routemaster-sequence"].split("/")[0] for delivery in inbox.deliveries}) == 4
    assert _client(target, "shop") == made.json["client"]


def test_a_subscription_in_the_channel_format_gets_that(
    original: Original, run: Run, shop: str, target: Bus, inbox: Inbox
):
    made = target.root.post("/api_tokens", {"name": "mail", "token": original.token("mail")})
    caller = target.caller(made.json["token"])
    caller.subscribe(inbox.url, "orders")
    assert caller.delete("/subscriber").status == 204
    wanted = {"channels": ["orders"], "callback": inbox.url, "uuid": "x", "timeout": 0, "max": 9}
    assert caller.post("/queue", wanted).status == 204
    original.subscribe(made.json["token"], inbox.url, "orders")
    original.ingest(made.json["token"], event_bytes("orders", url(1), "create", 5))
    assert run().is_whole
    assert inbox.until_events(1) == [{"channel": "orders", "event": "created", "url": url(1), "t": 5}]


def _client(target: Bus, name: str) -> str:
    return next(row["token"] for row in target.root.get("/api_tokens").json if row["name"] == name)


# What is left


def test_what_cannot_be_read_is_left_and_named_and_the_rest_goes_on(
    original: Original, run: Run, mail: str, target: Bus, inbox: Inbox
):
    original.ingest(mail, *events(1, 3))
    garbled = original.promote(original.ingest(mail, event_bytes("orders", url(100)), b"\xc1"))
    no_head = original.promote(original.open(mail))
    original.redis.ltrim(original.batch_key(no_head), 0, 1)
    another = original.promote(original.open(mail))
    original.redis.delete(original.batch_key(another))
    original.redis.set(original.batch_key(another), "text")
    gone = original.promote(original.open(mail))
    original.redis.delete(original.batch_key(gone))
    original.ingest(mail, *events(4, 6))
    ran = run()
    assert not ran.is_whole
    assert {(left["name"], left["why"]) for left in ran.account["left"]} == {
        (garbled, "message 1 cannot be read: it is not the MessagePack of a code and its fields"),
        (no_head, "it has 2 items, fewer than the 3 that each batch begins with"),
        (another, "its key does not hold what the original keeps there"),
    }
    assert ran.account["batches"] == {"taken": 2, "known": 0, "left": 3}
    inbox.until_events(6)
    assert inbox.urls == urls(1, 6)
    assert original.redis.exists(original.batch_key(garbled))
    assert garbled in repr(run(dry_run=True))


def test_a_long_batch_is_read_through_before_any_of_it_is_taken(
    original: Original, run: Run, target: Bus, inbox: Inbox
):
    mail = original.token("mail")
    original.subscribe(mail, inbox.url, "orders", max_events=10_000)
    original.fill(mail, 1, [*events(1, 2200), b"garbled"])
    ran = run()
    assert ran.account["events"] == {"taken": 0, "known": 0, "left": 2201}
    assert target.accepted() == 0


def test_a_topic_that_somebody_else_has_is_left_to_them(
    original: Original, run: Run, shop: str, mail: str, target: Bus, inbox: Inbox
):
    stranger = target.client("stranger")
    stranger.publish("orders", url(0))
    original.publish(shop, "orders", url(1))
    ran = run()
    assert (ran.is_whole, ran.account["topics"]) == (False, {"taken": 0, "known": 0, "left": 1})
    assert ran.account["left"] == [
        {"what": "topic", "name": "orders", "why": "another client is its publisher here"}
    ]
    assert target.owner_and_events("orders") == (stranger.id, 1)
    inbox.until_events(1)
    assert inbox.urls == [url(1)]


def test_batches_of_nobody_are_passed_over(original: Original, run: Run, mail: str, target: Bus):
    original.ingest("unsubscribed--1", *events(1, 4))
    ran = run()
    assert (ran.is_whole, ran.account["orphaned_batches"], ran.account["events"]["taken"]) == (True, 1, 0)


def test_a_subscription_that_could_never_be_delivered_to_is_left(
    original: Original, run: Run, mail: str, target: Bus
):
    original.subscribe(mail, "https://user:pw@mail.example/", "orders")
    original.ingest(mail, *events(1, 2))
    ran = run()
    assert not ran.is_whole
    assert [left["what"] for left in ran.account["left"]] == ["subscription", "batch"]
    assert "user:pw" not in repr(ran)


def test_names_that_no_topic_may_have_are_left(
    original: Original, run: Run, mail: str, target: Bus, shop: str
):
    original.topic("Bad\nName", shop)
    ran = run()
    assert (ran.is_whole, ran.account["left"][0]["name"]) == (False, "Bad\\nName")
    assert [row["name"] for row in target.root.get("/topics").json] == ["orders"]


# What is refused


def test_an_old_bus_that_works_is_refused(original: Original, run: Run, mail: str, target: Bus):
    original.ingest(mail, *events(1, 2))
    original.beat("worker-1", ago_ms=20_000)
    refused = run().error
    assert re.search(r"a worker of it was last heard of 2\d s ago", refused) and "--force" in refused
    assert target.accepted() == 0
    looked = run(dry_run=True)
    assert looked.is_whole and "stop it before" in looked.account["notes"][0]
    forced = run(force=True)
    assert (forced.is_whole, forced.account["events"]["taken"]) == (True, 2)
    assert "at work" in forced.account["notes"][0]
    original.beat("worker-1", ago_ms=31_000)
    assert run().is_whole


def test_an_old_bus_that_is_published_to_is_refused(
    original: Original, run: Run, shop: str, mail: str, target: Bus
):
    stop = threading.Event()

    def publish() -> None:
        while not stop.wait(0.02):
            original.publish(shop, "orders", url(1))

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        assert "its counts change" in run(watch_s=1.0).error
        assert run(dry_run=True, watch_s=1.0).is_whole
        assert run(force=True).account["changed_meanwhile"]
    finally:
        stop.set()
        thread.join()


def test_one_and_the_same_place_is_refused(
    redis: Redis, store: Store, run: Run, target: Bus, source_url: str
):
    original = Original(redis, "rm:")
    original.token("shop")
    refused = run(redis_url=source_url, redis_prefix="rm:").error
    assert "another place than the target" in refused
    assert not original.redis.exists("rm:layout")
    assert run(redis_url=source_url, redis_prefix="ours:").is_whole


@pytest.mark.parametrize(
    ("make", "prefix", "said"),
    [
        (lambda redis: None, None, "nothing of one begins with '' or 'rm:' in database 7"),
        (lambda redis: redis.set("rm:layout", 1), "rm:", "this one is of our own kind"),
        (
            lambda redis: redis.sadd("topics", "orders") + redis.sadd("rm:topics", "orders"),
            None,
            "both have one",
        ),
        (lambda redis: redis.sadd("topics", "a") + redis.sadd("subscriptions", "x"), None, "the last layout"),
        (
            lambda redis: redis.sadd("subscribers", "x--1") + redis.lpush("queue:new:x--1", "1"),
            None,
            "the last layout",
        ),
    ],
    ids=["empty", "ours", "two", "older", "queues"],
)
def test_what_is_no_store_of_its_last_layout_is_refused(
    redis: Redis, run: Run, target: Bus, make: Callable[[Redis], object], prefix: str | None, said: str
):
    make(redis)
    assert said in run(prefix=prefix).error


def test_a_store_that_is_not_there_is_said_so(run: Run, target: Bus):
    said = run(url="redis://:secret@127.0.0.1:1/0").error
    assert "redis://127.0.0.1:1 cannot be reached" in said and "secret" not in said


# Where to


def test_a_bus_is_found_by_its_folder(
    original: Original, run: Run, mail: str, target: Bus, tmp_path: Path, inbox: Inbox
):
    original.ingest(mail, *events(1, 1))
    assert "the folder of a bus that runs" in run(folder=tmp_path).error
    announced = Announced(url=target.url(), store_url=target.store.url, pid=1, pids={})
    write_private(tmp_path / "bus.json", msgspec.json.encode(announced))
    assert run(folder=tmp_path, redis_url="redis://127.0.0.1:1").is_whole
    inbox.until_events(1)


def test_a_target_that_has_little_memory_left_is_not_filled(
    original: Original, run: Run, mail: str, target: Bus
):
    original.ingest(mail, *events(1, 1))
    target.redis.set(target.key("much"), bytes(32 * 2**20))
    ran = run(redis_max_mem="32m")
    assert "little memory left" in ran.account["failed"]
    assert target.accepted() == 0
    assert run().is_whole
