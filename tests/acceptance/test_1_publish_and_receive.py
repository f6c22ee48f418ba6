"""Chapter 1. Two services and a topic between them.

`routemaster up` has started a bus and put its root key into its folder.
"""

from tests.acceptance.conftest import Up
from tests.receiver import Inbox, Receiver


def test_the_first_event(bus: Up, shop_server: Inbox):
    # Root makes a token for each service. A token is shown this once.
    root = bus.as_root()
    stock = bus.as_holder_of(root.post("/api_tokens", {"name": "stock"}).json["token"])
    shop = bus.as_holder_of(root.post("/api_tokens", {"name": "shop"}).json["token"])

    # The shop wants to hear of widgets, at its own URL. It chooses a uuid to know the bus by.
    subscription = {"topics": ["widgets"], "callback": shop_server.url, "uuid": "only-the-bus-knows"}
    assert shop.post("/subscription", subscription).status == 204

    # The stock says that a widget has changed, and where it is to be found.
    event = {"type": "update", "url": "https://stock.example/widgets/1", "data": {"colour": "red"}}
    published = stock.post("/topics/widgets", event)
    assert published.status == 200

    # Half a second later (the default) the shop's server is called.
    (delivery,) = shop_server.until_deliveries(1)
    assert delivery.headers["content-type"] == "application/json"
    assert delivery.credentials == "only-the-bus-knows:only-the-bus-knows"
    (received,) = delivery.events
    assert received["topic"] == "widgets"
    assert received["type"] == "update"
    assert received["url"] == "https://stock.example/widgets/1"
    assert received["data"] == {"colour": "red"}
    assert received["id"] == published.headers["routemaster-event-id"]


def test_a_topic_has_one_publisher(bus: Up):
    # Whoever publishes first owns the topic: its events have one source.
    orders, stranger = bus.new_service("orders"), bus.new_service("stranger")
    assert orders.post("/topics/orders", {"type": "create", "url": "https://o.example/1"}).status == 200
    assert stranger.post("/topics/orders", {"type": "create", "url": "https://x.example/1"}).status == 403


def test_a_mistake_is_explained(bus: Up):
    answer = bus.new_service("hasty").post(
        "/topics/parcels", {"type": "creates", "url": "https://p.example/"}
    )
    assert answer.status == 400
    assert answer.json["field"] == "type"
    assert "create" in answer.json["detail"]


def test_everybody_who_subscribes_gets_everything_in_order(bus: Up, shop_server: Inbox, receiver: Receiver):
    press_server = receiver.inbox("press")
    bus.new_service("shop").subscribe(shop_server.url, "prices", timeout=0)
    bus.new_service("press").subscribe(press_server.url, "prices", timeout=0)
    prices = bus.new_service("prices")
    published = [prices.publish("prices", url=f"https://p.example/{n}") for n in range(20)]
    for server in (shop_server, press_server):
        assert [event["id"] for event in server.until_events(20)] == published
