"""Chapter 2. Batches: few deliveries for many events.

A subscriber says how long it can wait (`timeout`, ms) and how many events it takes at once (`max`).
"""

from tests.acceptance.conftest import Up
from tests.receiver import Inbox


def test_events_wait_for_company_until_the_timeout(bus: Up, shop_server: Inbox):
    bus.new_service("shop").subscribe(shop_server.url, "books", timeout=300, max=100)
    books = bus.new_service("books")
    for n in range(5):
        books.publish("books", url=f"https://b.example/{n}")
    (delivery,) = shop_server.until_deliveries(1)
    assert len(delivery.events) == 5


def test_a_full_batch_does_not_wait(bus: Up, shop_server: Inbox):
    an_hour = 3_600_000
    bus.new_service("shop").subscribe(shop_server.url, "films", timeout=an_hour, max=3)
    films = bus.new_service("films")
    for n in range(3):
        films.publish("films", url=f"https://f.example/{n}")
    (delivery,) = shop_server.until_deliveries(1)
    assert delivery.urls == [f"https://f.example/{n}" for n in range(3)]


def test_many_events_can_be_published_at_once(bus: Up, shop_server: Inbox):
    # A whole import in one request: it is accepted whole, or refused whole with the reason.
    bus.new_service("shop").subscribe(shop_server.url, "songs", timeout=0, max=100)
    songs = bus.new_service("songs")
    events = [{"type": "create", "url": f"https://s.example/{n}"} for n in range(250)]
    answer = songs.post("/topics/songs", events)
    assert (answer.status, answer.json) == (200, {"accepted": 250})
    assert [event["url"] for event in shop_server.until_events(250)] == [event["url"] for event in events]

    bad = [*events[:3], {"type": "create", "url": "not a url"}]
    refused = songs.post("/topics/songs", bad)
    assert (refused.status, refused.json["index"], refused.json["field"]) == (400, 3, "url")


def test_a_busy_subscriber_can_take_several_deliveries_at_once(bus: Up, shop_server: Inbox):
    # What belongs to one entity (one URL) still comes in order.
    shop_server.answer(200, delay_s=0.01)
    bus.new_service("shop").subscribe(shop_server.url, "seats", timeout=0, max=5, parallelism=4)
    seats = bus.new_service("seats")
    for n in range(10):
        states = [{"type": "update", "url": f"https://s.example/{s}", "data": {"n": n}} for s in range(8)]
        assert seats.post("/topics/seats", states).status == 200
    received = shop_server.until_events(80)
    assert shop_server.most_in_air > 1
    for seat in range(8):
        mine = [event["data"]["n"] for event in received if event["url"] == f"https://s.example/{seat}"]
        assert mine == list(range(10))
