"""What a handoff needs next.

    warming -> ready -> [freezing] -> [releasing -> released] -> complete -> (deleted)

`next_action` looks at one handoff, both its ends and its deadline, and says what should happen. Partitions that move as
one (a co-partition set with one handoff id) are judged together: the slowest decides. The same verdicts come out
whoever leads, because everything but the deadline is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from assigner.core.group import GroupState
from assigner.core.liveness import SessionLiveness, SessionState
from assigner.core.work_queue import Schedule
from assigner.model.keys import TopicPartition
from assigner.model.records import Cause, Handoff, HandoffMode, Status, Step


class HandoffAction(Enum):
    WAIT = "wait"
    FREEZE = "freeze"
    RELEASE = "release"
    FLIP = "flip"
    """Make the new owner the owner; the old one still has to let go."""
    FLIP_RELEASED = "flip_released"
    """Make the new owner the owner; the old one has let go."""
    ASSIGN = "assign"
    """The old owner is gone: give the partition to the pinned target at once."""
    BUMP_EPOCH = "bump_epoch"
    """The old owner's name has a new session: it goes on as the old end."""
    RETARGET = "retarget"
    """The target's name has a new session: start again with it."""
    FIND_TARGET = "find_target"
    """The target is gone or leaving: the plan must name another."""
    TRY_ELSEWHERE = "try_elsewhere"
    """The target could not warm the partition."""
    REASSERT_OWNER = "reassert_owner"
    """Give the move up: the old end stays the owner."""
    EVICT = "evict"
    """The old session had its time: end it."""
    FINISH = "finish"
    """Nobody has to let go any more."""
    REMOVE = "remove"
    """Nobody holds the partition any more and nobody was to follow: its ownership may go."""
    SUPERSEDED = "superseded"
    """The assignment says something else: the handoff is void."""


_ORDER = [Step.FAILED, Step.WARMING, Step.READY, Step.FREEZING, Step.RELEASING, Step.RELEASED, Step.COMPLETE]


def slowest(steps: Sequence[Step]) -> Step:
    return min(steps, key=_ORDER.index)


def timeout(state: GroupState, step: Step) -> float | None:
    """How long a handoff may stay in a step; None: it never stays."""
    match step:
        case Step.WARMING:
            return state.options.warming_timeout
        case Step.FREEZING:
            return state.options.freeze_timeout
        case Step.RELEASING | Step.COMPLETE:
            return state.options.release_timeout
        case Step.FAILED | Step.READY | Step.RELEASED:
            return None


def next_action(
    state: GroupState, liveness: SessionLiveness, tps: Sequence[TopicPartition], *, overdue: bool, now: float
) -> HandoffAction:
    """`tps`: partitions of one handoff id. `overdue`: the step's deadline has passed."""
    handoff = state.handoffs[tps[0]].record
    step = slowest([state.handoffs[tp].record.at for tp in tps])
    old = liveness.session_state(handoff.old_owner, handoff.old_session, now)
    if step is Step.COMPLETE:
        return _after_flip(state, liveness, tps[0], handoff, old, overdue=overdue, now=now)
    if not all(_names_the_owner(state, tp) for tp in tps):
        return HandoffAction.SUPERSEDED
    if handoff.to_nobody:
        return _release_to_nobody(state, handoff, step, old, overdue=overdue)
    target = _target(liveness, handoff, now)
    if target is not HandoffAction.WAIT:
        return HandoffAction.FIND_TARGET if old is SessionState.DEAD and target is HandoffAction.RETARGET else target
    if step is Step.FAILED:
        return HandoffAction.TRY_ELSEWHERE
    if old is SessionState.DEAD:
        return HandoffAction.ASSIGN
    if old is SessionState.REPLACED:
        return HandoffAction.BUMP_EPOCH if step is Step.WARMING else HandoffAction.ASSIGN
    if overdue:
        return _overdue(state, handoff, old)
    return _forward(state, tps, step)


def _names_the_owner(state: GroupState, tp: TopicPartition) -> bool:
    """Whether the handoff starts from the owner on record. If not, somebody moved the partition past it."""
    held = state.assignments.get(tp)
    handoff = state.handoffs[tp].record
    return bool(held and held.record.owner == handoff.old_owner and held.record.session == handoff.old_session)


def _target(liveness: SessionLiveness, handoff: Handoff, now: float) -> HandoffAction:
    """WAIT: the target is fine."""
    eligible = liveness.eligible(handoff.new_owner)
    if eligible and not eligible.record.wants(handoff.topic):
        return HandoffAction.FIND_TARGET
    if eligible and eligible.record.session == handoff.new_session:
        return HandoffAction.WAIT
    if eligible:
        return HandoffAction.RETARGET
    # One that was absent when the term began may come back and go on warming.
    return (
        HandoffAction.WAIT
        if liveness.in_grace_period(handoff.new_owner, handoff.new_session, now)
        else HandoffAction.FIND_TARGET
    )


