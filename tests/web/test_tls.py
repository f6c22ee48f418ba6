"""TLS: served directly, asked for, and believed of a proxy."""

import contextlib
import datetime
import http.client
import json
import socket
import ssl
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from tests.bus import ROUTEMASTER, Bus, Store, running_bus
from tests.conftest import MakeBus
from tests.receiver import Inbox
from tests.until import until
from tests.wire import Caller, line_to, request

EVENT = {"type": "create", "url": "https://example.com/1"}


class Files:
    """A certificate and its key, as an operator has them."""

    def __init__(self, folder: Path) -> None:
        self.cert, self.key = folder / "bus.pem", folder / "bus.key"
        self.authority = trustme.CA()
        self.renew()

    def renew(self) -> bytes:
        """A new certificate in the place of the last; what it looks like on the wire."""
        until_at = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)
        made = self.authority.issue_cert("127.0.0.1", not_after=until_at)
        made.private_key_pem.write_to_path(str(self.key))
        chain = b"".join(pem.bytes() for pem in made.cert_chain_pems)
        draft = self.cert.with_suffix(".new")
        draft.write_bytes(chain)
        draft.replace(self.cert)
        return ssl.PEM_cert_to_DER_cert(made.cert_chain_pems[0].bytes().decode())

    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        self.authority.configure_trust(context)
        return context


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
def secure(store: Store, files: Files) -> Iterator[Bus]:
    with running_secure(store, files) as bus:
        yield bus


@contextlib.contextmanager
def running_secure(store: Store, files: Files, **settings: str) -> Iterator[Bus]:
    bus = Bus(store, workers=0, tls_cert=str(files.cert), tls_key=str(files.key), **settings)
    try:
        bus.web.start()
        until(lambda: not bus.web.is_running or shown(bus), "the web process to serve")
        assert bus.web.is_running, bus.web.log
        yield bus
        assert "Traceback" not in bus.log, bus.log
    finally:
        bus.stop()


