"""Pulses: for those who watch by response times."""

import time

import pytest

from tests.bus import Bus
from tests.conftest import MakeBus
from tests.until import until
from tests.wire import Caller, line_to, request

NOWHERE = "http://127.0.0.1:9/"


def asked(caller: Caller) -> float:
    """How long it takes to answer, which is always 204."""
    started = time.monotonic()
    answer = caller.get("/pulse/scaling")
    assert (answer.status, answer.body) == (204, b""), answer
    return time.monotonic() - started


@pytest.fixture
def jobs(make_bus: MakeBus) -> Bus:
    """A bus with five jobs that nobody works on: three due now, one in ten seconds, one in an hour."""
    bus = make_bus(workers=0, scaling_threshold=3, scaling_deadline=60_000)
    publisher, topic = bus.client(), bus.topic()
    for timeout in (0, 0, 0, 10_000, 3_600_000):
        bus.client().subscribe(NOWHERE, topic, timeout=timeout)
    publisher.publish(topic)
    return bus


def test_more_due_jobs_than_the_threshold_take_a_second(jobs: Bus):
    assert asked(jobs.root) >= 1.0


def test_jobs_that_are_due_later_do_not_count(jobs: Bus):
    jobs.add_web(scaling_threshold=3, scaling_deadline=5_000)
    jobs.start()
    assert asked(jobs.caller(jobs.root_key, 1)) < 1.0


def test_the_threshold_itself_is_not_too_much(jobs: Bus):
    jobs.add_web(scaling_threshold=4, scaling_deadline=60_000)
    jobs.start()
    assert asked(jobs.caller(jobs.root_key, 1)) < 1.0


def test_with_little_to_do_it_answers_at_once(bus: Bus, publisher: Caller):
    for caller in (bus.root, publisher):
        assert asked(caller) < 1.0
    assert bus.caller(None).get("/pulse/scaling").status == 401


def test_who_hangs_up_meanwhile_disturbs_nobody(jobs: Bus):
    before = len(jobs.web.log)
    for _ in range(20):
        with line_to(jobs.address()) as line:
            line.send(request("GET", "/pulse/scaling", jobs.root_key))
    assert jobs.root.get("/pulse").status == 204
    assert asked(jobs.root) >= 1.0  # those before it have come to their end
    assert "Traceback" not in jobs.web.log[before:]
    jobs.web.terminate()
    assert jobs.web.wait() == 0
    until(lambda: not jobs.web.is_running, "the process to leave")
