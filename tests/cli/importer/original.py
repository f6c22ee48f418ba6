"""A store as the original's last version writes it: the same keys, by the same steps, in the same bytes.

Nothing here knows our code. `ingest`, `promote`, `fail` and `delete` are scripts of the original.
"""

import base64
import os
import time
from typing import Any

import msgspec
from redis import Redis

pack = msgspec.msgpack.encode
LETTERS = {"timestamp": "t", "topic": "o", "type": "y", "url": "u", "data": "d"}


def event_bytes(topic: str, url: str, type: str = "update", t: int | None = None, data: Any = None) -> bytes:
    """What its codec makes of an event. `data` is always there, nil where there is none."""
    fields = {
        "timestamp": now_ms() if t is None else t,
        "topic": topic,
        "type": type,
        "url": url,
        "data": data,
    }
    return pack(["e", {LETTERS[name]: value for name, value in fields.items()}])


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Original:
    """`batch_key` differs between its versions, and so does the prefix: older ones had `rm:` and `batch:`."""

    def __init__(self, redis: Redis, prefix: str = "", batch_key: str = "batches:") -> None:
        self.redis = redis
        self.prefix = prefix
        self._batch_key = batch_key
        self._last_ms = 0

    def key(self, name: str) -> str:
        return self.prefix + name

    def batch_key(self, bid: str) -> str:
        return self.key(self._batch_key + bid)

    # Tokens, topics, subscribers

    def token(self, name: str, token: str | None = None) -> str:
        token = token or f"{name}--{os.urandom(16).hex()}"
        self.redis.hset(self.key("api_tokens:by_token"), token, name)
        return token

    def topic(self, name: str, publisher: str | None = None) -> None:
        self.redis.sadd(self.key("topics"), name)
        if publisher:
            self.redis.hsetnx(self.key(f"topic:{name}"), "publisher", publisher)

    def subscribe(self, token: str, callback: str, *topics: str, **attributes: str | int) -> None:
        fields = {"callback": callback, "uuid": "secret-uuid", **attributes}
        self.redis.sadd(self.key("subscribers"), token)
        self.redis.hset(self.key(f"subscriber:{token}"), mapping=fields)
        for topic in topics:
            self.topic(topic)
            self.redis.sadd(self.key(f"subscribers:{topic}"), token)
            self.redis.sadd(self.key(f"topics:{token}"), topic)

    # Events

    def publish(self, token: str, topic: str, url: str, **event: Any) -> None:
        """As its ingest service: into a batch of each subscriber, then the counts."""
        self.topic(topic, token)
        item = event_bytes(topic, url, **event)
        for subscriber in self.redis.smembers(self.key(f"subscribers:{topic}")):
            self.ingest(subscriber.decode(), item)
        self.redis.hincrby(self.key(f"topic:{topic}"), "counter", 1)

    def ingest(self, subscriber: str, *items: bytes) -> str:
        """Into the current batch, or a new one, which is no longer current once it is full."""
        current = self.key(f"batches:current:{subscriber}")
        most = int(self.redis.hget(self.key(f"subscriber:{subscriber}"), "max_events") or 100)
        bid = ""
        for item in items:
            known = self.redis.srandmember(current)
            bid = known.decode() if known else self.open(subscriber)
            self.redis.rpush(self.batch_key(bid), item)
            self.redis.hincrby(self.key("batches:gauges:event"), subscriber, 1)
            if self.redis.llen(self.batch_key(bid)) - 3 >= most:
                self.redis.srem(current, bid)
            job = pack(["batch", [bid]])
            self.redis.sadd(self.key("jobs:index:main"), job)
            self.redis.zadd(self.key("jobs:scheduled:main"), {job: now_ms() + 500})
        return bid

    def open(self, subscriber: str) -> str:
        bid = base64.urlsafe_b64encode(os.urandom(15)).decode()
        self._last_ms = max(self._last_ms + 1, now_ms() - 3_600_000)
        self.redis.sadd(self.key(f"batches:current:{subscriber}"), bid)
        self.redis.zadd(self.key("batches:index"), {bid: self._last_ms})
        self.redis.rpush(self.batch_key(bid), subscriber, self._last_ms, 0)
        self.redis.hincrby(self.key("batches:gauges:batch"), subscriber, 1)
        return bid

    def fill(self, subscriber: str, batches: int, items: list[bytes]) -> None:
        """Many ready batches of the same events, quickly."""
        pipe = self.redis.pipeline(transaction=False)
        for _ in range(batches):
            bid = base64.urlsafe_b64encode(os.urandom(15)).decode()
            self._last_ms = max(self._last_ms + 1, now_ms() - 3_600_000)
            pipe.zadd(self.key("batches:index"), {bid: self._last_ms})
            pipe.rpush(self.batch_key(bid), subscriber, self._last_ms, 0, *items)
        pipe.hincrby(self.key("batches:gauges:batch"), subscriber, batches)
        pipe.hincrby(self.key("batches:gauges:event"), subscriber, batches * len(items))
        pipe.execute()

    def promote(self, bid: str) -> str:
        subscriber = self.redis.lindex(self.batch_key(bid), 0).decode()
        self.redis.srem(self.key(f"batches:current:{subscriber}"), bid)
        return bid

    def fail(self, bid: str) -> None:
        attempts = int(self.redis.lindex(self.batch_key(bid), 2))
        self.redis.lset(self.batch_key(bid), 2, attempts + 1)

    def delete(self, bid: str) -> None:
        self.promote(bid)
        self.redis.delete(self.batch_key(bid))
        self.redis.zrem(self.key("batches:index"), bid)

    # Workers and counters

    def beat(self, worker: str, ago_ms: int = 0) -> None:
        self.redis.hset(self.key("workers"), worker, now_ms() - ago_ms)

    def count(self, name: str, value: int, **tags: str) -> None:
        self.redis.hincrby(self.key("counters"), pack([name, sorted(tags.items())]), value)

    # What a test looks at

    def dump(self) -> dict[bytes, bytes | None]:
        return {key: self.redis.dump(key) for key in self.redis.scan_iter(self.prefix + "*")}
