"""Checks of the store, where there is one to ask: whether a bus can run on it, and what it would lose.

Reads only. A store may forbid CONFIG, as hosted ones do: what could not be seen is said, and is no problem.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from routemaster.cli.doctor.finding import Finding, Verdict
from routemaster.cli.output import size, span
from routemaster.errors import StoreAway, StoreError
from routemaster.settings import PREFIX, Settings
from routemaster.store.check import LAYOUT, REDIS_FLOOR, VALKEY_FLOOR, fields_of
from routemaster.store.link import Link
from routemaster.store.permissions import lacking
from routemaster.store_url import StoreUrl

FAR_MS, NEAR_FULL, SKEW_MS, LARGE_SKEW_MS = 5.0, 0.9, 1_000, 60_000
PATIENCE_S, ASK_S = 3.0, 8.0


async def check(url: StoreUrl | str, settings: Settings) -> list[Finding]:
    found: list[Finding] = []
    link = Link(url, patience_s=PATIENCE_S)
    link.open()
    try:
        async with asyncio.timeout(ASK_S):
            async for finding in _look(link, settings):
                found.append(finding)
    except TimeoutError:
        found.append(
            Finding("store", "problem", f"{link.url} does not answer", "look at its log and its load")
        )
    except StoreError as error:
        is_away = isinstance(error, StoreAway) and link.refusal is None
        advice = "start it, or correct" if is_away else "let us in: docs/store.md says how; or correct"
        seen = str(error) if str(link.url) in str(error) else f"{link.url}: {error}"
        found.append(Finding("store", "problem", seen, f"{advice} {PREFIX}REDIS_URL"))
    finally:
        await link.close()
    return found


async def _look(link: Link, settings: Settings) -> AsyncIterator[Finding]:
    await link.call("PING")
    began = time.perf_counter()
    await link.call("PING")
    took_ms = (time.perf_counter() - began) * 1000
    info: dict[str, str] = {}
    for section in ("server", "memory", "persistence", "replication"):
        info |= fields_of(await link.call("INFO", section))
    yield _version(info, str(link.url), took_ms)
    yield _role(info, settings.redis_replicas)
    yield _permissions(await lacking(link, settings.redis_prefix))
    yield _layout(await link.call("GET", f"{settings.redis_prefix}layout"))
    yield _policy(info)
    yield _memory(info, settings)
    yield await _durability(link, info)
    for name in ("aof_last_write_status", "rdb_last_bgsave_status"):
        if info.get(name, "ok") != "ok":
            yield Finding("store disk", "problem", f"{name} is {info[name]}", "look at its log, and its disk")
    yield _clock(await link.call("TIME"))


def _version(info: dict[str, str], shown: str, took_ms: float) -> Finding:
    name = "valkey" if "valkey_version" in info else "redis"
    version = info.get(f"{name}_version", "0")
    floor = VALKEY_FLOOR if name == "valkey" else REDIS_FLOOR
    seen = f"{name} {version} at {shown}, {took_ms:.1f} ms away"
    if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < floor:
        return Finding("store", "problem", seen, f"upgrade it to {'.'.join(map(str, floor))} or later")
    if took_ms > FAR_MS:
        return Finding("store", "warning", seen, "have it nearer: every publish waits for it")
    return Finding("store", "ok", seen)


def _role(info: dict[str, str], replicas: int) -> Finding:
    mode = info.get("redis_mode", info.get("server_mode", "standalone"))
    if mode != "standalone":
        advice = "name a single server or a primary; or, led by sentinels, say redis+sentinel://"
        return Finding("store role", "problem", f"it runs as a {mode}", advice)
    if info.get("role") == "slave":
        return Finding("store role", "problem", "it is a replica, and takes no writes", "name its primary")
    connected = int(info.get("connected_slaves", 0))
    seen = f"a primary with {connected} replicas"
    if connected < replicas:
        advice = f"connect them, or lower {PREFIX}REDIS_REPLICAS: till then, publishing answers 503"
        return Finding("store role", "problem", f"{seen}, where each publish waits for {replicas}", advice)
    return Finding("store role", "ok", seen)


def _permissions(missing: list[str]) -> Finding:
    if missing:
        seen = f"our user may not run {', '.join(name.upper() for name in missing)}"
        return Finding("store permissions", "problem", seen, "allow it: docs/store.md has the whole rule")
    return Finding("store permissions", "ok", "our user may run all that it needs")


def _layout(layout: bytes | None) -> Finding:
    if layout is None:
        return Finding("store layout", "ok", "nothing of ours is in it yet")
    if not layout.isdigit() or int(layout) > LAYOUT:
        seen = f"{layout.decode('utf-8', 'replace')}, and this version knows {LAYOUT}"
        return Finding("store layout", "problem", seen, "upgrade Routemaster, or use another store or prefix")
    return Finding("store layout", "ok", f"{int(layout)}, as it should be")


def _policy(info: dict[str, str]) -> Finding:
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        seen = f"maxmemory-policy is {policy}, which throws events away"
        return Finding("store policy", "problem", seen, "set maxmemory-policy to noeviction")
    return Finding("store policy", "ok", policy)


def _memory(info: dict[str, str], settings: Settings) -> Finding:
    used, most = int(info.get("used_memory", 0)), settings.redis_max_mem or int(info.get("maxmemory", 0))
    if most == 0:
        advice = (
            f"set its maxmemory, or {PREFIX}REDIS_MAX_MEM: then the oldest batches go first, and are counted"
        )
        return Finding("store memory", "warning", f"{size(used)} used, no limit", advice)
    seen = f"{size(used)} of {size(most)} used"
    if used > NEAR_FULL * most or most - used < settings.redis_min_free:
        advice = "give it more, or look for subscribers that take nothing: `routemaster subscribers`"
        return Finding("store memory", "warning", seen, advice)
    return Finding("store memory", "ok", seen)


async def _durability(link: Link, info: dict[str, str]) -> Finding:
    """What is lost of acknowledged events when the store is killed."""
    if info.get("aof_enabled", "0") != "1":
        advice = "appendonly yes, and appendfsync always"
        return Finding("store fsync", "warning", "it keeps no append-only file: a crash loses events", advice)
    try:
        reply: list[Any] = await link.call("CONFIG", "GET", "appendfsync")
        policy = reply[1].decode() if len(reply) > 1 else "unknown"
    except StoreError as error:
        reason = str(error).split(" ", 1)[0]
        seen = f"it keeps an append-only file; how often that is synced we may not ask (CONFIG GET: {reason})"
        return Finding("store fsync", "info", seen)
    losses: dict[str, tuple[Verdict, str]] = {
        "always": ("ok", "each write is on disk before it is answered"),
        "everysec": ("warning", "a crash may lose what was acknowledged in the last seconds"),
    }
    verdict, meaning = losses.get(policy, ("warning", "a crash loses what the system had not written yet"))
    advice = "" if verdict == "ok" else "appendfsync always, where no event may be lost"
    return Finding("store fsync", verdict, f"appendfsync {policy}: {meaning}", advice)


def _clock(reply: list[bytes]) -> Finding:
    away_ms = abs(time.time() * 1000 - (int(reply[0]) * 1000 + int(reply[1]) / 1000))
    if away_ms < SKEW_MS:
        return Finding("store clock", "ok", "agrees with the one here")
    verdict = "problem" if away_ms > LARGE_SKEW_MS else "warning"
    advice = "keep both clocks right (NTP): deadlines are the store's, times of events are ours"
    return Finding("store clock", verdict, f"{span(away_ms)} away from the one here", advice)
