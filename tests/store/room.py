"""A namespace of the store, with everything that acts on it, for tests of the scripts.

Time in the store is the store's own, so a test that needs some to pass moves what is written there
into the past instead of waiting: `let_pass`.
"""

import itertools
import struct
import zlib
from typing import Any, NamedTuple, cast

import msgspec
from redis import Redis

from routemaster.event import SEPARATOR
from routemaster.store.clients import Clients
from routemaster.store.dead import Dead, DeadBatch
from routemaster.store.deliveries import MAIN, Acquired, AuxJob, Deliveries, Delivery, Settled, Settlement
from routemaster.store.link import Link
from routemaster.store.publish import Answer, Flush, Limits, Stored, send_flush
from routemaster.store.registry import Registry, Wanted
from routemaster.store.script import Script
from routemaster.store.upkeep import Upkeep
from routemaster.uid import Maker
from routemaster.web.access import Access
from routemaster.web.flush import Part, Publish
from routemaster.web.flusher import Flusher

HOUR_MS = 3_600_000
RECEIVED_AT = 1_700_000_000_000
LEASE_MS = 30_000
LIMITS = Limits(window_ms=HOUR_MS, max_keys=1000, max_log_bytes=2**30)
RUN_HEAD = struct.Struct(">QI")
Dump = dict[str, Any]

_DUMP = """
local found = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  local kind = redis.call('TYPE', key).ok
  local value
  if kind == 'string' then value = redis.call('GET', key)
  elseif kind == 'list' then value = redis.call('LRANGE', key, 0, -1)
  elseif kind == 'set' then value = redis.call('SMEMBERS', key)
  elseif kind == 'hash' then value = redis.call('HGETALL', key)
  elseif kind == 'zset' then value = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  else value = redis.call('XRANGE', key, '-', '+') end
  found[#found + 1] = {key, kind, value}
end
return found
"""

_LET_PASS = """
local ns, ms = KEYS[1], tonumber(ARGV[1])
local function sooner(key, field)
  local at = redis.call('HGET', key, field)
  if at then redis.call('HSET', key, field, string.format('%.0f', at - ms)) end
end
for _, key in ipairs(redis.call('KEYS', ns .. '*')) do
  local name = string.sub(key, #ns + 1)
  if string.find(name, '^jobs:scheduled:') or name == 'batches:index' then
    for _, member in ipairs(redis.call('ZRANGE', key, 0, -1)) do redis.call('ZINCRBY', key, -ms, member) end
  elseif string.find(name, '^lane:') then
    sooner(key, 'not_before')
    sooner(key, 'lease')
  elseif string.find(name, '^subscriber:') then
    sooner(key, 'rate_at')
    sooner(key, 'rate_line')
  elseif string.find(name, '^batches:dead:[^w]') then
    for _, member in ipairs(redis.call('ZRANGE', key, 0, -1)) do redis.call('ZINCRBY', key, -ms, member) end
  elseif string.find(name, '^batch:') then
    redis.call('LSET', key, 1, string.format('%.0f', redis.call('LINDEX', key, 1) - ms))
  elseif name == 'workers' then
    for _, worker in ipairs(redis.call('HKEYS', key)) do sooner(key, worker) end
  elseif name == 'ids:started' then
    redis.call('DECRBY', key, ms)
  end
end
"""


class Batch(NamedTuple):
    """A batch as it is written in the store."""

    bid: str
    lane: str
    created_at: int
    attempts: int
    generation: str
    sequence: int | None
    events: int
    runs: list[tuple[int, int]]  # first seq, how many
    lines: list[bytes]


CLIENT = '{"name": "service", "role": "client", "created_at": 0, "tokens": []}'


