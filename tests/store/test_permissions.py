"""The store's user: what it must be allowed, all of it and no more."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from routemaster.errors import StoreUnfit
from routemaster.store import permissions
from routemaster.store.check import wait_for
from routemaster.store.link import Link
from routemaster.store.permissions import COMMANDS, lacking, rule
from tests.bus import Store
from tests.store.conftest import DATABASE
from tests.store.room import Room

FOLDER = Path(permissions.__file__).parent
PACKAGE = FOLDER.parent
PAGE = PACKAGE.parent / "docs" / "store.md"
TO_SENTINELS = {"sentinel"}
WITHOUT_PERMISSION = {"auth"}  # everybody may
BY_OPERATORS = {"config"}  # asked by `doctor` alone, which does without where it may not


def used() -> set[str]:
    """Every command that our files name."""
    found: set[str] = set()
    for path in FOLDER.rglob("*.lua"):
        found |= {name.lower() for name in re.findall(r"\.p?call\('(\w+)'", path.read_text())}
    for path in PACKAGE.rglob("*.py"):
        for call in re.findall(r"""\.(?:call|send)\(\s*((?:"[A-Z]+"(?:,\s*)?)+)""", path.read_text()):
            words = re.findall(r'"([A-Z]+)"', call)
            found.add("|".join(words[: 2 if words[0] == "SCRIPT" else 1]).lower())
    return found - TO_SENTINELS - WITHOUT_PERMISSION - BY_OPERATORS


@pytest.fixture
def lesser(store: Store) -> Iterator[str]:
    """A user that a test may take permissions from; by how it comes in."""
    store.redis.execute_command(f"ACL SETUSER lesser reset on >pw {rule('ns')}")
    yield f"unix://lesser:pw@{store.url.removeprefix('unix://')}?db={DATABASE}"
    store.redis.acl_deluser("lesser")


def test_the_list_is_what_is_used():
    assert {name.replace(" ", "|") for name in COMMANDS} == used()


def test_the_page_shows_the_rule():
    assert f" {rule('rm:')}\n" in PAGE.read_text(encoding="utf-8")


def test_it_needs_no_category_and_no_other_key():
    words = rule("rm:").split()
    assert words[:5] == ["resetkeys", "~rm:*", "resetchannels", "&rm:*", "-@all"]
    assert all(re.fullmatch(r"\+[a-z|]+", word) for word in words[5:])


async def test_nothing_is_lacking_with_the_rule(room: Room):
    assert await lacking(room.link, room.ns) == []
    assert room.dump() == {}


@pytest.mark.parametrize("name", COMMANDS)
async def test_every_command_that_is_taken_away_is_named(room: Room, store: Store, lesser: str, name: str):
    store.redis.execute_command(f"ACL SETUSER lesser -{name.replace(' ', '|')}")
    link = Link(lesser, patience_s=0.2)
    link.open()
    try:
        with pytest.raises(StoreUnfit, match=rf"(?i)\b{name.replace(' ', '[ |]')}\b") as caught:
            await wait_for(link, room.ns)
        assert "docs/store.md" in str(caught.value)
    finally:
        await link.close()
    assert room.dump() == {}


@pytest.mark.parametrize("rule", ["resetkeys ~other:*", "resetchannels &other:*"])
async def test_keys_and_channels_are_asked_for_too(room: Room, store: Store, lesser: str, rule: str):
    store.redis.execute_command(f"ACL SETUSER lesser {rule}")
    link = Link(lesser, patience_s=0.2)
    link.open()
    try:
        with pytest.raises(StoreUnfit, match=rf"on {room.ns}\*|channel|key"):
            await wait_for(link, room.ns)
    finally:
        await link.close()
