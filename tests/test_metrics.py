"""Metrics: what is made of figures."""

import pytest

from routemaster.metrics import SCALES, distribution_of, name_of_client
from routemaster.store.figures import Histogram

MS = SCALES["attempt_ms"]


def histogram(**at: int) -> Histogram:
    values = {int(name[1:]): n for name, n in at.items()}
    return Histogram(
        sum(2**power * n for power, n in values.items()), tuple(values.get(n, 0) for n in range(31))
    )


def test_bounds_hold_all_that_is_below_them():
    told = distribution_of(MS, histogram(p0=1, p3=2, p20=4))
    assert dict(zip(told.bounds, told.counts, strict=True)) == {
        2**power / 1000: 1 if power < 3 else 3 for power in range(16)
    }
    assert told.total == 7  # what is above the last bound counts too
    assert told.sum == (1 + 16 + 2**22) / 1000


def test_what_is_below_the_first_bound_is_in_it():
    told = distribution_of(SCALES["latency_ms"], histogram(p0=1, p1=1))
    assert (told.bounds[0], told.counts[0]) == (0.004, 2)


@pytest.mark.parametrize(
    ("at", "part", "value"),
    [
        ({"p3": 4}, 0.5, 0.006),  # evenly from 4 to 8 ms
        ({"p3": 4}, 1.0, 0.008),
        ({"p0": 50, "p10": 50}, 0.5, 0.001),
        ({"p0": 50, "p10": 50}, 0.99, 0.512 + 0.512 * 49 / 50),
        ({"p25": 3}, 0.5, 32.768),  # above the last bound: at least that
    ],
)
def test_quantiles_are_estimated_within_their_bucket(at: dict[str, int], part: float, value: float):
    assert distribution_of(MS, histogram(**at)).quantile(part) == pytest.approx(value)


@pytest.mark.parametrize(
    ("client", "name"),
    [
        ("shop--0123456789ab", "shop"),
        ("my-shop--x--0123456789ab", "my-shop--x"),
        ("shop", "shop"),
        ("a-long-name-without-the-rest", "a-long-name-without-the-rest"),
    ],
)
def test_a_clients_name_is_its_id_without_the_end(client: str, name: str):
    assert name_of_client(client) == name
