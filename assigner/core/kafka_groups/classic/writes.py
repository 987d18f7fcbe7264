"""Decides what of a classic group is written, when, and what waits for it.

At most one write is under way. What changes meanwhile is written next, in one record however much it is, so the number
of writes does not grow with the number of members. A record is written

- when the leader has assigned: before anybody is told of the assignment. If that fails, nobody is told, and the members
  join again;
- when another process takes over a static member in a stable group: before it is answered. If that fails, the member
  gets its old id back;
- when the group was created, when it has become empty, and when generations have to be reserved: nobody's answer but
  that of the next generation waits for these, and they are tried again.

Generations are reserved `RESERVED` at a time, so that the number of a generation that a leader told its members and
never wrote is not given to another one by the next leader. Nearly always the write of the generation before has
reserved it.
"""

from __future__ import annotations

import msgspec

from assigner.core.kafka_groups.classic import rebalance
from assigner.core.kafka_groups.classic.actions import GenerationStable, Write
from assigner.core.kafka_groups.classic.requests import assignment_answer
from assigner.core.kafka_groups.classic.state import GroupState, GroupTimer, Proposal, StaticJoin
from assigner.model.kafka_groups import (
    ClassicGroupRecord,
    ClassicMemberRecord,
    ClassicState,
    JoinAnswer,
    KafkaError,
)

RESERVED = 16
"""Generations that may be told before one of them is written."""


class GroupWrites:
    def __init__(self, group: GroupState) -> None:
        self._group = group
        self._number = 0
        self._record: ClassicGroupRecord | None = None
        """The one that is being written."""
        self._proposal: Proposal | None = None
        """The assignment in it, unless the record is about something else."""
        self._static_joins: list[StaticJoin] = []
        """Those whose new ids are in it."""

    @property
    def is_idle(self) -> bool:
        return self._record is None and not self._group.dirty

    def flush(self) -> None:
        """Ask for the next write, if there is something to write and no other is under way or waits for its time."""
        group = self._group
        if self._record is not None or not group.dirty or GroupTimer.RETRY in group.timers:
            return
        group.dirty = False
        self._number += 1
        self._proposal = group.proposal if group.state is ClassicState.COMPLETING_REBALANCE else None
        self._static_joins, group.static_joins = group.static_joins, []
        self._record = record_of(group)
        group.out.write = Write(self._number, self._record)

    def written(self, number: int, now: float) -> None:
        if number != self._number or self._record is None:
            return
        group, record, proposal, joins = self._group, self._record, self._proposal, self._static_joins
        self._record, self._proposal, self._static_joins = None, None, []
        group.stored = record
        if proposal is not None and group.proposal is proposal:
            _tell_assignment(group, proposal, now)
        if group.state is ClassicState.STABLE:
            group.settled = record
        for join in joins:
            _answer_static(group, join, now)
        if group.postponed and group.state is ClassicState.PREPARING_REBALANCE:
            rebalance.complete(group, now)

    def failed(self, number: int, error: KafkaError, now: float) -> None:
        if number != self._number or self._record is None:
            return
        group, proposal, joins = self._group, self._proposal, self._static_joins
        self._record, self._proposal, self._static_joins = None, None, []
        for join in reversed(joins):
            _revert_static(group, join, error, now)
        if proposal is not None and group.proposal is proposal:
            rebalance.prepare(group, f"the assignment could not be written ({error.name})", now, error)
        elif not joins:
            group.dirty = True
        if group.dirty:
            group.timers.set(GroupTimer.RETRY, now + group.limits.retry_delay / 1000)


def record_of(group: GroupState) -> ClassicGroupRecord:
    """The record of a group as far as it may be told: of an assignment that is proposed, or of the last one."""
    match group.state:
        case ClassicState.STABLE:
            return _record(group, tuple(member.record(member.assignment) for member in group.members))
        case ClassicState.COMPLETING_REBALANCE if group.proposal is not None:
            given = group.proposal.assignments
            return _record(group, tuple(member.record(given.get(member.member_id, b"")) for member in group.members))
        case _:
            return msgspec.structs.replace(group.settled, reserved=group.next_generation + RESERVED - 1)


def _record(group: GroupState, members: tuple[ClassicMemberRecord, ...]) -> ClassicGroupRecord:
    return ClassicGroupRecord(
        generation=group.generation,
        reserved=group.next_generation + RESERVED - 1,
        protocol_type=group.protocol_type,
        protocol=group.protocol,
        leader=group.told_leader or None,
        members=members,
    )


def _tell_assignment(group: GroupState, proposal: Proposal, now: float) -> None:
    group.proposal = None
    group.state = ClassicState.STABLE
    for member in group.members:
        member.assignment = proposal.assignments.get(member.member_id, b"")
        if group.answer_sync(member, assignment_answer(group, member.assignment)):
            group.renew(member, now)
    if proposal.follow_up:
        group.timers.set(GroupTimer.FOLLOW_UP, now + group.limits.follow_up_delay / 1000)
    group.out.events.append(GenerationStable(group.generation, len(group.members)))


def _answer_static(group: GroupState, join: StaticJoin, now: float) -> None:
    """Tell a static member's new process that it has the assignment of the one before it. If a rebalance has begun
    meanwhile, it waits for that instead; another process may have taken its place, too."""
    member = join.member
    if group.state is not ClassicState.STABLE or group.members.get(join.new_id) is not member:
        return
    answer = group.generation_answer(member)
    if answer.leader == member.member_id:
        answer = (
            msgspec.structs.replace(answer, skip_assignment=True)
            if member.skips_assignment
            else msgspec.structs.replace(answer, leader=join.leader or "", members=())
        )
    group.answer_join(member, answer)
    group.renew(member, now)


def _revert_static(group: GroupState, join: StaticJoin, error: KafkaError, now: float) -> None:
    member = join.member
    if group.state is not ClassicState.STABLE or group.members.get(join.new_id) is not member:
        return
    group.answer_join(member, JoinAnswer(error=error))
    protocols, member.session_timeout, member.rebalance_timeout = join.before
    group.members.set_protocols(member, protocols)
    group.replace_static(member, join.old_id)
    group.renew(member, now)
