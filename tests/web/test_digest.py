"""HTTP Digest, for clients that never send their token."""

import asyncio
import urllib.error
import urllib.request

import aiohttp
import pytest

from routemaster.web import digest
from tests.bus import Bus, Store, running_bus
from tests.conftest import MakeBus, MakeClient
from tests.digest import Login, challenge
from tests.web.problem import is_problem
from tests.wire import Caller, Line, line_to, request

EVENT = {"type": "create", "url": "https://example.com/1"}
ALGORITHMS = ["SHA-256", "MD5"]


def offers(bus: Bus, n: int = 0, path: str = "/topics", authorization: str = "") -> list[str]:
    """All that a stranger is offered (a mapping of headers would hide all but one)."""
    with line_to(bus.address(n)) as line:
        line.send(
            request("GET", path, None, b"", *([f"authorization: {authorization}"] if authorization else []))
        )
        return challenges(line)


def challenges(line: Line) -> list[str]:
    assert line.read_line().startswith(b"HTTP/1.1 401 ")
    found: list[str] = []
    while (header := line.read_line().decode().strip()) != "":
        name, _, value = header.partition(": ")
        if name == "www-authenticate":
            found.append(value)
    return found


def nonce(bus: Bus, n: int = 0) -> str:
    return challenge(offers(bus, n), "SHA-256")["nonce"]


def login(bus: Bus, caller: Caller, algorithm: str = "SHA-256", *, by_name: bool = False) -> Login:
    assert caller.token
    user = caller.id.rpartition("--")[0] if by_name else caller.id
    return Login(user, caller.token, nonce(bus), algorithm)


def test_both_algorithms_and_basic_are_offered(bus: Bus):
    digests = [challenge(offers(bus), algorithm) for algorithm in ALGORITHMS]
    for offer in digests:
        assert (offer["realm"], offer["qop"]) == ("routemaster", "auth")
        assert "stale" not in offer
    assert offers(bus)[-1].startswith("Basic ")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_client_id_and_the_token_are_a_login(bus: Bus, publisher: Caller, topic: str, algorithm: str):
    known = login(bus, publisher, algorithm)
    anybody = bus.caller(None)
    for _ in range(3):  # one nonce serves many requests
        answer = anybody.post(
            f"/topics/{topic}", EVENT, authorization=known.header("POST", f"/topics/{topic}")
        )
        assert (answer.status, answer.body) == (200, b"")
        assert anybody.get("/topics", authorization=known.header("GET", "/topics")).status == 200
    assert bus.owner_and_events(topic) == (publisher.id, 3)


def test_a_query_is_part_of_what_is_signed(bus: Bus, subscriber: Caller, topic: str):
    known = login(bus, subscriber)
    anybody = bus.caller(None)
    path = "/subscriber?name=none"
    assert anybody.delete(path, authorization=known.header("DELETE", path)).status == 404
    assert is_problem(anybody.delete(path, authorization=known.header("DELETE", "/subscriber")), 401)


def test_what_was_used_is_known_for_as_long_as_any_clock_takes_the_nonce(bus: Bus, subscriber: Caller):
    known = login(bus, subscriber)
    assert bus.caller(None).get("/topics", authorization=known.header("GET", "/topics")).status == 200
    left_ms = bus.redis.pttl(bus.key(f"nonce:{known.nonce}"))
    assert left_ms > digest.LIFE_MS + digest.AHEAD_MS - 10_000


def test_an_empty_query_may_be_signed(bus: Bus, subscriber: Caller):
    known = login(bus, subscriber)
    signed = known.header("GET", "/topics?")
    assert bus.caller(None).get("/topics?", authorization=signed).status == 200


