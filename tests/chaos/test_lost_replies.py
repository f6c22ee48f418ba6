"""Replies of the store that are lost after the script ran, late, or held up with everything else.

A process cannot tell a lost reply from a command that never ran. Whatever it does about it, nothing is
stored twice, no attempt is counted twice, and no lane is stuck.
"""

import json
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from redis import Redis

from tests.bus import Bus, Store, running_bus
from tests.chaos import books
from tests.chaos.conftest import QUICK, Kept
from tests.chaos.jobs import until_scrubbed
from tests.chaos.load import loaded
from tests.chaos.proxy import FOREVER, Proxy
from tests.race import all_at_once
from tests.receiver import Inbox, Receiver
from tests.until import until
from tests.wire import line_to, request

pytestmark = pytest.mark.chaos
STORED = b"$2\r\nok\r\n"  # in the reply to a flush that is in


@pytest.fixture(scope="module")
def kept_proxied(store: Store, shared_proxy: Proxy) -> Iterator[Kept]:
    def make(stack: ExitStack) -> Bus:
        return stack.enter_context(running_bus(store, web=2, redis_url=shared_proxy.url, **QUICK))

    kept = Kept(make)
    yield kept
    kept.close()


@pytest.fixture
def proxied(kept_proxied: Kept, store_proxy: Proxy) -> Iterator[Bus]:
    """A bus whose processes reach the store through the proxy alone. Its first web process is called."""
    bus = kept_proxied.bus()
    before = len(bus.log)
    yield bus
    assert "Traceback" not in bus.log[before:], bus.log[before:]


def url(n: int) -> str:
    return f"https://example.com/{n}"


def event(n: int, **more: object) -> dict[str, object]:
    return {"type": "update", "url": url(n), "data": {"by": "test", "n": n}, **more}


def ids_in_log(bus: Bus, topic: str) -> dict[str, list[str]]:
    """By URL: the ids under which the log has it."""
    found: dict[str, list[str]] = {}
    for logged in books.logged(bus.redis, bus.namespace):
        if logged["topic"] == topic:
            found.setdefault(logged["url"], []).append(logged["id"])
    return found


def counter(bus: Bus, name: str) -> int:
    return int(bus.redis.hget(bus.key("counters"), name) or 0)


def records(bus: Bus) -> int:
    """How many deliveries the log of deliveries has."""
    return int(bus.redis.get(bus.key("log:deliveries:seq")) or 0)


def forget_scripts(redis: Redis) -> Callable[[], object]:
    return lambda: redis.script_flush()


# Publishing


@pytest.mark.parametrize("forgotten", [False, True], ids=["scripts kept", "scripts flushed"])
def test_a_publish_is_stored_once(proxied: Bus, store_proxy: Proxy, inbox: Inbox, forgotten: bool):
    publisher, subscriber = proxied.client(), proxied.client()
    topic = proxied.topic()
    subscriber.subscribe(inbox.url, topic, timeout=0)
    then = forget_scripts(proxied.redis) if forgotten else None
    ids: dict[str, str] = {}
    for n in range(8):
        lost = store_proxy.lose(
            "publish", url(n).encode() + b'"', reply_text=STORED, times=1 + n % 3, then=then
        )
        more = {"id": f"key-{n}"} if n % 2 else {}
        answer = publisher.post(f"/topics/{topic}", event(n, **more))
        assert answer.status == 200
        assert lost.hits == lost.times
        ids[url(n)] = answer.headers["routemaster-event-id"]
    inbox.until_events(8)
    books.until_drained(proxied.redis, proxied.namespace)
    assert ids_in_log(proxied, topic) == {url: [id] for url, id in ids.items()}
    assert [(e["url"], e["id"]) for e in inbox.events] == list(ids.items())
    assert counter(proxied, f"accepted:{topic}") == counter(proxied, f"delivered:{subscriber.id}") == 8
    assert {delivery.attempt for delivery in inbox.deliveries} == {1}


