"""A whole bus as a user of the store that is allowed what docs/store.md says, and nothing else."""

import re
from collections.abc import Iterator

import pytest

from routemaster.store.permissions import rule
from routemaster.store.script import Script
from tests import digest
from tests.bus import ROOT_KEY, Bus, Store, running_bus, running_store
from tests.receiver import Receiver
from tests.store.test_script import NAMES
from tests.until import until
from tests.web.problem import is_problem
from tests.web.test_digest import nonce
from tests.wire import Caller, line_to, request

AUX = "jobs:index:aux"
QUICK = {"max_backoff_ms": 50, "clients": "seeded--0123456789ab"}
NOT_BY_A_BUS = re.compile(r"import_\w+|forget_import")  # scripts of a command, which has tests of its own


@pytest.fixture
def limited_bus() -> Iterator[Bus]:
    with running_store() as store:
        store.redis.execute_command(f"ACL SETUSER routemaster on >pw {rule('rm')}")
        url = f"unix://routemaster@{store.url.removeprefix('unix://')}"
        with running_bus(store, redis_url=url, redis_password="pw", **QUICK) as bus:
            yield bus


def test_every_kind_of_call_and_job_is_allowed(limited_bus: Bus, receiver: Receiver):
    bus = limited_bus
    publisher, subscriber = bus.client("publisher"), bus.client("subscriber")
    topic, other = bus.topic(), bus.topic("other")
    _manage_tokens(bus)
    _publish_and_deliver(bus, receiver, publisher, subscriber, topic)
    _operate(bus, receiver, publisher, topic, other)
    _run_jobs(bus, subscriber, publisher, topic)
    assert bus.redis.execute_command("ACL LOG") == []
    assert "NOPERM" not in bus.log
    assert "Traceback" not in bus.log, bus.log
    loaded = bus.redis.script_exists(*(Script(name).sha for name in NAMES))
    unused = [name for name, known in zip(NAMES, loaded, strict=True) if not known]
    assert [name for name in unused if not NOT_BY_A_BUS.fullmatch(name)] == []


@pytest.mark.parametrize("kind", ["web", "worker"])
def test_a_process_that_is_not_allowed_enough_ends_with_the_reason(store: Store, kind: str):
    store.redis.execute_command(f"ACL SETUSER lacking reset on >hunter2 {rule('rm')} -xadd")
    url = f"unix://lacking:hunter2@{store.url.removeprefix('unix://')}"
    bus = Bus(store, redis_url=url, web=kind == "web", workers=kind == "worker")
    try:
        [process] = [*bus.webs, *bus.workers]
        process.start()
        assert process.wait() == 1
        assert "may not run XADD" in process.log
        assert "Traceback" not in process.log
        assert "hunter2" not in process.log
    finally:
        bus.stop()
        store.redis.acl_deluser("lacking")


def test_a_permission_that_is_taken_away_later_is_named_in_the_log(limited_bus: Bus):
    bus, topic = limited_bus, limited_bus.topic()
    publisher = bus.client()
    publisher.publish(topic)
    bus.redis.execute_command("ACL SETUSER routemaster -xadd -zadd")
    answer = publisher.post(f"/topics/{topic}", {"type": "update", "url": "https://example.com/1"})
    assert is_problem(answer, 503)
    until(lambda: "'xadd' command" in bus.web.log, "the reason to be logged")
    bus.redis.execute_command("ACL SETUSER routemaster +xadd +zadd")
    publisher.publish(topic)


def _manage_tokens(bus: Bus) -> None:
    root = bus.root
    _, client = bus.token("short")
    assert root.post(f"/api_tokens/{client}/rotate", {"grace_s": 1}).status == 201
    assert root.call("PATCH", f"/api_tokens/{client}", {"grants": {"publish": ["a*"]}}).status < 300
    assert root.get("/api_tokens").status == 200
    assert root.delete(f"/api_tokens/{client}").status == 204
    login = digest.Login("root", ROOT_KEY, nonce(bus))
    with line_to(bus.address()) as line:
        line.send(request("GET", "/topics", None, b"", f"authorization: {login.header('GET', '/topics')}"))
        assert line.read().status in (200, 204)


def _publish_and_deliver(
    bus: Bus, receiver: Receiver, publisher: Caller, subscriber: Caller, topic: str
) -> None:
    inbox = receiver.inbox()
    subscriber.subscribe(inbox.url, topic, timeout=0, max=2, parallelism=2)
    subscriber.subscribe(inbox.url, topic, timeout=0)
    event = {"type": "create", "url": "https://example.com/1", "data": {"n": 1}}
    keyed = {**event, "id": "once"}
    for body in (event, [event] * 5, keyed, keyed):
        assert publisher.post(f"/topics/{topic}", body).status == 200
    inbox.until_events(7)
    inbox.answer_next(500)
    publisher.publish(topic)
    inbox.until_events(9)  # twice: the first one was refused
    assert (
        publisher.post(f"/channel/{topic}", {"event": "created", "url": "https://example.com/2"}).status
        == 204
    )


def _operate(bus: Bus, receiver: Receiver, publisher: Caller, topic: str, other: str) -> None:
    dead = receiver.inbox("dead")
    dead.answer(400)
    reader = bus.client("reader")
    reader.subscribe(dead.url, topic, timeout=0, max_attempts=1, match=[f"^[^:]*:{topic}:"])
    for letters in (1, 2):
        lost = publisher.publish(topic)
        until(lambda wanted=letters: len(reader.get("/subscriber/dead").json) == wanted, "dead letters")
    batch = reader.get("/subscriber/dead").json[0]["id"]
    assert reader.post("/subscriber/dead/retry", {"ids": [batch]}).status < 300
    assert reader.delete("/subscriber/dead").status < 300
    assert bus.root.get(f"/events/{lost}").status == 200
    for call in ("pause", "resume", "test"):
        assert reader.post(f"/subscriber/{call}").status < 300
    paths = ["/topics", "/subscriptions", "/pulse", "/pulse/scaling", "/health", "/environments", "/metrics"]
    event = publisher.publish(topic)
    for path in (*paths, f"/events/{event}"):
        assert bus.root.get(path).status < 300, path
    publisher.publish(other)
    assert reader.delete(f"/subscriber/topics/{topic}").status == 204
    assert publisher.delete(f"/topics/{other}").status == 204
    assert reader.delete("/subscriber").status == 204


def _run_jobs(bus: Bus, subscriber: Caller, publisher: Caller, topic: str) -> None:
    """Upkeep, asked for at once; autodrop with something to drop, in a store that is almost full."""
    _tick(bus, "scrub", "trim", "purge", "forget")
    assert subscriber.post("/subscriber/pause").status < 300
    publisher.publish(topic)
    before = bus.redis.config_get("maxmemory")["maxmemory"]
    bus.redis.config_set("maxmemory", int(bus.redis.info("memory")["used_memory"] * 1.1))
    _tick(bus, "autodrop")
    until(lambda: "memory is low" in bus.log, "autodrop to have dropped")
    bus.redis.config_set("maxmemory", before)


def _tick(bus: Bus, *jobs: str) -> None:
    bus.redis.eval(Script("tick").source, 1, bus.namespace, *jobs)
    until(lambda: not bus.redis.exists(bus.key(AUX)), f"{jobs} to be done")
