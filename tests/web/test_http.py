"""HTTP itself, over bare sockets: limits, odd clients and broken ones."""

import contextlib
import json

import pytest

from tests.bus import Bus
from tests.receiver import Inbox
from tests.web.problem import is_problem
from tests.wire import Caller, basic, line_to, request

EVENT = b'{"type": "create", "url": "https://example.com/1"}'


def publish(caller: Caller, topic: str, body: bytes = EVENT, *headers: str, version: str = "1.1") -> bytes:
    return request("POST", f"/topics/{topic}", caller.token, body, *headers, version=version)


# Connections


def test_one_connection_serves_many_requests(bus: Bus, publisher: Caller, topic: str):
    with line_to(bus.address()) as line:
        for _ in range(3):
            line.send(publish(publisher, topic))
            assert line.read().status == 200
            line.send(request("GET", "/topics", publisher.token))
            assert line.read().status == 200


@pytest.mark.parametrize("path", ["/topics/{topic}", "/health"])
def test_connection_close_closes(bus: Bus, publisher: Caller, topic: str, path: str):
    wanted = (
        publish(publisher, topic, EVENT, "connection: close")
        if "topic" in path
        else request("GET", path, None, b"", "connection: close")
    )
    with line_to(bus.address()) as line:
        line.send(wanted)
        answer = line.read()
        assert answer.status == 200
        assert answer.headers["connection"] == "close"
        assert line.is_closed()


def test_http_1_0_is_answered_and_closed(bus: Bus, publisher: Caller, topic: str):
    for wanted in (
        publish(publisher, topic, version="1.0"),
        request("GET", "/topics", publisher.token, version="1.0"),
        f"GET /health HTTP/1.0\r\nauthorization: {basic('x')}\r\n\r\n".encode(),
    ):
        with line_to(bus.address()) as line:
            line.send(wanted)
            answer = line.read()
            assert answer.status == 200
            assert "transfer-encoding" not in answer.headers
            assert line.is_closed()


