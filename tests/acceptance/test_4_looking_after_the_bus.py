"""Chapter 4. Who is there, what waits, and how to leave."""

from tests.acceptance.conftest import Up
from tests.receiver import Inbox
from tests.until import until


def test_monitoring_shows_topics_and_subscriptions(bus: Up, shop_server: Inbox):
    shop, boats = bus.new_service("shop"), bus.new_service("boats")
    shop.subscribe(shop_server.url, "boats", timeout=3_600_000, max=2)
    boats.publish("boats")

    topics = {row["name"]: row for row in shop.get("/topics").json}
    assert topics["boats"] == {"name": "boats", "publisher": boats.id, "events": 1}

    def mine() -> dict:
        return next(row for row in shop.get("/subscriptions").json if row["subscriber"] == shop.id)

    assert mine()["topics"] == ["boats"]
    assert mine()["events"]["queued"] == 1
    boats.publish("boats")
    until(lambda: mine()["events"]["sent"] == 2, "both to be delivered")
    assert mine()["health_points"] == 100


def test_health_is_for_the_load_balancer(bus: Up):
    nobody = bus.as_holder_of("not-a-token-at-all")
    assert nobody.get("/health").status == 200
    assert bus.as_root().get("/pulse").status == 204


def test_leaving_a_topic_and_the_bus(bus: Up, shop_server: Inbox):
    shop, ships = bus.new_service("shop"), bus.new_service("ships")
    shop.subscribe(shop_server.url, "ships", "docks", timeout=0)
    assert shop.delete("/subscriber/topics/ships").status == 204
    ships.publish("ships")
    expected = ships.publish("docks")
    assert [event["id"] for event in shop_server.until_events(1)] == [expected]
    assert shop.delete("/subscriber").status == 204
    assert shop.delete("/subscriber").status == 404


def test_a_token_that_leaked_is_taken_away(bus: Up):
    leaky = bus.new_service("leaky")
    leaky.publish("leaks")
    assert bus.as_root().delete(f"/api_tokens/{leaky.token}").status == 204
    assert leaky.post("/topics/leaks", {"type": "noop", "url": "https://l.example/"}).status == 401
    # Its topic is free for another.
    bus.new_service("plumber").publish("leaks")
