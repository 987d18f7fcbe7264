"""Builds the write of each change of ownership: its preconditions and its operations.

Each method turns a decision into the records that carry it out. None of them decides. The preconditions say that
nothing the decision was made on has changed: the `_..._unchanged` methods at the end. Epochs only go up: `next_epoch`
is the one place that makes one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from assigner.core.group import GroupState
from assigner.core.liveness import SessionLiveness
from assigner.core.standby_copies import copy_is_elsewhere, holds_copy
from assigner.core.writes import ConsumerSubject, Moved, PlanSubject, Purpose, Write
from assigner.model.keys import TopicPartition
from assigner.model.records import (
    Assignment,
    Cause,
    Consumer,
    Handoff,
    HandoffMode,
    Plan,
    Standbys,
    Status,
    Step,
    Stored,
    encode,
)
from assigner.store import Absent, Compare, Delete, ModRevisionIs, Operation, Put

Partitions = Sequence[TopicPartition]
OffsetKey = Callable[[TopicPartition], str]


class Transitions:
    def __init__(self, state: GroupState, liveness: SessionLiveness, offset_key: OffsetKey, term: int) -> None:
        """`term` makes the ids of handoffs unique over all leaders."""
        self._state = state
        self._term = term
        self._handoffs_begun = 0
        self._keys = state.keys
        self._liveness = liveness
        self._offset_key = offset_key

    # --- ownership -----------------------------------------------------------------------------------------------

    def assign(self, tps: Partitions, target: Stored[Consumer], cause: Cause) -> Write:
        """Make `target` the owner of partitions without a living owner, and delete any handoff they are in."""
        compares: list[Compare] = [
            self._liveness.registration_unchanged(target.record.consumer_name),
            *self._mode_unchanged(),
        ]
        operations: list[Operation] = []
        moves: list[Moved] = []
        for tp in tps:
            compares += self._unchanged(tp)
            compares += self._owner_unchanged(tp)
            assignment = self._assignment(tp, target.record)
            operations.append(self._put_assignment(tp, assignment))
            operations += self._end_handoff(tp)
            moves.append(self._moved(tp, assignment, cause))
        return Write(Purpose.ASSIGN, _unique(compares), tuple(operations), tuple(tps), tuple(moves), self._acks(tps))

    def bump_epoch(self, tps: Partitions, target: Stored[Consumer]) -> Write:
        """Make the owner's new session the owner, under a higher epoch that fences the old session off."""
        compares: list[Compare] = [
            self._liveness.registration_unchanged(target.record.consumer_name),
            *self._mode_unchanged(),
        ]
        operations: list[Operation] = []
        for tp in tps:
            compares += self._unchanged(tp)
            assignment = self._assignment(tp, target.record)
            operations.append(self._put_assignment(tp, assignment))
            handoff = self._state.handoffs.get(tp)
            if handoff and handoff.record.at is Step.WARMING:
                # The epoch too: a new session that is asked to release an older epoch would ack and go on working.
                moved = msgspec.structs.replace(
                    handoff.record, old_session=assignment.session, old_epoch=assignment.epoch
                )
                operations.append(Put(handoff.key, handoff.encode(moved)))
        return Write(Purpose.BUMP_EPOCH, _unique(compares), tuple(operations), tuple(tps))

    def recreate(self, tps: Partitions) -> Write:
        """Keep the owners of a recreated topic under higher epochs, and delete handoffs, offsets and standbys."""
        compares: list[Compare] = []
        operations: list[Operation] = []
        for tp in tps:
            held = self._state.assignments[tp]
            compares += self._unchanged(tp)
            fresh = msgspec.structs.replace(
                held.record, epoch=self.next_epoch(tp), topic_id=self._state.topics[tp.topic].record.topic_id
            )
            operations.append(Put(held.key, held.encode(fresh)))
            operations += self._end_handoff(tp)
            operations.append(Delete(self._offset_key(tp)))
            compares += self._standbys_unchanged(tp)
            operations += self._drop_standbys(tp)
        return Write(Purpose.BUMP_EPOCH, _unique(compares), tuple(operations), tuple(tps), cleanup=self._acks(tps))

    # --- handoffs ------------------------------------------------------------------------------------------------

    def start(self, tps: Partitions, target: Stored[Consumer], cause: Cause, started_at: int) -> Write:
        """Begin a handoff from the present owner to `target`, in place of any handoff there was. It begins at Ready if
        the target has nothing to warm.

        An owner that was asked to release gets a higher epoch: its release stays valid, and under the new epoch it
        goes on working while the new target warms."""
        handoff_id = self._next_id()
        step = Step.READY if target.record.cold else Step.WARMING
        compares: list[Compare] = [self._liveness.registration_unchanged(target.record.consumer_name)]
        operations: list[Operation] = []
        for tp in tps:
            compares += self._unchanged(tp)
            held = self._state.assignments[tp].record
            current = self._state.handoffs.get(tp)
            if current and current.record.at in (Step.RELEASING, Step.RELEASED):
                held = msgspec.structs.replace(held, epoch=self.next_epoch(tp))
                operations.append(self._put_assignment(tp, held))
            handoff = Handoff(
                topic=tp.topic,
                partition=tp.partition,
                old_owner=held.owner,
                old_session=held.session,
                old_epoch=held.epoch,
                new_owner=target.record.consumer_name,
                new_session=target.record.session,
                phase=step.phase,
                step=step,
                started_at=started_at,
                handoff_id=handoff_id,
                cause=cause,
                warm=holds_copy(self._state, tp, target.record.consumer_name),
            )
            operations.append(
                Put(self._keys.handoff(tp), encode(handoff, current.extra if current else None)),
            )
        return Write(Purpose.HANDOFF, _unique(compares), tuple(operations), tuple(tps), cleanup=self._acks(tps))

    def release_to_nobody(self, tps: Partitions, cause: Cause, started_at: int) -> Write:
        """Have the present owner, one for all partitions, release them although no consumer takes over. An owner that
        was already asked to release, or did, is not asked again: its handoff only loses its new owner."""
        handoff_id = self._next_id()
        owner = self._state.assignments[tps[0]].record.owner
        compares: list[Compare] = [self._liveness.registration_unchanged(owner)]
        operations: list[Operation] = []
        for tp in tps:
            compares += self._unchanged(tp)
            held, current = self._state.assignments[tp].record, self._state.handoffs.get(tp)
            asked = current.record if current and current.record.at in (Step.RELEASING, Step.RELEASED) else None
            step = asked.at if asked else Step.RELEASING
            handoff = Handoff(
                topic=tp.topic,
                partition=tp.partition,
                old_owner=held.owner,
                old_session=held.session,
                old_epoch=held.epoch,
                new_owner="",
                phase=step.phase,
                step=step,
                started_at=started_at,
                handoff_id=asked.handoff_id if asked else handoff_id,
                cause=cause,
            )
            operations.append(Put(self._keys.handoff(tp), encode(handoff, current.extra if current else None)))
        return Write(Purpose.HANDOFF, _unique(compares), tuple(operations), tuple(tps), cleanup=self._acks(tps))

    def advance(self, tps: Partitions, step: Step, unacked: tuple[str, ...] = ()) -> Write:
        """Move handoffs to their next step. `unacked`: routers that are not waited for any more."""
        compares: list[Compare] = []
        operations: list[Operation] = []
        for tp in tps:
            handoff = self._state.handoffs[tp]
            compares += self._unchanged(tp)
            named = unacked or handoff.record.unacked
            moved = msgspec.structs.replace(handoff.record, step=step, phase=step.phase, unacked=named)
            operations.append(Put(handoff.key, handoff.encode(moved)))
        return Write(Purpose.ADVANCE, _unique(compares), tuple(operations), tuple(tps))

    def flip(
        self, tps: Partitions, target: Stored[Consumer], *, released: bool, unacked: tuple[str, ...] = ()
    ) -> Write:
        """Cut over: make the new owner the owner. Unless the old owner has `released`, the handoff stays, complete,
        until it does. `unacked`: routers that are not waited for any more."""
        compares: list[Compare] = [
            self._liveness.registration_unchanged(target.record.consumer_name),
            *self._mode_unchanged(),
        ]
        operations: list[Operation] = []
        moves: list[Moved] = []
        for tp in tps:
            handoff = self._state.handoffs[tp]
            compares += self._unchanged(tp)
            if released:
                compares += self._owner_unchanged(tp)
            assignment = self._assignment(tp, target.record)
            operations.append(self._put_assignment(tp, assignment))
            if released:
                operations += self._end_handoff(tp)
            else:
                step = Step.COMPLETE
                done = msgspec.structs.replace(handoff.record, step=step, phase=step.phase, epoch=assignment.epoch)
                operations.append(Put(handoff.key, handoff.encode(done)))
            moved = self._moved(tp, assignment, handoff.record.cause)
            moves.append(msgspec.structs.replace(moved, unacked=unacked or handoff.record.unacked))
        return Write(Purpose.FLIP, _unique(compares), tuple(operations), tuple(tps), tuple(moves), self._acks(tps))

    def reassert_owner(self, tps: Partitions) -> Write:
        """Cancel handoffs by writing the old owner again, under a higher epoch."""
        compares: list[Compare] = []
        operations: list[Operation] = []
        for tp in tps:
            handoff = self._state.handoffs[tp]
            compares += self._unchanged(tp)
            compares.append(self._liveness.registration_unchanged(handoff.record.old_owner))
            held = self._state.assignments.get(tp)
            owner = Assignment(
                topic=tp.topic,
                partition=tp.partition,
                owner=handoff.record.old_owner,
                session=handoff.record.old_session,
                epoch=self.next_epoch(tp),
                topic_id=held.record.topic_id if held else "",
                principal=self._principal_of(handoff.record.old_owner, handoff.record.old_session),
            )
            operations.append(self._put_assignment(tp, owner))
            operations += self._end_handoff(tp)
        return Write(Purpose.REASSERT_OWNER, _unique(compares), tuple(operations), tuple(tps), cleanup=self._acks(tps))

    def reaffirm_owner(self, tp: TopicPartition) -> Write:
        """Give the owner of a partition without a handoff a higher epoch."""
        held = self._state.assignments[tp]
        compares = [*self._unchanged(tp), *self._owner_unchanged(tp)]
        owner = msgspec.structs.replace(held.record, epoch=self.next_epoch(tp))
        put = Put(held.key, held.encode(owner))
        return Write(Purpose.REASSERT_OWNER, _unique(compares), (put,), (tp,), cleanup=self._acks((tp,)))

    def drop_acks(self, tp: TopicPartition) -> Write:
        """Delete acks of a handoff that is over. They were left out where it ended, or its deletion was not ours."""
        acks = self._acks((tp,))[: self._state.limits.operations]
        return Write(Purpose.DROP_ACKS, tuple(self._unchanged(tp)), acks, (tp,))

    def finish(self, tps: Partitions) -> Write:
        """Delete handoffs that no consumer has to ack any more."""
        compares: list[Compare] = []
        operations: list[Operation] = []
        for tp in tps:
            compares += self._unchanged(tp)
            compares.append(self._liveness.registration_unchanged(self._state.handoffs[tp].record.old_owner))
            operations += self._end_handoff(tp)
        return Write(Purpose.FINISH, _unique(compares), tuple(operations), tuple(tps), cleanup=self._acks(tps))

    # --- members, plan, removal ----------------------------------------------------------------------------------

    def evict(self, consumer: Stored[Consumer], reason: str) -> Write:
        """Have the consumer's instance end its session. The registration keeps its lease, whose end other members wait
        for."""
        gone = msgspec.structs.replace(consumer.record, evicted=reason, status=Status.DRAINING)
        return Write(
            Purpose.EVICT,
            (ModRevisionIs(consumer.key, consumer.mod_revision),),
            (Put(consumer.key, consumer.encode(gone), consumer.lease),),
            subject=ConsumerSubject(consumer.record.consumer_name),
        )

    def publish(self, plan: Plan, purpose: Purpose) -> Write:
        """Replace the plan record."""
        current = self._state.stored_plan
        compare: Compare = ModRevisionIs(current.key, current.mod_revision) if current else Absent(self._keys.plan)
        value = current.encode(plan) if current else encode(plan)
        return Write(purpose, (compare,), (Put(self._keys.plan, value),), subject=PlanSubject())

    def standbys(self, tp: TopicPartition, holders: tuple[str, ...]) -> Write:
        """Name the holders of copies. The write blocks no partition: no ownership depends on it."""
        current, topic = self._state.standbys.get(tp), self._state.topics.get(tp.topic)
        if not holders:
            return Write(Purpose.STANDBYS, tuple(self._standbys_unchanged(tp)), tuple(self._drop_standbys(tp)))
        record = Standbys(
            topic=tp.topic, partition=tp.partition, holders=holders, topic_id=topic.record.topic_id if topic else ""
        )
        compare: Compare = (
            ModRevisionIs(current.key, current.mod_revision) if current else Absent(self._keys.standby(tp))
        )
        put = Put(self._keys.standby(tp), encode(record, current.extra if current else None))
        return Write(Purpose.STANDBYS, (compare,), (put,))

    def remove(self, tps: Partitions) -> Write:
        """Delete assignments, handoffs and standbys. The floor must already be at or above the epochs.

        Their owners must still be gone when the write takes effect, because a consumer that is back was sent them as
        its own. Partitions that do not exist any more are deleted in any case."""
        compares: list[Compare] = self._mode_unchanged()
        operations: list[Operation] = []
        for tp in tps:
            compares += self._unchanged(tp)
            compares += self._standbys_unchanged(tp)
            if self._exists(tp):
                compares += self._parties_unchanged(tp)
            operations += [Delete(self._keys.assignment(tp)), *self._end_handoff(tp), *self._drop_standbys(tp)]
        return Write(Purpose.REMOVE, _unique(compares), tuple(operations), tuple(tps), cleanup=self._acks(tps))

    def is_current(self, write: Write) -> bool:
        """Whether the write's preconditions still hold in the mirror: then it has not gone in so far."""
        return all(compare in write.compares for tp in write.partitions for compare in self._unchanged(tp))

    # --- parts of writes ---------------------------------------------------------------------------------------------

    def _next_id(self) -> str:
        self._handoffs_begun += 1
        return f"{self._term:x}-{self._handoffs_begun:x}"

    def next_epoch(self, tp: TopicPartition) -> int:
        """An epoch higher than every epoch of the partition so far."""
        held = self._state.assignments.get(tp)
        if held is None:
            # The floor covers what this service deleted, and lags a little; other writers know of no floor.
            return max(self._state.highest_epoch, self._state.plan.epoch_floor) + 1
        return max(held.record.epoch, self._state.plan.epoch_floor) + 1

    def _assignment(self, tp: TopicPartition, owner: Consumer) -> Assignment:
        topic = self._state.topics.get(tp.topic)
        return Assignment(
            topic=tp.topic,
            partition=tp.partition,
            owner=owner.consumer_name,
            session=owner.session,
            epoch=self.next_epoch(tp),
            topic_id=topic.record.topic_id if topic else "",
            principal=owner.principal or msgspec.UNSET,
        )

    def _principal_of(self, name: str, session: str) -> str | msgspec.UnsetType:
        """The identity that the session is bound to, if it is registered."""
        found = self._state.consumers.get(name)
        return (found.record.principal if found and found.record.session == session else "") or msgspec.UNSET

    def _put_assignment(self, tp: TopicPartition, assignment: Assignment) -> Put:
        held = self._state.assignments.get(tp)
        return Put(self._keys.assignment(tp), encode(assignment, held.extra if held else None))

    def _unchanged(self, tp: TopicPartition) -> list[Compare]:
        """The precondition that the partition's assignment and handoff are those of the decision."""
        held = self._state.assignments.get(tp)
        handoff = self._state.handoffs.get(tp)
        return [
            ModRevisionIs(held.key, held.mod_revision) if held else Absent(self._keys.assignment(tp)),
            ModRevisionIs(handoff.key, handoff.mod_revision) if handoff else Absent(self._keys.handoff(tp)),
        ]

    def _mode_unchanged(self) -> list[Compare]:
        """The precondition of a decision by which two consumers may hold a partition for a while: it must not take
        effect in a group that has become exclusive meanwhile."""
        if self._state.options.handoff_mode is HandoffMode.EXCLUSIVE:
            return []
        options = self._state.stored_options
        return [ModRevisionIs(options.key, options.mod_revision) if options else Absent(self._keys.options)]

    def _owner_unchanged(self, tp: TopicPartition) -> list[Compare]:
        """The precondition that an owner found dead is still gone when its partition is given away."""
        held = self._state.assignments.get(tp)
        return [self._liveness.registration_unchanged(held.record.owner)] if held else []

    def _parties_unchanged(self, tp: TopicPartition) -> list[Compare]:
        """The preconditions on the registrations of the owner and of both ends of the handoff."""
        handoff = self._state.handoffs.get(tp)
        ends = (handoff.record.old_owner, handoff.record.new_owner) if handoff else ()
        return [*self._owner_unchanged(tp), *map(self._liveness.registration_unchanged, ends)]

    def _exists(self, tp: TopicPartition) -> bool:
        """Whether the partition exists as far as is known: a topic whose config can't be read is not gone."""
        topic = self._state.topics.get(tp.topic)
        if topic is None:
            return self._keys.topic(tp.topic) in self._state.unreadable
        return tp.partition < topic.record.partition_count

    def _end_handoff(self, tp: TopicPartition) -> list[Operation]:
        return [Delete(self._keys.handoff(tp))] if tp in self._state.handoffs else []

    def _acks(self, tps: Partitions) -> tuple[Operation, ...]:
        """Delete the routers' acks, which are void without their handoff. There may be more than fit in a
        transaction."""
        return tuple(Delete(ack.key) for tp in tps for ack in self._state.acks.get(tp, {}).values())

    def _standbys_unchanged(self, tp: TopicPartition) -> list[Compare]:
        stored = self._state.standbys.get(tp)
        return [ModRevisionIs(stored.key, stored.mod_revision)] if stored else []

    def _drop_standbys(self, tp: TopicPartition) -> list[Operation]:
        stored = self._state.standbys.get(tp)
        return [Delete(stored.key)] if stored else []

    def _moved(self, tp: TopicPartition, assignment: Assignment, cause: Cause) -> Moved:
        held = self._state.assignments.get(tp)
        new = assignment.owner
        warm, cold = holds_copy(self._state, tp, new), copy_is_elsewhere(self._state, tp, new)
        return Moved(tp, held.record.owner if held else "", new, cause, assignment.epoch, warm, cold)


def _unique(compares: Sequence[Compare]) -> tuple[Compare, ...]:
    return tuple(dict.fromkeys(compares))