def _release_to_nobody(
    state: GroupState, handoff: Handoff, step: Step, old: SessionState, *, overdue: bool
) -> HandoffAction:
    if step is Step.RELEASED or old is SessionState.DEAD:
        return HandoffAction.REMOVE
    if old is SessionState.REPLACED:
        # The new session starts from what the name has; whether it has to leave that is for a plan to say.
        return HandoffAction.FINISH
    if overdue and old is SessionState.ALIVE and not state.consumers[handoff.old_owner].record.evicted:
        return HandoffAction.EVICT
    return HandoffAction.WAIT


def _forward(state: GroupState, tps: Sequence[TopicPartition], step: Step) -> HandoffAction:
    exclusive = state.options.handoff_mode is HandoffMode.EXCLUSIVE
    match step:
        case Step.WARMING | Step.FAILED | Step.RELEASING | Step.COMPLETE:
            return HandoffAction.WAIT
        case Step.READY if state.routers:
            return HandoffAction.FREEZE
        case Step.FREEZING if not all(_acknowledged(state, tp) for tp in tps):
            return HandoffAction.WAIT
        case Step.READY | Step.FREEZING:
            return HandoffAction.RELEASE if exclusive else HandoffAction.FLIP
        case Step.RELEASED:
            return HandoffAction.FLIP_RELEASED


def _acknowledged(state: GroupState, tp: TopicPartition) -> bool:
    """Every router registered now has acknowledged this very handoff."""
    wanted = state.handoffs[tp].record.handoff_id
    acks = state.acks.get(tp, {})
    return all(router in acks and acks[router].record.handoff_id == wanted for router in state.routers)


def _overdue(state: GroupState, handoff: Handoff, old: SessionState) -> HandoffAction:
    if old is not SessionState.ALIVE:
        return HandoffAction.WAIT
    owner = state.consumers[handoff.old_owner].record
    if owner.evicted:
        return HandoffAction.WAIT
    if owner.status is Status.DRAINING or handoff.cause is Cause.OPERATOR:
        return HandoffAction.EVICT
    return HandoffAction.REASSERT_OWNER


def _after_flip(
    state: GroupState,
    liveness: SessionLiveness,
    tp: TopicPartition,
    handoff: Handoff,
    old: SessionState,
    *,
    overdue: bool,
    now: float,
) -> HandoffAction:
    if old in (SessionState.DEAD, SessionState.REPLACED):
        return HandoffAction.FINISH
    held = state.assignments.get(tp)
    owner = liveness.session_state(held.record.owner, held.record.session, now) if held else SessionState.DEAD
    if owner is SessionState.DEAD and old is SessionState.ALIVE:
        return HandoffAction.REASSERT_OWNER
    if overdue and old is SessionState.ALIVE and not state.consumers[handoff.old_owner].record.evicted:
        return HandoffAction.EVICT
    return HandoffAction.WAIT


# How long each handoff may stay in its step, on the leader's own clock.
#
# A deadline starts when the leader first sees the step, so a new leader gives every step its full time again: a change
# of leader must not cost anybody a warm that was nearly done.


class Deadlines:
    def __init__(self) -> None:
        self._armed: dict[TopicPartition, tuple[str, Step]] = {}
        self._due: Schedule[TopicPartition] = Schedule()
        self._overdue: set[TopicPartition] = set()

    def arm(self, tp: TopicPartition, handoff_id: str, step: Step, limit: float | None, now: float) -> None:
        """Start the clock if this handoff or this step is new."""
        if self._armed.get(tp) != (handoff_id, step):
            self._armed[tp] = (handoff_id, step)
            self.restart(tp, limit, now)

    def restart(self, tp: TopicPartition, limit: float | None, now: float) -> None:
        self._overdue.discard(tp)
        if limit is None:
            self._due.clear(tp)
        else:
            self._due.set(tp, now + limit)

    def disarm(self, tp: TopicPartition) -> None:
        if self._armed.pop(tp, None):
            self._due.clear(tp)
            self._overdue.discard(tp)

    def overdue(self, tp: TopicPartition) -> bool:
        return tp in self._overdue

    def pop_due(self, now: float) -> list[TopicPartition]:
        due = self._due.pop_due(now)
        self._overdue.update(due)
        return due

    def next(self) -> float | None:
        return self._due.next()