def shown(bus: Bus) -> bytes | None:
    """The certificate that a new connection gets."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with contextlib.suppress(OSError), socket.create_connection(bus.address(), 5) as plain:
        plain.settimeout(5)
        with context.wrap_socket(plain) as wrapped:
            return wrapped.getpeercert(binary_form=True)
    return None


@contextlib.contextmanager
def asked(
    bus: Bus, files: Files, method: str, path: str, token: str, body: bytes | None = None
) -> Iterator[http.client.HTTPResponse]:
    connection = http.client.HTTPSConnection(*bus.address(), timeout=10, context=files.context())
    connection.request(method, path, body, {"authorization": f"Bearer {token}"})
    yield connection.getresponse()
    connection.close()


def test_it_is_served_to_those_who_trust_it(secure: Bus, files: Files):
    with asked(secure, files, "POST", "/api_tokens", secure.root_key, b'{"name": "shop"}') as made:
        assert made.status == 201
        token = json.load(made)["token"]
    body = json.dumps(EVENT).encode()
    with asked(secure, files, "POST", "/topics/orders", token, body) as answer:
        assert (answer.status, answer.read()) == (200, b"")
    with asked(secure, files, "GET", "/topics", token) as answer:
        assert [row["events"] for row in json.load(answer)] == [1]


def test_plain_http_gets_nothing_there(secure: Bus):
    with line_to(secure.address()) as line:
        line.send(request("GET", "/health"))
        assert line.is_closed()


def test_old_protocols_are_not_spoken(secure: Bus, files: Files):
    context = files.context()
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with socket.create_connection(secure.address(), 5) as plain, pytest.raises((ssl.SSLError, OSError)):
        context.wrap_socket(plain, server_hostname="127.0.0.1")


def test_a_new_certificate_is_taken_up_and_old_connections_go_on(secure: Bus, files: Files):
    connection = http.client.HTTPSConnection(*secure.address(), timeout=10, context=files.context())
    connection.request("GET", "/health")
    assert connection.getresponse().read() == b"{}"
    renewed = files.renew()
    until(lambda: shown(secure) == renewed, "the new certificate")
    connection.request("GET", "/health")
    assert connection.getresponse().read() == b"{}"
    connection.close()


def test_a_broken_certificate_does_not_replace_a_good_one(secure: Bus, files: Files):
    good = shown(secure)
    files.cert.write_text("-----BEGIN CERTIFICATE-----\nhalf of it")
    until(lambda: "cannot be used" in secure.web.log, "the bad news in the log")
    assert shown(secure) == good
    renewed = files.renew()
    until(lambda: shown(secure) == renewed, "the new certificate")


@pytest.mark.parametrize("what", ["no key", "no cert", "absent", "garbage", "another key", "password"])
def test_what_cannot_be_used_stops_the_start(files: Files, tmp_path: Path, what: str):
    environ = {
        "ROUTEMASTER_TLS_CERT": str(files.cert),
        "ROUTEMASTER_TLS_KEY": str(files.key),
        "PATH": "/usr/bin",
    }
    if what in ("no key", "no cert"):
        environ.pop("ROUTEMASTER_TLS_KEY" if what == "no key" else "ROUTEMASTER_TLS_CERT")
    elif what == "absent":
        files.cert.unlink()
    elif what == "garbage":
        files.cert.write_text("garbage")
    elif what == "another key":
        trustme.CA().private_key_pem.write_to_path(str(files.key))
    else:
        key = serialization.load_pem_private_key(files.key.read_bytes(), None)
        lock = serialization.BestAvailableEncryption(b"secret")
        form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        files.key.write_bytes(key.private_bytes(*form, lock))
    done = subprocess.run([*ROUTEMASTER, "web"], env=environ, capture_output=True, text=True, timeout=20)
    assert done.returncode == 2, done
    assert "ROUTEMASTER_TLS_" in done.stderr
    assert "Traceback" not in done.stderr


# Without it


@pytest.fixture
def required(store: Store) -> Iterator[Bus]:
    with running_bus(store, require_tls="1") as bus:
        yield bus
        assert "Traceback" not in bus.log, bus.log


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/topics"),
        ("GET", "/topics?a=b&c=%2F"),
        ("POST", "/topics/widgets"),
        ("POST", "/channel/widgets"),
        ("POST", "/subscription"),
        ("DELETE", "/subscriber"),
        ("GET", "/nonsense"),
        ("POST", "/topics/UNUSABLE"),
    ],
)
def test_plain_requests_are_sent_to_https(required: Bus, method: str, path: str):
    """Before anything else is looked at: their credentials have crossed the network in the clear."""
    for caller in (required.root, required.caller(None)):
        answer = caller.call(method, path, b"{}" if method == "POST" else None)
        host, port = required.address()
        assert (answer.status, answer.headers["location"]) == (308, f"https://{host}:{port}{path}"), answer


def test_a_large_body_is_not_waited_for(required: Bus):
    with line_to(required.address()) as line:
        line.send(b"POST /topics/widgets HTTP/1.1\r\nhost: bus\r\ncontent-length: 1000000\r\n\r\n")
        assert line.read().status == 308


def test_health_is_exempt(required: Bus):
    for path in ("/health", "/health/ping", "/health/ping.json"):
        assert required.caller(None).get(path).status == 200


@pytest.mark.parametrize("host", [b"", b"a b", b"x\tsecret", b"h/../", b"'><script>", b"a" * 300])
def test_nobody_is_sent_to_a_strange_host(required: Bus, host: bytes):
    for path in ("/topics", "/topics/widgets"):
        method = b"GET" if path == "/topics" else b"POST"
        with line_to(required.address()) as line:
            line.send(method + b" " + path.encode() + b" HTTP/1.1\r\nhost: " + host + b"\r\n\r\n")
            answer = line.read()
            assert answer.status == 400
            assert "location" not in answer.headers


def test_what_anybody_says_of_https_is_not_believed(required: Bus):
    assert required.root.get("/topics", x_forwarded_proto="https").status == 308
    assert required.root.post("/topics/widgets", EVENT, x_forwarded_proto="https").status == 308


@pytest.mark.parametrize(
    ("said", "status"),
    [("https", 200), ("HTTPS", 200), ("http, https", 200), ("https, http", 308), ("", 308)],
)
def test_a_trusted_proxy_is_believed(make_bus: MakeBus, said: str, status: int):
    bus = make_bus(workers=0, require_tls="1", trusted_proxies="127.0.0.0/8,10.0.0.0/8")
    proxied = Proxied(bus.root, said)
    assert proxied.call("GET", "/topics").status == status
    if status == 200:
        made = proxied.call("POST", "/api_tokens", {"name": "shop"})
        publisher = Proxied(bus.caller(made.json["token"]), said)
        assert publisher.call("POST", "/topics/orders", EVENT).status == 200


class Proxied:
    def __init__(self, caller: Caller, said: str) -> None:
        self._caller = caller
        self._said = said

    def call(self, method: str, path: str, body: object = None):
        return self._caller.call(method, path, body, x_forwarded_proto=self._said)


@pytest.mark.parametrize(
    ("settings", "status"),
    [
        ({"host": "127.0.0.1"}, 204),
        ({"host": "localhost"}, 204),
        ({"host": "0.0.0.0"}, 308),
        ({"host": "bus.example"}, 308),
        ({"host": "0.0.0.0", "require_tls": "off"}, 204),
    ],
    ids=str,
)
def test_it_is_required_where_others_can_reach_it(make_bus: MakeBus, settings: dict[str, str], status: int):
    """The socket is given; the setting says what it is for."""
    assert make_bus(workers=0, **settings).root.get("/pulse").status == status


# Callbacks


def test_callbacks_are_https_too_while_it_is_on(make_bus: MakeBus, inbox: Inbox):
    proxied = {"require_tls": "1", "trusted_proxies": "127.0.0.0/8"}
    bus = make_bus(workers=0, **proxied)
    made = Proxied(bus.root, "https").call("POST", "/api_tokens", {"name": "shop"})
    shop = Proxied(bus.caller(made.json["token"]), "https")
    wanted = {"topics": ["orders"], "callback": inbox.url, "uuid": "u"}
    for path, body in (
        ("/subscription", wanted),
        ("/queue", {**wanted, "channels": ["orders"]} | {"topics": None}),
    ):
        answer = shop.call("POST", path, {key: value for key, value in body.items() if value is not None})
        assert answer.status == 400
        reason = answer.headers.get("routemaster-reason") or answer.json["detail"]
        assert "https" in reason
    secure = {**wanted, "callback": inbox.url.replace("http:", "https:")}
    assert shop.call("POST", "/subscription", secure).status == 204
    allowing = make_bus(workers=0, allow_http_callbacks="1", **proxied)
    made = Proxied(allowing.root, "https").call("POST", "/api_tokens", {"name": "shop"})
    assert (
        Proxied(allowing.caller(made.json["token"]), "https").call("POST", "/subscription", wanted).status
        == 204
    )


def test_a_callback_from_before_is_not_sent_to_while_it_is_on(store: Store, inbox: Inbox):
    with running_bus(store) as bus:
        shop = bus.client("shop")
        shop.subscribe(inbox.url, "orders", timeout=0)
        shop.publish("orders")
        inbox.until_events(1)
        bus.worker.kill()
        worker = bus.add_worker(require_tls="1")
        worker.start()
        bus.until_beats(worker)
        shop.publish("orders")
        until(lambda: bus.subscriber(shop)["why"] == "insecure", "the refusal to be told")
        worker.kill()
        bus.worker.start()
        inbox.until_events(2)
