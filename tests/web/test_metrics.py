"""Metrics as a scraper reads them."""

import math
import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.bus import Bus
from tests.conftest import MakeBus, MakeClient
from tests.receiver import Inbox
from tests.until import until
from tests.wire import Caller

NOWHERE = "http://127.0.0.1:9/"
HOUR_MS = 3_600_000
DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "monitoring.md"
Values = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scraped(caller: Caller) -> Values:
    """Every sample, by its name and labels."""
    answer = caller.get("/metrics")
    assert (answer.status, answer.kind) == (200, "text/plain; version=0.0.4; charset=utf-8"), answer
    samples = [
        ((sample.name, frozenset(sample.labels.items())), sample.value)
        for family in text_string_to_metric_families(answer.body.decode())
        for sample in family.samples
    ]
    assert len(dict(samples)) == len(samples)  # none twice
    return dict(samples)


def value(values: Values, name: str, **labels: str) -> float:
    return values["routemaster_" + name, frozenset(labels.items())]


def of_subscriber(values: Values, name: str, subscriber: Caller) -> float:
    client = subscriber.id.rpartition("--")[0]
    return value(values, name, subscriber=subscriber.id, client=client)


def buckets(values: Values, name: str) -> dict[float, float]:
    return {
        float(dict(labels)["le"]): count
        for (sample, labels), count in values.items()
        if sample == f"routemaster_{name}_bucket"
    }


def test_who_monitors_may_scrape(bus: Bus, client: MakeClient):
    for caller in (bus.root, client(), client("grafana", "monitor")):
        assert scraped(caller)
    assert bus.caller(None).get("/metrics").status == 401


def test_every_metric_has_its_kind_and_its_meaning_and_is_documented(bus: Bus):
    text = bus.root.get("/metrics").body.decode()
    assert text.endswith("\n")
    families = {family.name: family for family in text_string_to_metric_families(text)}
    named = re.findall(r"^# TYPE (\w+) (\w+)$", text, re.M)
    assert len(named) == len(families) > 20
    page = DOCUMENT.read_text(encoding="utf-8")
    for name, kind in named:
        assert name.endswith("_total") == (kind == "counter")
        family = families[name.removesuffix("_total") if kind == "counter" else name]
        assert (family.type, bool(family.documentation)) == (kind, True)
        assert f"`{name.removeprefix('routemaster_')}" in page, name


