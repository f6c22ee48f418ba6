"""What the log of deliveries says of an attempt."""

import struct
import time

import msgspec
import pytest

from routemaster.sender import Outcome
from routemaster.store.deliveries import Delivery, trial
from routemaster.worker.slots import MOST_RUNS, _record

DONE = Outcome(True, 200, "ok", 12)


def delivery(*runs: tuple[int, int]) -> Delivery:
    made = [struct.pack(">QI", first, n) + b",\n".join([b"{}"] * n) for first, n in runs]
    return trial({}, "B", b"{}")._replace(
        lane="shop--0123456789ab#x.1.0", runs=made, events=sum(n for _, n in runs), generation="G"
    )


@pytest.mark.parametrize(
    ("runs", "told"),
    [
        ([(5, 1)], []),
        ([(5, 10)], []),
        ([(5, 2), (7, 1), (8, 3)], []),  # several flushes, no hole
        ([(5, 2), (9, 1)], [5, 2, 9, 1]),
        ([(5, 2), (7, 1), (9, 1), (10, 4)], [5, 3, 9, 5]),  # neighbours are joined
    ],
)
def test_a_batch_with_holes_names_its_runs(runs: list[tuple[int, int]], told: list[int]):
    record = msgspec.json.decode(_record(delivery(*runs), DONE))
    assert (record["first"], record["last"]) == (runs[0][0], sum(runs[-1]) - 1)
    assert record["runs"] == told


def test_a_record_is_bounded():
    record = _record(delivery(*[(n, 1) for n in range(1, 20_000, 2)]), DONE)
    runs = msgspec.json.decode(record)["runs"]
    assert runs == [n for first in range(1, 2 * MOST_RUNS, 2) for n in (first, 1)]
    assert len(record) < 16 * MOST_RUNS


def test_a_record_says_when_the_attempt_ended():
    before = time.time_ns() // 1_000_000
    record = msgspec.json.decode(_record(delivery((1, 1)), DONE))
    assert before <= record["at"] <= time.time_ns() // 1_000_000
    assert (record["subscriber"], record["status"], record["ms"]) == ("shop--0123456789ab", "delivered", 12)
