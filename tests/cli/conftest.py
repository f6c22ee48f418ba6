import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a path short enough for a socket file."""
    with tempfile.TemporaryDirectory(prefix="rm-") as path:
        yield Path(path) / "bus"
