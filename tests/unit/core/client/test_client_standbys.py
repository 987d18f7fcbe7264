"""Copies of others' partitions, as a consumer's handler hears of them."""

from __future__ import annotations

from assigner.core.client.messages import (
    CallAssigned,
    CallDiscard,
    CallNoStandby,
    CallRelease,
    CallRevoked,
    CallStandby,
    CallWarm,
    Failed,
    Stopped,
)
from assigner.model.commands import CancelWarm
from tests.support.clients.state_driver import A, B, StateDriver, owned, release, warm


def standing_by(*tps: object) -> StateDriver:
    driver = StateDriver()
    driver.receive(full=True, standbys_added=tps)
    driver.end_all()
    return driver


def test_the_handler_is_called_once_for_each_standby() -> None:
    driver = StateDriver()
    driver.receive(full=True, standbys_added=(A, B))
    assert driver.running == {A: CallStandby(A), B: CallStandby(B)}
    driver.end_all()
    driver.receive(standbys_added=(A,))
    assert not driver.running
    assert driver.state.standbys() == {A, B}


def test_standbys_need_no_lease() -> None:
    driver = StateDriver(live=False)
    driver.receive(full=True, standbys_added=(A,))
    assert driver.running == {A: CallStandby(A)}


def test_the_handler_is_called_for_a_standby_that_is_removed() -> None:
    driver = standing_by(A)
    driver.receive(standbys_removed=(A,))
    assert driver.end(A) == CallNoStandby(A)
    assert driver.state.standbys() == frozenset()


def test_a_full_message_removes_what_is_not_in_it() -> None:
    driver = standing_by(A, B)
    driver.receive(full=True, standbys_added=(B,))
    assert driver.running == {A: CallNoStandby(A)}


def test_losing_contact_or_session_leaves_the_copies_alone() -> None:
    driver = standing_by(A)
    driver.take(driver.state.lease_lost())
    driver.take(driver.state.session_lost("over"))
    assert not driver.running
    driver.receive(full=True, standbys_added=(A,))
    assert not driver.running


def test_a_copy_of_an_earlier_topic_is_dropped_before_the_new_one_is_asked_for() -> None:
    driver = standing_by(A)
    driver.receive(standbys_removed=(A,), standbys_added=(A,))
    assert driver.end(A) == CallNoStandby(A)
    assert driver.end(A) == CallStandby(A)
    assert not driver.running


def test_a_promoted_copy_is_not_removed() -> None:
    driver = standing_by(A)
    driver.receive(assigned=((A, 3),))
    assert driver.end(A) == CallAssigned(owned(A, 3))
    assert not driver.running
    assert driver.state.standbys() == frozenset()


def test_a_promotion_in_a_full_message_is_one_too() -> None:
    driver = standing_by(A)
    driver.receive(full=True, assigned=((A, 3),))
    assert driver.end(A) == CallAssigned(owned(A, 3))
    assert not driver.running


def test_a_promotion_does_not_wait_for_a_copy_that_is_being_made() -> None:
    driver = StateDriver()
    driver.receive(full=True, standbys_added=(A,))
    driver.receive(assigned=((A, 3),))
    assert driver.cancelled == {A}
    driver.end(A, Stopped())
    assert driver.running == {A: CallAssigned(owned(A, 3))}


def test_a_grant_that_is_lost_before_its_turn_drops_the_copy() -> None:
    driver = StateDriver(live=False)
    driver.receive(full=True, standbys_added=(A,))
    driver.end(A)
    driver.receive(assigned=((A, 3),))
    driver.receive(unassigned=((A, 3),))
    assert driver.running == {A: CallNoStandby(A)}


def test_an_owner_that_releases_and_stands_by_gets_both_calls_in_order() -> None:
    driver = StateDriver()
    driver.own(A, 3)
    driver.receive(releases=(release(A, 3, "h"),), standbys_added=(A,))
    assert isinstance(driver.end(A), CallRelease)
    assert driver.end(A) == CallStandby(A)


def test_an_owner_that_lost_its_partition_and_stands_by_gets_both_calls_in_order() -> None:
    driver = StateDriver()
    driver.own(A, 3)
    driver.receive(unassigned=((A, 3),), standbys_added=(A,))
    assert isinstance(driver.end(A), CallRevoked)
    assert driver.end(A) == CallStandby(A)


def test_a_warm_cancels_the_making_of_a_standby_copy() -> None:
    driver = StateDriver()
    driver.receive(full=True, standbys_added=(A,))
    driver.receive(warms=(warm(A, "h"),))
    assert driver.cancelled == {A}
    driver.end(A, Stopped())
    assert isinstance(driver.running[A], CallWarm)


def test_a_warm_that_is_called_off_leaves_the_copy_and_asks_for_it_again_if_it_was_cut_short() -> None:
    driver = StateDriver()
    driver.receive(full=True, standbys_added=(A,))
    driver.receive(warms=(warm(A, "h"),))
    driver.end(A, Stopped())
    driver.end(A)
    driver.receive(cancels=(CancelWarm(A, "h"),))
    assert driver.end(A) == CallStandby(A), "not a discard: the copy is still wanted"
    assert not driver.running


def test_a_warm_that_is_called_off_is_discarded_where_no_copy_is_wanted() -> None:
    driver = StateDriver()
    driver.receive(warms=(warm(A, "h"),))
    driver.end(A)
    driver.receive(cancels=(CancelWarm(A, "h"),))
    assert driver.end(A) == CallDiscard(A)


def test_a_copy_is_not_taken_away_from_under_a_finished_warm() -> None:
    driver = standing_by(A)
    driver.receive(warms=(warm(A, "h"),))
    driver.end(A)
    driver.receive(standbys_removed=(A,))
    assert not driver.running
    driver.receive(assigned=((A, 3),))
    driver.end(A)
    assert not any(isinstance(call, CallNoStandby) for call in driver.history)


def test_a_call_that_never_began_is_not_undone() -> None:
    driver = StateDriver()
    driver.receive(full=True, standbys_added=(A,))
    driver.receive(standbys_removed=(A,))
    driver.end(A, Stopped(begun=False))
    assert not driver.running


def test_a_call_that_was_cut_short_is_undone() -> None:
    driver = StateDriver()
    driver.receive(full=True, standbys_added=(A,))
    driver.receive(standbys_removed=(A,))
    driver.end(A, Stopped())
    assert driver.running == {A: CallNoStandby(A)}


def test_a_handler_that_fails_is_not_asked_again() -> None:
    driver = StateDriver()
    driver.receive(full=True, standbys_added=(A,))
    driver.end(A, Failed("disk full"))
    assert not driver.running
    assert driver.state.counts.failures == 1


def test_a_consumer_that_closes_keeps_its_copies() -> None:
    driver = standing_by(A)
    driver.take(driver.state.leave("closed"))
    assert not driver.running
    assert driver.state.is_idle()


def test_a_consumer_that_closes_begins_no_copy() -> None:
    driver = StateDriver()
    driver.own(A, 3)
    driver.receive(standbys_added=(B,), unassigned=((A, 3),))
    driver.take(driver.state.leave("closed"))
    driver.end_all()
    assert [call for call in driver.history if isinstance(call, CallNoStandby)] == []
    assert driver.state.is_idle()
