"""What the consumer does about what it hears, event by event. Nothing here waits: time and I/O are elsewhere."""

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
from tests.support.clients.state_driver import NOBODY, NOW, READY, RELEASED, A, B, Lanes, owned, release, warm

# --- grants ------------------------------------------------------------------------------------------------------


def test_the_gate_opens_when_assigned_returns_and_not_before() -> None:
    lanes = Lanes()
    lanes.hear(full=True, assigned=((A, 5),))
    assert lanes.running == {A: CallAssigned(owned(A, 5))}
    assert lanes.state.gate(A).shut(NOW) is Shut.PREPARING
    lanes.end(A)
    assert lanes.state.gate(A).admit(NOW) == 5


def test_nothing_is_handed_over_before_the_first_renewal() -> None:
    lanes = Lanes(live=False)
    lanes.hear(full=True, assigned=((A, 5),))
    assert not lanes.running
    lanes.take(lanes.state.renewed(NOW, 30.0))
    assert lanes.running == {A: CallAssigned(owned(A, 5))}


def test_a_full_message_revokes_what_is_not_in_it_and_leaves_the_rest_alone() -> None:
    lanes = Lanes()
    lanes.own(A, 5)
    lanes.own(B, 6)
    lanes.hear(full=True, assigned=((A, 5),))
    assert not lanes.is_open(B)
    assert lanes.running == {B: CallRevoked(owned(B, 6), "no longer assigned")}
    assert lanes.is_open(A)


def test_a_higher_epoch_means_revoke_and_then_assign() -> None:
    lanes = Lanes()
    lanes.own(A, 5)
    lanes.hear(assigned=((A, 6),))
    assert not lanes.is_open(A)
    assert lanes.end(A) == CallRevoked(owned(A, 5), "superseded by epoch 6")
    assert lanes.end(A) == CallAssigned(owned(A, 6))
    assert lanes.state.gate(A).admit(NOW) == 6


def test_a_lower_epoch_is_the_past_and_changes_nothing() -> None:
    lanes = Lanes()
    lanes.own(A, 5)
    lanes.hear(assigned=((A, 4),))
    assert not lanes.running
    assert lanes.state.gate(A).admit(NOW) == 5
    assert lanes.state.counts.stale == 1


def test_a_lower_epoch_is_the_past_even_after_the_higher_one_is_gone() -> None:
    lanes = Lanes()
    lanes.own(A, 5)
    lanes.hear(full=True)
    lanes.end(A)
    lanes.hear(assigned=((A, 4),))
    assert not lanes.running


def test_unassigned_revokes() -> None:
    lanes = Lanes()
    lanes.own(A, 5)
    lanes.hear(unassigned=((A, 5),))
    assert lanes.end(A) == CallRevoked(owned(A, 5), "unassigned")
    assert not lanes.is_open(A)


def test_an_unassigned_of_an_older_epoch_changes_nothing() -> None:
    lanes = Lanes()
    lanes.own(A, 5)
    lanes.hear(unassigned=((A, 4),))
    assert lanes.is_open(A)


def test_an_unassigned_epoch_is_never_granted_again() -> None:
    lanes = Lanes()
    lanes.own(A, 5)
    lanes.hear(unassigned=((A, 5),))
    lanes.end(A)
    lanes.hear(full=True, assigned=((A, 5),))
    assert not lanes.running
    assert not lanes.is_open(A)


def test_an_assigned_that_fails_is_tried_again_after_a_pause() -> None:
    lanes = Lanes()
    lanes.hear(assigned=((A, 5),))
    lanes.end(A, Failed("disk full"))
    first = lanes.end(A)
    assert isinstance(first, Pause)
    lanes.end(A, Failed("disk full"))
    second = lanes.end(A)
    assert isinstance(second, Pause)
    assert second.seconds > first.seconds
    assert lanes.end(A) == CallAssigned(owned(A, 5))
    assert lanes.is_open(A)


def test_the_pause_ends_when_the_partition_is_taken_away() -> None:
    lanes = Lanes()
    lanes.hear(assigned=((A, 5),))
    lanes.end(A, Failed("disk full"))
    lanes.hear(unassigned=((A, 5),))
    assert A in lanes.cancelled
    lanes.end(A, Stopped())
    assert not lanes.running


