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


# --- requests with an epoch that a router heard of ---------------------------------------------------------------


def test_work_of_an_epoch_that_is_still_to_come_is_not_stale() -> None:
    gate, _ = open_gate(5)
    with pytest.raises(GateClosed, match="try again") as refused:
        gate.admit(101.0, 6)
    assert refused.value.reason is Shut.NOT_YET


@pytest.mark.parametrize("epoch", [5, 9])
def test_a_gate_that_never_opened_may_open_for_any_epoch(epoch: int) -> None:
    assert Gate(TP, Lease()).may_open_for(epoch)


def test_a_gate_may_open_for_the_epoch_that_is_being_prepared_and_for_later_ones() -> None:
    gate = Gate(TP, Lease())
    gate.prepare(5)
    assert [gate.may_open_for(epoch) for epoch in (4, 5, 6)] == [False, True, True]


@pytest.mark.parametrize("reason", [Shut.RELEASING, Shut.RELEASED, Shut.REVOKED, Shut.LEASE_OVER])
def test_a_gate_that_was_open_for_an_epoch_does_not_wait_for_it_again(reason: Shut) -> None:
    gate, _ = open_gate(5)
    gate.close(reason)
    assert [gate.may_open_for(epoch) for epoch in (4, 5, 6)] == [False, False, True]


def test_the_gate_of_a_closed_consumer_opens_for_no_epoch() -> None:
    gate, _ = open_gate(5)
    gate.close(Shut.CLOSED)
    assert not gate.may_open_for(6)


def test_an_earlier_epoch_is_stale_whether_the_gate_is_open_or_not() -> None:
    gate, _ = open_gate(5)
    with pytest.raises(StaleEpoch):
        gate.refuse_stale(4)
    gate.close(Shut.RELEASED)
    with pytest.raises(StaleEpoch):
        gate.refuse_stale(4)
    gate.refuse_stale(5)


def test_a_gate_that_forgot_its_epoch_counts_from_the_beginning() -> None:
    gate, _ = open_gate(5)
    gate.forget()
    gate.refuse_stale(1)
    assert gate.may_open_for(1)
    with pytest.raises(GateClosed):
        gate.check(101.0, 5)


def test_each_opening_and_closing_is_told_to_who_waits_for_it() -> None:
    gate, _ = open_gate(5)
    told: list[Shut | None] = []
    gate.on_change = lambda: told.append(gate.shut(101.0))
    gate.close(Shut.RELEASING)
    gate.prepare(7)
    gate.open(7)
    assert told == [Shut.RELEASING, Shut.PREPARING, None]
