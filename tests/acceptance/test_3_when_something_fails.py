"""Chapter 3. Failures: what was accepted arrives, in order, at least once."""

from tests.acceptance.conftest import Up
from tests.receiver import Inbox, Reply


def test_a_subscriber_that_fails_gets_the_same_batch_again(bus: Up, shop_server: Inbox):
    shop_server.answer_next(Reply(500), Reply(hangs_up=True))
    bus.new_service("shop").subscribe(shop_server.url, "doors", timeout=0)
    bus.new_service("doors").publish("doors")
    deliveries = shop_server.until_deliveries(3)
    assert [delivery.attempt for delivery in deliveries] == [1, 2, 3]
    # A receiver that has seen a `webhook-id` can skip it: it always carries the same events.
    assert len({(delivery.id, delivery.body) for delivery in deliveries}) == 1


def test_nothing_overtakes_what_has_to_be_sent_again(bus: Up, shop_server: Inbox):
    shop_server.answer_next(500)
    bus.new_service("shop").subscribe(shop_server.url, "trains", timeout=0, max=1)
    trains = bus.new_service("trains")
    first, second = trains.publish("trains"), trains.publish("trains")
    received = [event["id"] for event in shop_server.until_events(3)]
    assert received == [first, first, second]


def test_a_subscriber_can_ask_for_a_pause(bus: Up, shop_server: Inbox):
    shop_server.answer_next(Reply(429, {"retry-after": "1"}))
    bus.new_service("shop").subscribe(shop_server.url, "alarms", timeout=0)
    bus.new_service("alarms").publish("alarms")
    first, second = shop_server.until_deliveries(2)
    assert second.arrived_at - first.arrived_at >= 0.99


def test_a_publisher_that_got_no_answer_tries_again(bus: Up, shop_server: Inbox):
    # With an id of its own the event is taken once, however often it is sent.
    shop = bus.new_service("shop")
    shop.subscribe(shop_server.url, "bills", timeout=0)
    bills = bus.new_service("bills")
    bill = {"type": "create", "url": "https://b.example/7", "id": "bill-7"}
    answers = [bills.post("/topics/bills", bill) for _ in range(3)]
    assert {answer.status for answer in answers} == {200}
    assert len({answer.headers["routemaster-event-id"] for answer in answers}) == 1
    bills.publish("bills", url="https://b.example/8")
    assert [event["url"] for event in shop_server.until_events(2)] == [
        "https://b.example/7",
        "https://b.example/8",
    ]
    # The same id for something else is a mistake, and said to be one.
    assert bills.post("/topics/bills", {**bill, "type": "delete"}).status == 409


def test_a_bus_that_was_killed_has_everything_when_it_is_back(bus: Up, shop_server: Inbox):
    shop_server.answer(503)  # the shop is closed
    shop, lamps = bus.new_service("shop"), bus.new_service("lamps")
    shop.subscribe(shop_server.url, "lamps", timeout=0, max=5)
    published = [lamps.publish("lamps", url=f"https://l.example/{n}") for n in range(20)]
    shop_server.until_deliveries(1)

    bus.kill()
    shop_server.answer(200)
    bus.start()

    # The same folder: tokens, topics, subscriptions and what was queued are all there.
    assert lamps.token
    published.append(bus.as_holder_of(lamps.token).publish("lamps", url="https://l.example/20"))
    shop_server.until(
        lambda: published[-1] in [event["id"] for event in shop_server.events], "the last event", 30
    )
    first_arrivals = list(dict.fromkeys(event["id"] for event in shop_server.events))
    assert first_arrivals == published
