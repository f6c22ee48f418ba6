"""Building a flush: what several requests have accepted, as the one call that stores it takes it.

Bytes were encoded when they were accepted; here they are only joined, with where each event starts, and
lanes that get the same events are grouped, so that neither this nor the script does any work per event.
"""

import sys
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import msgspec

from routemaster.event import SEPARATOR, encode_channel
from routemaster.store.publish import Flush
from routemaster.uid import Maker
from routemaster.web.server import Post
from routemaster.web.snapshot import Lane, Route, Snapshot

BATCH_WORK = 1024  # work is counted in bytes copied to lanes; to open a batch is as much as so many of them

_encode_json = msgspec.json.encode
_pack = msgspec.msgpack.encode


@dataclass(slots=True)
class Publish:
    """One request: its events, encoded, and what is needed to route and answer them."""

    post: Post
    answer: Callable[["Publish"], None]
    client: str
    digest: str
    topic: str
    traceparent: str | None
    lines: list[bytes]
    uids: list[str]
    runs: list[tuple[int, str]]  # how many events in a row have the same address
    urls: list[str]
    keys: list[tuple[str, str]] | None
    size: int  # bytes that are not in the air or stored yet
    received_at: int
    epoch: bytes = b""  # of the snapshot that it was judged by
    width: int = 1  # subscribers of the address that has most
    opens: float = 0.0  # batches that each of its events opens, there
    stored: int = 0
    channel: list[bytes] | None = None  # its events in the channel format, once somebody wants that
    repeated: dict[int, str] = field(default_factory=dict[int, str])

    def work(self, size: int, events: int) -> float:
        """What it costs the store to file so many events of so many bytes: their copies, and the batches
        that they open, which is most of it where a subscriber takes one or two at a time."""
        return size * self.width + events * self.opens * BATCH_WORK


@dataclass(slots=True)
class Part:
    """The events of one request that go in one flush."""

    publish: Publish
    start: int
    stop: int

    def runs(self) -> list[tuple[int, str]]:
        publish = self.publish
        if self.stop - self.start == len(publish.lines):
            return publish.runs
        runs: list[tuple[int, str]] = []
        at = 0
        for events, address in publish.runs:
            among = min(at + events, self.stop) - max(at, self.start)
            if among > 0:
                runs.append((among, address))
            at += events
        return runs

    def channel_lines(self) -> list[bytes]:
        publish = self.publish
        if publish.channel is None:
            publish.channel = encode_channel(publish.topic, publish.runs, publish.urls, publish.received_at)
        return publish.channel[self.start : self.stop]


def build(
    parts: list[Part], number: int, told: Sequence[int], snapshot: Snapshot, process: str, uids: Maker
) -> Flush:
    """The flush with this number of a process. `told` is what it has the store count of earlier ones."""
    lines: list[bytes] = []
    keys: list[tuple[int, str, str]] = []
    topics: dict[str, list[str | int]] = {}
    side: list[list[str | int | None]] = []
    runs: list[tuple[int, str]] = []
    for part in parts:
        publish, start, stop = part.publish, part.start, part.stop
        at = len(lines)
        lines += publish.lines if stop - start == len(publish.lines) else publish.lines[start:stop]
        if publish.keys is not None:
            # The first part of a wide request has the keys of all of it checked: a conflict
            # must not be found when half of it is stored.
            last = len(publish.keys) if start == 0 else stop
            for index, (name, value) in enumerate(publish.keys[start:last]):
                if name:
                    keys.append((at + index, name, value))
        topic = topics.get(publish.topic)
        if topic is None:
            topics[publish.topic] = [publish.topic, publish.client, stop - start, len(lines) - 1]
        else:
            topic[2] = int(topic[2]) + stop - start
            topic[3] = len(lines) - 1
        of_part = part.runs()
        _add_side(side, publish, of_part)
        runs += of_part
    route = snapshot.route
    routed = [(events, route(address)) for events, address in runs]
    groups, lanes = _groups(routed, parts)
    channel: list[bytes] = []
    if any(way.has_channel for _, way in routed):
        channel = [line for part in parts for line in part.channel_lines()]
    prefix, first = uids.range(2 + sum(2 + len(lines) // lane.max_events for lane in lanes))
    return Flush(
        snapshot.epoch,
        process,
        number,
        time.time_ns() // 1_000_000,
        uids(),
        prefix,
        first,
        _pack(list(topics.values())),
        _encode_json(side),
        _pack(keys) if keys else b"",
        len(lines),
        _starts(lines),
        SEPARATOR.join(lines),
        _starts(channel) if channel else b"",
        SEPARATOR.join(channel),
        _pack(told) if told else b"",
        groups,
    )


def _starts(lines: list[bytes]) -> bytes:
    """Where each event starts in the text, and where one more would: 4 bytes each, little-endian."""
    step = len(SEPARATOR)
    starts = array("I", accumulate([len(line) + step for line in lines], initial=0))
    if sys.byteorder == "big":
        starts.byteswap()
    return starts.tobytes()


def _add_side(side: list[list[str | int | None]], publish: Publish, runs: list[tuple[int, str]]) -> None:
    """Side columns, run by run: what the log keeps of events beside what is delivered."""
    for events, address in runs:
        environment = address.partition(":")[0]
        last = side[-1] if side else None
        if (
            last is not None
            and last[3] == publish.topic
            and last[4] == environment
            and last[1] == publish.client
            and last[5] == publish.traceparent
        ):
            last[0] = int(last[0] or 0) + events
        else:
            side.append([events, publish.client, "event", publish.topic, environment, publish.traceparent])


def _groups(routed: list[tuple[int, Route]], parts: list[Part]) -> tuple[list[bytes], list[Lane]]:
    """Lanes, and the runs of events that go to each: in turns, as the script takes them."""
    first = routed[0][1]
    if not first.parallel and all(route is first for _, route in routed):
        return ([first.packed, b""] if first.lanes else []), first.lanes
    by_lane: dict[Lane, list[int]] = {}
    at = 0
    urls: list[str] = []
    for events, route in routed:
        for lane in route.lanes:
            _extend(by_lane.setdefault(lane, []), at, at + events)
        if route.parallel:
            urls = urls or [url for part in parts for url in part.publish.urls[part.start : part.stop]]
            for lanes in route.parallel:
                for index in range(at, at + events):
                    _extend(by_lane.setdefault(route.lane_for(lanes, urls[index]), []), index, index + 1)
        at += events
    by_runs: dict[bytes, list[Lane]] = {}
    for lane, runs in by_lane.items():
        by_runs.setdefault(_pack(runs), []).append(lane)
    return [packed for runs, lanes in by_runs.items() for packed in (_pack(lanes), runs)], list(by_lane)


def _extend(runs: list[int], start: int, stop: int) -> None:
    if runs and runs[-1] == start:
        runs[-1] = stop
    else:
        runs += (start, stop)