def test_a_bulk_is_stored_once(proxied: Bus, store_proxy: Proxy, inbox: Inbox):
    publisher, subscriber = proxied.client(), proxied.client()
    topic = proxied.topic()
    subscriber.subscribe(inbox.url, topic, timeout=0, max=7, parallelism=3)
    lost = store_proxy.lose("publish", reply_text=STORED, times=3)
    answer = publisher.post(f"/topics/{topic}", [event(n) for n in range(100)])
    assert (answer.status, answer.json) == (200, {"accepted": 100})
    assert lost.hits == 3
    inbox.until_events(100)
    books.until_drained(proxied.redis, proxied.namespace)
    assert sorted(inbox.urls) == sorted(map(url, range(100)))
    assert counter(proxied, f"accepted:{topic}") == counter(proxied, f"delivered:{subscriber.id}") == 100


def test_a_publish_that_others_overtake_is_stored_once(proxied: Bus, store_proxy: Proxy):
    """Its reply is lost, and before its process asks again, other flushes of the process are stored."""
    publisher = proxied.client()
    topic = proxied.topic()
    publisher.publish(topic, url=url(0))
    # Many that wait let a second flush follow the first, and one key lets each have a flush of its own.
    body = json.dumps(event(2, id="key")).encode()
    asked = request("POST", f"/topics/{topic}", publisher.token, body, "content-type: application/json")
    with ExitStack() as stack:
        lines = [stack.enter_context(line_to(publisher.address)) for _ in range(100)]
        for line in lines:
            line.send(asked[:-1])

        def come() -> None:
            for line in lines:
                line.send(asked[-1:])

        lost = store_proxy.lose("publish", url(1).encode() + b'"', reply_text=STORED, then=come)
        assert publisher.post(f"/topics/{topic}", event(1)).status == 200
        assert lost.hits == 1
        assert {line.read("POST").status for line in lines} == {200}
    assert {url: len(ids) for url, ids in ids_in_log(proxied, topic).items()} == {url(n): 1 for n in range(3)}
    assert counter(proxied, f"accepted:{topic}") == 3


def test_a_key_whose_publish_was_lost_for_good(proxied: Bus, store_proxy: Proxy, inbox: Inbox):
    """Answered 503 although it is in: who asks again with the same id gets 200 and one event."""
    publisher, subscriber = proxied.client(), proxied.client()
    topic = proxied.topic()
    subscriber.subscribe(inbox.url, topic, timeout=0)
    store_proxy.lose("publish", times=FOREVER)
    assert publisher.post(f"/topics/{topic}", event(1, id="once")).status == 503
    assert publisher.post(f"/topics/{topic}", [event(1, id="once"), event(2, id="other")]).status == 503
    store_proxy.mend()
    assert publisher.post(f"/topics/{topic}", [event(1, id="once"), event(2, id="other")]).status == 200
    answer = publisher.post(f"/topics/{topic}", event(1, id="once"))
    assert answer.status == 200
    inbox.until_events(2)
    books.until_drained(proxied.redis, proxied.namespace)
    assert [len(ids) for ids in ids_in_log(proxied, topic).values()] == [1, 1]
    assert ids_in_log(proxied, topic)[url(1)] == [answer.headers["routemaster-event-id"]]
    assert sorted(inbox.urls) == [url(1), url(2)]


def test_a_late_reply_is_only_a_delay(proxied: Bus, store_proxy: Proxy, inbox: Inbox):
    publisher, subscriber = proxied.client(), proxied.client()
    topic = proxied.topic()
    subscriber.subscribe(inbox.url, topic, timeout=0, max=1)
    for script in ("publish", "acquire", "settle"):
        store_proxy.delay(script, delay_s=0.2, times=3)
    for n in range(6):
        publisher.publish(topic, url=url(n))
    inbox.until_events(6)
    books.until_drained(proxied.redis, proxied.namespace)
    assert inbox.urls == [url(n) for n in range(6)]
    assert {delivery.attempt for delivery in inbox.deliveries} == {1}