def test_events_are_counted_on_their_way(
    bus: Bus, publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    subscriber.subscribe(inbox.url, topic, timeout=HOUR_MS, max=3)
    publisher.publish_many(topic, [f"https://example.com/{n}" for n in range(5)])
    inbox.until(lambda: bus.subscriber(subscriber)["events"]["sent"] == 3, "three to be acknowledged")
    values = scraped(bus.root)
    assert value(values, "events_accepted_total", topic=topic) == 5
    told = {
        name: of_subscriber(values, name, subscriber)
        for name in (
            "events_routed_total",
            "events_delivered_total",
            "attempts_failed_total",
            "events_dropped_total",
            "events_purged_total",
            "events_dead_total",
            "queued_events",
            "queued_batches",
            "dead_events",
            "paused",
        )
    }
    assert told == {
        "events_routed_total": 5,
        "events_delivered_total": 3,
        "attempts_failed_total": 0,
        "events_dropped_total": 0,
        "events_purged_total": 0,
        "events_dead_total": 0,
        "queued_events": 2,
        "queued_batches": 1,
        "dead_events": 0,
        "paused": 0,
    }
    assert of_subscriber(values, "health_points", subscriber) == 100
    before = of_subscriber(values, "oldest_seconds", subscriber)
    until(lambda: of_subscriber(scraped(bus.root), "oldest_seconds", subscriber) > before + 0.01, "age")


def test_failures_dead_letters_and_pauses_show(
    bus: Bus, publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    inbox.answer(500)
    subscriber.subscribe(inbox.url, topic, timeout=0, max_attempts=2)
    publisher.publish(topic)
    until(lambda: bus.subscriber(subscriber)["events"]["dead"] == 1, "a dead letter")
    subscriber.post("/subscriber/pause")
    values = scraped(bus.root)
    told = [
        of_subscriber(values, name, subscriber)
        for name in ("attempts_failed_total", "events_dead_total", "dead_events", "queued_events")
    ]
    assert told == [2, 1, 1, 0]
    assert of_subscriber(values, "oldest_seconds", subscriber) == 0
    assert of_subscriber(values, "health_points", subscriber) == 96
    assert of_subscriber(values, "paused", subscriber) == 1
    assert subscriber.delete("/subscriber/dead").status == 200
    values = scraped(bus.root)  # what is counted stays, what is there does not
    assert of_subscriber(values, "events_dead_total", subscriber) == 1
    assert of_subscriber(values, "dead_events", subscriber) == 0


def test_what_has_ended_is_not_shown(bus: Bus, client: MakeClient, inbox: Inbox):
    publisher, subscriber, topic = client("publisher"), client("subscriber"), bus.topic()
    subscriber.subscribe(inbox.url, topic, timeout=0)
    publisher.publish(topic)
    inbox.until_events(1)
    assert subscriber.id in str(scraped(bus.root)) and topic in str(scraped(bus.root))
    assert subscriber.delete("/subscriber").status == 204
    assert publisher.delete(f"/topics/{topic}").status == 204
    assert subscriber.id not in str(scraped(bus.root)) and topic not in str(scraped(bus.root))
    assert bus.redis.hget(bus.key("counters"), f"delivered:{subscriber.id}") == b"1"  # audits need it


def test_each_process_answers_the_same(make_bus: MakeBus, inbox: Inbox):
    bus = make_bus(web=2, workers=2)
    subscriber, publisher, topic = bus.client(), bus.client(), bus.topic()
    subscriber.subscribe(inbox.url, topic, timeout=0, max=1)
    for n in (0, 1, 0, 1):
        caller = publisher.at(bus.address(n))
        caller.publish(topic)
        caller.close()
    until(lambda: bus.subscriber(subscriber)["events"]["sent"] == 4, "four to be acknowledged")
    first, second = (scraped(bus.caller(bus.root_key, n)) for n in (0, 1))
    differ = {name for name, _ in first if "memory" in name}
    assert {key: number for key, number in first.items() if key[0] not in differ} == {
        key: number for key, number in second.items() if key[0] not in differ
    }
    assert value(first, "workers") == 2
    assert value(first, "delivery_latency_seconds_count") == 4
    assert value(first, "attempt_duration_seconds_count") == 4


def test_histograms_add_up(make_bus: MakeBus, inbox: Inbox):
    bus = make_bus()
    subscriber, publisher, topic = bus.client(), bus.client(), bus.topic()
    inbox.answer_next(500)
    subscriber.subscribe(inbox.url, topic, timeout=300, max=100)
    publisher.publish_many(topic, [f"https://example.com/{n}" for n in range(7)])
    publisher.publish(topic)
    until(lambda: bus.subscriber(subscriber)["events"]["sent"] == 8, "all to be acknowledged")
    values = scraped(bus.root)
    flushes = value(values, "flush_events_count")
    for name, count in (
        ("delivery_latency_seconds", 1),
        ("attempt_duration_seconds", 2),
        ("flush_events", flushes),
        ("flush_duration_seconds", flushes),
    ):
        cumulative = buckets(values, name)
        assert list(cumulative) == sorted(cumulative)
        assert list(cumulative.values()) == sorted(cumulative.values())
        assert cumulative[math.inf] == value(values, f"{name}_count") == count, name
    # The batch waited for its deadline and for a second attempt.
    assert value(values, "delivery_latency_seconds_sum") >= 0.3
    assert buckets(values, "delivery_latency_seconds")[0.256] == 0


def test_flushes_are_told_of_by_later_ones(make_bus: MakeBus):
    """Now and then, so that telling costs a busy bus nothing."""
    bus = make_bus(workers=0)
    publisher, topic = bus.client(), bus.topic()
    publisher.publish_many(topic, [f"https://example.com/{n}" for n in range(7)])

    def is_told() -> bool:
        publisher.publish(topic)
        return value(scraped(bus.root), "flush_events_sum") >= 10

    until(is_told, "flushes to be told of")
    values = scraped(bus.root)
    count = value(values, "flush_events_count")
    assert value(values, "flush_events_sum") == count + 6  # one flush of seven, and flushes of one
    assert buckets(values, "flush_events")[4] == count - 1
    assert buckets(values, "flush_events")[8] == count
    assert value(values, "flush_duration_seconds_count") == count
    assert 0 < value(values, "flush_duration_seconds_sum") < 60


def test_store_jobs_and_logs(make_bus: MakeBus, inbox: Inbox):
    bus = make_bus(idempotency_max_ids=1_000)
    subscriber, publisher, topic = bus.client(), bus.client(), bus.topic()
    inbox.answer(hangs=True)
    subscriber.subscribe(inbox.url, topic, timeout=0)
    sleepy = bus.client()
    sleepy.subscribe(NOWHERE, topic, timeout=HOUR_MS, max=5_000)
    events = [{"type": "noop", "url": "https://example.com/", "id": f"i{n}"} for n in range(1_001)]
    assert publisher.post(f"/topics/{topic}", events[:1_000]).status == 200
    assert publisher.post(f"/topics/{topic}", events[1_000:]).status == 200
    inbox.until_deliveries(1)
    values = scraped(bus.root)
    jobs = {
        (queue, state): value(values, "jobs", queue=queue, state=state)
        for queue in ("main", "aux")
        for state in ("scheduled", "instant", "pending")
    }
    assert jobs["main", "pending"] >= 1
    assert sum(jobs[queue, state] for queue, state in jobs if queue == "main") == 2
    assert value(values, "workers") == 1
    assert value(values, "batches") == 12
    assert value(values, "idempotency_window_cut_short_total") == 1
    assert value(values, "store_memory_used_bytes") > 2**20
    assert value(values, "store_memory_max_bytes") > value(values, "store_memory_used_bytes")
    assert value(values, "log_last_seq", log="events") == 1_001
    assert value(values, "log_bytes", log="events") > 1_001 * 80
    assert value(values, "log_gaps", log="events") == 0
    assert value(values, "log_last_seq", log="deliveries") == 0
    inbox.release()


def test_a_named_subscription_has_its_clients_label(bus: Bus, client: MakeClient, topic: str):
    owner = client("service-name")
    owner.subscribe(NOWHERE, topic, name="second")
    row = value(scraped(bus.root), "queued_events", subscriber=f"{owner.id}.second", client="service-name")
    assert row == 0


def test_what_a_new_bus_says_is_whole(make_bus: MakeBus):
    values = scraped(make_bus(workers=0).root)
    assert value(values, "delivery_latency_seconds_count") == 0
    assert value(values, "log_last_seq", log="events") == 0
    assert value(values, "workers") == 0