class Room:
    def __init__(self, link: Link, redis: Redis, namespace: str) -> None:
        self.link = link
        self.redis = redis
        self.ns = namespace
        self.uids = Maker()
        self.registry = Registry(link, namespace, self.uids)
        self.clients = Clients(link, namespace, self.uids)
        self.deliveries = Deliveries(link, namespace, lease_ms=LEASE_MS, max_log_bytes=2**30)
        self.upkeep = Upkeep(link, namespace, self.uids)
        self.dead = Dead(link, namespace)
        self.web = Web(self)

    def key(self, name: str) -> str:
        return self.ns + name

    # What is there

    def dump(self) -> Dump:
        """Everything in the namespace, by its key's name."""
        found = cast(list[Any], self.redis.eval(_DUMP, 0))
        return {key.decode().removeprefix(self.ns): _value(kind, value) for key, kind, value in found}

    def strays(self) -> list[bytes]:
        keys = cast(list[bytes], self.redis.keys("*"))
        return [key for key in keys if not key.startswith(self.ns.encode())]

    def fields(self, name: str) -> dict[str, str]:
        found = cast(dict[bytes, bytes], self.redis.hgetall(self.key(name)))
        return {field.decode(): value.decode() for field, value in found.items()}

    def items(self, name: str) -> list[str]:
        return [item.decode() for item in cast(list[bytes], self.redis.lrange(self.key(name), 0, -1))]

    def members(self, name: str) -> set[str]:
        return {item.decode() for item in cast(set[bytes], self.redis.smembers(self.key(name)))}

    def counter(self, name: str) -> int:
        return int(cast(bytes, self.redis.hget(self.key("counters"), name) or b"0"))

    def gauges(self, subscriber: str) -> tuple[int, int]:
        """How many batches and events are queued, by the gauges."""
        found = [self.redis.hget(self.key(f"batches:gauges:{of}"), subscriber) for of in ("batch", "event")]
        return int(found[0] or 0), int(found[1] or 0)

    def dead_events(self, subscriber: str) -> int:
        return int(cast(bytes, self.redis.hget(self.key("batches:gauges:dead"), subscriber) or b"0"))

    def batch(self, bid: str) -> Batch:
        items = cast(list[bytes], self.redis.lrange(self.key(f"batch:{bid}"), 0, -1))
        return read_batch(bid, items)

    def ready(self, lane: str) -> list[Batch]:
        return [self.batch(bid) for bid in self.items(f"batches:ready:{lane}")]

    def current(self, lane: str) -> Batch | None:
        bids = self.members(f"batches:current:{lane}")
        assert len(bids) <= 1
        return self.batch(bids.pop()) if bids else None

    def queued(self, lane: str) -> list[bytes]:
        """The lane's events, oldest first."""
        current = self.current(lane)
        batches = self.ready(lane) + ([current] if current else [])
        return [line for batch in batches for line in batch.lines]

    def blocks(self, log: str = "events") -> list[tuple[str, dict[str, str]]]:
        found = cast(list[Any], self.redis.xrange(self.key(f"log:{log}")))
        return [(id.decode(), {f.decode(): v.decode() for f, v in block.items()}) for id, block in found]

    def gaps(self, log: str = "events") -> list[Any]:
        return [msgspec.json.decode(item) for item in self.items(f"log:{log}:gaps")]

    def epoch(self) -> bytes:
        return cast(bytes, self.redis.get(self.key("epoch")))

    # Jobs

    def scheduled(self, queue: str = MAIN) -> dict[str, float]:
        """What is scheduled, and in how many milliseconds: lanes of deliveries, names of other jobs."""
        seconds, micros = cast(tuple[int, int], self.redis.time())
        now_ms = seconds * 1000 + micros / 1000
        found = cast(
            list[tuple[bytes, float]],
            self.redis.zrange(self.key(f"jobs:scheduled:{queue}"), 0, -1, withscores=True),
        )
        return {name_of(job): at - now_ms for job, at in found}

    def instant(self, queue: str = MAIN) -> list[str]:
        return [
            name_of(job)
            for job in cast(list[bytes], self.redis.lrange(self.key(f"jobs:instant:{queue}"), 0, -1))
        ]

    def pending(self, queue: str = MAIN) -> dict[str, str]:
        """Slot -> its job."""
        prefix = self.key(f"jobs:pending:{queue}:")
        return {
            key.decode().removeprefix(prefix): name_of(job)
            for key in cast(list[bytes], self.redis.keys(f"{prefix}*"))
            for job in cast(list[bytes], self.redis.lrange(key, 0, -1))
        }

    def indexed(self, queue: str = MAIN) -> set[str]:
        return {
            name_of(job) for job in cast(set[bytes], self.redis.smembers(self.key(f"jobs:index:{queue}")))
        }

    # What happens

    def let_pass(self, ms: int) -> None:
        """Everything that is written in the store becomes so much older."""
        self.redis.eval(_LET_PASS, 1, self.ns, ms)

    def start_store_anew(self, log: str = "events") -> None:
        """As if the store had been started again: its run id is not the one that is written down."""
        key = self.key(f"log:{log}:generations")
        last = cast(bytes, self.redis.lindex(key, -1))
        self.redis.lset(key, -1, last[:-40] + b"0" * 40)

    async def subscribe(
        self,
        subscriber: str,
        *topics: str,
        max: int = 100,
        timeout: int = HOUR_MS,
        parallelism: int = 1,
        client: str | None = None,
        callback: str = "https://example.com/",
        **fields: str | int | float,
    ) -> str:
        """Make or change a subscription; the name of its first lane."""
        assert await self.ask_for(
            subscriber,
            *topics,
            parallelism=parallelism,
            client=client,
            callback=callback,
            uuid="secret",
            timeout=timeout,
            max_events=max,
            **fields,
        ) in ("changed", "same")
        return self.lane(subscriber)

    async def ask_for(
        self,
        subscriber: str,
        *topics: str,
        parallelism: int = 1,
        client: str | None = None,
        secret: str = "",
        grace_ms: int = 0,
        adds: bool = False,
        **fields: str | int | float,
    ) -> str:
        """What comes of asking for a subscription; its client stands in for one that is known."""
        owner = client or subscriber
        stands_in = self.redis.hsetnx(self.key("clients"), owner, CLIENT)
        wanted = Wanted(subscriber, owner, parallelism, fields, secret, grace_ms, {*topics})
        outcome = await self.registry.subscribe(wanted, adds=adds)
        if stands_in:
            self.redis.hdel(self.key("clients"), owner)
        return outcome

    def lane(self, subscriber: str, n: int = 0, set: int | None = None) -> str:
        known = self.fields(f"subscriber:{subscriber}")
        return f"{subscriber}#{known['incarnation']}.{set or known['set']}.{n}"

    async def publish(self, topic: str, events: int = 1, **more: Any) -> Answer:
        """Publish so many events in one flush."""
        answer = await self.web.publish(request(topic, events, **more))
        assert isinstance(answer, Stored), answer
        return answer

    async def acquire(self, *slots: str, queue: str = MAIN) -> list[Delivery]:
        """Jobs for slots, each with a new fence."""
        return deliveries_in(await self.deliveries.acquire(queue, {slot: self.uids() for slot in slots}))

    async def take(self, slot: str = "w.0") -> Delivery:
        """The one delivery that there is for this slot."""
        (delivery,) = await self.acquire(slot)
        return delivery

    async def deliver(self, delivery: Delivery, next_fence: str = "") -> Settled:
        return await self.settle(settled(delivery, next_fence))

    async def fail(self, delivery: Delivery, delay_ms: int = HOUR_MS, next_fence: str = "") -> Settled:
        return await self.settle(settled(delivery, next_fence, delay_ms, "status"))

    async def settle(self, *settlements: Settlement) -> Settled:
        return await self.deliveries.settle(list(settlements), self.uids())

    async def dead_letters(self, subscriber: str, most: int = 100) -> list[DeadBatch]:
        found = await self.dead.show(subscriber, most)
        assert found is not None
        return found

    async def die(self, delivery: Delivery, why: str = "status", code: int = 500) -> None:
        """The last attempt of a batch fails."""
        record = msgspec.json.encode({"code": code})
        await self.settle(settled(delivery, "", 0, why, record))

    async def drop(self, most: int, keep: int = 1000) -> tuple[int, int]:
        batches, events = await self.link.run(DROP, self.ns, most, keep)
        return batches, events

    async def purge_all(self) -> None:
        while await self.upkeep.purge():
            pass

    async def scrub(self, queue: str = MAIN, silence_ms: int = 15_000) -> list[str]:
        return sorted(
            await self.deliveries.scrub(queue, silence_ms=silence_ms, least_ms=500, most_ms=300_000)
        )