def test_a_reply_that_comes_too_late(proxied: Bus, store_proxy: Proxy, inbox: Inbox):
    """Its publisher was answered 503, or 200 where there was time to ask again, and went on; the event is
    in, once, and before what came later."""
    publisher, subscriber = proxied.client(), proxied.client()
    topic = proxied.topic()
    subscriber.subscribe(inbox.url, topic, timeout=0)
    held = store_proxy.hold_reply("publish", reply_text=STORED)
    assert publisher.post(f"/topics/{topic}", event(1)).status in (200, 503)
    publisher.publish(topic, url=url(2))
    held.release()
    publisher.publish(topic, url=url(3))
    inbox.until_events(3)
    assert inbox.urls == [url(1), url(2), url(3)]
    assert [len(ids) for ids in ids_in_log(proxied, topic).values()] == [1, 1, 1]


def test_a_flush_that_reaches_the_store_too_late_stays_out(proxied: Bus, store_proxy: Proxy, inbox: Inbox):
    """Answered 503, held up on its way, and overtaken: old events do not come in behind newer ones."""
    publisher, subscriber = proxied.client(), proxied.client()
    topic = proxied.topic()
    subscriber.subscribe(inbox.url, topic, timeout=0)
    publisher.publish(topic, url=url(1))
    held = store_proxy.hold_request(url(2).encode() + b'"', times=FOREVER)
    assert publisher.post(f"/topics/{topic}", event(2)).status == 503
    publisher.publish(topic, url=url(3))
    before = commands(proxied.redis, "evalsha")
    held.release()
    until(lambda: commands(proxied.redis, "evalsha") >= before + held.hits, "what was held to run")
    publisher.publish(topic, url=url(4))
    inbox.until_events(3)
    books.until_drained(proxied.redis, proxied.namespace)
    assert inbox.urls == [url(1), url(3), url(4)]


def commands(redis: Redis, name: str) -> int:
    return redis.info("commandstats")[f"cmdstat_{name}"]["calls"]


# Delivering


@pytest.mark.parametrize("forgotten", [False, True], ids=["scripts kept", "scripts flushed"])
def test_a_taken_batch_counts_one_attempt(proxied: Bus, store_proxy: Proxy, inbox: Inbox, forgotten: bool):
    publisher, subscriber = proxied.client(), proxied.client()
    topic = proxied.topic()
    subscriber.subscribe(inbox.url, topic, timeout=0, max=2)
    then = forget_scripts(proxied.redis) if forgotten else None
    for n in range(4):
        lost = store_proxy.lose("acquire", reply_text=url(n).encode() + b'"', times=2, then=then)
        publisher.publish(topic, url=url(n))
        until(lambda n=n: counter(proxied, f"delivered:{subscriber.id}") == n + 1, "its settlement")
        assert lost.hits == 2
    assert inbox.urls == [url(n) for n in range(4)]
    assert {delivery.attempt for delivery in inbox.deliveries} == {1}
    books.until_drained(proxied.redis, proxied.namespace)


@pytest.mark.parametrize("forgotten", [False, True], ids=["scripts kept", "scripts flushed"])
def test_a_settled_batch_is_settled_once(proxied: Bus, store_proxy: Proxy, inbox: Inbox, forgotten: bool):
    """And the next one, which came with the lost reply, is sent once."""
    publisher, subscriber = proxied.client(), proxied.client()
    topic = proxied.topic()
    subscriber.subscribe(inbox.url, topic, timeout=0, max=1)
    inbox.answer_next(200, 500, 200, 200, 500)
    before = records(proxied)
    then = forget_scripts(proxied.redis) if forgotten else None
    lost = store_proxy.lose("settle", times=6, then=then)
    publisher.publish_many(topic, [url(n) for n in range(8)])
    until(lambda: counter(proxied, f"delivered:{subscriber.id}") == 8, "all to be settled")
    books.until_drained(proxied.redis, proxied.namespace)
    assert lost.hits == 6
    assert inbox.urls == [url(n) for n in (0, 1, 1, 2, 3, 3, 4, 5, 6, 7)]
    assert [delivery.attempt for delivery in inbox.deliveries] == [1, 1, 2, 1, 1, 2, 1, 1, 1, 1]
    assert counter(proxied, f"failed:{subscriber.id}") == 2
    assert records(proxied) == before + 10
    assert proxied.subscriber(subscriber)["health_points"] == 100


