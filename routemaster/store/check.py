"""Whether the store is one that we can run on: asked once, when a process starts."""

import asyncio

import structlog

from routemaster.errors import StoreAway, StoreUnfit
from routemaster.store.link import Link

log = structlog.get_logger("store")
LAYOUT = 1
VALKEY_FLOOR = (8, 0)
REDIS_FLOOR = (7, 2)


async def check(link: Link, namespace: str) -> None:
    """Raise StoreUnfit for a version, policy or layout that would lose or misread events."""
    info = fields_of(await link.call("INFO", "server"))
    name = "valkey" if "valkey_version" in info else "redis"
    version = info.get(f"{name}_version", "0")
    floor = VALKEY_FLOOR if name == "valkey" else REDIS_FLOOR
    if tuple(int(part) for part in version.split(".")[:2]) < floor:
        least = ".".join(map(str, floor))
        raise StoreUnfit(f"the store is {name} {version}; at least {least} is needed: upgrade it")
    memory = fields_of(await link.call("INFO", "memory"))
    policy = memory.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise StoreUnfit(
            f"the store's maxmemory-policy is {policy}, which throws events away: set it to noeviction"
        )
    layout = await link.call("GET", f"{namespace}layout")
    if layout is None:  # written only then: a full store takes no write, and has to be drained
        await link.call("SET", f"{namespace}layout", LAYOUT, "NX")
        layout = await link.call("GET", f"{namespace}layout")
    layout = int(layout)
    if layout > LAYOUT:
        raise StoreUnfit(f"the store has layout {layout}, this version knows {LAYOUT}: upgrade Routemaster")


async def wait_for(link: Link, namespace: str) -> None:
    """Wait until the store answers, then check it: who starts before the store comes up by itself."""
    was_told = False
    while True:
        try:
            await check(link, namespace)
            return
        except StoreAway as error:
            if not was_told:
                log.warning("the store is away", reason=str(error))
                was_told = True
            await asyncio.sleep(0.1)


def fields_of(text: bytes) -> dict[str, str]:
    lines = (line.split(":", 1) for line in text.decode().splitlines() if ":" in line)
    return {name: value for name, value in lines}  # noqa: C416 (typed as pairs)
