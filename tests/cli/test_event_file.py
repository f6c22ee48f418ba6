"""Cutting files into events: wherever the chunks end, the same events come, with their lines."""

import json
import os
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routemaster.cli.event_file import Array, BadEvent, Lines, Written, read

Cutter = Lines | Array
values = st.dictionaries(
    st.text(max_size=4), st.recursive(st.text(max_size=6) | st.integers(), st.lists, max_leaves=4), max_size=3
)


def cut(cutter: Cutter, text: bytes, sizes: list[int]) -> Iterator[Written]:
    """All events, with chunks of these sizes in turns."""
    at, turn = 0, 0
    while at < len(text):
        size = sizes[turn % len(sizes)]
        yield from cutter.feed(text[at : at + size])
        at, turn = at + size, turn + 1
    yield from cutter.end()


@given(
    st.lists(values, max_size=8),
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.sampled_from([None, 1]),
    st.booleans(),
)
def test_an_array_gives_its_values_whatever_the_chunks(
    items: list[dict], sizes: list[int], indent: int | None, ascii_only: bool
):
    text = json.dumps(items, indent=indent, ensure_ascii=ascii_only)
    found = list(cut(Array(), text.encode("utf-8", "replace"), sizes))
    whole = list(cut(Array(), text.encode("utf-8", "replace"), [10_000]))
    assert found == whole
    assert len(found) == len(items)
    for event in found:
        first = event.text.split(b"\n")[0]
        assert first in text.encode("utf-8", "replace").split(b"\n")[event.line - 1]
    if ascii_only:
        assert [json.loads(event.text) for event in found] == items


@given(
    st.lists(st.text("ab \t\r", max_size=5), max_size=8), st.lists(st.integers(1, 9), min_size=1, max_size=4)
)
def test_lines_give_what_stands_on_them(lines: list[str], sizes: list[int]):
    text = "\n".join(lines).encode()
    wanted = [Written(number, line.strip().encode()) for number, line in enumerate(lines, 1) if line.strip()]
    assert list(cut(Lines(), text, sizes)) == wanted


def piped(*chunks: bytes, end: threading.Event | None = None) -> Iterator[Written | None]:
    """What is read from a pipe into which these are written."""
    outlet, inlet = os.pipe()

    def write() -> None:
        for chunk in chunks:
            os.write(inlet, chunk)
        if end is not None:
            end.wait(20)
        os.close(inlet)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield from read(outlet)
    finally:
        writer.join()
        os.close(outlet)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (b"", []),
        (b" \n\t", []),
        (b'\xef\xbb\xbf{"a":1}\n', [(1, b'{"a":1}')]),
        (b'\xef\xbb\xbf[{"a":1}]', [(1, b'{"a":1}')]),
        (b'\n\n [\n{"a":1}]', [(4, b'{"a":1}')]),
        (b'\n\n{"a":1}', [(3, b'{"a":1}')]),
        (b"[]", []),
        (b"x", [(1, b"x")]),
    ],
)
def test_the_form_is_told_from_the_first_character(text: bytes, wanted: list[tuple[int, bytes]]):
    assert [event for event in piped(text) if event] == [Written(*event) for event in wanted]
    assert [event for event in piped(*(bytes([byte]) for byte in text)) if event] == [
        Written(*event) for event in wanted
    ]


def test_a_pipe_that_pauses_says_so_once():
    end = threading.Event()
    events = piped(b'{"a":1}\n{"b', end=end)
    assert next(events) == Written(1, b'{"a":1}')
    assert next(events) is None
    end.set()
    assert list(events) == [Written(2, b'{"b')]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (b"[1]", 1),
        (b'[{"a":1} {"b":1}]', 1),
        (b'[{"a":1},]', 1),
        (b"[,]", 1),
        (b'[{"a":1}\n]]', 2),
        (b'[\n\n{"a":\n\n1}\n,"x"]', 6),
        (b'[\n{"a":', 2),
        (b"[" + b'{"a":' * 200_000, 1),
    ],
)
def test_what_is_no_array_of_objects_is_told_with_its_line(text: bytes, line: int):
    with pytest.raises(BadEvent) as caught:
        list(cut(Array(), text, [65_536]))
    assert caught.value.line == line
    assert caught.value.reason.startswith("expected ")


@pytest.mark.parametrize("cutter", [Lines, Array])
def test_an_event_without_end_is_given_up(cutter: type[Cutter]):
    """Memory is bounded by what one event may have."""
    endless = cutter()
    with pytest.raises(BadEvent, match="at most 2097152 bytes"):
        for _ in range(40):
            list(endless.feed((b'[{"a":"' if cutter is Array and _ == 0 else b"") + b"x" * 65_536))
