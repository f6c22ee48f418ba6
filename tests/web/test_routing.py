"""Routing a flush: every event to just the lanes that it belongs to, in order, also in parts."""

import re
import zlib
from types import SimpleNamespace
from typing import Any, cast

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from routemaster.event import SEPARATOR
from routemaster.store.clients import Client, Grants
from routemaster.store.publish import Flush, Limits
from routemaster.store.registry import Subscription
from routemaster.uid import Maker
from routemaster.web import flusher as subject
from routemaster.web.flush import Part, Publish
from routemaster.web.flusher import Flusher
from routemaster.web.snapshot import CHANNEL_FORMAT, TOPIC_FORMAT, Snapshot

TOPICS = ("orders", "rides", "users")
UNANSWERED = SimpleNamespace(response_complete=False)  # what is asked of a request while it is stored
unpack = msgspec.msgpack.decode


LIMITED = Client("limited", "limited", "client", (), Grants(read=("eu:*", "*:users:*")))
MATCHES = [(), (), ("^eu:",), (":orders:create$", "rides"), ("nothing",)]


class Access:
    """What the flusher needs of it: a snapshot."""

    def __init__(self, subscriptions: list[Subscription]) -> None:
        clients = {"limited": LIMITED}
        self.snapshot = Snapshot(b"epoch", clients, {}, {sub.id: sub for sub in subscriptions})


def make_flusher(subscriptions: list[Subscription]) -> Flusher:
    limits = Limits(window_ms=1, max_keys=1, max_log_bytes=1)
    return Flusher(cast(Any, None), "ns:", cast(Any, Access(subscriptions)), Maker(), limits)


def make_request(topic: str, events: list[tuple[str, str, str]], number: int) -> Publish:
    """A request of (url, environment, type) events, told apart by their lines."""
    lines = [b"%d.%d" % (number, n) + b"x" * (n % 7) for n in range(len(events))]
    runs: list[tuple[int, str]] = []
    for _, environment, kind in events:
        address = f"{environment}:{topic}:{kind}"
        if runs and runs[-1][1] == address:
            runs[-1] = (runs[-1][0] + 1, address)
        else:
            runs.append((1, address))
    urls = [url for url, _, _ in events]
    size = sum(map(len, lines))
    return Publish(
        cast(Any, UNANSWERED),
        lambda _: None,
        f"client{topic}",
        "d",
        topic,
        None,
        lines,
        [],
        runs,
        urls,
        None,
        size,
        0,
    )


subscriptions = st.lists(
    st.builds(
        Subscription,
        id=st.sampled_from([f"s{n}" for n in range(8)]),
        client=st.sampled_from(["c", "c", "limited"]),
        max_events=st.integers(1, 100),
        timeout_ms=st.integers(0, 1000),
        incarnation=st.just("inc"),
        set=st.integers(1, 3),
        parallelism=st.sampled_from([1, 1, 1, 2, 3]),
        is_channel=st.booleans(),
        match=st.sampled_from(MATCHES),
        topics=st.frozensets(st.sampled_from(TOPICS)),
    ),
    max_size=6,
    unique_by=lambda sub: sub.id,
)
one_event = st.tuples(
    st.sampled_from([f"https://e.x/{n}" for n in range(6)]),
    st.sampled_from(["default", "eu"]),
    st.sampled_from(["create", "update"]),
)
wanted = st.lists(
    st.tuples(st.sampled_from(TOPICS), st.lists(one_event, min_size=1, max_size=8)), min_size=1, max_size=5
)


def wants(sub: Subscription, address: str) -> bool:
    if sub.client == "limited" and not (address.startswith("eu:") or ":users:" in address):
        return False
    return address.split(":")[1] in sub.topics or any(re.search(pattern, address) for pattern in sub.match)


def naive(subs: list[Subscription], requests: list[Publish]) -> dict[str, list[bytes]]:
    """Event by event, subscription by subscription."""
    lanes: dict[str, list[bytes]] = {}
    for publish in requests:
        addresses = [address for count, address in publish.runs for _ in range(count)]
        for line, url, address in zip(publish.lines, publish.urls, addresses, strict=True):
            for sub in subs:
                if wants(sub, address):
                    n = zlib.crc32(url.encode()) % sub.parallelism
                    lanes.setdefault(f"{sub.id}#inc.{sub.set}.{n}", []).append(line)
    return lanes


def lines_in(flush: Flush) -> list[bytes]:
    """The events, cut out of the text as the script does."""
    starts = memoryview(flush.starts).cast("I")
    assert len(starts) == flush.events + 1
    return [flush.text[starts[n] : starts[n + 1] - len(SEPARATOR)] for n in range(flush.events)]


def lanes_in(flush: Flush) -> dict[str, list[bytes]]:
    lines = lines_in(flush)
    lanes: dict[str, list[bytes]] = {}
    for at in range(0, len(flush.groups), 2):
        packed = flush.groups[at + 1]
        runs = unpack(packed) if packed else [0, len(lines)]
        assert all(start < stop for start, stop in zip(runs[::2], runs[1::2], strict=True))
        assert all(stop < start for stop, start in zip(runs[1::2], runs[2::2], strict=False)), (
            "runs to be joined"
        )
        got = [line for start, stop in zip(runs[::2], runs[1::2], strict=True) for line in lines[start:stop]]
        for name, *_ in unpack(flush.groups[at]):
            assert name not in lanes, "a lane in two groups"
            lanes[name] = got
    return lanes


def whole(requests: list[Publish]) -> list[Part]:
    return [Part(publish, 0, len(publish.lines)) for publish in requests]


