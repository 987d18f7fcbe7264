"""The actions of a consumer's state on each event. Nothing here waits: time and I/O are elsewhere."""

from __future__ import annotations

import pytest

from assigner.core.client.gate import Shut
from assigner.core.client.messages import (
    CallAssigned,
    CallDiscard,
    CallRelease,
    CallRevoked,
    CallWarm,
    Done,
    Failed,
    Pause,
    Stopped,
)
from assigner.errors import LimitReached
from assigner.model.commands import Ack, CancelWarm
from tests.support.clients.state_driver import (
    NO_PARTITIONS,
    NOW,
    READY,
    RELEASED,
    A,
    B,
    StateDriver,
    owned,
    release,
    warm,
)

# --- grants ------------------------------------------------------------------------------------------------------


def test_the_gate_opens_when_assigned_returns_and_not_before() -> None:
    driver = StateDriver()
    driver.receive(full=True, assigned=((A, 5),))
    assert driver.running == {A: CallAssigned(owned(A, 5))}
    assert driver.state.gate(A).shut(NOW) is Shut.PREPARING
    driver.end(A)
    assert driver.state.gate(A).admit(NOW) == 5


def test_nothing_is_handed_over_before_the_first_renewal() -> None:
    driver = StateDriver(live=False)
    driver.receive(full=True, assigned=((A, 5),))
    assert not driver.running
    driver.take(driver.state.renewed(NOW, 30.0))
    assert driver.running == {A: CallAssigned(owned(A, 5))}


def test_a_full_message_revokes_what_is_not_in_it_and_leaves_the_rest_alone() -> None:
    driver = StateDriver()
    driver.own(A, 5)
    driver.own(B, 6)
    driver.receive(full=True, assigned=((A, 5),))
    assert not driver.is_open(B)
    assert driver.running == {B: CallRevoked(owned(B, 6), "no longer assigned")}
    assert driver.is_open(A)


def test_a_higher_epoch_means_revoke_and_then_assign() -> None:
    driver = StateDriver()
    driver.own(A, 5)
    driver.receive(assigned=((A, 6),))
    assert not driver.is_open(A)
    assert driver.end(A) == CallRevoked(owned(A, 5), "superseded by epoch 6")
    assert driver.end(A) == CallAssigned(owned(A, 6))
    assert driver.state.gate(A).admit(NOW) == 6


def test_a_lower_epoch_is_the_past_and_changes_nothing() -> None:
    driver = StateDriver()
    driver.own(A, 5)
    driver.receive(assigned=((A, 4),))
    assert not driver.running
    assert driver.state.gate(A).admit(NOW) == 5
    assert driver.state.counts.stale == 1


def test_a_lower_epoch_is_the_past_even_after_the_higher_one_is_gone() -> None:
    driver = StateDriver()
    driver.own(A, 5)
    driver.receive(full=True)
    driver.end(A)
    driver.receive(assigned=((A, 4),))
    assert not driver.running


def test_unassigned_revokes() -> None:
    driver = StateDriver()
    driver.own(A, 5)
    driver.receive(unassigned=((A, 5),))
    assert driver.end(A) == CallRevoked(owned(A, 5), "unassigned")
    assert not driver.is_open(A)


def test_an_unassigned_of_an_older_epoch_changes_nothing() -> None:
    driver = StateDriver()
    driver.own(A, 5)
    driver.receive(unassigned=((A, 4),))
    assert driver.is_open(A)


def test_an_unassigned_epoch_is_never_granted_again() -> None:
    driver = StateDriver()
    driver.own(A, 5)
    driver.receive(unassigned=((A, 5),))
    driver.end(A)
    driver.receive(full=True, assigned=((A, 5),))
    assert not driver.running
    assert not driver.is_open(A)


def test_an_assigned_that_fails_is_tried_again_after_a_pause() -> None:
    driver = StateDriver()
    driver.receive(assigned=((A, 5),))
    driver.end(A, Failed("disk full"))
    first = driver.end(A)
    assert isinstance(first, Pause)
    driver.end(A, Failed("disk full"))
    second = driver.end(A)
    assert isinstance(second, Pause)
    assert second.seconds > first.seconds
    assert driver.end(A) == CallAssigned(owned(A, 5))
    assert driver.is_open(A)


