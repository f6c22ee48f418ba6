"""Whether the store is one that we can run on: asked once, when a process starts."""

import asyncio
from typing import Any

import structlog

from routemaster.errors import StoreAway, StoreUnfit
from routemaster.store.link import Link
from routemaster.store.permissions import lacking

log = structlog.get_logger("store")
LAYOUT = 1
VALKEY_FLOOR = (8, 0)
REDIS_FLOOR = (7, 2)


async def check(link: Link, namespace: str, replicas: int = 0) -> None:
    """Raise StoreUnfit for a store that would lose or misread events, or cannot do what we ask of it."""
    info = fields_of(await link.call("INFO", "server"))
    name = "valkey" if "valkey_version" in info else "redis"
    version = info.get(f"{name}_version", "0")
    floor = VALKEY_FLOOR if name == "valkey" else REDIS_FLOOR
    if tuple(int(part) for part in version.split(".")[:2]) < floor:
        least = ".".join(map(str, floor))
        raise StoreUnfit(f"the store is {name} {version}; at least {least} is needed: upgrade it")
    mode = info.get("redis_mode", info.get("server_mode", "standalone"))
    if mode == "cluster":
        raise StoreUnfit(
            "the store has cluster mode enabled, which is not supported yet: use a single server,"
            " or a primary with replicas and Sentinel"
        )
    if mode == "sentinel":
        raise StoreUnfit(f"{link.url} is a sentinel: to be led by it, say redis+sentinel://host:port/service")
    connected = await _replicas_of_primary(link)
    if connected < replicas:
        log.warning(
            "fewer replicas are connected than each publish waits for: till then, publishing answers 503",
            connected=connected,
            expected=replicas,
            setting="ROUTEMASTER_REDIS_REPLICAS",
        )
    memory = fields_of(await link.call("INFO", "memory"))
    policy = memory.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise StoreUnfit(
            f"the store's maxmemory-policy is {policy}, which throws events away: set it to noeviction"
        )
    missing = await lacking(link, namespace)
    if missing:
        raise StoreUnfit(
            f"the store's user may not run {', '.join(name.upper() for name in missing)} on {namespace}*:"
            " allow it (docs/store.md has the whole rule)"
        )
    layout = await link.call("GET", f"{namespace}layout")
    if layout is None:  # written only then: a full store takes no write, and has to be drained
        await link.call("SET", f"{namespace}layout", LAYOUT, "NX")
        layout = await link.call("GET", f"{namespace}layout")
    layout = int(layout)
    if layout > LAYOUT:
        raise StoreUnfit(f"the store has layout {layout}, this version knows {LAYOUT}: upgrade Routemaster")


async def _replicas_of_primary(link: Link) -> int:
    """How many are connected to it; a replica itself is not what we are looking for."""
    role: list[Any] = await link.call("ROLE")
    if role[0] == b"master":
        return len(role[2])
    if link.url.by_sentinel:  # made one a moment ago: there is another primary by now
        link.cut()
        raise StoreAway("the store has become a replica")
    raise StoreUnfit(
        f"the store at {link.url} is a replica of {role[1].decode()}:{role[2]}, which takes no writes:"
        " give the address of the primary, or let Sentinel name it (redis+sentinel://…)"
    )


async def wait_for(link: Link, namespace: str, replicas: int = 0) -> None:
    """Wait until the store answers, then check it: who starts before the store comes up by itself.
    One that will not have us as we come (a wrong password, say) is unfit: waiting would not help."""
    was_told = False
    while True:
        try:
            await check(link, namespace, replicas)
            return
        except StoreAway as error:
            if link.refusal is not None:
                raise link.refusal from None
            if not was_told:
                log.warning("the store is away", reason=str(error))
                was_told = True
            await asyncio.sleep(0.1)


def fields_of(text: bytes) -> dict[str, str]:
    lines = (line.split(":", 1) for line in text.decode().splitlines() if ":" in line)
    return {name: value for name, value in lines}  # noqa: C416 (typed as pairs)
