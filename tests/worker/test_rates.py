"""A rate over the wire: at most so many deliveries a second, whoever sends them."""

import pytest

from tests.bus import Bus
from tests.conftest import MakeBus, MakeClient
from tests.receiver import Inbox, Receiver
from tests.wire import Caller

SLACK_S = 0.5  # what came late at one end of a stretch of time, and in time at the other


def holds(inbox: Inbox, rate: float) -> bool:
    """Whether in no stretch of time more arrived than the rate allows."""
    at = [delivery.arrived_at for delivery in inbox.deliveries]
    for first in range(len(at)):
        for last in range(first + 1, len(at)):
            took_s, least_s = at[last] - at[first], (last - first) / rate - SLACK_S
            assert took_s >= least_s, f"{last - first} more in {took_s} s"
    return True


@pytest.mark.parametrize("parallelism", [1, 4])
def test_it_holds_over_time(
    publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox, parallelism: int
):
    subscriber.subscribe(inbox.url, topic, timeout=0, max=1, max_rate=10, parallelism=parallelism)
    urls = [f"https://example.com/{n}" for n in range(30)]
    publisher.publish_many(topic, urls)
    inbox.until_deliveries(30)
    assert sorted(inbox.urls) == sorted(urls)
    assert holds(inbox, 10)


def test_every_lane_gets_its_turns(publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox):
    subscriber.subscribe(inbox.url, topic, timeout=0, max=1, max_rate=20, parallelism=4)
    publisher.publish_many(topic, [f"https://example.com/{n}" for n in range(80)])
    deliveries = inbox.until_deliveries(40)[:40]
    lanes = [delivery.headers["routemaster-sequence"].split("/")[0] for delivery in deliveries]
    for lane in set(lanes):
        assert lanes.count(lane) >= 5, lanes
    assert len(set(lanes)) == 4


def test_it_holds_when_the_worker_is_killed_and_started_again(make_bus: MakeBus, receiver: Receiver):
    bus, inbox = make_bus(), receiver.inbox()
    publisher, subscriber = bus.client(), bus.client()
    subscriber.subscribe(inbox.url, "widgets", timeout=0, max=1, max_rate=2, parallelism=4)
    publisher.publish_many("widgets", [f"https://example.com/{n}" for n in range(40)])
    for count in (2, 3):
        inbox.until_deliveries(count)
        bus.worker.restart()
    inbox.until_deliveries(8)
    assert holds(inbox, 2)


def test_one_with_a_rate_delays_nobody_else(
    publisher: Caller, client: MakeClient, topic: str, receiver: Receiver
):
    slow, prompt = receiver.inbox("slow"), receiver.inbox("prompt")
    client().subscribe(slow.url, topic, timeout=0, max=1, max_rate=1, parallelism=8)
    client().subscribe(prompt.url, topic, timeout=0, max=1)
    urls = [f"https://example.com/{n}" for n in range(100)]
    publisher.publish_many(topic, urls)
    prompt.until_events(100)
    assert prompt.urls == urls
    assert holds(slow, 1)
    assert len(slow.deliveries) <= 20


def test_taken_away_it_no_longer_holds(
    bus: Bus, publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    subscriber.subscribe(inbox.url, topic, timeout=0, max=1, max_rate=0.001)
    publisher.publish_many(topic, [f"https://example.com/{n}" for n in range(5)])
    inbox.until_deliveries(1)
    inbox.until(lambda: bus.subscriber(subscriber)["why"] == "rate", "it to rest")
    assert bus.subscriber(subscriber)["retry_at"] > 0
    subscriber.subscribe(inbox.url, topic, timeout=0, max=1)
    inbox.until_events(5)
