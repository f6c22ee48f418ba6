"""Documents do not point at what is not there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"\]\(([^)\s]+)\)")
DOCUMENTS = (
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))),
)


def linked(name: str) -> list[str]:
    targets = LINK.findall((ROOT / name).read_text(encoding="utf-8"))
    return [target for target in targets if not re.match(r"[a-z]+:|#", target)]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_linked_path_exists(name: str):
    assert [
        target for target in linked(name) if not (ROOT / name).parent.joinpath(target.split("#")[0]).exists()
    ] == []


def test_links_are_found():
    assert "ARCHITECTURE.md" in linked("README.md")
    assert len(linked("ARCHITECTURE.md")) > 5
