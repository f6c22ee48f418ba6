"""The first client to push to a topic becomes its only publisher."""

from tests.bus import Bus
from tests.conftest import MakeClient
from tests.race import race
from tests.web.problem import is_problem
from tests.wire import Line, request

EVENT = {"type": "create", "url": "https://example.com/1"}


def test_another_client_is_refused(bus: Bus, client: MakeClient, topic: str):
    owner, other = client("owner"), client("other")
    owner.publish(topic)
    for body in (EVENT, [EVENT, EVENT]):
        assert is_problem(other.post(f"/topics/{topic}", body), 403)
    assert bus.owner_and_events(topic) == (owner.id, 1)
    owner.publish(topic)


def test_another_client_is_refused_at_another_web_process(bus: Bus, client: MakeClient):
    owner, other = client("owner"), client("other")
    elsewhere = other.at(bus.address(1))
    for _ in range(5):
        topic = bus.topic()
        owner.publish(topic)
        assert is_problem(elsewhere.post(f"/topics/{topic}", EVENT), 403)
    elsewhere.close()


def test_a_topic_that_was_only_subscribed_to_is_free(bus: Bus, client: MakeClient, topic: str):
    subscriber, publisher = client(), client()
    subscriber.subscribe("http://127.0.0.1:9/", topic)
    assert bus.owner_and_events(topic) == (None, 0)
    publisher.publish(topic)
    assert bus.owner_and_events(topic) == (publisher.id, 1)


def test_a_refused_publish_claims_nothing(bus: Bus, client: MakeClient, topic: str):
    first, second = client(), client()
    assert first.post(f"/topics/{topic}", {"type": "explode", "url": "https://example.com/"}).status == 400
    second.publish(topic)
    assert bus.owner_and_events(topic) == (second.id, 1)


def test_of_two_who_race_exactly_one_wins(bus: Bus, client: MakeClient):
    racers = [client("racer").at(bus.address(n)) for n in (0, 1)]
    for _ in range(10):
        topic = bus.topic()
        answers = race(racers, lambda caller, topic=topic: caller.post(f"/topics/{topic}", EVENT))
        assert sorted(answer.status for answer in answers) == [200, 403]
        won = [answer.status for answer in answers].index(200)
        winner, loser = racers[won], racers[1 - won]
        assert bus.owner_and_events(topic) == (winner.id, 1)
        assert winner.post(f"/topics/{topic}", EVENT).status == 200
        assert is_problem(loser.post(f"/topics/{topic}", EVENT), 403)
    for caller in racers:
        caller.close()


def test_two_clients_at_one_moment_never_share_a_topic(bus: Bus, client: MakeClient, topic: str):
    """Requests that are stored together: who does not own the topic gets 403, also within one flush."""
    owner, other = client("owner"), client("other")
    owner.publish(topic)
    event = b'{"type":"create","url":"https://example.com/1"}'
    lines = [(caller, Line(bus.address())) for caller in (owner, other) for _ in range(20)]
    for _ in range(10):
        for caller, line in lines:
            line.send(request("POST", f"/topics/{topic}", caller.token, event))
        for caller, line in lines:
            assert line.read("POST").status == (200 if caller is owner else 403)
    for _, line in lines:
        line.close()
