"""What the consumer does about what it hears, event by event. Nothing here waits: time and I/O are elsewhere."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from assigner.core.client_calls import (
    Action,
    Answer,
    AnswerKind,
    Call,
    CallAssigned,
    CallDiscard,
    CallRelease,
    CallRevoked,
    CallWarm,
    Cancel,
    CancelOrder,
    Commands,
    Done,
    Failed,
    Outcome,
    Ownership,
    Pause,
    ReleaseOrder,
    Start,
    Stopped,
    WarmOrder,
)
from assigner.core.client_state import ClientState
from assigner.core.gate import Shut
from assigner.errors import LimitReached
from assigner.keys import TopicPartition

NOW = 10.0
A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
READY, RELEASED = AnswerKind.READY, AnswerKind.RELEASED
NOBODY: frozenset[TopicPartition] = frozenset()


class Lanes:
    """A driver that runs nothing by itself: the test says how and when each call ends."""

    def __init__(self, *, live: bool = True, max_partitions: int = 1000) -> None:
        self.state = ClientState(max_partitions=max_partitions)
        self.running: dict[TopicPartition, Call] = {}
        self.cancelled: set[TopicPartition] = set()
        self.history: list[Call] = []
        if live:
            self.take(self.state.renewed(NOW, 30.0))

    def take(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Start(tp=tp, call=call):
                    assert tp not in self.running, "two calls for one partition at a time"
                    self.running[tp] = call
                    self.history.append(call)
                case Cancel(tp=tp):
                    assert tp in self.running
                    assert tp not in self.cancelled, "cancelled twice"
                    self.cancelled.add(tp)

    def hear(self, **fields: object) -> None:
        self.take(self.state.heard(Commands(**fields)))  # type: ignore[arg-type]

    def end(self, tp: TopicPartition, outcome: Outcome | None = None) -> Call:
        call = self.running.pop(tp)
        self.cancelled.discard(tp)
        self.take(self.state.finished(tp, outcome or Done()))
        return call

    def end_all(self) -> None:
        while self.running:
            for tp in list(self.running):
                self.end(tp)

    def own(self, tp: TopicPartition, epoch: int) -> None:
        self.hear(assigned=((tp, epoch),))
        self.end_all()
        assert self.is_open(tp)

    def is_open(self, tp: TopicPartition) -> bool:
        return self.state.gate(tp).is_open(NOW)

    def answers(self, kind: AnswerKind) -> list[Answer]:
        return self.state.answers(kind, 100)


def owned(tp: TopicPartition, epoch: int) -> Ownership:
    return Ownership(tp.topic, tp.partition, epoch)


def warm(tp: TopicPartition, handoff_id: str = "h1") -> WarmOrder:
    return WarmOrder(tp, handoff_id)


def release(tp: TopicPartition, epoch: int, handoff_id: str = "h1") -> ReleaseOrder:
    return ReleaseOrder(tp, epoch, handoff_id)


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


def test_an_unassigned_epoch_never_comes_back() -> None:
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


def test_a_handler_stopped_halfway_hears_of_the_loss_even_if_the_lease_is_back() -> None:
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
    assert lanes.answers(READY) == [Answer(A, "h1")]


def test_a_warm_that_fails_is_answered_with_the_reason() -> None:
    lanes = Lanes()
    lanes.hear(warms=(warm(A),))
    lanes.end(A, Failed("no checkpoint"))
    assert lanes.answers(READY) == [Answer(A, "h1", "no checkpoint")]


def test_a_cancelled_warm_is_stopped_and_never_answered() -> None:
    lanes = Lanes()
    lanes.hear(warms=(warm(A),))
    lanes.hear(cancels=(CancelOrder(A, "h1"),))
    assert A in lanes.cancelled
    lanes.end(A, Stopped())
    assert not lanes.answers(READY)
    assert not lanes.running


def test_a_cancel_of_another_handoff_is_ignored() -> None:
    lanes = Lanes()
    lanes.hear(warms=(warm(A, "h2"),))
    lanes.hear(cancels=(CancelOrder(A, "h1"),))
    assert not lanes.cancelled


@pytest.mark.parametrize("moment", ["finished", "in the same moment"])
def test_a_warm_copy_that_is_not_wanted_any_more_is_discarded(moment: str) -> None:
    lanes = Lanes()
    lanes.hear(warms=(warm(A),))
    if moment == "finished":
        lanes.end(A)
    lanes.hear(cancels=(CancelOrder(A, "h1"),))
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
    assert lanes.answers(RELEASED) == [Answer(A, "h2")]


def test_a_new_handoff_replaces_the_warm_of_the_old_one() -> None:
    lanes = Lanes()
    lanes.hear(warms=(warm(A, "h1"),))
    lanes.hear(warms=(warm(A, "h2"),))
    lanes.end(A, Stopped())
    assert lanes.end(A) == CallWarm(warm(A, "h2"))
    assert lanes.answers(READY) == [Answer(A, "h2")]


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
    assert lanes.answers(READY) == [Answer(A, "h1")]


def test_a_grant_during_the_warm_waits_for_it_and_makes_its_answer_moot() -> None:
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
    assert lanes.answers(READY) == [Answer(A, "h9")]


# --- releasing ---------------------------------------------------------------------------------------------------


def test_a_release_shuts_the_gate_for_new_work_calls_the_handler_and_is_answered() -> None:
    lanes = Lanes()
    lanes.own(A, 5)
    lanes.hear(releases=(release(A, 5),))
    assert lanes.state.gate(A).shut(NOW) is Shut.RELEASING
    assert not lanes.answers(RELEASED)
    assert lanes.end(A) == CallRelease(owned(A, 5), release(A, 5))
    assert lanes.state.gate(A).shut(NOW) is Shut.RELEASED
    assert lanes.answers(RELEASED) == [Answer(A, "h1")]


def test_a_release_whose_handler_fails_is_answered_all_the_same() -> None:
    lanes = Lanes()
    lanes.own(A, 5)
    lanes.hear(releases=(release(A, 5),))
    lanes.end(A, Failed("flush failed"))
    assert lanes.state.gate(A).shut(NOW) is Shut.RELEASED
    assert lanes.answers(RELEASED) == [Answer(A, "h1")]


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
    assert lanes.answers(RELEASED) == [Answer(A, "h1")]


def test_a_release_of_what_is_not_held_is_answered_at_once() -> None:
    lanes = Lanes()
    lanes.hear(releases=(release(A, 5),))
    assert not lanes.running
    assert lanes.answers(RELEASED) == [Answer(A, "h1")]


def test_a_release_of_an_older_epoch_is_answered_and_leaves_the_newer_one_open() -> None:
    lanes = Lanes()
    lanes.own(A, 7)
    lanes.hear(releases=(release(A, 5),))
    assert not lanes.running
    assert lanes.is_open(A)
    assert lanes.answers(RELEASED) == [Answer(A, "h1")]


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
    assert lanes.answers(RELEASED) == [Answer(A, "h1")]


def test_an_answer_that_changed_while_it_was_sent_is_sent_again() -> None:
    lanes = Lanes()
    lanes.hear(releases=(release(A, 5, "h1"),))
    sent = lanes.answers(RELEASED)
    lanes.hear(releases=(release(A, 5, "h2"),))
    lanes.take(lanes.state.acknowledged(RELEASED, sent, NOBODY))
    assert lanes.answers(RELEASED) == [Answer(A, "h2")]


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


def test_a_lost_session_stops_warms_and_forgets_answers() -> None:
    lanes = Lanes()
    lanes.hear(warms=(warm(A),), releases=(release(B, 3),))
    assert lanes.answers(RELEASED)
    lanes.take(lanes.state.session_lost("unknown session"))
    assert lanes.cancelled == {A}
    assert lanes.state.pending_answers() == 0


def test_letting_go_releases_everything_without_answers_and_takes_nothing_new() -> None:
    lanes = Lanes()
    lanes.own(A, 5)
    lanes.take(lanes.state.let_go("draining"))
    lanes.hear(assigned=((B, 1),))
    assert isinstance(lanes.end(A), CallRelease)
    assert not lanes.running
    assert lanes.state.pending_answers() == 0
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


# --- any order of events -----------------------------------------------------------------------------------------

PARTITIONS = st.sampled_from([A, B])
EPOCHS = st.integers(min_value=1, max_value=8)
HANDOFFS = st.sampled_from(["h1", "h2"])
OUTCOMES = st.sampled_from([Done(), Failed("broken"), Stopped()])
PAIRS = st.lists(st.tuples(PARTITIONS, EPOCHS), max_size=2, unique_by=lambda pair: pair[0]).map(tuple)


class AnyOrder(RuleBasedStateMachine):
    """Whatever the service says and however the handler behaves: one epoch at a time, upwards, and never twice."""

    @initialize()
    def begin(self) -> None:
        self.lanes = Lanes(live=False)
        self.released: set[Ownership] = set()
        self.handed: dict[TopicPartition, int] = {}
        self.highest_open: dict[TopicPartition, int] = {}
        self.seen = 0

    @rule(full=st.booleans(), assigned=PAIRS, unassigned=PAIRS)
    def hears_of_ownership(
        self,
        full: bool,
        assigned: tuple[tuple[TopicPartition, int], ...],
        unassigned: tuple[tuple[TopicPartition, int], ...],
    ) -> None:
        self.lanes.hear(full=full, assigned=assigned, unassigned=unassigned)

    @rule(tp=PARTITIONS, handoff_id=HANDOFFS)
    def hears_warm(self, tp: TopicPartition, handoff_id: str) -> None:
        self.lanes.hear(warms=(warm(tp, handoff_id),))

    @rule(tp=PARTITIONS, handoff_id=HANDOFFS)
    def hears_cancel(self, tp: TopicPartition, handoff_id: str) -> None:
        self.lanes.hear(cancels=(CancelOrder(tp, handoff_id),))

    @rule(tp=PARTITIONS, epoch=EPOCHS, handoff_id=HANDOFFS)
    def hears_release(self, tp: TopicPartition, epoch: int, handoff_id: str) -> None:
        self.lanes.hear(releases=(release(tp, epoch, handoff_id),))

    @rule()
    def renews(self) -> None:
        self.lanes.take(self.lanes.state.renewed(NOW, 30.0))

    @rule()
    def loses_the_lease(self) -> None:
        self.lanes.take(self.lanes.state.lease_lost())

    @rule()
    def loses_the_session(self) -> None:
        self.lanes.take(self.lanes.state.session_lost("over"))

    @precondition(lambda self: self.lanes.running)
    @rule(data=st.data(), outcome=OUTCOMES)
    def a_call_ends(self, data: st.DataObject, outcome: Outcome) -> None:
        tp = data.draw(st.sampled_from(sorted(self.lanes.running)))
        self.lanes.end(tp, outcome)

    @rule(kind=st.sampled_from(list(AnswerKind)), refused=st.booleans())
    def answers_are_taken(self, kind: AnswerKind, refused: bool) -> None:
        sent = self.lanes.answers(kind)
        refusals = frozenset(answer.tp for answer in sent) if refused else NOBODY
        self.lanes.take(self.lanes.state.acknowledged(kind, sent, refusals))

    @invariant()
    def the_handler_hears_a_sensible_story(self) -> None:
        for call in self.lanes.history[self.seen :]:
            match call:
                case CallAssigned(owned=grant):
                    assert grant not in self.released, "a released epoch came back"
                    assert grant.epoch >= self.handed.get(grant.tp, 0), "epochs went down"
                    self.handed[grant.tp] = grant.epoch
                case CallRelease(owned=grant) | CallRevoked(owned=grant):
                    assert self.handed.get(grant.tp) == grant.epoch, "let go of what was not held"
                    if isinstance(call, CallRelease):
                        self.released.add(grant)
        self.seen = len(self.lanes.history)

    @invariant()
    def an_open_gate_is_of_the_epoch_the_handler_holds(self) -> None:
        for tp in (A, B):
            gate = self.lanes.state.gate(tp)
            if gate.is_open(NOW):
                assert gate.epoch == self.handed[tp]
                assert gate.epoch >= self.highest_open.get(tp, 0)
                assert not isinstance(self.lanes.running.get(tp), CallAssigned | CallRelease | CallRevoked)
                self.highest_open[tp] = gate.epoch

    def teardown(self) -> None:
        if hasattr(self, "lanes"):
            self.it_always_comes_to_rest()

    def it_always_comes_to_rest(self) -> None:
        top = max([8, *self.handed.values()]) + 1
        self.lanes.take(self.lanes.state.renewed(NOW, 30.0))
        self.lanes.hear(full=True, assigned=((A, top), (B, top)))
        self.lanes.end_all()
        assert self.lanes.state.owned(NOW) == {A: top, B: top}
        self.lanes.take(self.lanes.state.leave("closed"))
        self.lanes.end_all()
        assert self.lanes.state.is_idle()


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