DROP = Script("drop")


class Web:
    """A web process without its sockets: it makes flushes as the flusher does."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self.access = Access(room.link, room.registry, room.clients, None)
        self.access.open()
        self.flusher = Flusher(room.link, room.ns, self.access, room.uids, LIMITS)
        self._numbers = itertools.count(1)

    async def flush(self, *requests: Publish, number: int | None = None) -> Flush:
        """A flush of these requests by what the registry says now."""
        await self.access.refresh()
        parts = [Part(publish, 0, len(publish.lines)) for publish in requests]
        return self.flusher._build(parts, next(self._numbers) if number is None else number)

    async def send(self, flush: Flush, limits: Limits = LIMITS) -> Answer:
        return await send_flush(self._room.link, self._room.ns, flush, limits)

    async def publish(self, *requests: Publish, limits: Limits = LIMITS) -> Answer:
        return await self.send(await self.flush(*requests), limits)


def request(
    topic: str,
    events: int = 1,
    *,
    client: str = "shop",
    keys: list[str | None] | None = None,
    prints: str = "fprint01",
    first: int = 1,
    urls: list[str] | None = None,
    environment: str = "default",
    traceparent: str | None = None,
    runs: list[tuple[int, str]] | None = None,
) -> Publish:
    """One request with `events` events, told apart by their numbers."""
    lines = [line(topic, first + n) for n in range(events)]
    uids = [f"{topic[:9]:->9}{first + n:011d}" for n in range(events)]
    named = None
    if keys is not None:
        pairs = zip(keys, uids, strict=True)
        named = [("", "") if key is None else (f"{key:*>20}", prints + uid) for key, uid in pairs]
    return Publish(
        cast(Any, None),
        lambda _: None,
        client,
        "digest",
        topic,
        traceparent,
        lines,
        uids,
        runs or [(events, f"{environment}:{topic}:create")],
        urls or [f"https://example.com/{first + n}" for n in range(events)],
        named,
        sum(map(len, lines)),
        RECEIVED_AT,
    )


def line(topic: str, number: int) -> bytes:
    return b'{"topic":"%s","n":%d}' % (topic.encode(), number)


def lines(topic: str, first: int, last: int) -> list[bytes]:
    return [line(topic, number) for number in range(first, last + 1)]


def url_for(lane: int, of: int, nth: int = 0) -> str:
    """A URL whose events go to this lane of so many."""
    urls = (f"https://example.com/{n}" for n in itertools.count())
    return next(itertools.islice((url for url in urls if zlib.crc32(url.encode()) % of == lane), nth, None))


def settled(
    delivery: Delivery,
    next_fence: str = "",
    delay_ms: int | None = None,
    why: str = "",
    record: bytes = b'{"r":1}',
) -> Settlement:
    return Settlement(delivery, next_fence, delay_ms, why, record)


def deliveries_in(acquired: Acquired) -> list[Delivery]:
    assert not any(isinstance(job, AuxJob) for job in acquired.taken)
    return cast(list[Delivery], acquired.taken)


def lines_of(delivery: Delivery) -> list[bytes]:
    return delivery.body[1:-1].split(SEPARATOR)


def name_of(job: bytes) -> str:
    name, args = msgspec.msgpack.decode(job)
    return args[0] if name == "deliver" else name


def read_batch(bid: str, items: list[bytes]) -> Batch:
    lane, created_at, attempts, generation, sequence, events = (item.decode() for item in items[:6])
    runs, found = [], []
    for item in items[6:]:
        first, size = RUN_HEAD.unpack_from(item)
        runs.append((first, size))
        found += item[RUN_HEAD.size :].split(SEPARATOR)
    number = int(sequence) if sequence else None
    return Batch(bid, lane, int(created_at), int(attempts), generation, number, int(events), runs, found)


def _value(kind: bytes, value: Any) -> Any:
    if kind == b"set":
        return set(value)
    if kind in (b"hash", b"zset"):
        return {
            name.decode(errors="backslashreplace"): item
            for name, item in zip(value[::2], value[1::2], strict=True)
        }
    return value