def test_a_worker_that_is_never_told(proxied: Bus, store_proxy: Proxy, inbox: Inbox):
    """No reply to a settlement comes for longer than the lease: the lane goes on when it ends."""
    publisher, subscriber = proxied.client(), proxied.client()
    topic = proxied.topic()
    subscriber.subscribe(inbox.url, topic, timeout=0, max=1)
    before = len(proxied.worker.log)
    lost = store_proxy.lose("settle", times=FOREVER)
    publisher.publish_many(topic, [url(n) for n in range(4)])
    until(lambda: "could not be settled" in proxied.worker.log[before:], "the worker to give up")
    assert lost.hits > 1
    store_proxy.mend()
    until_scrubbed(
        proxied.redis,
        proxied.namespace,
        lambda: counter(proxied, f"delivered:{subscriber.id}") == 4,
        "all to be delivered",
    )
    books.until_drained(proxied.redis, proxied.namespace)
    firsts = list(dict.fromkeys(inbox.urls))
    assert firsts == [url(n) for n in range(4)]
    assert counter(proxied, f"accepted:{topic}") == 4


def test_leaving_while_a_batch_is_handed_over(proxied: Bus, store_proxy: Proxy, inbox: Inbox):
    """A worker that is asked to leave waits for what the store has given it already, and sends it."""
    publisher, subscriber = proxied.client(), proxied.client()
    topic = proxied.topic()
    subscriber.subscribe(inbox.url, topic, timeout=0)
    held = store_proxy.hold_reply("acquire", reply_text=url(1).encode())
    publisher.publish(topic, url=url(1))
    held.until()
    proxied.worker.terminate()
    held.release()
    assert proxied.worker.wait() == 0
    assert [delivery.attempt for delivery in inbox.deliveries] == [1]
    books.until_drained(proxied.redis, proxied.namespace)


def test_leaving_while_a_publish_is_stored(proxied: Bus, store_proxy: Proxy):
    publisher = proxied.client()
    topic = proxied.topic()
    publisher.publish(topic, url=url(1))
    held = store_proxy.hold_reply("publish", url(2).encode())

    def leave() -> None:
        held.until()
        proxied.web.terminate()
        held.release()

    answer, _ = all_at_once([lambda: publisher.post(f"/topics/{topic}", event(2)), leave])
    assert answer.status == 200
    assert proxied.web.wait() == 0


# Under load


def test_replies_lost_at_random(
    proxied: Bus, store_proxy: Proxy, receiver: Receiver, seed: int, rounds: int, dice: random.Random
):
    """Of every script, with the scripts themselves forgotten now and then."""
    with loaded(proxied, receiver, seed) as load:
        load.until_it_moves()
        for script in ("publish", "acquire", "settle", "beat", "tick", "finish", "scrub"):
            store_proxy.lose(script, times=FOREVER, chance=0.03)
        for _ in range(rounds):
            load.until_it_moves(requests=100)
            load.ledger.note("scripts are flushed")
            proxied.redis.script_flush()
            store_proxy.delay("publish", delay_s=dice.uniform(0, 1.2))
            load.check_jobs()
        store_proxy.mend()
        load.finish()


@pytest.mark.parametrize("after", ["resumed", "abandoned"])
def test_a_store_that_is_cut_off_for_a_while(
    proxied: Bus, store_proxy: Proxy, receiver: Receiver, seed: int, after: str
):
    """What was on its way arrives late, or never: connections that look open and are dead."""
    with loaded(proxied, receiver, seed) as load:
        load.until_it_moves()
        store_proxy.stall()
        load.ledger.note("nothing passes")
        told = len(load.ledger.unknown_answers)
        until(lambda: len(load.ledger.unknown_answers) >= told + 6, "publishers to be told")
        if after == "abandoned":
            store_proxy.abandon()
        store_proxy.resume()
        load.ledger.note(f"the store is reached again; what was on its way is {after}")
        load.until_it_moves()
        load.check_jobs()
        load.finish()
