"""Events: what is accepted, what is refused and how that is explained, and how they are encoded."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from routemaster.errors import InvalidInput
from routemaster.event import (
    MAX_TIMESTAMP_MS,
    MAX_URL,
    TYPES,
    Event,
    address_of,
    are_usable,
    encode_event,
    encode_events,
    fingerprint,
    is_usable,
    key_field,
    parse_many,
    parse_one,
    runs_of,
)

URL = "https://example.com/1"
EVENT = {"type": "create", "url": URL}
MAX_DATA = 200
NOW_MS = 1_700_000_000_000
UID = "0" * 20

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
datas = st.dictionaries(st.text(), json_values, max_size=4)
paths = st.text(st.characters(codec="utf-8", exclude_characters="\x7f", min_codepoint=33)).filter(
    lambda text: not any(character.isspace() for character in text)
)
events = st.fixed_dictionaries(
    {"type": st.sampled_from(TYPES), "url": paths.map(lambda path: f"https://example.com/{path}"[:MAX_URL])},
    optional={
        "timestamp": st.none() | st.integers(0, MAX_TIMESTAMP_MS),
        "data": st.none() | datas,
        "environment": st.none()
        | st.integers(-(10**9), 10**9)
        | st.from_regex(r"[A-Za-z0-9_.-]{1,64}", fullmatch=True),
        "id": st.none() | st.from_regex(r"[A-Za-z0-9_.:-]{1,64}", fullmatch=True),
    },
)


def one(max_data: int = MAX_DATA, **fields: Any) -> Event:
    return parse_one(json.dumps({**EVENT, **fields}).encode(), max_data)


def refusal(body: bytes, max_data: int = MAX_DATA) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        parse_one(body, max_data)
    return caught.value


# Accepted


@pytest.mark.parametrize("kind", TYPES)
def test_every_type_is_accepted(kind: str):
    assert one(type=kind).type == kind


@pytest.mark.parametrize(
    "url",
    [
        "http://e",
        "HTTPS://E.x/",
        "https://e.x:8/a?b#c",
        "https://e.x/" + "a" * (MAX_URL - 12),
        "https://é.x/ü",
    ],
)
def test_urls_that_are_accepted(url: str):
    assert one(url=url).url == url


@pytest.mark.parametrize("field", ["timestamp", "data", "environment", "id"])
def test_null_is_the_same_as_absent(field: str):
    event = one(**{field: None})
    assert encode_event("t", event, UID, NOW_MS, None) == encode_event("t", one(), UID, NOW_MS, None)
    assert fingerprint(event) == fingerprint(one())


@pytest.mark.parametrize("value", [0, 1, MAX_TIMESTAMP_MS])
def test_timestamps_that_are_accepted(value: int):
    assert one(timestamp=value).timestamp == value


@pytest.mark.parametrize("value", ["a", "eu-west.1_x", "a" * 64, 0, -1, 10**18, int("9" * 64)])
def test_environments_that_are_accepted(value: str | int):
    assert one(environment=value).environment == value


# Refused, and by which field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("type", "created"),
        ("type", None),
        ("type", 1),
        ("type", ["create"]),
        ("url", None),
        ("url", 5),
        ("url", ""),
        ("url", "ftp://example.com/"),
        ("url", "https://"),
        ("url", "https:///path"),
        ("url", "https://exa mple.com/"),
        ("url", "https://example.com/\n"),
        ("url", "https://example.com/\x7f"),
        ("url", "https://example.com/" + "a" * MAX_URL),
        ("timestamp", -1),
        ("timestamp", MAX_TIMESTAMP_MS + 1),
        ("timestamp", 1.0),
        ("timestamp", "1"),
        ("timestamp", True),
        ("data", []),
        ("data", "text"),
        ("data", 1),
        ("data", False),
        ("environment", ""),
        ("environment", "a b"),
        ("environment", "a:b"),
        ("environment", "a" * 65),
        ("environment", 10**64),
        ("environment", 1.5),
        ("environment", True),
        ("id", ""),
        ("id", "a" * 65),
        ("id", "a/b"),
        ("id", "é"),
        ("id", 7),
        ("topic", "orders"),
        ("Type", "create"),
    ],
)
def test_what_is_wrong_is_named(field: str, value: object):
    fields = {**EVENT, field: value}
    body = json.dumps(fields).encode()
    assert refusal(body).field == field
    for lines in (False, True):
        bulk = [json.dumps(EVENT).encode(), body]
        text = b"\n".join(bulk) if lines else b"[" + b",".join(bulk) + b"]"
        with pytest.raises(InvalidInput) as caught:
            parse_many(text, MAX_DATA, 10, lines=lines)
        assert (caught.value.field, caught.value.index) == (field, 1)
        assert caught.value.expected == refusal(body).expected


@pytest.mark.parametrize("missing", ["type", "url"])
def test_what_is_missing_is_named(missing: str):
    body = json.dumps({name: value for name, value in EVENT.items() if name != missing}).encode()
    assert (refusal(body).field, refusal(body).expected) == (missing, "to be present")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nothing",
        b"null",
        b"5",
        b'"text"',
        b'{"type":"create","url":"https://e.x"} more',
        b'{"type":"create","url":"https://e.x","data":{"a":01}}',
        b'{"type":"create","url":"https://e.x","data":{"a":"\n"}}',
        b'{"type":"create","url":"https://e.x","data":{"a":NaN}}',
        b'{"type":"create","url":"https://e.x","data":{"a":1,}}',
        b'{"type":"create","url":"https://e.x","data":{"a":"\\x"}}',
        b'\xef\xbb\xbf{"type":"create","url":"https://e.x"}',
    ],
)
def test_what_is_no_json_object_is_refused_as_a_body(body: bytes):
    assert refusal(body).field == "body"


def test_a_field_given_twice_is_told_as_that():
    body = b'{"type":"bogus","type":"create","url":"https://e.x"}'
    refused = refusal(body)
    assert refused.field != "data"
    assert "once" in refused.expected


@pytest.mark.parametrize("depth", [*range(900, 1010, 5), 10_000])
def test_what_is_nested_too_deeply_is_refused_not_a_crash(depth: int):
    """Where exactly depends on the stack; there must be no depth at which anything else happens."""
    data = b'{"a":' + b"[" * depth + b"\r" + b"]" * depth + b"}"
    body = b'{"type":"create","url":"https://e.x","data":' + data + b"}"
    for parse in (
        lambda: parse_one(body, 10**6),
        lambda: parse_many(b"[" + body + b"]", 10**6, 10, lines=False),
        lambda: parse_many(body, 10**6, 10, lines=True),
    ):
        try:
            parse()
        except InvalidInput as error:
            assert error.field == "body"


# Data


def data_of(size: int) -> dict[str, str]:
    """An object whose JSON has just so many bytes."""
    return {"a": "x" * (size - len('{"a":""}'))}


def test_data_may_be_as_long_as_allowed_and_no_longer():
    exact = msgspec.json.encode({**EVENT, "data": data_of(MAX_DATA)})
    assert bytes(parse_one(exact, MAX_DATA).data) == msgspec.json.encode(data_of(MAX_DATA))
    refused = refusal(msgspec.json.encode({**EVENT, "data": data_of(MAX_DATA + 1)}))
    assert (refused.field, refused.expected) == ("data", f"at most {MAX_DATA} bytes of JSON")


def test_whitespace_does_not_count():
    text = json.dumps({**EVENT, "data": data_of(MAX_DATA)}, indent=8).encode()
    assert bytes(parse_one(text, MAX_DATA).data) == msgspec.json.encode(data_of(MAX_DATA))


@pytest.mark.parametrize("space", [b"\n", b"\r", b"\r\n", b"\n\t  \n"])
def test_line_breaks_in_data_are_taken_out(space: bytes):
    body = (
        b'{"type":"create","url":"https://e.x","data":{'
        + space
        + b'"a":'
        + space
        + b'"b\\nc"'
        + space
        + b"}}"
    )
    assert bytes(parse_one(body, MAX_DATA).data) == b'{"a":"b\\nc"}'


@pytest.mark.parametrize("text", [b'{"a":"\\ud800"}', b'{"a":"\\udc00\\ud800"}', b'{"\\ud83d":1}'])
def test_half_a_character_is_refused(text: bytes):
    """A subscriber could not decode what a publisher got accepted."""
    body = b'{"type":"create","url":"https://e.x","data":' + text + b"}"
    assert refusal(body).field == "body"


@pytest.mark.parametrize("text", [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf4\x90\x80\x80"])
@pytest.mark.parametrize("where", [b'"data":{"a":"%s"}', b'"url":"https://e.x/%s"', b'"id":"%s"'])
def test_invalid_utf_8_is_refused_everywhere(where: bytes, text: bytes):
    body = b'{"type":"create","url":"https://e.x",' + where.replace(b"%s", text) + b"}"
    assert refusal(body).field == "body"
    for lines in (False, True):
        with pytest.raises(InvalidInput):
            parse_many(body if lines else b"[" + body + b"]", MAX_DATA, 10, lines=lines)


@pytest.mark.parametrize(
    "text", ['"é"', '"\\u00e9"', '"\\ud83d\\ude00"', '"😀"', '"\\u2028"', '"\u2028"', '"\x85"']
)
def test_unicode_is_carried_as_it_came(text: str):
    body = f'{{"type":"create","url":"https://e.x","data":{{"a":{text}}}}}'.encode()
    assert bytes(parse_one(body, MAX_DATA).data) == f'{{"a":{text}}}'.encode()


# Many


def test_an_array_and_lines_hold_the_same_events():
    texts = [json.dumps({**EVENT, "url": f"{URL}{n}"}).encode() for n in range(5)]
    array = parse_many(b"[" + b",".join(texts) + b"]", MAX_DATA, 5, lines=False)
    for end in (b"", b"\n"):
        assert parse_many(b"\n".join(texts) + end, MAX_DATA, 5, lines=True) == array
    assert [event.url for event in array] == [f"{URL}{n}" for n in range(5)]


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        (b"[]", False),
        (b"", True),
        (b"\n\n", True),
        (b" ", True),
        (b'[{"type":"create"', False),
        (b"{}", False),
        (b"[1]", False),
    ],
)
def test_what_holds_no_events_is_refused(body: bytes, lines: bool):
    with pytest.raises(InvalidInput):
        parse_many(body, MAX_DATA, 10, lines=lines)


def test_too_many_events_are_counted():
    body = json.dumps([EVENT] * 11).encode()
    assert len(parse_many(body, MAX_DATA, 11, lines=False)) == 11
    with pytest.raises(InvalidInput, match="at most 10 events, not 11"):
        parse_many(body, MAX_DATA, 10, lines=False)


# Encoding


def test_an_event_is_delivered_as_documented():
    event = one(timestamp=5, data={"a": [1, "é"]}, environment="eu", id="key-1")
    trace = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    assert json.loads(encode_event("orders", event, UID, NOW_MS, trace)) == {
        "topic": "orders",
        "type": "create",
        "url": URL,
        "t": 5,
        "data": {"a": [1, "é"]},
        "id": UID,
        "key": "key-1",
        "traceparent": trace,
    }
    assert json.loads(encode_event("orders", one(), UID, NOW_MS, None)) == {
        "topic": "orders",
        "type": "create",
        "url": URL,
        "t": NOW_MS,
        "id": UID,
    }


@given(st.lists(events, min_size=1, max_size=5), st.sampled_from([None, 2]))
@example([{"type": "noop", "url": "https://e.x", "data": {"\u2028": "a,\nb", "c": "\r\n"}}], 1)
def test_what_is_accepted_is_delivered_as_it_was_sent(wanted: list[dict[str, Any]], indent: int | None):
    body = json.dumps(wanted, indent=indent, ensure_ascii=indent is not None).encode()
    found = parse_many(body, 10**6, 5, lines=False)
    uids = [f"{n:020d}" for n in range(len(wanted))]
    encoded = encode_events("orders", found, uids, NOW_MS, None)
    assert len(encoded) == len(wanted)
    assert encoded == [
        encode_event("orders", event, uid, NOW_MS, None) for event, uid in zip(found, uids, strict=True)
    ]
    for sent, line, uid in zip(wanted, encoded, uids, strict=True):
        assert b"\n" not in line
        assert b"\r" not in line
        expected = {"topic": "orders", "type": sent["type"], "url": sent["url"], "id": uid}
        expected["t"] = NOW_MS if sent.get("timestamp") is None else sent["timestamp"]
        if sent.get("data") is not None:
            expected["data"] = sent["data"]
        if sent.get("id") is not None:
            expected["key"] = sent["id"]
        assert json.loads(line) == expected
    joined = b"[" + b",\n".join(encoded) + b"]"
    assert len(json.loads(joined)) == len(wanted)


@given(st.binary(max_size=60), st.integers(0, 80))
def test_whatever_is_accepted_is_json_for_everyone(noise: bytes, at: int):
    """Damage a good event anywhere: it is refused, or what is delivered is still strict JSON."""
    good = b'{"type":"create","url":"https://e.x/1","data":{"a":[1,2.5,"\\u00e9",null,true],"b":{}}}'
    body = good[:at] + noise + good[at + len(noise) // 2 :]
    try:
        event = parse_one(body, 1000)
    except InvalidInput:
        return
    line = encode_event("orders", event, UID, NOW_MS, None)
    assert b"\n" not in line
    json.loads(line.decode(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


@given(st.lists(json_values | st.fixed_dictionaries({"type": json_values, "url": json_values}), max_size=3))
def test_any_json_is_accepted_or_explained(values: list[Any]):
    body = json.dumps(values).encode()
    for lines in (False, True):
        text = b"\n".join(json.dumps(value).encode() for value in values) if lines else body
        try:
            found = parse_many(text, MAX_DATA, 10, lines=lines)
        except InvalidInput as error:
            assert error.expected
        else:
            assert len(found) == len(values)


# Addresses, fingerprints and keys


@given(
    st.lists(st.tuples(st.sampled_from(TYPES), st.sampled_from([None, "default", "eu", 1, "1"])), min_size=1)
)
def test_runs_cover_the_events_in_order(kinds: list[tuple[Any, Any]]):
    found = [Event(kind, URL, environment=environment) for kind, environment in kinds]
    unrolled = [address for size, address in runs_of("orders", found) for _ in range(size)]
    assert unrolled == [address_of("orders", environment, kind) for kind, environment in kinds]
    assert unrolled[0].split(":")[1] == "orders"


@pytest.mark.parametrize(
    "change",
    [
        {"type": "update"},
        {"url": URL + "2"},
        {"timestamp": 6},
        {"data": {"a": 2}},
        {"data": {}},
        {"environment": "us"},
    ],
)
def test_another_event_has_another_fingerprint(change: dict[str, Any]):
    fields = {"timestamp": 5, "data": {"a": 1}, "environment": "eu", "id": "k"}
    first = one(**fields)
    assert fingerprint(first) == fingerprint(one(**fields))
    assert fingerprint(first) != fingerprint(one(**{**fields, **change}))
    assert len(fingerprint(first)) == 8


def test_a_key_is_scoped_to_client_and_topic():
    fields = {key_field(client, topic, key) for client in "ab" for topic in "cd" for key in "ef"}
    assert len(fields) == 8
    assert {len(field) for field in fields} == {20}
    assert key_field("a", "b", "c") == key_field("a", "b", "c")


pieces = st.sampled_from(
    ["https://", "http://", "/", "?", "#", " ", "\n", "\x7f", "\0", "a", "é", "HTTPS://", ""]
)
texts = st.lists(pieces, max_size=5).map("".join)
raws = st.sampled_from(
    [b"", b"{}", b'{"a":1}', b'{"a":\n1}', b"null", b"[]", b'"{"', b"1", b'{"a":"%s"}' % (b"x" * 300)]
)


@given(
    st.lists(st.tuples(texts, raws, st.none() | st.just(5), st.none() | st.just("k")), min_size=1, max_size=4)
)
@example([("https://", b"", None, None)])
@example([("https://a", b"", None, None), ("https://", b"", None, None)])
@example([("https://a https://b", b"", None, None)])
@example([("https://" + "a" * MAX_URL, b"", None, None)])
def test_events_judged_together_are_judged_as_one_by_one(rows: list[tuple[Any, ...]]):
    def made() -> list[Event]:
        return [Event("create", url, None, msgspec.Raw(data), env, key) for url, data, env, key in rows]

    one_by_one, together = made(), made()
    expected = not [event for event in one_by_one if not is_usable(event, MAX_DATA)]
    assert are_usable(together, MAX_DATA) == expected
    if expected:
        assert [bytes(event.data) for event in together] == [bytes(event.data) for event in one_by_one]
