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
from tests.support.clients.state_driver import A, B, Lanes, owned, release, warm


def standing_by(*tps: object) -> Lanes:
    lanes = Lanes()
    lanes.hear(full=True, standbys_added=tps)
    lanes.end_all()
    return lanes


def test_the_handler_is_called_once_for_each_standby() -> None:
    lanes = Lanes()
    lanes.hear(full=True, standbys_added=(A, B))
    assert lanes.running == {A: CallStandby(A), B: CallStandby(B)}
    lanes.end_all()
    lanes.hear(standbys_added=(A,))
    assert not lanes.running
    assert lanes.state.standbys() == {A, B}


def test_standbys_need_no_lease() -> None:
    lanes = Lanes(live=False)
    lanes.hear(full=True, standbys_added=(A,))
    assert lanes.running == {A: CallStandby(A)}


def test_the_handler_is_called_for_a_standby_that_is_removed() -> None:
    lanes = standing_by(A)
    lanes.hear(standbys_removed=(A,))
    assert lanes.end(A) == CallNoStandby(A)
    assert lanes.state.standbys() == frozenset()


def test_a_full_message_removes_what_is_not_in_it() -> None:
    lanes = standing_by(A, B)
    lanes.hear(full=True, standbys_added=(B,))
    assert lanes.running == {A: CallNoStandby(A)}


def test_losing_contact_or_session_leaves_the_copies_alone() -> None:
    lanes = standing_by(A)
    lanes.take(lanes.state.lease_lost())
    lanes.take(lanes.state.session_lost("over"))
    assert not lanes.running
    lanes.hear(full=True, standbys_added=(A,))
    assert not lanes.running


def test_a_copy_of_an_earlier_topic_is_dropped_before_the_new_one_is_asked_for() -> None:
    lanes = standing_by(A)
    lanes.hear(standbys_removed=(A,), standbys_added=(A,))
    assert lanes.end(A) == CallNoStandby(A)
    assert lanes.end(A) == CallStandby(A)
    assert not lanes.running


def test_a_promoted_copy_is_not_removed() -> None:
    lanes = standing_by(A)
    lanes.hear(assigned=((A, 3),))
    assert lanes.end(A) == CallAssigned(owned(A, 3))
    assert not lanes.running
    assert lanes.state.standbys() == frozenset()


def test_a_promotion_in_a_full_message_is_one_too() -> None:
    lanes = standing_by(A)
    lanes.hear(full=True, assigned=((A, 3),))
    assert lanes.end(A) == CallAssigned(owned(A, 3))
    assert not lanes.running


def test_a_promotion_does_not_wait_for_a_copy_that_is_being_made() -> None:
    lanes = Lanes()
    lanes.hear(full=True, standbys_added=(A,))
    lanes.hear(assigned=((A, 3),))
    assert lanes.cancelled == {A}
    lanes.end(A, Stopped())
    assert lanes.running == {A: CallAssigned(owned(A, 3))}


def test_a_grant_that_is_lost_before_its_turn_drops_the_copy() -> None:
    lanes = Lanes(live=False)
    lanes.hear(full=True, standbys_added=(A,))
    lanes.end(A)
    lanes.hear(assigned=((A, 3),))
    lanes.hear(unassigned=((A, 3),))
    assert lanes.running == {A: CallNoStandby(A)}


def test_an_owner_that_releases_and_stands_by_gets_both_calls_in_order() -> None:
    lanes = Lanes()
    lanes.own(A, 3)
    lanes.hear(releases=(release(A, 3, "h"),), standbys_added=(A,))
    assert isinstance(lanes.end(A), CallRelease)
    assert lanes.end(A) == CallStandby(A)


def test_an_owner_that_lost_its_partition_and_stands_by_gets_both_calls_in_order() -> None:
    lanes = Lanes()
    lanes.own(A, 3)
    lanes.hear(unassigned=((A, 3),), standbys_added=(A,))
    assert isinstance(lanes.end(A), CallRevoked)
    assert lanes.end(A) == CallStandby(A)


def test_a_warm_cancels_the_making_of_a_standby_copy() -> None:
    lanes = Lanes()
    lanes.hear(full=True, standbys_added=(A,))
    lanes.hear(warms=(warm(A, "h"),))
    assert lanes.cancelled == {A}
    lanes.end(A, Stopped())
    assert isinstance(lanes.running[A], CallWarm)


def test_a_warm_that_is_called_off_leaves_the_copy_and_asks_for_it_again_if_it_was_cut_short() -> None:
    lanes = Lanes()
    lanes.hear(full=True, standbys_added=(A,))
    lanes.hear(warms=(warm(A, "h"),))
    lanes.end(A, Stopped())
    lanes.end(A)
    lanes.hear(cancels=(CancelWarm(A, "h"),))
    assert lanes.end(A) == CallStandby(A), "not a discard: the copy is still wanted"
    assert not lanes.running


def test_a_warm_that_is_called_off_is_discarded_where_no_copy_is_wanted() -> None:
    lanes = Lanes()
    lanes.hear(warms=(warm(A, "h"),))
    lanes.end(A)
    lanes.hear(cancels=(CancelWarm(A, "h"),))
    assert lanes.end(A) == CallDiscard(A)


def test_a_copy_is_not_taken_away_from_under_a_finished_warm() -> None:
    lanes = standing_by(A)
    lanes.hear(warms=(warm(A, "h"),))
    lanes.end(A)
    lanes.hear(standbys_removed=(A,))
    assert not lanes.running
    lanes.hear(assigned=((A, 3),))
    lanes.end(A)
    assert not any(isinstance(call, CallNoStandby) for call in lanes.history)


def test_a_call_that_never_began_is_not_undone() -> None:
    lanes = Lanes()
    lanes.hear(full=True, standbys_added=(A,))
    lanes.hear(standbys_removed=(A,))
    lanes.end(A, Stopped(begun=False))
    assert not lanes.running


def test_a_call_that_was_cut_short_is_undone() -> None:
    lanes = Lanes()
    lanes.hear(full=True, standbys_added=(A,))
    lanes.hear(standbys_removed=(A,))
    lanes.end(A, Stopped())
    assert lanes.running == {A: CallNoStandby(A)}


def test_a_handler_that_fails_is_not_asked_again() -> None:
    lanes = Lanes()
    lanes.hear(full=True, standbys_added=(A,))
    lanes.end(A, Failed("disk full"))
    assert not lanes.running
    assert lanes.state.counts.failures == 1


def test_a_consumer_that_closes_keeps_its_copies() -> None:
    lanes = standing_by(A)
    lanes.take(lanes.state.leave("closed"))
    assert not lanes.running
    assert lanes.state.is_idle()


def test_a_consumer_that_closes_begins_no_copy() -> None:
    lanes = Lanes()
    lanes.own(A, 3)
    lanes.hear(standbys_added=(B,), unassigned=((A, 3),))
    lanes.take(lanes.state.leave("closed"))
    lanes.end_all()
    assert [call for call in lanes.history if isinstance(call, CallNoStandby)] == []
    assert lanes.state.is_idle()
