from hypothesis import given
from hypothesis import strategies as st

from routemaster.backoff import delay_ms, throttle_ms

chances = st.floats(0, 1, exclude_max=True)


@given(st.integers(1, 100), st.integers(0, 100), st.integers(0, 200_000), chances)
def test_a_delay_is_within_its_bounds(attempts: int, health: int, timeout: int, chance: float) -> None:
    delay = delay_ms(attempts, health, timeout, least_ms=500, most_ms=300_000, chance=chance)
    assert max(500, timeout, throttle_ms(health, 300_000)) <= delay <= 300_000


def test_the_throttle_grows_as_health_falls() -> None:
    waits = [throttle_ms(health, 300_000) for health in range(101)]
    assert waits == sorted(waits, reverse=True)
    assert (waits[0], waits[100]) == (300_000, 0)