def test_a_target_may_be_signed_in_absolute_form(bus: Bus, publisher: Caller, topic: str):
    known = login(bus, publisher)
    anybody = bus.caller(None)
    for target in (f"http://bus/topics/{topic}", f"/topics/{topic}"):
        signed = known.header("POST", target)
        assert anybody.post(f"http://bus/topics/{topic}", EVENT, authorization=signed).status == 200
        other = known.header("POST", f"{target}x")
        assert is_problem(anybody.post(f"http://bus/topics/{topic}", EVENT, authorization=other), 401)


def test_the_name_serves_where_only_one_client_bears_it(bus: Bus, client: MakeClient):
    alone = client("the-only-one")
    known = login(bus, alone, by_name=True)
    assert bus.caller(None).get("/topics", authorization=known.header("GET", "/topics")).status == 200
    client("the-only-one")
    assert is_problem(bus.caller(None).get("/topics", authorization=known.header("GET", "/topics")), 401)


def test_root_may_do_so_too(bus: Bus):
    known = Login("root", bus.root_key, nonce(bus))
    path = "/api_tokens/nobody--0123456789ab"
    assert bus.caller(None).delete(path, authorization=known.header("DELETE", path)).status == 204


def test_every_web_process_knows_the_others_nonces(bus: Bus, publisher: Caller):
    known = login(bus, publisher)
    for n in (1, 0, 1):
        answer = bus.caller(None, n).get("/topics", authorization=known.header("GET", "/topics"))
        assert answer.status == 200


def test_a_response_is_good_once_at_whichever_process(bus: Bus, publisher: Caller, topic: str):
    known = login(bus, publisher)
    header = known.header("POST", f"/topics/{topic}")
    assert bus.caller(None).post(f"/topics/{topic}", EVENT, authorization=header).status == 200
    for n in (0, 1):
        assert is_problem(bus.caller(None, n).post(f"/topics/{topic}", EVENT, authorization=header), 401)
    assert "stale=true" in offers(bus, authorization=known.header("GET", "/topics", count=1))[0]
    assert bus.owner_and_events(topic) == (publisher.id, 1)


def test_a_large_body_counts_once(bus: Bus, publisher: Caller, topic: str):
    """Its head is looked at before its body is read, and again when it is there."""
    known = login(bus, publisher)
    events = [{**EVENT, "data": {"text": "x" * 1000}}] * 100
    path = f"/topics/{topic}"
    answer = bus.caller(None).post(path, events, authorization=known.header("POST", path))
    assert (answer.status, answer.json) == (200, {"accepted": 100})


def test_counts_may_come_in_any_order(bus: Bus, publisher: Caller):
    known = login(bus, publisher)
    for count in (3, 1, 2, 16_000):
        header = known.header("GET", "/topics", count=count)
        assert bus.caller(None).get("/topics", authorization=header).status == 200


@pytest.mark.parametrize("count", [16_384, 2**32 - 1])
def test_a_nonce_serves_only_so_many_requests(bus: Bus, publisher: Caller, count: int):
    header = login(bus, publisher).header("GET", "/topics", count=count)
    assert all("stale=true" in offer for offer in offers(bus, authorization=header)[:2])


def test_a_nonce_that_nobody_here_made_is_stale(bus: Bus, publisher: Caller):
    known = login(bus, publisher)
    for invented in ("", "AAAA", "x" * 44, known.nonce[:-4] + "AAA=", "B" + known.nonce[1:]):
        given = Login(known.user, known.secret, invented)
        assert is_problem(bus.caller(None).get("/topics", authorization=given.header("GET", "/topics")), 401)


def test_a_bus_does_not_take_another_ones_nonce(bus: Bus, make_bus: MakeBus, publisher: Caller):
    other = make_bus(workers=0)
    known = Login(publisher.id, str(publisher.token), nonce(other))
    assert "stale=true" in offers(bus, authorization=known.header("GET", "/topics"))[0]


def test_a_nonce_outlives_the_process_that_made_it(store: Store):
    with running_bus(store, workers=0) as bus:
        token, client = bus.token()
        known = Login(client, token, nonce(bus))
        bus.web.restart()
        bus.until_serves()
        assert bus.caller(None).get("/topics", authorization=known.header("GET", "/topics")).status == 200


