"""How long to wait before a failed batch is sent again. Pure: randomness comes in as an argument.

Exponential by attempts with jitter, from `least_ms` (or the subscription's own timeout, if longer)
to `most_ms`; never less than the health throttle, which reaches `most_ms` as health reaches 0.
"""

HEALTH_FULL = 100
HEALTH_GAIN = 1
HEALTH_LOSS = 2


def throttle_ms(health_points: int, most_ms: int) -> int:
    """The least wait for a subscriber of this health: most · 2^(−health)."""
    return int(most_ms * 2.0 ** -max(0, health_points))


def delay_ms(
    attempts: int, health_points: int, timeout_ms: int, *, least_ms: int, most_ms: int, chance: float
) -> int:
    """The wait after the given number of failed attempts; `chance` is uniform in [0, 1).

    Half of the exponential step is fixed and half is jitter, so that subscribers that failed
    together do not come back together, and none comes back at once.
    """
    base_ms = max(least_ms, timeout_ms)
    step_ms = min(most_ms, base_ms * 2 ** min(attempts - 1, 40)) if attempts > 0 else base_ms
    jittered_ms = max(base_ms, step_ms // 2 + int(step_ms * chance / 2))
    return max(jittered_ms, throttle_ms(health_points, most_ms))
