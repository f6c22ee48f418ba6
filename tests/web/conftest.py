from collections.abc import Iterator

import pytest

from tests.bus import Bus, Store, running_bus


@pytest.fixture(scope="session")
def strict(store: Store) -> Iterator[Bus]:
    """One web process with tight limits, which allows no private callback. Nothing is delivered."""
    limits = {"max_body_bytes": "1m", "max_pending_bytes": "1m", "max_header_bytes": "4k"}
    with running_bus(store, workers=0, request_timeout_ms=300, allow_private_callbacks="0", **limits) as bus:
        yield bus
        assert "Traceback" not in bus.log, bus.log
