"""Who guesses credentials has to wait; who has good ones goes on."""

import pytest

from routemaster.web.failures import MOST_ADDRESSES, Failures
from tests.conftest import MakeBus
from tests.digest import Login
from tests.web.problem import is_problem
from tests.web.test_digest import nonce
from tests.wire import Caller, basic

EVENT = {"type": "create", "url": "https://example.com/1"}


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def guess(caller: Caller, times: int, **headers: str) -> list[int]:
    return [
        caller.get("/topics", authorization=basic(f"guess--{n:08}"), **headers).status for n in range(times)
    ]


def test_after_so_many_it_has_to_wait(make_bus: MakeBus):
    bus = make_bus(workers=0, max_failed_logins=5)
    anybody = bus.caller(None)
    assert guess(anybody, 8) == [401] * 5 + [429] * 3
    answer = anybody.post("/topics/widgets", EVENT, authorization=basic("guess--again"))
    assert is_problem(answer, 429)
    assert 1 <= int(answer.headers["retry-after"]) <= 12
    channel = anybody.post("/channel/widgets", b"{}", authorization=basic("guess--again"))
    assert (channel.status, channel.body) == (429, b"")


def test_a_right_guess_is_not_told_from_a_wrong_one(make_bus: MakeBus):
    bus = make_bus(workers=0, max_failed_logins=5)
    token, client = bus.token()
    anybody = bus.caller(None)
    login = Login(client, token, nonce(bus))
    guess(anybody, 5)
    assert anybody.get("/topics", authorization=basic(token)).status == 429
    assert anybody.post("/topics/widgets", EVENT, authorization=basic(token)).status == 429
    assert anybody.get("/topics", authorization=login.header("GET", "/topics")).status == 429


def test_who_was_let_in_before_goes_on_beside_a_guesser(make_bus: MakeBus):
    """Also when the registry has changed since."""
    bus = make_bus(workers=0, max_failed_logins=5)
    publisher = bus.client("publisher")
    publisher.publish("widgets")
    guess(bus.caller(None), 10)
    publisher.publish("widgets")
    assert bus.root.post("/api_tokens", {"name": "another"}).status == 201
    publisher.publish("widgets")
    assert publisher.get("/topics").status == 200
    assert bus.root.delete(f"/api_tokens/{publisher.id}").status == 204
    assert is_problem(publisher.get("/topics"), 401)  # what was good is looked at, and then no more
    assert is_problem(publisher.get("/topics"), 429)


def test_no_credential_at_all_is_no_guess(make_bus: MakeBus):
    bus = make_bus(workers=0, max_failed_logins=5)
    assert {bus.caller(None).get("/topics").status for _ in range(20)} == {401}
    assert bus.client().get("/topics").status == 200


def test_behind_a_trusted_proxy_it_is_the_address_that_it_names(make_bus: MakeBus):
    bus = make_bus(workers=0, max_failed_logins=5, trusted_proxies="127.0.0.0/8")
    anybody = bus.caller(None)
    assert guess(anybody, 6, x_forwarded_for="198.51.100.7")[-1] == 429
    assert guess(anybody, 1, x_forwarded_for="203.0.113.5, 198.51.100.7") == [429]
    assert guess(anybody, 1, x_forwarded_for="198.51.100.8") == [401]


def test_what_a_stranger_says_of_its_address_is_not_believed(make_bus: MakeBus):
    bus = make_bus(workers=0, max_failed_logins=5)
    anybody = bus.caller(None)
    seen = [guess(anybody, 1, x_forwarded_for=f"198.51.100.{n}")[0] for n in range(7)]
    assert seen == [401] * 5 + [429] * 2


# The rule alone


def test_it_drains_with_time():
    clock = Clock()
    failures = Failures(6, clock=clock)
    for _ in range(6):
        assert failures.wait_s("a") == 0
        failures.note("a")
    assert failures.wait_s("a") == pytest.approx(10)
    assert failures.wait_s("b") == 0
    clock.now += 9.9
    assert failures.wait_s("a") > 0
    clock.now += 0.2
    assert failures.wait_s("a") == 0
    failures.note("a")
    assert failures.wait_s("a") > 0
    clock.now += 61
    for _ in range(6):
        assert failures.wait_s("a") == 0
        failures.note("a")


def test_only_so_many_addresses_are_remembered():
    failures = Failures(1)
    for n in range(MOST_ADDRESSES + 10):
        failures.note(str(n))
    assert len(failures._buckets) == MOST_ADDRESSES
    assert failures.wait_s("0") == 0
    assert failures.wait_s(str(MOST_ADDRESSES)) > 0


@pytest.mark.parametrize(
    ("peer", "source"),
    [
        (("192.0.2.1", 5), "192.0.2.1"),
        (("::ffff:192.0.2.1", 5), "192.0.2.1"),
        (("2001:db8:1:2:3:4:5:6", 5), "2001:db8:1:2::/64"),
        (("fe80::1%eth0", 5), "fe80::/64"),
        (None, ""),
        (("unix", 0), ""),
    ],
)
def test_an_address_of_ipv6_stands_for_its_network(peer: tuple[str, int] | None, source: str):
    assert Failures(1).source_of(peer, {}) == source