def test_the_pause_ends_when_the_partition_is_taken_away() -> None:
    driver = StateDriver()
    driver.receive(assigned=((A, 5),))
    driver.end(A, Failed("disk full"))
    driver.receive(unassigned=((A, 5),))
    assert A in driver.cancelled
    driver.end(A, Stopped())
    assert not driver.running


def test_an_assigned_that_was_overtaken_is_stopped_and_revoked() -> None:
    driver = StateDriver()
    driver.receive(assigned=((A, 5),))
    driver.receive(unassigned=((A, 5),))
    assert A in driver.cancelled
    driver.end(A, Stopped())
    assert driver.end(A) == CallRevoked(owned(A, 5), "unassigned")
    assert not driver.running


def test_a_handler_stopped_halfway_gets_the_loss_even_if_the_lease_is_back() -> None:
    driver = StateDriver()
    driver.receive(assigned=((A, 5),))
    driver.take(driver.state.lease_lost())
    driver.take(driver.state.renewed(NOW, 30.0))
    driver.end(A, Stopped())
    assert isinstance(driver.end(A), CallRevoked)
    assert driver.end(A) == CallAssigned(owned(A, 5))
    assert driver.is_open(A)


def test_more_partitions_than_the_limit_are_refused() -> None:
    driver = StateDriver(max_partitions=1)
    with pytest.raises(LimitReached, match="subscribe to fewer topics"):
        driver.receive(full=True, assigned=((A, 1), (B, 1)))


# --- warming -----------------------------------------------------------------------------------------------------


def test_a_warm_that_returns_is_answered_ready() -> None:
    driver = StateDriver()
    driver.receive(warms=(warm(A),))
    assert driver.end(A) == CallWarm(warm(A))
    assert driver.answers(READY) == [Ack(A, "h1")]


def test_a_warm_that_fails_is_answered_with_the_reason() -> None:
    driver = StateDriver()
    driver.receive(warms=(warm(A),))
    driver.end(A, Failed("no checkpoint"))
    assert driver.answers(READY) == [Ack(A, "h1", "no checkpoint")]


def test_a_cancelled_warm_is_stopped_and_never_answered() -> None:
    driver = StateDriver()
    driver.receive(warms=(warm(A),))
    driver.receive(cancels=(CancelWarm(A, "h1"),))
    assert A in driver.cancelled
    driver.end(A, Stopped())
    assert not driver.answers(READY)
    assert not driver.running


def test_a_cancel_of_another_handoff_is_ignored() -> None:
    driver = StateDriver()
    driver.receive(warms=(warm(A, "h2"),))
    driver.receive(cancels=(CancelWarm(A, "h1"),))
    assert not driver.cancelled


@pytest.mark.parametrize("moment", ["finished", "in the same moment"])
def test_a_warm_copy_that_is_not_wanted_any_more_is_discarded(moment: str) -> None:
    driver = StateDriver()
    driver.receive(warms=(warm(A),))
    if moment == "finished":
        driver.end(A)
    driver.receive(cancels=(CancelWarm(A, "h1"),))
    if moment != "finished":
        driver.end(A, Done())
    assert driver.end(A) == CallDiscard(A)
    assert not driver.answers(READY)


def test_a_release_stops_a_running_warm() -> None:
    driver = StateDriver()
    driver.receive(warms=(warm(A),))
    driver.receive(releases=(release(A, 5, "h2"),))
    assert A in driver.cancelled
    driver.end(A, Stopped())
    assert driver.answers(RELEASED) == [Ack(A, "h2")]


def test_a_new_handoff_replaces_the_warm_of_the_old_one() -> None:
    driver = StateDriver()
    driver.receive(warms=(warm(A, "h1"),))
    driver.receive(warms=(warm(A, "h2"),))
    driver.end(A, Stopped())
    assert driver.end(A) == CallWarm(warm(A, "h2"))
    assert driver.answers(READY) == [Ack(A, "h2")]


def test_a_replayed_warm_that_runs_is_not_started_twice() -> None:
    driver = StateDriver()
    driver.receive(warms=(warm(A),))
    driver.receive(full=True, warms=(warm(A),))
    assert driver.history == [CallWarm(warm(A))]


