"""Rotating tokens: the client stays who it is, and nothing that it does meanwhile fails."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.bus import Bus
from tests.conftest import MakeClient
from tests.digest import Login, challenge
from tests.receiver import Inbox
from tests.until import until
from tests.web.problem import is_problem
from tests.web.test_digest import offers
from tests.wire import Answer, Caller

EVENT = {"type": "create", "url": "https://example.com/1"}


def rotate(bus: Bus, caller: Caller, **wanted: object) -> Answer:
    return bus.root.post(f"/api_tokens/{caller.id}/rotate", wanted)


def renewed(bus: Bus, caller: Caller, **wanted: object) -> Caller:
    answer = rotate(bus, caller, **wanted)
    assert (answer.status, answer.kind) == (201, "application/json"), answer
    assert set(answer.json) == {"name", "token", "client"}
    assert answer.json["client"] == caller.id
    return bus.caller(answer.json["token"])


def test_the_client_keeps_what_it_has(
    bus: Bus, publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    publisher.publish(topic)
    subscriber.subscribe(inbox.url, topic, timeout=0)
    renewed(bus, subscriber).subscribe(inbox.url, topic, timeout=0, max=7)
    renewed(bus, publisher).publish(topic)
    inbox.until_events(1)
    assert bus.owner_and_events(topic) == (publisher.id, 2)
    assert bus.subscriber(subscriber)["max_events"] == 7


@pytest.mark.parametrize("body", [b"", b"{}", b'{"grace_s": null}', b'{"grace_s": 0}'])
def test_without_a_grace_the_old_token_ends_at_once(bus: Bus, publisher: Caller, topic: str, body: bytes):
    answer = bus.root.post(f"/api_tokens/{publisher.id}/rotate", body)
    assert answer.status == 201
    assert answer.json["token"] != publisher.token
    for n in (0, 1):
        old = bus.caller(publisher.token, n)
        assert is_problem(old.post(f"/topics/{topic}", EVENT), 401)
        assert is_problem(old.get("/topics"), 401)
        assert bus.caller(answer.json["token"], n).get("/topics").status == 200


def test_with_a_grace_both_are_good_until_it_is_over(bus: Bus, publisher: Caller, topic: str):
    new = renewed(bus, publisher, grace_s=1)
    assert publisher.get("/topics").status == 200
    publisher.publish(topic)
    new.publish(topic)
    until(lambda: publisher.get("/topics").status == 401, "the grace to end")
    assert is_problem(publisher.post(f"/topics/{topic}", EVENT), 401)
    new.publish(topic)


def test_digest_knows_every_token_that_is_good(bus: Bus, publisher: Caller):
    new = renewed(bus, publisher, grace_s=60)
    nonce = challenge(offers(bus), "SHA-256")["nonce"]
    for count, secret in enumerate((publisher.token, new.token), start=1):
        header = Login(publisher.id, str(secret), nonce).header("GET", "/topics", count=count)
        assert bus.caller(None).get("/topics", authorization=header).status == 200
    renewed(bus, publisher)
    for count, secret in enumerate((publisher.token, new.token), start=5):
        header = Login(publisher.id, str(secret), nonce).header("GET", "/topics", count=count)
        assert is_problem(bus.caller(None).get("/topics", authorization=header), 401)


def test_the_new_token_may_be_chosen(bus: Bus, publisher: Caller, client: MakeClient):
    assert renewed(bus, publisher, token="chosen--0123456789").token == "chosen--0123456789"
    other = client()
    assert is_problem(rotate(bus, other, token="chosen--0123456789"), 409, "token")
    assert is_problem(rotate(bus, other, token=bus.root_key), 409, "token")
    assert other.get("/topics").status == 200


def test_one_of_its_tokens_may_be_deleted_alone(bus: Bus, publisher: Caller):
    new = renewed(bus, publisher, grace_s=60)
    assert bus.root.delete(f"/api_tokens/{publisher.token}").status == 204
    assert is_problem(publisher.get("/topics"), 401)
    assert new.get("/topics").status == 200


def test_with_its_last_token_the_client_goes(bus: Bus, topic: str):
    token, client = bus.token()
    caller = bus.caller(token)
    caller.id = client
    caller.publish(topic)
    new = renewed(bus, caller, grace_s=60)
    for secret in (caller.token, new.token):
        assert bus.root.delete(f"/api_tokens/{secret}").status == 204
    assert bus.owner_and_events(topic) == (None, 1)


def test_a_client_has_only_so_many_tokens(bus: Bus, publisher: Caller):
    tokens = [publisher, *(renewed(bus, publisher, grace_s=600) for _ in range(24))]
    assert [caller.get("/topics").status for caller in tokens] == [401] * 5 + [200] * 20


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        ({"grace_s": -1}, "grace_s"),
        ({"grace_s": "60"}, "grace_s"),
        ({"grace_s": 31_536_001}, "grace_s"),
        ({"token": "short"}, "token"),
        ({"token": "with spaces in it"}, "token"),
        ({"grace": 1}, "grace"),
    ],
)
def test_bad_wishes_are_told(bus: Bus, publisher: Caller, wanted: dict, field: str):
    assert is_problem(rotate(bus, publisher, **wanted), 400, field)
    assert publisher.get("/topics").status == 200


def test_who_is_not_there_is_404(bus: Bus):
    assert is_problem(bus.root.post("/api_tokens/nobody--0123456789ab/rotate", {}), 404)


def test_only_root_rotates(publisher: Caller):
    assert is_problem(publisher.post(f"/api_tokens/{publisher.id}/rotate", {}), 403)


def test_no_publish_fails_during_a_rotation_with_grace(bus: Bus, publisher: Caller, topic: str):
    """Publishers change to the new token a while after it was made."""
    current = [publisher.token]
    done = threading.Event()

    def publish(n: int) -> int:
        caller = bus.caller(None, n % 2)
        taken = 0
        while not done.is_set():
            caller.token = current[0]
            for _ in range(20):
                caller.publish(topic, f"https://example.com/{n}/{taken}")
                taken += 1
        return taken

    with ThreadPoolExecutor(4) as pool:
        publishers = [pool.submit(publish, n) for n in range(4)]
        try:
            for _ in range(15):
                answer = rotate(bus, publisher, grace_s=30)
                assert answer.status == 201
                before = bus.accepted()
                until(lambda at=before: bus.accepted() > at + 40, "publishes by the old token")
                current[0] = answer.json["token"]
        finally:
            done.set()
        taken = sum(future.result() for future in publishers)
    assert bus.owner_and_events(topic) == (publisher.id, taken)


@pytest.mark.parametrize("by", ["rotation", "token", "client", "grants"])
def test_nothing_is_let_through_after_the_answer_to_a_revocation(bus: Bus, topic: str, by: str):
    """Under load, at every web process, published one by one and in bulk."""
    for turn in range(4):
        token, client = bus.token()
        done = threading.Event()
        calls = 0

        def hammer(n: int, token: str = token, done: threading.Event = done) -> list[tuple[float, int]]:
            nonlocal calls
            caller = bus.caller(token, n % 2)
            seen: list[tuple[float, int]] = []
            body = EVENT if n < 2 else [EVENT] * 50
            while not done.is_set():
                asked_at = time.monotonic()
                answer = caller.post(f"/topics/{topic}_{'abcd'[n]}", body)
                seen.append((asked_at, answer.status))
                calls += 1
            return seen

        with ThreadPoolExecutor(4) as pool:
            hammers = [pool.submit(hammer, n) for n in range(4)]
            try:
                until(lambda: calls > 40, "some load")  # noqa: B023 (this turn's)
                revoke(bus, by, token, client)
                revoked_at = time.monotonic()
                before = calls
                until(lambda: calls > before + 40, "some load afterwards")  # noqa: B023
            finally:
                done.set()
            seen = [call for future in hammers for call in future.result()]
        after = [status for asked_at, status in seen if asked_at > revoked_at]
        refused = 403 if by == "grants" else 401
        assert set(after) == {refused}, (turn, after)
        assert {status for _, status in seen} == {200, refused}
        bus.root.delete(f"/api_tokens/{client}")
        assert [bus.owner_and_events(f"{topic}_{n}")[0] for n in "abcd"] == [None] * 4, "claimed by a ghost"


def revoke(bus: Bus, by: str, token: str, client: str) -> None:
    if by == "grants":
        assert bus.root.call("PATCH", f"/api_tokens/{client}", {"grants": {"publish": []}}).status == 204
    elif by == "rotation":
        assert bus.root.post(f"/api_tokens/{client}/rotate", {}).status == 201
    else:
        assert bus.root.delete(f"/api_tokens/{token if by == 'token' else client}").status == 204
