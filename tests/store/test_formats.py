"""One flush in two formats: each lane gets its own, the log has the usual one, and numbers agree."""

import msgspec
import pytest

from routemaster.store.publish import Stored
from routemaster.web.flush import Part
from tests.store.room import RECEIVED_AT, Room, line, lines, request, url_for


async def subscribe(room: Room, **options: int) -> tuple[str, str]:
    """A subscriber of each format."""
    usual = await room.subscribe("usual", "orders", "rides", **options)
    channel = await room.subscribe("early", "orders", "rides", format="channel", **options)
    return usual, channel


def early(topic: str, number: int, event: str = "created") -> bytes:
    url = f"https://example.com/{number}"
    return msgspec.json.encode({"channel": topic, "event": event, "url": url, "t": RECEIVED_AT})


async def test_each_lane_gets_its_own_format(room: Room):
    usual, channel = await subscribe(room, max=2)
    await room.publish("orders", 5)
    assert room.queued(usual) == lines("orders", 1, 5)
    assert room.queued(channel) == [early("orders", n) for n in range(1, 6)]
    assert [batch.runs for batch in room.ready(usual)] == [batch.runs for batch in room.ready(channel)]
    assert [batch.events for batch in room.ready(channel)] == [2, 2]
    assert room.gauges("early") == (3, 5)


async def test_the_log_and_the_last_event_have_the_usual_format(room: Room):
    await subscribe(room)
    await room.publish("orders", 2)
    (_, block), *_ = room.blocks()
    assert block["e"].encode() == b",\n".join(lines("orders", 1, 2))
    assert room.fields("topic:orders")["last_event"].encode() == line("orders", 2)


async def test_nothing_is_encoded_twice_where_nobody_wants_it(room: Room):
    await room.subscribe("usual", "orders")
    await room.subscribe("early", "rides", format="channel")
    flush = await room.web.flush(request("orders", 3))
    assert (flush.channel_starts, flush.channel_text) == (b"", b"")


async def test_several_requests_and_topics_in_one_flush(room: Room):
    usual, channel = await subscribe(room)
    other = await room.subscribe("other", "rides", format="channel")
    await room.web.publish(
        request("orders", 2),
        request("rides", 1, first=10),
        request("orders", 1, first=20),
        request("users", 4),
    )
    assert room.queued(usual) == [*lines("orders", 1, 2), line("rides", 10), line("orders", 20)]
    assert room.queued(channel) == [
        early("orders", 1),
        early("orders", 2),
        early("rides", 10),
        early("orders", 20),
    ]
    assert room.queued(other) == [early("rides", 10)]


async def test_types_in_the_words_of_the_channel_dialect(room: Room):
    _, channel = await subscribe(room)
    types = ["create", "update", "delete", "noop"]
    await room.web.publish(request("orders", 4, runs=[(1, f"default:orders:{type}") for type in types]))
    assert [msgspec.json.decode(text)["event"] for text in room.queued(channel)] == [
        "created",
        "updated",
        "deleted",
        "updated",
    ]


@pytest.mark.parametrize("repeated", [(0,), (2,), (0, 1), (1, 3), (0, 1, 2, 3)], ids=str)
async def test_repeated_events_are_left_out_of_both(room: Room, repeated: tuple[int, ...]):
    keys = [f"k{n}" for n in range(4)]
    known = [keys[n] for n in repeated]
    await room.web.publish(request("orders", len(known), keys=[*known], first=100))
    usual, channel = await subscribe(room)
    answer = await room.web.publish(request("orders", 4, keys=[*keys]))
    assert isinstance(answer, Stored)
    assert set(answer.repeated) == {*repeated}
    fresh = [n + 1 for n in range(4) if n not in repeated]
    assert room.queued(usual) == [line("orders", n) for n in fresh]
    assert room.queued(channel) == [early("orders", n) for n in fresh]


async def test_parallel_lanes_in_both_formats(room: Room):
    await subscribe(room, parallelism=3)
    urls = [url_for(n % 3, 3, n // 3) for n in range(9)]
    await room.web.publish(request("orders", 9, urls=urls))
    for n in range(3):
        usual = room.queued(room.lane("usual", n))
        channel = room.queued(room.lane("early", n))
        assert usual == [line("orders", number) for number in range(n + 1, 10, 3)]
        assert [msgspec.json.decode(text)["url"] for text in channel] == [urls[i] for i in range(n, 9, 3)]


async def test_a_part_of_a_wide_request_has_just_its_events(room: Room):
    usual, channel = await subscribe(room)
    publish = request("orders", 10, runs=[(4, "default:orders:create"), (6, "eu:orders:delete")])
    for start, stop in ((0, 3), (3, 7), (7, 10)):
        await room.web.access.refresh()
        flush = room.web.flusher._build([Part(publish, start, stop)], start + 1)
        assert isinstance(await room.web.send(flush), Stored)
    assert room.queued(usual) == lines("orders", 1, 10)
    assert room.queued(channel) == [
        early("orders", n, "created" if n <= 4 else "deleted") for n in range(1, 11)
    ]


async def test_the_same_flush_again_stores_nothing(room: Room):
    await subscribe(room)
    flush = await room.web.flush(request("orders", 3))
    assert await room.web.send(flush) == Stored({})
    before = room.dump()
    assert await room.web.send(flush) == Stored({})
    assert room.dump() == before


async def test_text_of_any_language_is_cut_at_its_bytes(room: Room):
    """Offsets count bytes; an event that is cut within a character would be no JSON."""
    _, channel = await subscribe(room, max=1)
    urls = [f"https://example.com/{text}" for text in ("é", "日本語", "a", "🚌" * 50)]
    await room.web.publish(request("orders", 4, urls=urls))
    assert [msgspec.json.decode(text)["url"] for text in room.queued(channel)] == urls


async def test_what_is_current_is_split_in_its_own_format(room: Room):
    usual, channel = await subscribe(room, max=10)
    await room.publish("orders", 5)
    await subscribe(room, max=2)
    assert [batch.lines for batch in room.ready(channel)] == [
        [early("orders", 1), early("orders", 2)],
        [early("orders", 3), early("orders", 4)],
    ]
    assert room.queued(channel)[4:] == [early("orders", 5)]
    assert room.queued(usual) == lines("orders", 1, 5)
