"""Lanes: how order and parallel deliveries go together."""

from collections import defaultdict

import pytest

from tests.bus import Bus
from tests.conftest import MakeBus
from tests.receiver import Delivery, Inbox, Receiver, Reply
from tests.until import until
from tests.wire import Caller


def lane_of(delivery: Delivery) -> str:
    return delivery.headers["routemaster-sequence"].split("/")[0]


def publish_rounds(publisher: Caller, topic: str, rounds: range, entities: int = 16) -> None:
    """Every entity once a round, with the round's number."""
    for n in rounds:
        events = [
            {"type": "update", "url": f"https://example.com/{entity}", "data": {"n": n}}
            for entity in range(entities)
        ]
        assert publisher.post(f"/topics/{topic}", events).status == 200


def rounds_by_entity(inbox: Inbox) -> dict[str, list[int]]:
    seen: dict[str, list[int]] = defaultdict(list)
    for event in inbox.events:
        seen[event["url"]].append(event["data"]["n"])
    return seen


def test_lanes_run_beside_each_other_and_keep_the_order_of_each_entity(
    publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    inbox.answer(200, delay_s=0.005)
    subscriber.subscribe(inbox.url, topic, timeout=0, max=4, parallelism=4)
    publish_rounds(publisher, topic, range(20))
    inbox.until_events(16 * 20)
    assert inbox.most_in_air in (2, 3, 4)
    assert len({lane_of(delivery) for delivery in inbox.deliveries}) == 4
    seen = rounds_by_entity(inbox)
    assert len(seen) == 16
    assert all(rounds == list(range(20)) for rounds in seen.values())


def test_an_entity_stays_in_its_lane(publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox):
    subscriber.subscribe(inbox.url, topic, timeout=0, max=4, parallelism=8)
    publish_rounds(publisher, topic, range(5))
    inbox.until_events(16 * 5)
    lanes: dict[str, set[str]] = defaultdict(set)
    for delivery in inbox.deliveries:
        for url in delivery.urls:
            lanes[url].add(lane_of(delivery))
    assert {len(where) for where in lanes.values()} == {1}


def test_a_lane_that_fails_does_not_hold_up_the_others(
    bus: Bus, publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    inbox.answer_next(Reply(500, hangs=True))
    subscriber.subscribe(inbox.url, topic, timeout=0, max=1, parallelism=4)
    publish_rounds(publisher, topic, range(3))
    inbox.until_deliveries(1)
    stuck = lane_of(inbox.deliveries[0])
    inbox.until(
        lambda: len({lane_of(d) for d in inbox.deliveries}) == 4 and len(inbox.deliveries) > 20, "the others"
    )
    assert [lane_of(delivery) for delivery in inbox.deliveries].count(stuck) == 1
    inbox.release()
    until(lambda: bus.subscriber(subscriber)["events"]["queued"] == 0, "the rest")
    rounds = rounds_by_entity(inbox)
    first = inbox.deliveries[0].urls[0]
    assert rounds[first] == [0, 0, 1, 2]


@pytest.mark.parametrize("changes", [[4], [1], [7, 2, 1, 3]], ids=str)
def test_a_change_of_parallelism_keeps_the_order_of_each_entity(
    bus: Bus, publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox, changes: list[int]
):
    inbox.answer(200, delay_s=0.002)
    inbox.answer_next(200, 500, 200, 500)
    subscriber.subscribe(inbox.url, topic, timeout=0, max=3, parallelism=2)
    publish_rounds(publisher, topic, range(8))
    for index, parallelism in enumerate(changes):
        subscriber.subscribe(inbox.url, topic, timeout=0, max=3, parallelism=parallelism)
        assert bus.subscriber(subscriber)["parallelism"] == parallelism
        publish_rounds(publisher, topic, range(8 + 8 * index, 16 + 8 * index))
    until(lambda: bus.subscriber(subscriber)["events"]["queued"] == 0, "the queue to empty", 30)
    wanted = list(range(8 + 8 * len(changes)))
    for url, rounds in rounds_by_entity(inbox).items():
        assert list(dict.fromkeys(rounds)) == wanted, url  # first arrivals: the rest are retries


def test_a_change_while_all_is_quiet_starts_at_once(
    bus: Bus, publisher: Caller, subscriber: Caller, topic: str, inbox: Inbox
):
    subscriber.subscribe(inbox.url, topic, timeout=0)
    publisher.publish(topic)
    until(lambda: bus.subscriber(subscriber)["events"]["sent"] == 1, "the first")
    subscriber.subscribe(inbox.url, topic, timeout=0, parallelism=3)
    publish_rounds(publisher, topic, range(1))
    inbox.until_events(17)


def test_with_more_busy_lanes_than_slots_every_lane_gets_its_turns(make_bus: MakeBus, receiver: Receiver):
    events, slots, subscribers = 30, 2, 6
    bus = make_bus(workers=0, worker_threads=slots)
    publisher = bus.client()
    inboxes = [receiver.inbox() for _ in range(subscribers)]
    for inbox in inboxes:
        bus.client().subscribe(inbox.url, "widgets", timeout=0, max=1)
    urls = [f"https://example.com/{n}" for n in range(events)]
    publisher.publish_many("widgets", urls)
    bus.add_worker()  # all lanes are busy before anything is delivered
    bus.start()
    for inbox in inboxes:
        inbox.until_events(events)
        assert inbox.urls == urls
    turns = sorted(
        (delivery.arrived_at, n) for n, inbox in enumerate(inboxes) for delivery in inbox.deliveries
    )
    served = [0] * subscribers
    for _, n in turns:
        served[n] += 1
        assert max(served) - min(served) <= slots + 1


def test_silent_lanes_leave_the_other_slots_to_the_rest(make_bus: MakeBus, receiver: Receiver):
    bus = make_bus(worker_threads=2)
    publisher = bus.client()
    silent = receiver.inbox("silent")
    silent.answer(200, hangs=True)
    bus.client().subscribe(silent.url, "widgets", timeout=0, max=1)
    publisher.publish("widgets")
    silent.until_deliveries(1)
    inboxes = [receiver.inbox() for _ in range(4)]
    for inbox in inboxes:
        bus.client().subscribe(inbox.url, "widgets", timeout=0, max=1)
    ids = [publisher.publish("widgets") for _ in range(10)]
    for inbox in inboxes:
        assert [event["id"] for event in inbox.until_events(10)] == ids
    assert silent.in_air == 1
    silent.release()
    silent.until_events(11)