def test_an_assigned_that_was_overtaken_is_stopped_and_revoked() -> None:
    lanes = Lanes()
    lanes.hear(assigned=((A, 5),))
    lanes.hear(unassigned=((A, 5),))
    assert A in lanes.cancelled
    lanes.end(A, Stopped())
    assert lanes.end(A) == CallRevoked(owned(A, 5), "unassigned")
    assert not lanes.running


def test_a_handler_stopped_halfway_gets_the_loss_even_if_the_lease_is_back() -> None:
    lanes = Lanes()
    lanes.hear(assigned=((A, 5),))
    lanes.take(lanes.state.lease_lost())
    lanes.take(lanes.state.renewed(NOW, 30.0))
    lanes.end(A, Stopped())
    assert isinstance(lanes.end(A), CallRevoked)
    assert lanes.end(A) == CallAssigned(owned(A, 5))
    assert lanes.is_open(A)


def test_more_partitions_than_the_limit_are_refused() -> None:
    lanes = Lanes(max_partitions=1)
    with pytest.raises(LimitReached, match="subscribe to fewer topics"):
        lanes.hear(full=True, assigned=((A, 1), (B, 1)))


# --- warming -----------------------------------------------------------------------------------------------------


def test_a_warm_that_returns_is_answered_ready() -> None:
    lanes = Lanes()
    lanes.hear(warms=(warm(A),))
    assert lanes.end(A) == CallWarm(warm(A))
    assert lanes.answers(READY) == [Ack(A, "h1")]


def test_a_warm_that_fails_is_answered_with_the_reason() -> None:
    lanes = Lanes()
    lanes.hear(warms=(warm(A),))
    lanes.end(A, Failed("no checkpoint"))
    assert lanes.answers(READY) == [Ack(A, "h1", "no checkpoint")]


def test_a_cancelled_warm_is_stopped_and_never_answered() -> None:
    lanes = Lanes()
    lanes.hear(warms=(warm(A),))
    lanes.hear(cancels=(CancelWarm(A, "h1"),))
    assert A in lanes.cancelled
    lanes.end(A, Stopped())
    assert not lanes.answers(READY)
    assert not lanes.running


def test_a_cancel_of_another_handoff_is_ignored() -> None:
    lanes = Lanes()
    lanes.hear(warms=(warm(A, "h2"),))
    lanes.hear(cancels=(CancelWarm(A, "h1"),))
    assert not lanes.cancelled


@pytest.mark.parametrize("moment", ["finished", "in the same moment"])
def test_a_warm_copy_that_is_not_wanted_any_more_is_discarded(moment: str) -> None:
    lanes = Lanes()
    lanes.hear(warms=(warm(A),))
    if moment == "finished":
        lanes.end(A)
    lanes.hear(cancels=(CancelWarm(A, "h1"),))
    if moment != "finished":
        lanes.end(A, Done())
    assert lanes.end(A) == CallDiscard(A)
    assert not lanes.answers(READY)


def test_a_release_stops_a_running_warm() -> None:
    lanes = Lanes()
    lanes.hear(warms=(warm(A),))
    lanes.hear(releases=(release(A, 5, "h2"),))
    assert A in lanes.cancelled
    lanes.end(A, Stopped())
    assert lanes.answers(RELEASED) == [Ack(A, "h2")]


def test_a_new_handoff_replaces_the_warm_of_the_old_one() -> None:
    lanes = Lanes()
    lanes.hear(warms=(warm(A, "h1"),))
    lanes.hear(warms=(warm(A, "h2"),))
    lanes.end(A, Stopped())
    assert lanes.end(A) == CallWarm(warm(A, "h2"))
    assert lanes.answers(READY) == [Ack(A, "h2")]


def test_a_replayed_warm_that_runs_is_not_started_twice() -> None:
    lanes = Lanes()
    lanes.hear(warms=(warm(A),))
    lanes.hear(full=True, warms=(warm(A),))
    assert lanes.history == [CallWarm(warm(A))]


def test_a_replayed_warm_that_is_done_is_answered_again_without_warming() -> None:
    lanes = Lanes()
    lanes.hear(warms=(warm(A),))
    lanes.end(A)
    lanes.take(lanes.state.acknowledged(READY, lanes.answers(READY), NOBODY))
    lanes.hear(full=True, warms=(warm(A),))
    assert not lanes.running
    assert lanes.answers(READY) == [Ack(A, "h1")]


