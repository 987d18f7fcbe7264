"""A partition's gate counts the work under way, whatever thread it is on."""

from __future__ import annotations

import threading
from contextlib import ExitStack

import pytest

from assigner.aio.wakeup import Wakeup
from assigner.client.gate import PartitionGate
from assigner.clock import SystemClock
from assigner.core.client.gate import Gate, GateClosed, Lease, Shut
from assigner.model.keys import TopicPartition


def open_gate() -> tuple[PartitionGate, Gate]:
    clock, lease = SystemClock(), Lease()
    lease.renewed(clock.now(), 3_600.0)
    decides = Gate(TopicPartition("orders", 3), lease)
    decides.open(5)
    return PartitionGate(decides, clock, Wakeup()), decides


def test_work_inside_is_counted_until_it_leaves() -> None:
    gate, _ = open_gate()
    with gate.enter():
        with gate.enter():
            assert gate.inside == 2
        assert gate.inside == 1
    assert gate.inside == 0


def test_refused_work_is_not_counted() -> None:
    gate, decides = open_gate()
    decides.close(Shut.RELEASING)
    with pytest.raises(GateClosed), gate.enter():
        pytest.fail("it is shut")
    assert gate.inside == 0


def test_nothing_slips_in_after_a_close_from_other_threads() -> None:
    gate, decides = open_gate()
    begun = threading.Barrier(5)
    entered = [0] * 4
    in_progress = [ExitStack() for _ in range(4)]

    def work(me: int) -> None:
        begun.wait()
        try:
            while True:
                in_progress[me].enter_context(gate.enter())
                entered[me] += 1
        except GateClosed:
            pass

    threads = [threading.Thread(target=work, args=(me,)) for me in range(4)]
    for thread in threads:
        thread.start()
    begun.wait()
    decides.close(Shut.RELEASING)
    counted = gate.inside
    for thread in threads:
        thread.join()
    assert gate.inside == counted == sum(entered)
    for stack in in_progress:
        stack.close()
    assert gate.inside == 0
