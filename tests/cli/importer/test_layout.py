"""What the original's bytes mean, written out by hand where it matters."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routemaster.cli.importer.layout import (
    Counter,
    Head,
    Message,
    Unreadable,
    name_of,
    read_counter,
    read_head,
    read_message,
    read_subscriber,
)
from routemaster.event import TYPES
from tests.cli.importer.original import event_bytes, pack

EVENT = (
    b"\x92\xa1e\x85"  # an array of two: "e", and a map of five
    b"\xa1t\xcf\x00\x00\x01\x74\x87\x6e\x80\x01"  # t: 1600000000001
    b"\xa1o\xa6orders"
    b"\xa1y\xa6create"
    b"\xa1u\xb6https://shop.example/1"
    b"\xa1d\x81\xa1n\x01"
)


def test_an_event_as_ruby_packs_it():
    data = msgspec.Raw(b'{"n":1}')
    message = Message("orders", "create", "https://shop.example/1", 1_600_000_000_001, data)
    assert read_message(EVENT) == message
    assert event_bytes("orders", message.url, "create", message.t, {"n": 1}) == EVENT
    assert read_message(EVENT[:-4] + b"\xc0") == message._replace(data=msgspec.Raw(b""))


def test_text_may_have_been_packed_as_bytes():
    item = pack([b"e", {b"t": 1, b"o": b"orders", b"y": b"noop", b"u": b"https://x/", b"d": {b"k": b"v"}}])
    assert read_message(item) == Message("orders", "noop", "https://x/", 1, msgspec.Raw(b'{"k":"v"}'))


@pytest.mark.parametrize("code", ["p", "k"])
def test_pings_and_kills_are_no_events(code: str):
    assert read_message(pack([code, {"t": 1}])) is None


@pytest.mark.parametrize(
    ("t", "read"),
    [(5, 5), (5.9, 5), ("5", 5), (0, 0), (-1, None), (None, None), ("now", None), (2**60, None)],
)
def test_a_publishers_own_timestamp_was_not_checked(t: object, read: int | None):
    item = pack(["e", {"t": t, "o": "orders", "y": "noop", "u": "https://x/"}])
    if read is None:
        with pytest.raises(Unreadable, match="timestamp"):
            read_message(item)
    else:
        message = read_message(item)
        assert message and message.t == read


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"o": "Orders"}, "topic"),
        ({"o": "a" * 65}, "topic"),
        ({"o": None}, "topic"),
        ({"y": "created"}, "type"),
        ({"y": ["noop"]}, "type"),
        ({"u": ""}, "URL"),
        ({"u": 7}, "URL"),
        ({"d": [1]}, "data"),
        ({"d": "text"}, "data"),
    ],
)
def test_what_is_wrong_with_an_event_is_said(change: dict[str, object], why: str):
    fields = {"t": 1, "o": "orders", "y": "noop", "u": "https://x/", "d": None, **change}
    with pytest.raises(Unreadable, match=why):
        read_message(pack(["e", fields]))


@pytest.mark.parametrize(
    "item",
    [
        b"",
        b"\xc1",
        EVENT[:-1],
        EVENT + b"\x00",
        b"\x91" * 100_000,
        pack(["e"]),
        pack(["e", []]),
        pack(["x", {"t": 1}]),
        pack([["e"], {}]),
        pack({"e": 1}),
        b"orders,create,17487000000,https://shop.example/1",
        b"\x92\xa1e\x81\x90\x01",
        b"\x92\xa1e\x81\xa1d\xc7\x01\x05\x00",
        b"\x92\xa1e\x85\xa1t\x01\xa1o\xa1a\xa1y\xa4noop\xa1u\xa1x\xa1d\x81\xa1k\xc4\x01\xff",
    ],
)
def test_what_is_none_is_unreadable(item: bytes):
    with pytest.raises(Unreadable):
        read_message(item)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_unreadable(item: bytes):
    for read in (read_message, lambda item: read_head([item] * 3), lambda item: read_counter(item, item)):
        try:
            read(item)
        except Unreadable as error:
            assert str(error)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(
    st.from_regex(r"[a-z_]{1,64}", fullmatch=True),
    st.sampled_from(TYPES),
    st.text(min_size=1, max_size=40),
    st.integers(0, 2**47),
    st.none() | st.dictionaries(st.text(max_size=5), values, max_size=3),
)
def test_what_was_written_is_read(topic: str, type: str, url: str, t: int, data: dict[str, object] | None):
    message = read_message(event_bytes(topic, url, type, t, data))
    assert message is not None
    assert message[:4] == (topic, type, url, t)
    assert b"\n" not in bytes(message.data)
    assert (msgspec.json.decode(message.data) if message.data else None) == data


def test_the_head_of_a_batch():
    assert read_head([b"mail--1", b"1600000000000", b"3", b"rest"]) == Head("mail--1", 1_600_000_000_000, 3)
    for items in ([], [b"mail--1", b"1"], [b"\xff", b"1", b"0"], [b"mail--1", b"x", b"0"], [b"m", b"1", b""]):
        with pytest.raises(Unreadable):
            read_head(items)


def test_numbers_of_a_subscriber_that_are_none_count_as_absent():
    fields = {b"timeout": b"x", b"max_events": b"0", b"health_points": b"-7", b"last_attempted_at": b""}
    read = read_subscriber("mail--1", fields, {"orders"})
    assert (read.timeout_ms, read.max_events, read.health_points) == (500, 1, 0)
    assert (read.last_attempted_at, read.callback, read.topics) == (None, "", frozenset({"orders"}))


def test_a_counter_as_ruby_packs_it():
    field = b"\x92\xafdelivery.events\x92\x92\xa5queue\xa7mail--1\x92\xa6status\xa7success"
    tags = {"queue": "mail--1", "status": "success"}
    assert read_counter(field, b"7") == Counter("delivery.events", tags, 7)


@pytest.mark.parametrize(
    ("token", "service", "name"),
    [
        ("shop--0123", "shop", "shop"),
        ("a shop!--0123", "", "a-shop-"),
        ("--0123", "", "client"),
        ("x" * 60 + "--0123", "", "x" * 48),
        ("0123-4567", "billing", "billing"),
        ("0123-4567", "billing--0123", "billing"),
        ("0123-4567", "0123-4567", "client"),
        ("0123-4567", "", "client"),
    ],
)
def test_a_name_has_nothing_of_what_is_secret(token: str, service: str, name: str):
    assert name_of(token, service) == name