def test_a_grant_during_the_warm_waits_for_it_and_makes_its_ack_moot() -> None:
    lanes = Lanes()
    lanes.hear(warms=(warm(A),))
    lanes.hear(assigned=((A, 5),))
    lanes.end(A)
    assert not lanes.answers(READY)
    assert lanes.end(A) == CallAssigned(owned(A, 5))


def test_a_refused_ready_discards_the_copy() -> None:
    lanes = Lanes()
    lanes.hear(warms=(warm(A),))
    lanes.end(A)
    lanes.take(lanes.state.acknowledged(READY, lanes.answers(READY), frozenset({A})))
    assert lanes.end(A) == CallDiscard(A)
    assert lanes.state.counts.refusals == 1


def test_the_owner_is_warm_already() -> None:
    lanes = Lanes()
    lanes.own(A, 5)
    lanes.hear(warms=(warm(A, "h9"),))
    assert not lanes.running
    assert lanes.answers(READY) == [Ack(A, "h9")]


# --- releasing ---------------------------------------------------------------------------------------------------


def test_a_release_shuts_the_gate_for_new_work_calls_the_handler_and_is_answered() -> None:
    lanes = Lanes()
    lanes.own(A, 5)
    lanes.hear(releases=(release(A, 5),))
    assert lanes.state.gate(A).shut(NOW) is Shut.RELEASING
    assert not lanes.answers(RELEASED)
    assert lanes.end(A) == CallRelease(owned(A, 5), release(A, 5))
    assert lanes.state.gate(A).shut(NOW) is Shut.RELEASED
    assert lanes.answers(RELEASED) == [Ack(A, "h1")]


def test_a_release_whose_handler_fails_is_answered_all_the_same() -> None:
    lanes = Lanes()
    lanes.own(A, 5)
    lanes.hear(releases=(release(A, 5),))
    lanes.end(A, Failed("flush failed"))
    assert lanes.state.gate(A).shut(NOW) is Shut.RELEASED
    assert lanes.answers(RELEASED) == [Ack(A, "h1")]


def test_a_released_epoch_stays_released_whatever_a_stale_grant_says() -> None:
    lanes = Lanes()
    lanes.own(A, 5)
    lanes.hear(releases=(release(A, 5),))
    lanes.end(A)
    lanes.hear(full=True, assigned=((A, 5),))
    assert not lanes.running
    assert not lanes.is_open(A)


def test_an_epoch_that_is_being_released_stays_so_whatever_a_stale_grant_says() -> None:
    lanes = Lanes()
    lanes.own(A, 5)
    lanes.hear(releases=(release(A, 5),))
    lanes.hear(full=True, assigned=((A, 5),))
    lanes.end(A)
    assert not lanes.running
    assert not lanes.is_open(A)


def test_a_reaffirmed_owner_is_assigned_with_the_next_epoch_after_its_release() -> None:
    lanes = Lanes()
    lanes.own(A, 5)
    lanes.hear(releases=(release(A, 5),))
    lanes.hear(assigned=((A, 6),))
    assert isinstance(lanes.end(A), CallRelease)
    assert lanes.end(A) == CallAssigned(owned(A, 6))
    assert lanes.state.gate(A).admit(NOW) == 6


def test_a_release_waits_for_a_running_assigned_and_the_gate_never_opens() -> None:
    lanes = Lanes()
    lanes.hear(assigned=((A, 5),))
    lanes.hear(releases=(release(A, 5),))
    assert not lanes.cancelled
    lanes.end(A)
    assert not lanes.is_open(A)
    assert isinstance(lanes.end(A), CallRelease)
    assert lanes.answers(RELEASED) == [Ack(A, "h1")]


def test_a_release_of_what_is_not_held_is_answered_at_once() -> None:
    lanes = Lanes()
    lanes.hear(releases=(release(A, 5),))
    assert not lanes.running
    assert lanes.answers(RELEASED) == [Ack(A, "h1")]


def test_a_release_of_an_older_epoch_is_answered_and_leaves_the_newer_one_open() -> None:
    lanes = Lanes()
    lanes.own(A, 7)
    lanes.hear(releases=(release(A, 5),))
    assert not lanes.running
    assert lanes.is_open(A)
    assert lanes.answers(RELEASED) == [Ack(A, "h1")]


