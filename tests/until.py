"""Waiting in tests: for a condition, with a deadline, never for a time."""

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

DEADLINE_S = 15.0


def until(condition: Callable[[], object], what: str, deadline_s: float = DEADLINE_S) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"waited {deadline_s} s for {what}"
        time.sleep(0.01)


async def until_async(condition: Callable[[], object], what: str, deadline_s: float = DEADLINE_S) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"waited {deadline_s} s for {what}"
        await asyncio.sleep(0.01)


def alive(pid: int) -> bool:
    """Running: a zombie that nobody has collected yet is not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return not Path("/proc/self").is_dir()
