"""Workers come and go; subscriptions too."""

from tests.bus import Bus
from tests.conftest import MakeBus
from tests.receiver import Inbox, Receiver
from tests.until import until
from tests.wire import Caller

HOUR_MS = 3_600_000


def jobs_of(bus: Bus, subscriber: Caller) -> list[bytes]:
    return [job for job in bus.redis.smembers(bus.key("jobs:index:main")) if subscriber.id.encode() in job]


def test_sigterm_finishes_what_is_in_the_air_and_takes_nothing_more(make_bus: MakeBus, receiver: Receiver):
    bus = make_bus()
    inbox = receiver.inbox()
    inbox.answer(200, hangs=True)
    publisher, subscriber = bus.client(), bus.client()
    subscriber.subscribe(inbox.url, "widgets", timeout=0, max=1)
    ids = [publisher.publish("widgets") for _ in range(3)]
    inbox.until_deliveries(1)
    bus.worker.terminate()
    for _ in range(3):  # it has had the time to leave, and has not
        assert bus.subscriber(subscriber)["events"]["queued"] == 3
    assert bus.worker.is_running
    inbox.release()
    assert bus.worker.wait() == 0
    assert bus.subscriber(subscriber)["events"] == {
        **bus.subscriber(subscriber)["events"],
        "sent": 1,
        "queued": 2,
    }
    assert len(inbox.deliveries) == 1
    assert "Traceback" not in bus.worker.log
    bus.worker.start()
    inbox.until_events(3)
    assert [event["id"] for event in inbox.events] == ids
    assert [delivery.attempt for delivery in inbox.deliveries] == [1, 1, 1]


def test_an_idle_worker_leaves_at_once(make_bus: MakeBus):
    bus = make_bus()
    bus.worker.terminate()
    assert bus.worker.wait(5) == 0
    assert "Traceback" not in bus.worker.log


def test_two_workers_share_and_keep_the_order(make_bus: MakeBus, receiver: Receiver):
    bus = make_bus(workers=2, worker_threads=2)
    inboxes = [receiver.inbox() for _ in range(4)]
    publisher = bus.client()
    for inbox in inboxes:
        bus.client().subscribe(inbox.url, "widgets", timeout=0, max=3)
    urls = [f"https://example.com/{n}" for n in range(60)]
    for url in urls:
        publisher.publish("widgets", url=url)
    for inbox in inboxes:
        inbox.until_events(60)
        assert inbox.urls == urls
        assert inbox.most_in_air == 1


def test_unsubscribing_stops_what_is_tried_again(
    bus: Bus, publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    inbox.answer(500)
    subscriber.subscribe(inbox.url, topic, timeout=0)
    publisher.publish(topic)
    inbox.until_deliveries(2)
    assert subscriber.delete("/subscriber").status == 204
    assert jobs_of(bus, subscriber) == []
    until(lambda: inbox.in_air == 0, "what was in the air")
    came = len(inbox.deliveries)
    publisher.publish(topic)
    until(lambda: not bus.redis.keys(bus.key(f"*{subscriber.id}*")), "the subscription's keys to go")
    assert len(inbox.deliveries) == came
    assert jobs_of(bus, subscriber) == []


def test_an_answer_that_comes_after_the_end_recreates_nothing(
    bus: Bus, publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    inbox.answer(200, hangs=True)
    subscriber.subscribe(inbox.url, topic, timeout=0)
    publisher.publish(topic)
    inbox.until_deliveries(1)
    assert subscriber.delete("/subscriber").status == 204
    inbox.release()
    until(lambda: inbox.in_air == 0, "the late answer")
    # Another delivery by the same worker has been settled after it.
    subscriber.subscribe(inbox.url, topic, timeout=0)
    publisher.publish(topic)
    until(lambda: bus.subscriber(subscriber)["events"]["sent"] == 1, "the next delivery")
    assert len(inbox.deliveries) == 2
    assert subscriber.delete("/subscriber").status == 204
    until(lambda: not bus.redis.keys(bus.key(f"*{subscriber.id}*")), "the subscription's keys to go")


def test_subscribing_again_after_the_end_starts_clean(
    bus: Bus, publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    inbox.answer_next(500, 500)
    subscriber.subscribe(inbox.url, topic, timeout=0, max=1)
    publisher.publish(topic)
    until(lambda: bus.subscriber(subscriber)["events"]["sent"] == 1, "the first")
    subscriber.subscribe(inbox.url, topic, timeout=HOUR_MS, max=100)
    for _ in range(3):
        publisher.publish(topic)
    assert subscriber.delete("/subscriber").status == 204
    publisher.publish(topic)
    seen = len(inbox.deliveries)
    subscriber.subscribe(inbox.url, topic, timeout=0)
    assert bus.subscriber(subscriber)["health_points"] == 100
    new = publisher.publish(topic)
    inbox.until_deliveries(seen + 1)
    (delivery,) = inbox.deliveries[seen:]
    assert [event["id"] for event in delivery.events] == [new]
    assert delivery.headers["routemaster-sequence"].endswith("/1")
    until(lambda: bus.subscriber(subscriber)["events"]["queued"] == 0, "nothing to be left")
