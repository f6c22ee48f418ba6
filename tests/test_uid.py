from hypothesis import given
from hypothesis import strategies as st

from routemaster.uid import LENGTH, Maker, decode, encode, is_uid, time_ms


@given(st.lists(st.integers(0, 2**48 - 1), min_size=2, max_size=50))
def test_uids_rise_whatever_the_clock_does(times: list[int]) -> None:
    clock = iter(times)
    make = Maker(lambda: next(clock))
    made = [make() for _ in times]
    assert made == sorted(set(made))
    assert all(is_uid(uid) and len(uid) == LENGTH for uid in made)


@given(st.integers(0, 2**120 - 1), st.integers(0, 2**120 - 1))
def test_text_sorts_as_the_number_does(one: int, other: int) -> None:
    assert (encode(one, 20) < encode(other, 20)) == (one < other)
    assert decode(encode(one, 20)) == one


def test_a_uid_tells_its_time() -> None:
    assert time_ms(Maker(lambda: 1_700_000_000_123)()) == 1_700_000_000_123