@given(subscriptions, wanted)
def test_every_event_goes_to_just_its_lanes_in_order(subs: list[Subscription], events: list[Any]):
    requests = [make_request(topic, some, n) for n, (topic, some) in enumerate(events)]
    flush = make_flusher(subs)._build(whole(requests), 1)
    assert lines_in(flush) == [line for publish in requests for line in publish.lines]
    assert lanes_in(flush) == naive(subs, requests)


@given(subscriptions, wanted)
def test_lanes_carry_their_subscriptions_options(subs: list[Subscription], events: list[Any]):
    requests = [make_request(topic, some, n) for n, (topic, some) in enumerate(events)]
    flush = make_flusher(subs)._build(whole(requests), 1)
    for lanes in flush.groups[::2]:
        for name, subscriber, max_events, timeout_ms, form in unpack(lanes):
            sub = next(sub for sub in subs if sub.id == subscriber)
            assert name.startswith(f"{sub.id}#inc.{sub.set}.")
            assert (max_events, timeout_ms) == (sub.max_events, sub.timeout_ms)
            assert form == (CHANNEL_FORMAT if sub.is_channel else TOPIC_FORMAT)


@given(subscriptions, wanted)
def test_the_channel_format_goes_along_where_a_lane_wants_it(subs: list[Subscription], events: list[Any]):
    requests = [make_request(topic, some, n) for n, (topic, some) in enumerate(events)]
    flush = make_flusher(subs)._build(whole(requests), 1)
    forms = {form for lanes in flush.groups[::2] for *_, form in unpack(lanes)}
    if CHANNEL_FORMAT not in forms:
        assert (flush.channel_starts, flush.channel_text) == (b"", b"")
        return
    starts = memoryview(flush.channel_starts).cast("I")
    texts = [flush.channel_text[starts[n] : starts[n + 1] - len(SEPARATOR)] for n in range(flush.events)]
    words = {"create": "created", "update": "updated"}
    assert [msgspec.json.decode(text) for text in texts] == [
        {"channel": topic, "event": words[kind], "url": url, "t": 0}
        for topic, some in events
        for url, _, kind in some
    ]


@given(wanted)
def test_topics_and_side_columns_account_for_every_event(events: list[Any]):
    requests = [make_request(topic, some, n) for n, (topic, some) in enumerate(events)]
    flush = make_flusher([])._build(whole(requests), 1)
    lines = lines_in(flush)
    topics = {name: (client, events, last) for name, client, events, last in unpack(flush.topics)}
    for name, (client, count, last) in topics.items():
        of_topic = [line for publish in requests if publish.topic == name for line in publish.lines]
        assert (client, count, lines[last]) == (f"client{name}", len(of_topic), of_topic[-1])
    assert sum(count for _, count, _ in topics.values()) == len(lines)
    unrolled = []
    for count, publisher, kind, topic, environment, trace in msgspec.json.decode(flush.side):
        assert (publisher, kind, trace) == (f"client{topic}", "event", None)
        unrolled += [(topic, environment)] * count
    assert unrolled == [(topic, environment) for topic, some in events for _, environment, _ in some]


@given(subscriptions, wanted, st.integers(1, 60), st.integers(1, 200))
def test_cutting_wide_requests_keeps_every_event_once_and_in_order(
    subs: list[Subscription], events: list[Any], max_bytes: int, max_copied: int
):
    requests = [make_request(topic, some, n) for n, (topic, some) in enumerate(events)]
    flusher = make_flusher(subs)
    limits = subject.MAX_BYTES, subject.MAX_WORK, subject.MAX_WIDE
    subject.MAX_BYTES, subject.MAX_WORK, subject.MAX_WIDE = max_bytes, max_copied, max_copied // 2
    seen: dict[str, list[bytes]] = {}
    try:
        for publish in requests:
            flusher.submit(publish)
        for _ in range(1000):
            if not flusher._queue and not flusher._wide:
                break
            parts = flusher._collect()
            assert parts
            for lane, lines in lanes_in(flusher._build(parts, 1)).items():
                seen.setdefault(lane, []).extend(lines)
            assert all(part.start == part.publish.stored < part.stop for part in parts)
            flusher._finish(parts, {})  # what is left of a request waits until its first part is stored
    finally:
        subject.MAX_BYTES, subject.MAX_WORK, subject.MAX_WIDE = limits
    assert not flusher._queue
    assert not flusher._wide
    assert flusher._waiting_bytes == 0
    expected = naive(subs, requests)
    assert {lane: sorted(lines) for lane, lines in seen.items()} == {
        lane: sorted(lines) for lane, lines in expected.items()
    }
    for lane, lines in seen.items():
        for n in range(len(requests)):  # requests may pass each other; the events of one keep their order
            mine = [line for line in lines if line.startswith(b"%d." % n)]
            assert mine == [line for line in expected[lane] if line.startswith(b"%d." % n)]


@given(subscriptions, wanted)
def test_a_flush_reserves_enough_batch_ids(subs: list[Subscription], events: list[Any]):
    """Even if every lane has an open batch that takes one event, and the rest needs new ones."""
    requests = [make_request(topic, some, n) for n, (topic, some) in enumerate(events)]
    flusher = make_flusher(subs)
    first = flusher._build(whole(requests), 1)
    needed = 0
    options = {name: (most, wait) for lanes in first.groups[::2] for name, _, most, wait, _ in unpack(lanes)}
    for lane, lines in lanes_in(first).items():
        most = options[lane][0]
        needed += 1 + -(-(len(lines) - 1) // most)
    second = flusher._build(whole(requests), 2)
    if first.bid_prefix[8:] == second.bid_prefix[8:]:
        assert second.bid_number - first.bid_number >= needed
