"""Examines one partition: compares its records with its topic and its owner, and decides the write it needs, if any.

In the order of precedence: records that can't be read, or that are being written, are left alone; partitions that do
not exist any more are removed; a recreated topic gets new epochs; a handoff in flight is advanced; a partition that
routers hold frozen without one is thawed; and an owner that is gone or leaving is a reason to plan. A partition is
examined whenever one of its records changes, and by each resync.
"""

from __future__ import annotations

from typing import assert_never

from assigner.core.coordination.removal import OwnershipRemoval
from assigner.core.handoff.deleted_freezes import DeletedFreezes
from assigner.core.handoff.progress import HandoffProgress
from assigner.core.handoff.warm_failures import WarmFailures
from assigner.core.leader_context import LeaderContext
from assigner.core.liveness import SessionState
from assigner.core.work_queue import Note
from assigner.core.writes import Write
from assigner.model.keys import TopicPartition
from assigner.model.records import Assignment, Cause, HandoffMode, Status, Step


class PartitionReconciler:
    def __init__(
        self,
        context: LeaderContext,
        progress: HandoffProgress,
        failures: WarmFailures,
        removal: OwnershipRemoval,
        freezes: DeletedFreezes,
    ) -> None:
        self._context = context
        self._state = context.state
        self._liveness = context.liveness
        self._transitions = context.transitions
        self._work = context.work
        self._pending = context.pending
        self._progress = progress
        self._failures = failures
        self._removal = removal
        self._freezes = freezes

    def reconcile(self, tp: TopicPartition, now: float, wall: float) -> Write | None:
        topic = self._state.topics.get(tp.topic)
        if tp in self._pending or tp in self._state.unreadable_partitions:
            return None
        if topic is None or tp.partition >= topic.record.partition_count:
            return None if self._state.is_left_alone(tp) else self._remove(tp, now, wall)
        held, handoff = self._state.assignments.get(tp), self._state.handoffs.get(tp)
        if held and topic.record.topic_id and held.record.topic_id not in ("", topic.record.topic_id):
            return self._transitions.recreate((tp,))
        if handoff:
            return self._progress.advance(tp, now, wall)
        self._progress.deadlines.disarm(tp)
        if self._freezes.is_stuck(tp):
            return self._thaw(tp, now)
        if tp in self._state.acks:
            return self._transitions.drop_acks(tp)
        if held is None:
            if tp not in self._failures.quarantined:
                self._work.want_plan(Cause.TOPIC_GREW, now)
            return None
        return self._check_owner(tp, held.record, now)

    def _remove(self, tp: TopicPartition, now: float, wall: float) -> Write | None:
        """Remove the ownership of a partition that does not exist any more. In an exclusive group its owner releases it
        first, because the partition may exist again in a moment, with another owner."""
        held, handoff = self._state.assignments.get(tp), self._state.handoffs.get(tp)
        if held and self._state.options.handoff_mode is HandoffMode.EXCLUSIVE:
            if handoff and (handoff.record.to_nobody or handoff.record.at is Step.COMPLETE):
                return self._progress.advance(tp, now, wall)
            owner = self._liveness.owner_state(held.record, now)
            if owner is SessionState.UNKNOWN:
                self._context.recheck_session(held.record.owner, held.record.session, now)
                return None
            if owner is SessionState.ALIVE:
                evicted = self._state.consumers[held.record.owner].record.evicted
                return None if evicted else self._transitions.release_to_nobody((tp,), Cause.OPERATOR, int(wall))
        if held or handoff or tp in self._state.standbys:
            self._removal.add((tp,))
        return None

    def _thaw(self, tp: TopicPartition, now: float) -> Write | None:
        """Give the owner another epoch, so that routers send to it again. One that is gone is left to a plan, whose
        next owner gets a higher epoch anyway."""
        held = self._state.assignments[tp].record
        if self._liveness.owner_state(held, now) is not SessionState.ALIVE:
            return self._check_owner(tp, held, now)
        self._work.note(Note("frozen_handoff_deleted", tp, held.owner, "its owner gets another epoch, so routers thaw"))
        return self._transitions.reaffirm_owner(tp)

    def _check_owner(self, tp: TopicPartition, held: Assignment, now: float) -> Write | None:
        owner = self._liveness.owner_state(held, now)
        match owner:
            case SessionState.REPLACED:
                return self._transitions.bump_epoch((tp,), self._state.consumers[held.owner])
            case SessionState.DEAD:
                # The cooldown was for this owner's sake.
                self._work.cooldowns.clear(tp)
                self._work.want_plan(Cause.LEFT, now)
            case SessionState.UNKNOWN:
                self._context.recheck_session(held.owner, held.session, now)
            case SessionState.ALIVE:
                if self._state.consumers[held.owner].record.status is Status.DRAINING:
                    self._work.want_plan(Cause.DRAINING, now)
            case _:
                assert_never(owner)
        return None