@pytest.mark.parametrize(
    "changed",
    [
        {"response": "0" * 64},
        {"response": ""},
        {"response": "é"},
        {"username": "nobody--0123456789ab"},
        {"username": ""},
        {"realm": "another"},
        {"uri": "/api_tokens"},
        {"cnonce": "another"},
        {"nc": "0000000a"},
        {"nc": "1"},
        {"nc": "xyzzy123"},
        {"nc": "-0000001"},
        {"qop": "auth-int"},
        {"algorithm": "MD5"},
        {"algorithm": "SHA-512-256"},
    ],
    ids=str,
)
def test_what_was_tampered_with_is_refused(bus: Bus, publisher: Caller, changed: dict[str, str]):
    header = login(bus, publisher).header("GET", "/topics", **changed).encode().decode("latin-1")
    assert is_problem(bus.caller(None).get("/topics", authorization=header), 401)


@pytest.mark.parametrize(
    "header",
    [
        "Digest",
        "Digest ",
        "Digest ,",
        "Digest username",
        'Digest username="a" nonce="b"',
        'Digest username="a", username="b"',
        'Digest username="\\',
        "Digest " + 'a="' + "\\" * 3000,
        "Digest " + "a=b, " * 1000,
        "digest realm=routemaster, qop=auth",
    ],
    ids=lambda header: header[:30],
)
def test_what_is_no_digest_is_refused(bus: Bus, header: str):
    assert is_problem(bus.caller(None).get("/topics", authorization=header), 401)


def test_another_method_is_another_request(bus: Bus, publisher: Caller, topic: str):
    publisher.publish(topic)
    header = login(bus, publisher).header("GET", f"/topics/{topic}")
    assert is_problem(bus.caller(None).delete(f"/topics/{topic}", authorization=header), 401)


def test_a_revoked_token_logs_nobody_in(bus: Bus):
    token, client = bus.token()
    known = Login(client, token, nonce(bus))
    assert bus.caller(None).get("/topics", authorization=known.header("GET", "/topics")).status == 200
    bus.root.delete(f"/api_tokens/{client}")
    for n in (0, 1):
        answer = bus.caller(None, n).get("/topics", authorization=known.header("GET", "/topics"))
        assert is_problem(answer, 401)


def test_the_token_is_not_in_the_store(bus: Bus, publisher: Caller):
    """Nor is it in a nonce's key or a log."""
    login(bus, publisher)
    assert publisher.token
    secret = publisher.token.encode()
    kept = [bus.redis.dump(key) or b"" for key in bus.redis.keys(bus.key("*"))]
    assert kept
    assert not any(secret in dump for dump in kept)
    assert publisher.token not in bus.log


def test_a_client_that_knows_only_md5_gets_in(bus: Bus, publisher: Caller, topic: str):
    """Python's own, which takes the first offer or none."""
    passwords = urllib.request.HTTPPasswordMgrWithDefaultRealm()
    passwords.add_password(None, bus.url(), publisher.id, str(publisher.token))
    opener = urllib.request.build_opener(urllib.request.HTTPDigestAuthHandler(passwords))
    body = b'{"type": "create", "url": "https://example.com/1"}'
    asked = urllib.request.Request(f"{bus.url()}/topics/{topic}", body, {"content-type": "application/json"})
    with opener.open(asked, timeout=10) as answer:
        assert answer.status == 200
    assert bus.owner_and_events(topic) == (publisher.id, 1)


def test_aiohttps_client_gets_in(bus: Bus, publisher: Caller):
    async def ask() -> int:
        middleware = aiohttp.DigestAuthMiddleware(publisher.id, str(publisher.token))
        async with (
            aiohttp.ClientSession(middlewares=(middleware,)) as session,
            session.get(f"{bus.url()}/topics") as answer,
        ):
            return answer.status

    assert asyncio.run(ask()) == 200
