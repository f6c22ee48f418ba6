"""Whether the store's jobs are in order at one moment: each in one place, and one for each lane in need.

Asked while everything runs, so it is one script: between two commands the picture would change.
"""

import time
from collections.abc import Callable

from redis import Redis

from routemaster.store.script import Script
from tests.until import until

SCRUB_EVERY_S = 0.2
TAKE_OVER_S = 20.0

_PICTURE = """
local ns, found = KEYS[1], {}
local function all(kind, values)
  for _, value in ipairs(values) do
    found[#found + 1] = kind
    found[#found + 1] = value
  end
end
all('index', redis.call('SMEMBERS', ns .. 'jobs:index:main'))
all('place', redis.call('ZRANGE', ns .. 'jobs:scheduled:main', 0, -1))
all('place', redis.call('LRANGE', ns .. 'jobs:instant:main', 0, -1))
for _, key in ipairs(redis.call('KEYS', ns .. 'jobs:pending:main:*')) do
  all('place', redis.call('LRANGE', key, 0, -1))
end
for _, kind in ipairs({'batches:ready:', 'batches:current:'}) do
  for _, key in ipairs(redis.call('KEYS', ns .. kind .. '*')) do
    local lane = string.sub(key, #ns + #kind + 1)
    if redis.call('HEXISTS', ns .. 'lane:' .. lane, 'waiting') == 0 then
      all('needed', {cmsgpack.pack({'deliver', {lane}})})
    end
  end
end
return found
"""


def disorder(redis: Redis, namespace: str) -> list[str]:
    """Jobs that were lost or are there twice, and lanes with batches that no job will deliver."""
    flat = redis.eval(_PICTURE, 1, namespace)
    found: dict[bytes, list[bytes]] = {b"index": [], b"place": [], b"needed": []}
    for kind, job in zip(flat[::2], flat[1::2], strict=True):
        found[kind].append(job)
    index, places, needed = found[b"index"], found[b"place"], found[b"needed"]
    return [
        *(f"{job!r} is lost" for job in index if job not in places),
        *(f"{job!r} is in {places.count(job)} places" for job in set(places) if places.count(job) > 1),
        *(f"{job!r} is not in the index" for job in set(places) - set(index)),
        *(f"{job!r} is needed" for job in set(needed) - set(index)),
    ]


def until_scrubbed(redis: Redis, namespace: str, condition: Callable[[], object], what: str) -> None:
    """Wait for what a scrub brings about. Asks for one as the workers' ticker does, only more often."""
    asked_at = 0.0

    def holds() -> bool:
        nonlocal asked_at
        if condition():
            return True
        if time.monotonic() - asked_at > SCRUB_EVERY_S:
            asked_at = time.monotonic()
            redis.eval(Script("tick").source, 1, namespace, "scrub")
        return False

    until(holds, what, TAKE_OVER_S)