def test_pipelined_requests_are_answered_in_order(
    bus: Bus, publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    subscriber.subscribe(inbox.url, topic, timeout=0)
    bad = b'{"type": "explode", "url": "https://example.com/"}'
    round_trip = [
        (publish(publisher, topic), 200),
        (request("GET", "/pulse", publisher.token), 204),
        (publish(publisher, topic, bad), 400),
        (request("GET", "/health"), 200),
        (publish(publisher, topic), 200),
        (publish(publisher, topic, b"[" + EVENT + b"," + EVENT + b"]"), 200),
        (request("GET", "/nonsense", publisher.token), 404),
        (publish(publisher, topic), 200),
    ]
    with line_to(bus.address()) as line:
        line.send(b"".join(wanted for wanted, _ in round_trip * 5))
        answers = [line.read() for _ in round_trip * 5]
    assert [answer.status for answer in answers] == [status for _, status in round_trip * 5]
    given = [
        answer.headers["routemaster-event-id"]
        for answer in answers
        if "routemaster-event-id" in answer.headers
    ]
    assert given == sorted(given)
    inbox.until_events(25)
    got = [event["id"] for event in inbox.events]
    assert got == sorted(got)
    assert set(given) <= set(got)


def test_a_request_may_come_byte_by_byte(bus: Bus, publisher: Caller, topic: str):
    with line_to(bus.address()) as line:
        for byte in publish(publisher, topic):
            line.send(bytes([byte]))
        assert line.read().status == 200


# Bodies


def chunked(*chunks: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"


@pytest.mark.parametrize("sizes", [(1000,), (7, 1000), (1,) * 60], ids=["one", "two", "many"])
def test_a_body_may_be_chunked(bus: Bus, publisher: Caller, topic: str, sizes: tuple[int, ...]):
    chunks, at = [], 0
    for size in sizes:
        if EVENT[at : at + size]:
            chunks.append(EVENT[at : at + size])
        at += size
    with line_to(bus.address()) as line:
        line.send(request("POST", f"/topics/{topic}", publisher.token, b"", "transfer-encoding: chunked"))
        line.send(chunked(*chunks))
        assert line.read().status == 200
        line.send(publish(publisher, topic))
        assert line.read().status == 200


def test_a_chunked_subscription_is_one_too(bus: Bus, subscriber: Caller, topic: str):
    body = json.dumps({"topics": [topic], "callback": "http://127.0.0.1:9/", "uuid": "u"}).encode()
    with line_to(bus.address()) as line:
        line.send(request("POST", "/subscription", subscriber.token, b"", "transfer-encoding: chunked"))
        line.send(chunked(body[:10], body[10:]))
        assert line.read().status == 204


def paths(topic: str) -> list[str]:
    return [f"/topics/{topic}", "/subscription"]


@pytest.mark.parametrize("n", [0, 1])
def test_a_client_may_wait_for_100_continue(bus: Bus, publisher: Caller, topic: str, n: int):
    subscription = {"topics": [topic], "callback": "http://127.0.0.1:9/", "uuid": "u"}
    path, body = paths(topic)[n], [EVENT, json.dumps(subscription).encode()][n]
    length = f"content-length: {len(body)}"
    with line_to(bus.address()) as line:
        line.send(request("POST", path, publisher.token, b"", "expect: 100-continue", length))
        assert line.read_line().startswith(b"HTTP/1.1 100")
        assert line.read_line() == b"\r\n"
        line.send(body)
        assert line.read().status == [200, 204][n]


@pytest.mark.parametrize("n", [0, 1])
def test_too_large_a_body_is_refused_before_it_comes(strict: Bus, n: int):
    caller = strict.client()
    path = paths(strict.topic())[n]
    with line_to(strict.address()) as line:
        length = f"content-length: {2**20 + 1}"
        line.send(request("POST", path, caller.token, b"", "expect: 100-continue", length))
        answer = line.read()
        assert is_problem(answer, 413)
        assert answer.headers["connection"] == "close"
        assert line.is_closed()


@pytest.mark.parametrize("n", [0, 1])
def test_too_large_a_body_is_refused_though_it_is_sent(strict: Bus, n: int):
    caller = strict.client()
    path = paths(strict.topic())[n]
    for size in (2**20 + 1, 30 * 2**20):  # the second is on its way for longer than the answer takes
        assert is_problem(caller.post(path, b" " * size), 413)


@pytest.mark.parametrize("n", [0, 1])
def test_a_chunked_body_without_end_is_cut_off(strict: Bus, n: int):
    caller = strict.client()
    path = paths(strict.topic())[n]
    with line_to(strict.address()) as line:
        line.send(request("POST", path, caller.token, b"", "transfer-encoding: chunked"))
        for _ in range(17):
            line.send(b"10000\r\n" + b" " * 2**16 + b"\r\n")
        assert is_problem(line.read(), 413)
        assert line.is_closed()


@pytest.mark.parametrize("n", [0, 1])
def test_a_body_that_comes_too_slowly_is_given_up(strict: Bus, n: int):
    caller = strict.client()
    path = paths(strict.topic())[n]
    with line_to(strict.address()) as line:
        line.send(request("POST", path, caller.token, b"", f"content-length: {len(EVENT)}") + EVENT[:10])
        assert is_problem(line.read(), 408)
        assert line.is_closed()


@pytest.mark.parametrize("n", [0, 1])
def test_a_body_that_never_starts_is_given_up(strict: Bus, n: int):
    caller = strict.client()
    with line_to(strict.address()) as line:
        line.send(request("POST", paths(strict.topic())[n], caller.token, b"", "content-length: 10"))
        assert is_problem(line.read(), 408)
        assert line.is_closed()


UNAUTHORIZED = request("POST", "/subscription", "nobody--0123456789", b"", "content-length: 200000")


def test_what_is_left_of_a_refused_calls_body_is_no_header(strict: Bus):
    with line_to(strict.address()) as line:
        line.send(UNAUTHORIZED + b"x" * 10)
        assert is_problem(line.read(), 401)
        for _ in range(19):
            line.send(b"x" * 10_000)
        line.send(b"x" * 9_990 + request("GET", "/health"))
        assert line.read().status == 200
        line.send(request("GET", "/topics?" + "x" * 5000))  # headers are bounded as ever
        assert line.read().status == 400
        assert line.is_closed()


def test_a_refused_calls_body_is_not_read_for_ever(strict: Bus):
    with line_to(strict.address()) as line:
        line.send(request("POST", "/subscription", "nobody--0123456789", b"", "transfer-encoding: chunked"))
        assert is_problem(line.read(), 401)
        with contextlib.suppress(ConnectionError):
            for _ in range(1000):
                line.send(b"10000\r\n" + b" " * 2**16 + b"\r\n")
            pytest.fail("a megabyte is the limit, and 64 were taken")


def test_clients_that_hang_up_leave_nothing_behind(strict: Bus):
    """Each holds more than half of what may wait in the process: a leak would refuse the third."""
    caller = strict.client()
    topic = strict.topic()
    for _ in range(4):
        with line_to(strict.address()) as line:
            head = request("POST", f"/topics/{topic}", caller.token, b"", f"content-length: {900_000}")
            line.send(head + b" " * 600_000)
        with line_to(strict.address()) as line:
            line.send(request("POST", "/subscription", caller.token, b"", "content-length: 100") + b"{")
    assert strict.owner_and_events(topic) is None
    answer = caller.post(f"/topics/{topic}", EVENT.ljust(600_000))
    assert answer.status == 200


# Headers


def test_too_large_headers_are_refused(strict: Bus):
    caller = strict.client()
    topic = strict.topic()
    padding = "x-padding: " + "x" * 5000
    for wanted in (
        request("POST", f"/topics/{topic}", caller.token, EVENT, padding),
        request("GET", "/topics", caller.token, b"", padding),
        request("GET", "/topics?" + "x" * 5000, caller.token),
    ):
        with line_to(strict.address()) as line:
            line.send(wanted)
            assert line.read().status in (400, 414, 431)
            assert line.is_closed()
    assert strict.owner_and_events(topic) is None


def test_headers_without_end_are_refused(strict: Bus):
    with line_to(strict.address()) as line:
        line.send(b"GET /health HTTP/1.1\r\nhost: bus\r\n")
        for _ in range(5):
            line.send(b"x-padding: " + b"x" * 1000 + b"\r\n")
        assert line.read().status in (400, 431)
        assert line.is_closed()


def test_a_request_line_without_end_is_refused(strict: Bus):
    with line_to(strict.address()) as line:
        line.send(b"GET /" + b"x" * 6000)
        assert line.read().status in (400, 414, 431)
        assert line.is_closed()


def test_headers_up_to_their_limit_are_taken(strict: Bus):
    caller = strict.client()
    wanted = request("POST", f"/topics/{strict.topic()}", caller.token, EVENT, "x-padding: " + "x" * 3500)
    with line_to(strict.address()) as line:
        line.send(wanted)
        assert line.read().status == 200


@pytest.mark.parametrize(
    "wanted",
    [
        b"NONSENSE\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /health HTTP/1.1\r\nno colon here\r\n\r\n",
        b"GET /health HTTP/1.1\r\nbad name: x\r\n\r\n",
        b"GET /health HTTP/1.1\r\nx: \x00\r\n\r\n",
        b"POST /topics/x HTTP/1.1\r\ncontent-length: abc\r\n\r\n",
        b"POST /topics/x HTTP/1.1\r\ncontent-length: -5\r\n\r\n",
        b"POST /topics/x HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nabcdef",
        b"POST /topics/x HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /topics/x HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\n",
        b"POST /topics/x HTTP/1.1\r\ntransfer-encoding: gzip\r\n\r\nabc",
        b"POST /subscription HTTP/1.1\r\ncontent-length: 99999999999999999999999999\r\n\r\n",
        b"POST /topics/x HTTP/1.1\r\ncontent-length: 99999999999999999999999999\r\n\r\n",
    ],
)
def test_what_is_no_http_gets_400_and_is_closed(bus: Bus, wanted: bytes):
    with line_to(bus.address()) as line:
        line.send(wanted)
        answer = line.read()
        assert is_problem(answer, 400)
        assert line.is_closed()


def test_a_chunk_that_is_broken_later_stores_nothing(bus: Bus, publisher: Caller, topic: str):
    with line_to(bus.address()) as line:
        line.send(request("POST", f"/topics/{topic}", publisher.token, b"", "transfer-encoding: chunked"))
        line.send(b"%x\r\n%s\r\nZZ\r\n" % (len(EVENT), EVENT))
        assert line.read().status == 400
        assert line.is_closed()
    assert bus.owner_and_events(topic) is None


@pytest.mark.parametrize("path", ["/%", "/%zz", "/topics/%", "/topics/%ff", "/..%2f..", "/topics?%00", "//"])
def test_odd_paths_get_a_plain_answer(bus: Bus, publisher: Caller, path: str):
    for method in ("GET", "POST", "DELETE"):
        with line_to(bus.address()) as line:
            line.send(request(method, path, publisher.token, EVENT if method == "POST" else b""))
            assert line.read().status in (200, 400, 404, 405)


@pytest.mark.parametrize("host", ["http://bus", "http://127.0.0.1:7080", "HTTPS://[::1]:7080"])
def test_a_target_may_be_in_absolute_form(bus: Bus, publisher: Caller, topic: str, host: str):
    """As a proxy sends it, and as every server must take it."""
    with line_to(bus.address()) as line:
        for method, path, body, status in (
            ("POST", f"/topics/{topic}", EVENT, 200),
            ("POST", f"/topics/{topic}?x=1", EVENT, 200),
            ("GET", "/topics", b"", 200),
            ("GET", "/health?x=http://a/b", b"", 200),
            ("GET", "", b"", 404),
            ("GET", "?x=1", b"", 404),
            ("DELETE", f"/topics/{topic}", b"", 204),
        ):
            line.send(request(method, host + path, publisher.token, body))
            assert line.read(method).status == status, (method, path)
    with line_to(bus.address()) as line:
        line.send(request("POST", f"{host}/topics/x", None, b"", f"content-length: {9 * 2**20}"))
        assert is_problem(line.read(), 413)


def test_headers_that_come_too_slowly_are_given_up(bus: Bus):
    """Twice the time between two looks, at most."""
    with line_to(bus.address()) as line:
        line.send(b"GET /health HTTP/1.1\r\nhost:")
        assert line.is_closed()


def test_any_character_of_a_path_may_be_in_percents(bus: Bus, publisher: Caller, topic: str):
    name = "".join(f"%{ord(letter):02x}" for letter in topic)
    body = {"type": "create", "url": "https://example.com/1"}
    for path in (f"/%74opics/{topic}", f"/topics/{name}", f"/topics%2F{topic}?a=%3F"):
        assert publisher.post(path, body).status == 200
    words = {"event": "created", "url": "https://example.com/1"}
    assert publisher.post(f"/%63hannel/{topic}", words).status == 204
    assert is_problem(publisher.post(f"/topics/{topic}%3Fx", body), 400, field="topic")
    assert bus.owner_and_events(topic) == (publisher.id, 4)
