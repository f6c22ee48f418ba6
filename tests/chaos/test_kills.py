"""Processes killed with -9 under load, and restarted with grace: what was acknowledged arrives, in order."""

import random
import time

import pytest

from tests.bus import Bus, Process
from tests.chaos import books
from tests.chaos.conftest import QUICK
from tests.chaos.load import Load, freeze_while_busy, loaded
from tests.chaos.up import running_up
from tests.conftest import MakeBus
from tests.receiver import Inbox, Receiver, Reply
from tests.until import alive, until

pytestmark = pytest.mark.chaos
SOON_S = 10.0  # a worker counts as dead after 15


def kill(load: Load, process: Process) -> None:
    """With -9, and started again at once; a worker with something in the air."""
    if "worker" in process.name:
        freeze_while_busy(load.bus, process)
    load.ledger.note(f"{process.name} is killed")
    process.restart()


def restart(load: Load, process: Process) -> None:
    """Asked to finish and leave, then started again."""
    load.ledger.note(f"{process.name} is asked to leave")
    process.terminate()
    assert process.wait() == 0, process.log
    load.ledger.note(f"{process.name} has left")
    process.start()


def processes_of(bus: Bus) -> dict[str, list[Process]]:
    return {"store": [bus.store.process], "web": bus.webs, "worker": bus.workers}


@pytest.mark.parametrize("kind", ["store", "web", "worker"])
def test_killed_again_and_again(chaos_bus: Bus, receiver: Receiver, seed: int, rounds: int, kind: str):
    with loaded(chaos_bus, receiver, seed) as load:
        load.until_it_moves()
        for n in range(rounds):
            victims = processes_of(chaos_bus)[kind]
            kill(load, victims[n % len(victims)])
            chaos_bus.store.until_answers()
            load.check_jobs()
            load.until_it_moves()
        load.finish()


def test_everything_killed_at_random(
    chaos_bus: Bus, receiver: Receiver, seed: int, dice: random.Random, chaos_seconds: float
):
    everybody = [process for kind in processes_of(chaos_bus).values() for process in kind]
    end = time.monotonic() + chaos_seconds
    with loaded(chaos_bus, receiver, seed) as load:
        while time.monotonic() < end:
            load.until_it_moves(requests=dice.randint(1, 40), deliveries=1)
            victims = dice.sample(everybody, dice.choice([1, 1, 2, 3]))
            for victim in victims:
                load.ledger.note(f"{victim.name} is killed")
                victim.kill()
            time.sleep(dice.choice([0, 0, 0.2, 1.2]))  # how long they are away
            for victim in dice.sample(victims, len(victims)):
                victim.start()
            chaos_bus.store.until_answers()
            load.check_jobs()
        load.finish()


@pytest.mark.parametrize("kind", ["web", "worker"])
def test_restarted_with_grace(chaos_bus: Bus, receiver: Receiver, seed: int, rounds: int, kind: str):
    """Nobody is refused, and nothing is sent twice."""
    with loaded(chaos_bus, receiver, seed) as load:
        load.until_it_moves()
        for n in range(rounds):
            restart(load, processes_of(chaos_bus)[kind][n % 2])
            load.check_jobs()
            load.until_it_moves()
        load.finish()
        # A request that crosses the end of its connection is not answered; none is turned away.
        assert [why for why in load.ledger.unknown_answers if not why.startswith("no answer")] == []
        for inbox in (load.steady, load.slow, load.lanes):
            assert {delivery.attempt for delivery in inbox.deliveries} == {1}


def test_a_worker_that_does_not_come_back(chaos_bus: Bus, receiver: Receiver, seed: int):
    """What it had in the air goes to another when its lease ends."""
    with loaded(chaos_bus, receiver, seed) as load:
        load.until_it_moves()
        freeze_while_busy(chaos_bus, chaos_bus.worker)
        load.ledger.note("worker-1 is killed for good")
        chaos_bus.worker.kill()
        load.until_it_moves()
        load.finish()


def test_a_worker_that_comes_back_takes_up_its_own(make_bus: MakeBus, inbox: Inbox):
    """At once: not when its leases end, nor when it would count as dead."""
    bus = make_bus()
    publisher, subscriber = bus.client(), bus.client()
    topic = bus.topic()
    subscriber.subscribe(inbox.url, topic, timeout=0, max=1, parallelism=8)
    inbox.answer_next(*[Reply(hangs=True)] * 8)
    publisher.publish_many(topic, [f"https://example.com/{n}" for n in range(40)])
    inbox.until_deliveries(8)
    bus.worker.restart()
    until(lambda: len(set(inbox.urls)) == 40, "all of them", SOON_S)
    attempts = {delivery.id: delivery.attempt for delivery in inbox.deliveries}
    assert sorted(attempts.values()) == [1] * 32 + [2] * 8
    books.until_drained(bus.redis, bus.namespace)


def test_a_killed_supervisor(receiver: Receiver, seed: int, rounds: int):
    """The next `up` in the same folder, started at once, goes on where the last one was killed."""
    with running_up(**QUICK) as bus, loaded(bus, receiver, seed) as load:
        load.until_it_moves()
        for _ in range(rounds - 1):
            load.ledger.note("the supervisor is killed")
            children = bus.kill()
            bus.start()
            bus.until_ready()
            assert not any(alive(pid) for pid in children.values())
            load.check_jobs()
            load.until_it_moves()
        load.finish()
        assert "Traceback" not in bus.supervisor.log, bus.supervisor.log
