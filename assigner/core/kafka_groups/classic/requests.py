"""Decides about a SyncGroup, a Heartbeat, a LeaveGroup and the member behind an OffsetCommit.

    state                   SyncGroup                        Heartbeat                OffsetCommit of a member
    Empty                   UNKNOWN_MEMBER_ID                UNKNOWN_MEMBER_ID        UNKNOWN_MEMBER_ID
    PreparingRebalance      REBALANCE_IN_PROGRESS            REBALANCE_IN_PROGRESS    accepted
    CompletingRebalance     held until it is written         accepted                 REBALANCE_IN_PROGRESS
    Stable                  answered with the assignment     accepted                 accepted
    Dead                    COORDINATOR_NOT_AVAILABLE        the same                 the same

Before that each of them checks the member (unknown, or fenced by its instance id), and then its generation. A commit
without a member and a generation is accepted while nobody is a member.
"""

from __future__ import annotations

from assigner.core.kafka_groups.classic import rebalance
from assigner.core.kafka_groups.classic.state import GroupState, GroupTimer, Proposal
from assigner.model.kafka_groups import (
    ClassicCommit,
    ClassicState,
    HeartbeatRequest,
    KafkaError,
    LeaveAnswer,
    LeaveRequest,
    LeavingMember,
    LeftMember,
    SyncAnswer,
    SyncRequest,
)


def sync(group: GroupState, waiter: int, request: SyncRequest, now: float) -> None:
    error = _check_sync(group, request)
    member = group.members.get(request.member_id)
    if error or member is None:
        group.out.reply(waiter, SyncAnswer(error=error))
        return
    group.to_sync.discard(request.member_id)
    if group.all_synced:
        group.timers.clear(GroupTimer.SYNC)
    if group.state is ClassicState.STABLE:
        group.renew(member, now)
        group.out.reply(waiter, assignment_answer(group, member.assignment))
        return
    group.hold_sync(member, waiter)
    if group.told_leader == member.member_id and group.proposal is None:
        propose(group, dict(request.assignments), follow_up=False)


def propose(group: GroupState, assignments: dict[str, bytes], *, follow_up: bool) -> None:
    """Have the assignment of the present generation written, of members only; then it is told."""
    known = {member.member_id: assignments.get(member.member_id, b"") for member in group.members}
    group.proposal = Proposal(group.generation, known, follow_up)
    group.dirty = True


def assignment_answer(group: GroupState, assignment: bytes) -> SyncAnswer:
    return SyncAnswer(protocol_type=group.protocol_type, protocol=group.protocol, assignment=assignment)


def _check_sync(group: GroupState, request: SyncRequest) -> KafkaError:
    error = _check_member(group, request.member_id, request.instance_id, request.generation)
    if error:
        return error
    if _differs(request.protocol_type, group.protocol_type) or _differs(request.protocol, group.protocol):
        return KafkaError.INCONSISTENT_GROUP_PROTOCOL
    if group.state is ClassicState.PREPARING_REBALANCE:
        return KafkaError.REBALANCE_IN_PROGRESS
    sizes = [len(assignment) for _, assignment in request.assignments]
    if max(sizes, default=0) > group.limits.max_member_bytes or sum(sizes) > group.limits.max_group_bytes:
        return KafkaError.UNKNOWN_SERVER_ERROR
    return KafkaError.NONE


def _differs(named: str | None, present: str | None) -> bool:
    return named is not None and present is not None and named != present


def _check_member(group: GroupState, member_id: str, instance_id: str | None, generation: int) -> KafkaError:
    if group.state is ClassicState.DEAD:
        return KafkaError.COORDINATOR_NOT_AVAILABLE
    error = group.validate(member_id, instance_id)
    if not error and generation != group.generation:
        error = KafkaError.ILLEGAL_GENERATION
    return error


def heartbeat(group: GroupState, request: HeartbeatRequest, now: float) -> KafkaError:
    error = _check_member(group, request.member_id, request.instance_id, request.generation)
    member = group.members.get(request.member_id)
    if error or member is None:
        return error
    group.renew(member, now)
    if group.state is ClassicState.PREPARING_REBALANCE:
        return KafkaError.REBALANCE_IN_PROGRESS
    return KafkaError.NONE


def leave(group: GroupState, request: LeaveRequest, now: float) -> LeaveAnswer:
    """Remove members. The answer need not wait for a write: until it is written, nobody gets what they had."""
    if group.state is ClassicState.DEAD:
        return LeaveAnswer(error=KafkaError.COORDINATOR_NOT_AVAILABLE)
    left = tuple(_leave_one(group, member) for member in request.members)
    gone = sum(not member.error for member in left)
    if gone and group.state is not ClassicState.EMPTY:
        rebalance.prepare_or_complete(group, f"{gone} members left", now)
    return LeaveAnswer(members=left)


def _leave_one(group: GroupState, leaving: LeavingMember) -> LeftMember:
    error, member_id = KafkaError.NONE, leaving.member_id
    if not member_id:
        removed = group.members.static(leaving.instance_id) if leaving.instance_id is not None else None
        member_id = removed.member_id if removed else ""
        error = KafkaError.NONE if removed else KafkaError.UNKNOWN_MEMBER_ID
    elif group.forget_pending(member_id):
        return LeftMember(leaving.member_id, leaving.instance_id)
    else:
        error = group.validate(member_id, leaving.instance_id)
    if not error:
        group.remove(member_id, f"it left{': ' + leaving.reason if leaving.reason else ''}")
    return LeftMember(leaving.member_id, leaving.instance_id, error)


def check_commit_to_nobody(commit: ClassicCommit) -> KafkaError:
    """Whether a group that does not exist accepts a commit: then it comes into being as a simple group."""
    if commit.generation < 0:
        return KafkaError.NONE
    return KafkaError.GROUP_ID_NOT_FOUND if commit.knows_missing_groups else KafkaError.ILLEGAL_GENERATION


def check_commit(group: GroupState, commit: ClassicCommit, now: float) -> KafkaError:
    """Whether the group accepts this commit. A member's counts as a sign of life."""
    if group.state is ClassicState.DEAD:
        return KafkaError.COORDINATOR_NOT_AVAILABLE
    if commit.generation < 0 and group.state is ClassicState.EMPTY:
        return KafkaError.NONE
    if commit.generation < 0 and not commit.member_id and commit.instance_id is None:
        return KafkaError.UNKNOWN_MEMBER_ID
    error = _check_member(group, commit.member_id, commit.instance_id, commit.generation)
    if not error and group.state is ClassicState.COMPLETING_REBALANCE:
        error = KafkaError.REBALANCE_IN_PROGRESS
    member = group.members.get(commit.member_id)
    if not error and member is not None:
        group.renew(member, now)
    return error
