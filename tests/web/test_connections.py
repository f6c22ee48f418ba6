"""What a connection may and may not do to others: held bodies, lost answers, upgrades."""

import json
import socket
import subprocess

import pytest

from tests.bus import Bus
from tests.conftest import MakeBus, MakeClient
from tests.receiver import Inbox
from tests.until import until
from tests.wire import Caller, basic, line_to, request

EVENT = b'{"type":"create","url":"https://example.com/1"}'
UPGRADE = (
    "connection: Upgrade, HTTP2-Settings",
    "upgrade: h2c",
    "http2-settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA",
)


def head(path: str, token: str, length: int, *more: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: bus", f"authorization: {basic(token)}", *more]
    return "\r\n".join([*lines, f"content-length: {length}", "", ""]).encode()


def test_a_connection_that_ends_gives_back_what_it_held(make_bus: MakeBus):
    bus = make_bus(workers=0, max_pending_bytes="1m")
    publisher, topic = bus.client("publisher"), bus.topic()
    publisher.publish(topic)
    first = b"POST /topics/x HTTP/1.0\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\n{}"
    second = b"POST /topics/x HTTP/1.1\r\ncontent-length: 40000\r\n\r\n" + b"x" * 40_000
    for _ in range(100):
        with socket.create_connection(bus.address()) as line:
            line.sendall(first + second)
    until(lambda: publisher.post(f"/topics/{topic}", EVENT).status == 200, "what was held to be given back")


def test_strangers_cannot_fill_the_memory_with_bodies(make_bus: MakeBus):
    bus = make_bus(workers=0, max_pending_bytes="1m")
    publisher, topic = bus.client("publisher"), bus.topic()
    held: list[socket.socket] = []
    for _ in range(20):
        line = socket.create_connection(bus.address())
        line.sendall(head("/topics/x", "nobody--0123456789", 1_000_000) + b"x" * 50_000)
        held.append(line)
    until(lambda: publisher.post(f"/topics/{topic}", EVENT).status == 200, "publishing to go on")
    assert held[0].recv(12) == b"HTTP/1.1 401"
    for line in held:
        line.close()


def test_a_stranger_is_not_waited_for_however_chunked_is_spelt(bus: Bus):
    with line_to(bus.address()) as line:
        line.send(b"POST /topics/x HTTP/1.1\r\nhost: bus\r\ntransfer-encoding: Chunked\r\n\r\n")
        assert line.read("POST").status == 401


def test_an_early_refusal_does_not_overtake_the_answer_before_it(bus: Bus, publisher: Caller, topic: str):
    with line_to(bus.address()) as line:
        line.send(
            request("POST", f"/topics/{topic}", publisher.token, EVENT)
            + head(f"/topics/{topic}", publisher.token, 99_999_999)
        )
        assert [line.read("POST").status for _ in range(2)] == [200, 413]


def test_an_upgrade_is_declined_and_the_request_served(bus: Bus, publisher: Caller, topic: str):
    with line_to(bus.address()) as line:
        line.send(head(f"/topics/{topic}", publisher.token, len(EVENT), *UPGRADE) + EVENT)
        assert line.read("POST").status == 200
    with line_to(bus.address()) as line:
        line.send(head(f"/topics/{topic}", publisher.token, len(EVENT), *UPGRADE))
        line.send(EVENT)
        assert line.read("POST").status == 200
    body = json.dumps({"topics": [topic], "callback": "http://127.0.0.1:9/", "uuid": "u"}).encode()
    with line_to(bus.address()) as line:
        line.send(head("/subscription", publisher.token, len(body), *UPGRADE) + body)
        assert line.read("POST").status == 204


def test_a_connect_is_refused(bus: Bus):
    with line_to(bus.address()) as line:
        line.send(b"CONNECT example.com:80 HTTP/1.1\r\nhost: example.com\r\n\r\n")
        assert line.read("POST").status == 400


def test_trailers_are_not_kept(bus: Bus, publisher: Caller, topic: str):
    chunked = (
        f"POST /topics/{topic} HTTP/1.1\r\nhost: bus\r\ntransfer-encoding: chunked\r\n\r\n".encode()
        + b"%x\r\n%s\r\n0\r\n" % (len(EVENT), EVENT)
    )
    with line_to(bus.address()) as line:
        line.send(chunked + f"authorization: {basic(publisher.token)}\r\n\r\n".encode())
        assert line.read("POST").status == 401


def test_a_client_that_is_deleted_while_it_sends_subscribes_to_nothing(
    bus: Bus, client: MakeClient, topic: str, inbox: Inbox
):
    gone = client("gone")
    body = json.dumps({"topics": [topic], "callback": inbox.url, "uuid": "u"}).encode()
    with line_to(bus.address()) as line:
        line.send(head("/subscription", gone.token, len(body), "expect: 100-continue"))
        assert line.read_line().startswith(b"HTTP/1.1 100")  # its credential has been looked at
        assert line.read_line() == b"\r\n"
        assert bus.root.delete(f"/api_tokens/{gone.id}").status == 204
        line.send(body)
        assert line.read("POST").status == 401
    assert gone.id not in [row["subscriber"] for row in bus.root.get("/subscriptions").json]


def test_curl_says_what_it_always_says(bus: Bus, publisher: Caller, topic: str):
    """`curl -d` names a form as its content type; the README's examples rely on it."""
    host, port = bus.address()
    url = f"http://{host}:{port}/topics/{topic}"
    command = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "-u", f"{publisher.token}:", url]
    try:
        done = subprocess.run([*command, "-d", EVENT.decode()], capture_output=True, timeout=20, check=True)
    except FileNotFoundError:
        form = {"content-type": "application/x-www-form-urlencoded"}
        assert publisher.post(f"/topics/{topic}", EVENT, **form).status == 200
    else:
        assert done.stdout == b"200"


@pytest.mark.parametrize(
    ("path", "length"),
    [
        ("/topics/widgets", 100_000),
        ("/channel/widgets", 100_000),
        ("/subscription", 100_000),
        ("/nonsense", 10),
        ("/nonsense", 100_000),
    ],
)
def test_who_waits_in_vain_for_100_continue_is_cut_off(bus: Bus, path: str, length: int):
    """A client that is refused may leave its body out; what came next would be taken for it."""
    with line_to(bus.address()) as line:
        line.send(head(path, "unknown--token", length, "expect: 100-continue"))
        first = line.read_line()
        while first in (b"HTTP/1.1 100 Continue\r\n", b"\r\n"):
            first = line.read_line()
        assert first.startswith(b"HTTP/1.1 401"), first
        rest = b"".join(iter(line.read_line, b""))  # to the end of the connection
        assert b"connection: close\r\n" in rest