def test_a_release_without_an_epoch_is_about_what_is_held() -> None:
    lanes = Lanes()
    lanes.own(A, 7)
    lanes.hear(releases=(release(A, 0),))
    assert isinstance(lanes.end(A), CallRelease)
    assert not lanes.is_open(A)


def test_an_unassigned_together_with_its_release_is_a_release() -> None:
    lanes = Lanes()
    lanes.own(A, 5)
    lanes.hear(unassigned=((A, 5),), releases=(release(A, 5),))
    assert isinstance(lanes.end(A), CallRelease)


def test_a_replayed_release_is_answered_again() -> None:
    lanes = Lanes()
    lanes.own(A, 5)
    lanes.hear(releases=(release(A, 5),))
    lanes.end(A)
    lanes.take(lanes.state.acknowledged(RELEASED, lanes.answers(RELEASED), NOBODY))
    assert not lanes.answers(RELEASED)
    lanes.hear(full=True, releases=(release(A, 5),))
    assert not lanes.running
    assert lanes.answers(RELEASED) == [Ack(A, "h1")]


def test_an_ack_that_changed_while_it_was_sent_is_sent_again() -> None:
    lanes = Lanes()
    lanes.hear(releases=(release(A, 5, "h1"),))
    sent = lanes.answers(RELEASED)
    lanes.hear(releases=(release(A, 5, "h2"),))
    lanes.take(lanes.state.acknowledged(RELEASED, sent, NOBODY))
    assert lanes.answers(RELEASED) == [Ack(A, "h2")]


# --- the lease and the session -----------------------------------------------------------------------------------


def test_a_lost_lease_revokes_everything_and_its_return_assigns_the_same_epochs_again() -> None:
    lanes = Lanes()
    lanes.own(A, 5)
    lanes.own(B, 6)
    lanes.take(lanes.state.lease_lost())
    assert {type(call) for call in lanes.running.values()} == {CallRevoked}
    assert lanes.state.gate(A).shut(NOW) is Shut.LEASE_OVER
    lanes.end_all()
    lanes.take(lanes.state.renewed(NOW, 30.0))
    assert lanes.running == {A: CallAssigned(owned(A, 5)), B: CallAssigned(owned(B, 6))}
    lanes.end_all()
    assert lanes.is_open(A)


def test_a_lost_lease_does_not_bring_back_what_was_taken_away_meanwhile() -> None:
    lanes = Lanes()
    lanes.own(A, 5)
    lanes.take(lanes.state.lease_lost())
    lanes.hear(full=True)
    lanes.end_all()
    lanes.take(lanes.state.renewed(NOW, 30.0))
    assert not lanes.running


def test_a_lost_session_shuts_every_gate_before_any_handler_runs() -> None:
    lanes = Lanes()
    lanes.own(A, 5)
    lanes.take(lanes.state.session_lost("evicted"))
    assert not lanes.is_open(A)
    assert not lanes.state.lease.holds(NOW), "one stroke for all gates, whatever thread looks at them"
    assert lanes.end(A) == CallRevoked(owned(A, 5), "evicted")


def test_a_lost_session_stops_warms_and_forgets_acks() -> None:
    lanes = Lanes()
    lanes.hear(warms=(warm(A),), releases=(release(B, 3),))
    assert lanes.answers(RELEASED)
    lanes.take(lanes.state.session_lost("unknown session"))
    assert lanes.cancelled == {A}
    assert lanes.state.pending_ack_count() == 0


def test_release_all_releases_everything_without_acks_and_takes_nothing_new() -> None:
    lanes = Lanes()
    lanes.own(A, 5)
    lanes.take(lanes.state.release_all("draining"))
    lanes.hear(assigned=((B, 1),))
    assert isinstance(lanes.end(A), CallRelease)
    assert not lanes.running
    assert lanes.state.pending_ack_count() == 0
    assert lanes.state.is_idle()


def test_after_leaving_nothing_begins_any_more() -> None:
    lanes = Lanes()
    lanes.own(A, 5)
    lanes.take(lanes.state.leave("closed"))
    assert lanes.state.gate(A).shut(NOW) is Shut.CLOSED
    assert not lanes.state.is_idle()
    lanes.end_all()
    lanes.hear(full=True, assigned=((B, 1),), warms=(warm(A),))
    lanes.take(lanes.state.renewed(NOW, 30.0))
    assert not lanes.running
    assert lanes.state.is_idle()
