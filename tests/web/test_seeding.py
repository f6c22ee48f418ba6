"""ROUTEMASTER_CLIENTS: tokens that are there from the start."""

import contextlib
from collections.abc import Iterator

import pytest

from tests.bus import Bus, Store, running_bus, running_store
from tests.until import until
from tests.web.problem import is_problem

SHOP, DEPOT = "shop--0123456789", "depot--9876543210"


@pytest.fixture
def seeded(store: Store) -> Iterator[Bus]:
    """Two web processes that start at one moment."""
    with running_bus(store, web=2, workers=0, clients=f" {SHOP}, {DEPOT},") as bus:
        yield bus


def names(bus: Bus) -> list[str]:
    answer = bus.root.get("/api_tokens")
    return [row["name"] for row in answer.json] if answer.status == 200 else []


def restart(bus: Bus) -> None:
    for n, web in enumerate(bus.webs):
        web.restart()
        bus.until_serves(n)
        with contextlib.closing(bus.caller(bus.root_key, n)) as root:
            assert root.get("/api_tokens").status in (200, 204)


def test_each_makes_a_client_once(seeded: Bus):
    assert sorted(names(seeded)) == ["depot", "shop"]
    for n in (0, 1):
        assert seeded.caller(SHOP, n).get("/topics").status == 200
    restart(seeded)
    assert sorted(names(seeded)) == ["depot", "shop"]


def test_one_that_was_deleted_stays_deleted(seeded: Bus):
    assert seeded.root.delete(f"/api_tokens/{SHOP}").status == 204
    restart(seeded)
    assert names(seeded) == ["depot"]
    assert is_problem(seeded.caller(SHOP).get("/topics"), 401)
    assert seeded.caller(DEPOT).get("/topics").status == 200


def test_one_that_was_rotated_away_stays_away(seeded: Bus):
    client = next(row["token"] for row in seeded.root.get("/api_tokens").json if row["name"] == "shop")
    assert seeded.root.post(f"/api_tokens/{client}/rotate", {}).status == 201
    restart(seeded)
    assert is_problem(seeded.caller(SHOP).get("/topics"), 401)
    assert sorted(names(seeded)) == ["depot", "shop"]


def test_one_that_was_made_by_root_is_left_alone(store: Store):
    with running_bus(store, workers=0) as bus:
        made = bus.root.post("/api_tokens", {"name": "other", "token": SHOP, "role": "monitor"})
        assert made.status == 201
        bus.add_web(clients=SHOP)
        bus.start()
        with contextlib.closing(bus.caller(SHOP, 1)) as monitor:
            assert monitor.get("/topics").status == 200
        assert names(bus) == ["other"]


def test_one_without_a_name_is_a_secret_from_end_to_end(store: Store):
    with running_bus(store, workers=0, clients="0123456789abcdef,--0123456789abcdef") as bus:
        assert names(bus) == ["client", "client"]
        assert bus.caller("0123456789abcdef").get("/topics").status == 200
        kept = [bus.redis.dump(key) or b"" for key in bus.redis.keys(bus.key("*"))]
        assert not any(b"0123456789abcdef" in dump for dump in kept)


def test_while_the_store_is_full_they_wait_and_nobody_else_does():
    """What frees memory has to work, also after a restart."""
    with running_store() as store, running_bus(store, workers=0, clients=SHOP) as bus:
        assert bus.caller(SHOP).get("/topics").status == 200
        store.redis.config_set("maxmemory", 1_000_000)
        (web,) = bus.webs
        web.restart()
        bus.until_serves()
        assert bus.caller(SHOP).get("/topics").status == 200
        assert bus.caller(bus.root_key).delete(f"/api_tokens/{SHOP}").status == 204
        bus.add_web(clients=DEPOT)
        bus.start()
        with contextlib.closing(bus.caller(DEPOT, 1)) as depot:
            assert depot.get("/topics").status == 401
            store.redis.config_set("maxmemory", 0)
            until(lambda: depot.get("/topics").status == 200, "its token to be known")


def test_they_are_not_in_the_log_or_the_store(seeded: Bus):
    kept = [seeded.redis.dump(key) or b"" for key in seeded.redis.keys(seeded.key("*"))]
    assert not any(token.encode() in dump for dump in kept for token in (SHOP, DEPOT))
    assert SHOP not in seeded.log
