"""Every command is documented: in its help, with examples and exit codes, and in docs/cli.md."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from routemaster.cli.app import app
from routemaster.cli.exits import MEANINGS
from tests.cli.commands import Commands

DOCS = Path(__file__).parent.parent.parent / "docs" / "cli.md"


def commands(group: typer.main.TyperGroup, *path: str) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, *path, name)
        else:
            yield (*path, name)


GROUP = typer.main.get_command(app)
ALL = sorted(commands(GROUP))


def test_they_are_all_here():
    assert len(ALL) > 20
    assert {("up",), ("publish",), ("token", "create"), ("dead", "retry")} <= set(ALL)


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_its_help_has_an_example_and_its_exit_codes(path: tuple[str, ...]):
    ran = CliRunner().invoke(app, [*path, "--help"], prog_name="routemaster", env={"TERMINAL_WIDTH": "100"})
    assert ran.exit_code == 0
    assert re.search(r"Examples?:", ran.output)
    assert f"  routemaster {' '.join(path)}" in ran.output or f" routemaster {' '.join(path)}" in ran.output
    assert "Exit codes: 0" in ran.output


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_the_page_has_it_with_all_its_flags(path: tuple[str, ...]):
    text = DOCS.read_text(encoding="utf-8")
    assert f"`routemaster {' '.join(path)}" in text
    command = GROUP
    for name in path:
        command = command.commands[name]
    missing = [
        option
        for parameter in command.params
        for option in parameter.opts
        if option.startswith("--") and not getattr(parameter, "hidden", False) and f"`{option}" not in text
    ]
    assert missing == []


def test_the_page_has_no_other_commands():
    groups = {path[:1] for path in ALL if len(path) == 2}
    for words in re.findall(r"`routemaster ([a-z ]+)", DOCS.read_text(encoding="utf-8")):
        path = tuple(words.split())
        assert path in ALL or path in groups, path


def test_the_page_has_all_exit_codes():
    text = DOCS.read_text(encoding="utf-8")
    for code, meaning in MEANINGS.items():
        assert f"| {code} | {meaning}" in text


def test_help_answers_without_what_only_commands_need(nowhere: Commands):
    """It is what a person asks for first."""
    heavy = ("aiohttp", "uvloop", "uvicorn", "structlog", "hiredis", "re2", "http.client", "ssl", "asyncio")
    code = "import sys, routemaster.cli.app; print([name for name in sys.argv[1:] if name in sys.modules])"
    ran = subprocess.run(
        [sys.executable, "-c", code, *heavy], env=nowhere.environ(), capture_output=True, text=True
    )
    assert ran.stdout == "[]\n", ran


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("publis",), "publish"),
        (("token", "creat"), "create"),
        (("topics", "remove"), "remove"),
        (("subscribers", "--jsno"), "--json"),
        (("token", "create"), "NAME"),
    ],
)
def test_what_is_mistyped_is_told(nowhere: Commands, args: tuple[str, ...], said: str):
    ran = nowhere(*args)
    assert ran.code == 2
    assert said in ran.err


def test_groups_alone_list_or_explain_themselves(nowhere: Commands):
    assert "no bus runs" in nowhere("topics").err
    assert "no bus runs" in nowhere("dead").err
    assert "rotate" in nowhere("token").out + nowhere("token").err
    assert "delete" in nowhere.ok("topics", "-h").out
