"""Looks at a bus, and makes snapshots from what it said now and a few seconds ago."""

import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from routemaster.cli.session import Session
from routemaster.cli.status.metrics import Metrics
from routemaster.cli.status.snapshot import Snapshot, Subscriber, Topic
from routemaster.cli.subscribers import state_of

KEPT = 6  # looks: rates over five seconds are calm enough to be read


@dataclass(frozen=True)
class _Look:
    at: float
    topics: list[dict[str, Any]]
    subscriptions: list[dict[str, Any]]
    metrics: Metrics
    counts: dict[tuple[str, str], int]


class Watch:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._looks: deque[_Look] = deque(maxlen=KEPT)

    def look(self) -> Snapshot:
        """Ask the bus, and compare; BusAway or Refused when it does not say."""
        topics = self._session.get("/topics", list[dict[str, Any]])
        subscriptions = self._session.get("/subscriptions", list[dict[str, Any]])
        metrics = Metrics(self._session.do("GET", "/metrics").body.decode("utf-8", "replace"))
        counts = {("accepted", row["name"]): int(row["events"]) for row in topics}
        for row in subscriptions:
            counts["delivered", row["subscriber"]] = int(row["events"]["sent"])
            counts["failed", row["subscriber"]] = int(row["events"].get("failed") or 0)
        self._looks.append(_Look(time.monotonic(), topics, subscriptions, metrics, counts))
        return self._compare(self._looks[0], self._looks[-1])

    def _compare(self, then: _Look, now: _Look) -> Snapshot:
        over_s = now.at - then.at

        def rate(kind: str, name: str) -> float:
            """What was not there then began just now: how fast, the next look tells."""
            key = kind, name
            more = now.counts[key] - then.counts.get(key, now.counts[key])
            return round(max(0, more) / over_s, 1) if over_s > 0 else 0.0

        topics = [
            Topic(
                name=row["name"],
                publisher=row["publisher"],
                events=row["events"],
                rate=rate("accepted", row["name"]),
            )
            for row in now.topics
        ]
        subscribers = [
            Subscriber(
                subscriber=row["subscriber"],
                state=state_of(row),
                health_points=row["health_points"],
                queued=row["events"]["queued"],
                oldest=row["events"]["oldest"],
                dead=row["events"].get("dead"),
                rate=rate("delivered", row["subscriber"]),
            )
            for row in now.subscriptions
        ]
        return Snapshot(
            url=self._session.url,
            at=time.time_ns() // 1_000_000,
            over_s=round(over_s, 3),
            accepted_rate=round(sum(row.rate for row in topics), 1),
            delivered_rate=round(sum(row.rate for row in subscribers), 1),
            failed_rate=round(sum(rate("failed", row.subscriber) for row in subscribers), 1),
            queued=sum(row.queued for row in subscribers),
            oldest=min((row.oldest for row in subscribers if row.oldest is not None), default=None),
            dead=sum(row.dead or 0 for row in subscribers),
            latency=now.metrics.latency(then.metrics),
            workers=now.metrics.workers(),
            store=now.metrics.store(),
            topics=topics,
            subscribers=subscribers,
        )
