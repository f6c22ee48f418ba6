"""The command against a real bus: what a subscriber of the old one sees of the move."""

from tests.bus import Bus
from tests.cli.importer.conftest import Run
from tests.cli.importer.original import Original, event_bytes
from tests.receiver import Inbox, Receiver
from tests.wire import Caller


def test_subscribers_receive_what_was_queued_in_order_and_then_what_is_new(
    original: Original, target: Bus, run: Run, inbox: Inbox
):
    shop, mail = original.token("shop"), original.token("mail")
    original.topic("orders", shop)
    original.subscribe(mail, inbox.url, "orders", timeout=0, max_events=3)
    for n in range(1, 9):
        original.publish(shop, "orders", f"https://shop.example/{n}", t=1_600_000_000_000 + n, data={"n": n})
    ran = run()
    assert (ran.code, ran.err) == (0, "")
    assert ran.tallies() == {
        "tokens": (2, 0, 0),
        "topics": (1, 0, 0),
        "subscriptions": (1, 0, 0),
        "batches": (3, 0, 0),
        "events": (8, 0, 0),
    }
    publisher = target.caller(shop)
    publisher.publish("orders", "https://shop.example/9")
    events = inbox.until_events(9)
    assert [event["url"] for event in events] == [f"https://shop.example/{n}" for n in range(1, 10)]
    first = {name: value for name, value in events[0].items() if name != "id"}
    assert first == {
        "topic": "orders",
        "type": "update",
        "url": "https://shop.example/1",
        "t": 1_600_000_000_001,
        "data": {"n": 1},
    }
    assert len({event["id"] for event in events}) == 9
    assert [len(delivery.events) for delivery in inbox.deliveries][:2] == [3, 3]
    assert inbox.deliveries[0].credentials == "secret-uuid:secret-uuid"
