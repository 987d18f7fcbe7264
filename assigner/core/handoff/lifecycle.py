"""Decides what a handoff needs next: the leader's edges of the state machine, and how long a step may take.

    warming -> ready -> [freezing] -> [releasing -> released] -> complete -> (deleted)

`next_action` looks at one handoff, the sessions of its old and new owner and its deadline, and says what is to be done.
Partitions that move as one (a co-partition set with one handoff id) are decided together: the slowest one decides.
Every leader comes to the same action, because everything but the deadline is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from assigner.core.group import GroupState
from assigner.core.liveness import SessionLiveness, SessionState
from assigner.core.routers.quorum import missing_of_all
from assigner.core.work_queue import Schedule
from assigner.model.keys import TopicPartition
from assigner.model.records import Cause, FreezeOverdue, Handoff, HandoffMode, Status, Step


class HandoffAction(Enum):
    WAIT = "wait"
    FREEZE = "freeze"
    RELEASE = "release"
    FLIP = "flip"
    """Make the new owner the owner; the old one still has to release."""
    FLIP_RELEASED = "flip_released"
    """Make the new owner the owner; the old one has released."""
    ASSIGN = "assign"
    """The old owner is gone: give the partition to the pinned target at once."""
    BUMP_EPOCH = "bump_epoch"
    """The old owner has a new session, which takes its place in the handoff under a higher epoch."""
    RETARGET = "retarget"
    """The new owner has a new session: start again with it."""
    FIND_TARGET = "find_target"
    """The new owner is gone or leaving: a plan must name another."""
    RETRY_ELSEWHERE = "retry_elsewhere"
    """The new owner failed to warm the partition."""
    SKIP_WARMING = "skip_warming"
    """The new owner has nothing to warm, although the handoff began when it had."""
    REASSERT_OWNER = "reassert_owner"
    """Abandon the move: the old owner stays the owner, under a higher epoch."""
    EVICT = "evict"
    """The old session did not release in time: end it."""
    FINISH = "finish"
    """The old owner has nothing to release any more: delete the handoff."""
    REMOVE = "remove"
    """The partition was released without a new owner: its assignment may be removed."""
    SUPERSEDED = "superseded"
    """The assignment names another owner than the handoff starts from: the handoff is void."""


_ORDER = [Step.FAILED, Step.WARMING, Step.READY, Step.FREEZING, Step.RELEASING, Step.RELEASED, Step.COMPLETE]


def slowest(steps: Sequence[Step]) -> Step:
    return min(steps, key=_ORDER.index)


def timeout(state: GroupState, handoff: Handoff, step: Step) -> float | None:
    """How long a handoff may stay in a step; None: it never waits in that step."""
    match step:
        case Step.WARMING:
            return state.options.warming_timeout
        case Step.FREEZING:
            return state.options.freeze_timeout
        case Step.RELEASING | Step.COMPLETE:
            return _release_timeout(state, handoff)
        case Step.FAILED | Step.READY | Step.RELEASED:
            return None


def _release_timeout(state: GroupState, handoff: Handoff) -> float:
    """The time that the old owner asked for when it registered, or else the group's."""
    owner = state.consumers.get(handoff.old_owner)
    own = owner.record.release_timeout if owner and owner.record.session == handoff.old_session else 0.0
    return own or state.options.release_timeout


def next_action(
    state: GroupState, liveness: SessionLiveness, tps: Sequence[TopicPartition], *, overdue: bool, now: float
) -> HandoffAction:
    """Decide what one handoff needs now. `tps`: its partitions. `overdue`: the step's deadline has passed."""
    handoff = state.handoffs[tps[0]].record
    step = slowest([state.handoffs[tp].record.at for tp in tps])
    old = liveness.session_state(handoff.old_owner, handoff.old_session, now)
    if step is Step.COMPLETE:
        return _after_flip(state, liveness, tps[0], handoff, old, overdue=overdue, now=now)
    if not all(_names_the_owner(state, tp) for tp in tps):
        return HandoffAction.SUPERSEDED
    if handoff.to_nobody:
        if liveness.has_stopped(handoff.old_owner, handoff.old_session):
            return HandoffAction.REMOVE
        return _release_to_nobody(state, handoff, step, old, overdue=overdue)
    target = _target(liveness, handoff, now)
    if target is not HandoffAction.WAIT:
        return HandoffAction.FIND_TARGET if old is SessionState.DEAD and target is HandoffAction.RETARGET else target
    if step is Step.FAILED:
        return HandoffAction.RETRY_ELSEWHERE
    if old is SessionState.DEAD:
        return HandoffAction.ASSIGN
    if old is SessionState.REPLACED:
        return HandoffAction.BUMP_EPOCH if step is Step.WARMING else HandoffAction.ASSIGN
    if step is Step.WARMING and _is_cold(state, handoff.new_owner):
        return HandoffAction.SKIP_WARMING
    if step is Step.RELEASING and liveness.has_stopped(handoff.old_owner, handoff.old_session):
        return HandoffAction.FLIP_RELEASED
    if overdue and not _goes_on(state, tps, step):
        return _overdue(state, handoff, old)
    return _forward(state, tps, step, without_acks=overdue)


