"""Whether the old bus is at work: its workers' heartbeats, and whether anything changes."""

import asyncio

from routemaster.cli.importer.source import Look, Source
from routemaster.errors import SettingError

OLD_WORKER_MS = 30_000  # the longest that one of the original's is silent: 5 s of waiting, 22 s of sending


async def look_for_life(source: Source, shown_url: str, *, watch_s: float, force: bool) -> tuple[Look, bool]:
    """What to compare with at the end, and whether the old bus is at work, which is refused unless forced."""
    sign = ""
    silence_ms = await source.silence_ms()
    if silence_ms is not None and silence_ms < OLD_WORKER_MS:
        sign = f"a worker of it was last heard of {max(0, silence_ms) / 1000:.0f} s ago"
    look = await source.look()
    if not sign:
        await asyncio.sleep(watch_s)
        before, look = look, await source.look()
        if look != before:
            sign = "its counts change"
    if sign and not force:
        raise SettingError(
            "--from",
            shown_url,
            f"an old bus that is stopped, but {sign}. Stop its web and worker processes first"
            f" (a worker that was killed is forgotten after {OLD_WORKER_MS // 1000} s), or use --force",
        )
    return look, bool(sign)
