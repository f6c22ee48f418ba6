"""Callbacks: which URLs may be delivered to, however they are written."""

import ipaddress

import pytest

from routemaster.callback import host_of, is_allowed

LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"),)


@pytest.mark.parametrize(
    ("callback", "expected"),
    [
        ("http://example.com/", ("example.com", 80)),
        ("https://example.com", ("example.com", 443)),
        ("HTTPS://Example.COM:8443/in?x=1", ("example.com", 8443)),
        ("http://127.0.0.1:9000/", ("127.0.0.1", 9000)),
        ("http://[::1]:9000/", ("::1", 9000)),
        ("http://xn--bcher-kva.example/", ("xn--bcher-kva.example", 80)),
        ("http://my_service:80/", ("my_service", 80)),
        ("http://example.com/a@b", ("example.com", 80)),
        ("http://example.com#@127.0.0.1/", ("example.com", 80)),
    ],
)
def test_the_host_of_a_callback(callback: str, expected: tuple[str, int]):
    assert host_of(callback) == expected


@pytest.mark.parametrize(
    "callback",
    [
        "",
        "example.com",
        "ftp://example.com/",
        "file:///etc/passwd",
        "http://",
        "http:///path",
        "http://:80/",
        "http://example.com:99999/",
        "http://example.com:port/",
        "http://[::1/",
        "http://exa mple.com/",
        "http://example.com/\n",
        "http://example.com/" + "a" * 1024,
    ],
)
def test_what_is_no_callback(callback: str):
    assert host_of(callback) is None


@pytest.mark.parametrize(
    "callback",
    [
        "http://user:secret@example.com/",
        "http://user@example.com/",
        "http://:secret@example.com/",
        "http://@example.com/",
        "http://example.com\\@127.0.0.1/",
        "http://example.com:80@127.0.0.1/",
    ],
)
def test_credentials_are_no_part_of_a_callback(callback: str):
    assert host_of(callback) is None


@pytest.mark.parametrize(
    "host",
    [
        "127。0。0。1",
        "①②⑦.0.0.1",
        "🯱🯲🯷。0。0。1",
        "🯱🯶🯹.254.169.254",
        "%31%32%37.0.0.1",
        "bücher.example",
        "exam\u00adple.com",
    ],
)
def test_a_host_is_written_in_ascii(host: str):
    """The client that connects maps such names to others, addresses among them, after our check."""
    assert host_of(f"http://{host}/") is None


@pytest.mark.parametrize(
    "address",
    ["8.8.8.8", "93.184.216.34", "2606:4700::1", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1"],
)
def test_public_addresses_are_allowed(address: str):
    assert is_allowed(address, ())


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.255.255.254",
        "0.0.0.0",
        "10.0.0.1",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "198.18.0.1",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "fe80::1",
        "fe80::1%eth0",
        "fc00::1",
        "fd12:3456::1",
        "fec0::1",
        "ff02::1",
        "2001:db8::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "::ffff:169.254.169.254",
        "::127.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::1",
        "2002:7f00:1::1",
        "2002:a00:1::1",
    ],
)
def test_addresses_that_are_not_public_are_not(address: str):
    assert not is_allowed(address, ())


@pytest.mark.parametrize(
    "text",
    [
        "2130706433",
        "0177.0.0.1",
        "0x7f000001",
        "0x7f.1",
        "127.1",
        "localhost",
        "",
        "1.2.3",
        "8.8.8.8 ",
        "[::1]",
    ],
)
def test_what_is_not_plainly_an_address_is_not_allowed(text: str):
    """The system would take some of these for 127.0.0.1."""
    assert not is_allowed(text, LOOPBACK)


def test_networks_that_the_settings_allow():
    networks = (ipaddress.ip_network("10.1.0.0/16"), ipaddress.ip_network("::1/128"))
    assert is_allowed("10.1.2.3", networks)
    assert is_allowed("::ffff:10.1.2.3", networks)
    assert is_allowed("::1", networks)
    assert not is_allowed("10.2.0.1", networks)
    assert not is_allowed("127.0.0.1", networks)
    assert is_allowed("8.8.8.8", networks)