def _is_cold(state: GroupState, name: str) -> bool:
    consumer = state.consumers.get(name)
    return consumer is not None and consumer.record.cold


def _names_the_owner(state: GroupState, tp: TopicPartition) -> bool:
    """Whether the handoff starts from the owner on record. If not, the partition was moved past it."""
    held = state.assignments.get(tp)
    handoff = state.handoffs[tp].record
    return bool(held and held.record.owner == handoff.old_owner and held.record.session == handoff.old_session)


def _target(liveness: SessionLiveness, handoff: Handoff, now: float) -> HandoffAction:
    """The action that the new owner's session state calls for; WAIT: it is alive, as the handoff expects."""
    eligible = liveness.eligible(handoff.new_owner)
    if eligible and not eligible.record.wants(handoff.topic):
        return HandoffAction.FIND_TARGET
    if eligible and eligible.record.session == handoff.new_session:
        return HandoffAction.WAIT
    if eligible:
        return HandoffAction.RETARGET
    # One that was absent when the term began may come back and go on warming.
    waits = liveness.in_grace_period(handoff.new_owner, handoff.new_session, now)
    return HandoffAction.WAIT if waits else HandoffAction.FIND_TARGET


def _release_to_nobody(
    state: GroupState, handoff: Handoff, step: Step, old: SessionState, *, overdue: bool
) -> HandoffAction:
    if step is Step.RELEASED or old is SessionState.DEAD:
        return HandoffAction.REMOVE
    if old is SessionState.REPLACED:
        # The new session takes over what the name owns; whether it has to leave that is for a plan to say.
        return HandoffAction.FINISH
    if overdue and old is SessionState.ALIVE and not state.consumers[handoff.old_owner].record.evicted:
        return HandoffAction.EVICT
    return HandoffAction.WAIT


def _goes_on(state: GroupState, tps: Sequence[TopicPartition], step: Step) -> bool:
    """Whether a handoff past its deadline goes on: it froze, and the acks are complete, or not insisted on."""
    if step is not Step.FREEZING:
        return False
    return state.options.freeze_overdue is FreezeOverdue.PROCEED or not missing_of_all(state, tps)


def _forward(state: GroupState, tps: Sequence[TopicPartition], step: Step, *, without_acks: bool) -> HandoffAction:
    match step:
        case Step.WARMING | Step.FAILED | Step.RELEASING | Step.COMPLETE:
            return HandoffAction.WAIT
        case Step.READY if state.has_routers:
            return HandoffAction.FREEZE
        case Step.FREEZING if not without_acks and missing_of_all(state, tps):
            return HandoffAction.WAIT
        case Step.READY | Step.FREEZING:
            return HandoffAction.RELEASE if _stops_first(state, tps) else HandoffAction.FLIP
        case Step.RELEASED:
            return HandoffAction.FLIP_RELEASED


def _stops_first(state: GroupState, tps: Sequence[TopicPartition]) -> bool:
    """Whether the old owner has to release before the new one gets the partition."""
    if state.options.handoff_mode is HandoffMode.EXCLUSIVE:
        return True
    owner = state.consumers.get(state.handoffs[tps[0]].record.old_owner)
    return owner is not None and owner.record.stops_first


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
    stopped = liveness.has_stopped(handoff.old_owner, handoff.old_session)
    held = state.assignments.get(tp)
    owner = liveness.owner_state(held.record, now) if held else SessionState.DEAD
    if owner is SessionState.DEAD and old is SessionState.ALIVE:
        return HandoffAction.REASSERT_OWNER
    if stopped:
        return HandoffAction.FINISH
    if overdue and old is SessionState.ALIVE and not state.consumers[handoff.old_owner].record.evicted:
        return HandoffAction.EVICT
    return HandoffAction.WAIT


class Deadlines:
    """How long each handoff may still stay in its step, on the leader's own clock.

    A deadline starts when the leader first sees the step. So a new leader gives every step its full time again: a
    change of leader must not cost a consumer a warm that was nearly done."""

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