def test_a_replayed_warm_that_is_done_is_answered_again_without_warming() -> None:
    driver = StateDriver()
    driver.receive(warms=(warm(A),))
    driver.end(A)
    driver.take(driver.state.acknowledged(READY, driver.answers(READY), NO_PARTITIONS))
    driver.receive(full=True, warms=(warm(A),))
    assert not driver.running
    assert driver.answers(READY) == [Ack(A, "h1")]


def test_a_grant_during_the_warm_waits_for_it_and_makes_its_ack_moot() -> None:
    driver = StateDriver()
    driver.receive(warms=(warm(A),))
    driver.receive(assigned=((A, 5),))
    driver.end(A)
    assert not driver.answers(READY)
    assert driver.end(A) == CallAssigned(owned(A, 5))


def test_a_refused_ready_discards_the_copy() -> None:
    driver = StateDriver()
    driver.receive(warms=(warm(A),))
    driver.end(A)
    driver.take(driver.state.acknowledged(READY, driver.answers(READY), frozenset({A})))
    assert driver.end(A) == CallDiscard(A)
    assert driver.state.counts.refusals == 1


def test_the_owner_is_warm_already() -> None:
    driver = StateDriver()
    driver.own(A, 5)
    driver.receive(warms=(warm(A, "h9"),))
    assert not driver.running
    assert driver.answers(READY) == [Ack(A, "h9")]


# --- releasing ---------------------------------------------------------------------------------------------------


def test_a_release_shuts_the_gate_for_new_work_calls_the_handler_and_is_answered() -> None:
    driver = StateDriver()
    driver.own(A, 5)
    driver.receive(releases=(release(A, 5),))
    assert driver.state.gate(A).shut(NOW) is Shut.RELEASING
    assert not driver.answers(RELEASED)
    assert driver.end(A) == CallRelease(owned(A, 5), release(A, 5))
    assert driver.state.gate(A).shut(NOW) is Shut.RELEASED
    assert driver.answers(RELEASED) == [Ack(A, "h1")]


def test_a_release_whose_handler_fails_is_answered_all_the_same() -> None:
    driver = StateDriver()
    driver.own(A, 5)
    driver.receive(releases=(release(A, 5),))
    driver.end(A, Failed("flush failed"))
    assert driver.state.gate(A).shut(NOW) is Shut.RELEASED
    assert driver.answers(RELEASED) == [Ack(A, "h1")]


def test_a_released_epoch_stays_released_whatever_a_stale_grant_says() -> None:
    driver = StateDriver()
    driver.own(A, 5)
    driver.receive(releases=(release(A, 5),))
    driver.end(A)
    driver.receive(full=True, assigned=((A, 5),))
    assert not driver.running
    assert not driver.is_open(A)


def test_an_epoch_that_is_being_released_stays_so_whatever_a_stale_grant_says() -> None:
    driver = StateDriver()
    driver.own(A, 5)
    driver.receive(releases=(release(A, 5),))
    driver.receive(full=True, assigned=((A, 5),))
    driver.end(A)
    assert not driver.running
    assert not driver.is_open(A)


def test_a_reaffirmed_owner_is_assigned_with_the_next_epoch_after_its_release() -> None:
    driver = StateDriver()
    driver.own(A, 5)
    driver.receive(releases=(release(A, 5),))
    driver.receive(assigned=((A, 6),))
    assert isinstance(driver.end(A), CallRelease)
    assert driver.end(A) == CallAssigned(owned(A, 6))
    assert driver.state.gate(A).admit(NOW) == 6


def test_a_release_waits_for_a_running_assigned_and_the_gate_never_opens() -> None:
    driver = StateDriver()
    driver.receive(assigned=((A, 5),))
    driver.receive(releases=(release(A, 5),))
    assert not driver.cancelled
    driver.end(A)
    assert not driver.is_open(A)
    assert isinstance(driver.end(A), CallRelease)
    assert driver.answers(RELEASED) == [Ack(A, "h1")]


def test_a_release_of_what_is_not_held_is_answered_at_once() -> None:
    driver = StateDriver()
    driver.receive(releases=(release(A, 5),))
    assert not driver.running
    assert driver.answers(RELEASED) == [Ack(A, "h1")]


def test_a_release_of_an_older_epoch_is_answered_and_leaves_the_newer_one_open() -> None:
    driver = StateDriver()
    driver.own(A, 7)
    driver.receive(releases=(release(A, 5),))
    assert not driver.running
    assert driver.is_open(A)
    assert driver.answers(RELEASED) == [Ack(A, "h1")]


