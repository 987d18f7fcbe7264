"""The gate answers from the time it is asked at: no timer is needed to close it, and no epoch but its own passes."""

from __future__ import annotations

import pytest

from assigner.core.client.gate import Gate, GateClosed, Lease, Shut, StaleEpoch
from assigner.model.keys import TopicPartition

TP = TopicPartition("orders", 3)


def open_gate(epoch: int = 5, *, sent_at: float = 100.0, ttl: float = 30.0) -> tuple[Gate, Lease]:
    lease = Lease()
    lease.renewed(sent_at, ttl)
    gate = Gate(TP, lease)
    gate.prepare(epoch)
    gate.open(epoch)
    return gate, lease


def test_an_open_gate_admits_and_returns_the_epoch() -> None:
    gate, _ = open_gate(5)
    assert gate.admit(101.0) == 5
    assert gate.admit(101.0, 5) == 5
    assert gate.is_open(101.0)


def test_the_lease_counts_two_thirds_of_the_ttl_from_the_moment_the_request_was_sent() -> None:
    gate, lease = open_gate(sent_at=100.0, ttl=30.0)
    assert lease.deadline == pytest.approx(120.0)
    gate.admit(119.99)
    with pytest.raises(GateClosed) as refused:
        gate.admit(120.0)
    assert refused.value.reason is Shut.LEASE_OVER


def test_a_gate_is_shut_by_the_clock_alone() -> None:
    gate, _ = open_gate()
    assert gate.is_open(119.0)
    assert not gate.is_open(121.0)
    assert gate.shut(121.0) is Shut.LEASE_OVER


def test_a_renewal_opens_what_only_the_clock_had_shut() -> None:
    gate, lease = open_gate()
    lease.renewed(121.0, 30.0)
    assert gate.admit(122.0) == 5


def test_a_shorter_ttl_brings_the_deadline_forward() -> None:
    _, lease = open_gate(sent_at=100.0, ttl=30.0)
    lease.renewed(101.0, 3.0)
    assert not lease.holds(104.0)


def test_an_ended_lease_shuts_every_gate_at_once() -> None:
    gate, lease = open_gate()
    other = Gate(TopicPartition("orders", 4), lease)
    other.open(1)
    lease.end()
    assert not gate.is_open(101.0)
    assert not other.is_open(101.0)


def test_work_of_another_epoch_is_refused_as_stale() -> None:
    gate, _ = open_gate(5)
    with pytest.raises(StaleEpoch, match="epoch 4 of orders/3 is over, 5 is in force"):
        gate.admit(101.0, 4)
    with pytest.raises(StaleEpoch):
        gate.check(101.0, 4)


def test_a_gate_that_never_opened_is_not_owned() -> None:
    gate = Gate(TP, Lease())
    with pytest.raises(GateClosed) as refused:
        gate.admit(0.0)
    assert refused.value.reason is Shut.NOT_OWNED


def test_while_releasing_nothing_begins_but_what_began_may_have_its_effect() -> None:
    gate, _ = open_gate(5)
    gate.close(Shut.RELEASING)
    with pytest.raises(GateClosed) as refused:
        gate.admit(101.0)
    assert refused.value.reason is Shut.RELEASING
    assert gate.check(101.0, 5) == 5


@pytest.mark.parametrize("reason", [Shut.RELEASED, Shut.REVOKED, Shut.LEASE_OVER, Shut.CLOSED, Shut.PREPARING])
def test_after_the_end_not_even_work_that_began_may_have_its_effect(reason: Shut) -> None:
    gate, _ = open_gate(5)
    gate.close(reason)
    with pytest.raises(GateClosed):
        gate.check(101.0, 5)


def test_the_clock_stops_work_in_progress_too() -> None:
    gate, _ = open_gate(5)
    gate.close(Shut.RELEASING)
    with pytest.raises(GateClosed):
        gate.check(121.0, 5)


def test_work_of_the_old_epoch_is_stale_from_the_moment_the_next_one_is_prepared() -> None:
    gate, _ = open_gate(5)
    gate.close(Shut.RELEASED)
    gate.prepare(7)
    gate.close(Shut.RELEASING)
    with pytest.raises(StaleEpoch):
        gate.check(101.0, 5)
