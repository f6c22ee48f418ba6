"""SIGTERM: a web process answers what it has begun to take, then leaves."""

import pytest

from tests.bus import Bus
from tests.conftest import MakeBus
from tests.wire import line_to, request

EVENT = b'{"type": "create", "url": "https://example.com/1"}'


@pytest.fixture
def bus(make_bus: MakeBus) -> Bus:
    return make_bus(workers=0)


def test_a_request_that_is_half_there_is_still_taken(bus: Bus):
    publisher = bus.client()
    bus.root.close()
    with line_to(bus.address()) as idle, line_to(bus.address()) as busy:
        idle.send(request("GET", "/health"))
        assert idle.read().status == 200
        wanted = request("POST", "/topics/widgets", publisher.token, EVENT)
        busy.send(wanted[:-10])
        idle.send(request("GET", "/health"))
        assert idle.read().status == 200
        bus.web.terminate()
        assert idle.is_closed()  # so it has begun to leave
        busy.send(wanted[-10:])
        assert busy.read().status == 200
        assert busy.is_closed()
    assert bus.web.wait(10) is not None
    assert bus.accepted() == 1
    assert "Traceback" not in bus.web.log


def test_its_exit_code_says_that_all_is_fine(bus: Bus):
    bus.root.close()
    bus.web.terminate()
    assert bus.web.wait(10) == 0
    assert "Traceback" not in bus.web.log