def test_a_release_without_an_epoch_is_about_what_is_held() -> None:
    driver = StateDriver()
    driver.own(A, 7)
    driver.receive(releases=(release(A, 0),))
    assert isinstance(driver.end(A), CallRelease)
    assert not driver.is_open(A)


def test_an_unassigned_together_with_its_release_is_a_release() -> None:
    driver = StateDriver()
    driver.own(A, 5)
    driver.receive(unassigned=((A, 5),), releases=(release(A, 5),))
    assert isinstance(driver.end(A), CallRelease)


def test_a_replayed_release_is_answered_again() -> None:
    driver = StateDriver()
    driver.own(A, 5)
    driver.receive(releases=(release(A, 5),))
    driver.end(A)
    driver.take(driver.state.acknowledged(RELEASED, driver.answers(RELEASED), NO_PARTITIONS))
    assert not driver.answers(RELEASED)
    driver.receive(full=True, releases=(release(A, 5),))
    assert not driver.running
    assert driver.answers(RELEASED) == [Ack(A, "h1")]


def test_an_ack_that_changed_while_it_was_sent_is_sent_again() -> None:
    driver = StateDriver()
    driver.receive(releases=(release(A, 5, "h1"),))
    sent = driver.answers(RELEASED)
    driver.receive(releases=(release(A, 5, "h2"),))
    driver.take(driver.state.acknowledged(RELEASED, sent, NO_PARTITIONS))
    assert driver.answers(RELEASED) == [Ack(A, "h2")]


# --- the lease and the session -----------------------------------------------------------------------------------


def test_a_lost_lease_revokes_everything_and_its_return_assigns_the_same_epochs_again() -> None:
    driver = StateDriver()
    driver.own(A, 5)
    driver.own(B, 6)
    driver.take(driver.state.lease_lost())
    assert {type(call) for call in driver.running.values()} == {CallRevoked}
    assert driver.state.gate(A).shut(NOW) is Shut.LEASE_OVER
    driver.end_all()
    driver.take(driver.state.renewed(NOW, 30.0))
    assert driver.running == {A: CallAssigned(owned(A, 5)), B: CallAssigned(owned(B, 6))}
    driver.end_all()
    assert driver.is_open(A)


def test_a_lost_lease_does_not_bring_back_what_was_taken_away_meanwhile() -> None:
    driver = StateDriver()
    driver.own(A, 5)
    driver.take(driver.state.lease_lost())
    driver.receive(full=True)
    driver.end_all()
    driver.take(driver.state.renewed(NOW, 30.0))
    assert not driver.running


def test_a_lost_session_shuts_every_gate_before_any_handler_runs() -> None:
    driver = StateDriver()
    driver.own(A, 5)
    driver.take(driver.state.session_lost("evicted"))
    assert not driver.is_open(A)
    assert not driver.state.lease.holds(NOW), "one stroke for all gates, whatever thread looks at them"
    assert driver.end(A) == CallRevoked(owned(A, 5), "evicted")


def test_a_lost_session_stops_warms_and_forgets_acks() -> None:
    driver = StateDriver()
    driver.receive(warms=(warm(A),), releases=(release(B, 3),))
    assert driver.answers(RELEASED)
    driver.take(driver.state.session_lost("unknown session"))
    assert driver.cancelled == {A}
    assert driver.state.pending_ack_count() == 0


def test_release_all_releases_everything_without_acks_and_takes_nothing_new() -> None:
    driver = StateDriver()
    driver.own(A, 5)
    driver.take(driver.state.release_all("draining"))
    driver.receive(assigned=((B, 1),))
    assert isinstance(driver.end(A), CallRelease)
    assert not driver.running
    assert driver.state.pending_ack_count() == 0
    assert driver.state.is_idle()


def test_after_leaving_nothing_begins_any_more() -> None:
    driver = StateDriver()
    driver.own(A, 5)
    driver.take(driver.state.leave("closed"))
    assert driver.state.gate(A).shut(NOW) is Shut.CLOSED
    assert not driver.state.is_idle()
    driver.end_all()
    driver.receive(full=True, assigned=((B, 1),), warms=(warm(A),))
    driver.take(driver.state.renewed(NOW, 30.0))
    assert not driver.running
    assert driver.state.is_idle()
