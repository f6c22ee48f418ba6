"""Lua scripts: how their sources are put together, and the rules that all of them keep."""

import hashlib
import re
from pathlib import Path

import pytest

from routemaster.store import script
from routemaster.store.script import Script

FOLDER = Path(script.__file__).parent
NAMES = sorted(path.stem for path in FOLDER.glob("*.lua"))
PARTS = sorted(path.stem for path in (FOLDER / "parts").glob("*.lua"))


def code_of(text: str) -> str:
    return "\n".join(line.split("--", 1)[0] for line in text.splitlines())


@pytest.mark.parametrize("name", NAMES)
def test_parts_are_put_in_once_and_before_their_users(name: str):
    source = Script(name).source
    assert "--@ use" not in source
    for part in PARTS:
        first_function = re.search(
            r"^local (?:function )?(\w+)", (FOLDER / "parts" / f"{part}.lua").read_text(), re.M
        )
        assert first_function
        assert len(re.findall(rf"^{re.escape(first_function[0])}\b", source, re.M)) <= 1, part


@pytest.mark.parametrize("name", NAMES)
def test_the_digest_is_the_stores(name: str):
    made = Script(name)
    assert made.sha == hashlib.sha1(made.source.encode()).hexdigest()


@pytest.mark.parametrize("name", NAMES)
def test_the_store_can_load_it(name: str, store):
    made = Script(name)
    assert store.redis.script_load(made.source) == made.sha


@pytest.mark.parametrize("name", NAMES)
def test_a_script_says_what_it_does_and_whether_memory_matters(name: str):
    """Without its first line the store would run it half when memory is full."""
    text = (FOLDER / f"{name}.lua").read_text()
    assert re.match(r"#!lua( flags=(allow-oom|no-writes))?\n-- [A-Z]", text)
    assert "-- KEYS  1 namespace\n" in text


@pytest.mark.parametrize("name", [*NAMES, *(f"parts/{part}" for part in PARTS)])
def test_no_script_looks_through_all_keys(name: str):
    code = code_of((FOLDER / f"{name}.lua").read_text())
    assert not re.search(r"'(KEYS|SCAN|FLUSHDB|FLUSHALL)'", code)


@pytest.mark.parametrize("name", [*NAMES, *(f"parts/{part}" for part in PARTS)])
def test_every_key_is_built_from_the_namespace(name: str):
    code = code_of((FOLDER / f"{name}.lua").read_text())
    for call in re.finditer(r"redis\.call\('([A-Z]+)'(?:, ([^,)]+))?", code):
        if call[1] not in ("TIME", "INFO"):
            assert re.match(r"ns \.\. '|key|(pending|draining|dead|why)_key\(", call[2] or ""), call[0]


def test_every_part_is_used():
    used = set(re.findall(r"--@ use (\w+)", "".join(path.read_text() for path in FOLDER.rglob("*.lua"))))
    assert used == set(PARTS)


def test_every_script_has_a_wrapper():
    made = set(re.findall(r'Script\("(\w+)"\)', "".join(path.read_text() for path in FOLDER.glob("*.py"))))
    assert made == set(NAMES)
