"""What the store's own books say once everything was delivered: nothing left over, and sums that agree.

Looks at every key of a namespace: one that is neither known to stay nor empty is a leftover.
"""

import json
import re

from redis import Redis

from tests.chaos.ledger import Name, name_of
from tests.until import until

STAYS = re.compile(
    r"layout|epoch|registry:changes|histograms|clients|tokens|topics|topic:.*|subscribers|subscriber:.*|topics:.*"
    r"|subscribers:.*|counters|workers|log:(events|deliveries)(:(seq|bytes|trimmed|generations|gaps))?"
    r"|ids:(current|previous|started)|jobs:pending:index:aux"
)
AUXILIARY = re.compile(r"jobs:(index|scheduled|instant):aux|jobs:pending:aux:.*")
SLOTS = "jobs:pending:index:main"
DRAIN_S = 30.0


def leftovers(redis: Redis, namespace: str) -> list[str]:
    """Keys that should be gone, or hold what should be."""
    left: list[str] = []
    for key in sorted(redis.scan_iter(f"{namespace}*", count=1000)):
        name = key.decode().removeprefix(namespace)
        if name.startswith("batches:gauges:"):
            left += [f"{name} {who}={n}" for who, n in _hash(redis, key).items() if n != "0"]
        elif name.startswith("lane:"):
            left += [f"{name} {field}" for field in _hash(redis, key) if field != "sequence"]
        elif name.startswith("flush:"):
            left += [f"{name} stays for ever"] if redis.ttl(key) == -1 else []
        elif not STAYS.fullmatch(name):
            left.append(name)
    return left


def until_drained(redis: Redis, namespace: str, deadline_s: float = DRAIN_S) -> None:
    """Nothing is left; what a slot was called is forgotten later, by the next scrub."""

    def still_there() -> list[str]:
        names = leftovers(redis, namespace)
        return [name for name in names if name != SLOTS and not AUXILIARY.fullmatch(name)]

    try:
        until(lambda: not still_there(), "the store to be drained", deadline_s)
    except AssertionError as error:
        raise AssertionError(f"{error}: {still_there()}") from None


def stored(redis: Redis, namespace: str, topics: list[str]) -> dict[Name, list[str]]:
    """The ids under which the log has each event of these topics."""
    ids: dict[Name, list[str]] = {}
    for event in logged(redis, namespace):
        if event["topic"] in topics:
            ids.setdefault(name_of(event), []).append(event["id"])
    return ids


def logged(redis: Redis, namespace: str) -> list[dict]:
    """Every event of the log, whose numbers have no holes."""
    events: list[dict] = []
    upto = 0
    for entry, block in redis.xrange(f"{namespace}log:events"):
        assert int(block[b"f"]) == upto + 1, f"a hole before {entry}"
        upto = int(entry.split(b"-")[0])
        assert upto == int(block[b"f"]) + int(block[b"n"]) - 1
        events += json.loads(b"[" + block[b"e"] + b"]")
    assert upto == int(redis.get(f"{namespace}log:events:seq") or 0) == len(events)
    return events


def unbalanced(redis: Redis, namespace: str, topics: list[str], arrived: dict[Name, str]) -> list[str]:
    """Where log, counters and what arrived differ; every topic has a subscriber."""
    wrong: list[str] = []
    ids = stored(redis, namespace, topics)
    wrong += [f"{name} is in the log as {found}" for name, found in ids.items() if len(found) > 1]
    wrong += [f"{name} is in the log and came to nobody" for name in ids if name not in arrived]
    wrong += [
        f"{name} came and is not in the log" for name in arrived if arrived[name] not in ids.get(name, [])
    ]
    counters = {k: int(v) for k, v in _hash(redis, f"{namespace}counters").items()}
    events = logged(redis, namespace)
    for topic in topics:
        of_topic = sum(event["topic"] == topic for event in events)
        counted = int(redis.hget(f"{namespace}topic:{topic}", "counter") or 0)
        if not of_topic == counters.get(f"accepted:{topic}", 0) == counted:
            wrong.append(f"{topic}: {of_topic} in the log, counted {counted}, {counters}")
    for name, count in counters.items():
        kind, _, subscriber = name.partition(":")
        ends = {end: counters.get(f"{end}:{subscriber}", 0) for end in ("delivered", "purged", "dropped")}
        if kind == "routed" and sum(ends.values()) != count:
            wrong.append(f"{subscriber}: routed {count}, {ends}")
    return wrong


def _hash(redis: Redis, key: str | bytes) -> dict[str, str]:
    return {field.decode(): value.decode() for field, value in redis.hgetall(key).items()}
