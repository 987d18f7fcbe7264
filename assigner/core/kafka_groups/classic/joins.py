"""Decides about a JoinGroup: refused, given an id, held until the generation begins, or answered at once.

    who joins                               Empty      Preparing   Completing         Stable
    new, dynamic, version 4 on              MEMBER_ID_REQUIRED with a new id; it is waited for
    new, dynamic, older; or with that id    held       held        held, rebalance    held, rebalance
    new static member                       held       held        held, rebalance    held, rebalance
    known instance id, new process          -          held        held, rebalance    answered when written
    member, as before                       unknown    held        answered           answered; leader: rebalance
    member, with other protocols            unknown    held        held, rebalance    held, rebalance

A new process of a static member takes over the assignment of the one before it, unless the group would now elect
another protocol. It is answered when its id is written, for after a change of leader nobody else would know it. A
leader of a version that can't be told to skip the assignment is named the old leader instead, and so does not assign.
"""

from __future__ import annotations

import msgspec

from assigner.core.kafka_groups.classic import rebalance
from assigner.core.kafka_groups.classic.actions import Limits
from assigner.core.kafka_groups.classic.members import Member, bytes_of, member_of
from assigner.core.kafka_groups.classic.state import GroupState, StaticJoin
from assigner.model.kafka_groups import ClassicState, JoinAnswer, JoinRequest, KafkaError

MAX_INSTANCE_ID = 249
"""Characters, as in Kafka."""
MAX_CLIENT_ID = 255
"""Characters of a client id that are kept."""


def check(request: JoinRequest, limits: Limits) -> KafkaError:
    """What is wrong with a request whatever the group is like."""
    if not request.group:
        return KafkaError.INVALID_GROUP_ID
    if not limits.min_session_timeout <= request.session_timeout <= limits.max_session_timeout:
        return KafkaError.INVALID_SESSION_TIMEOUT
    if len(request.instance_id or "") > MAX_INSTANCE_ID:
        return KafkaError.INVALID_REQUEST
    if bytes_of(request.protocols) > limits.max_member_bytes:
        return KafkaError.MESSAGE_TOO_LARGE
    return KafkaError.NONE


def normalized(request: JoinRequest, limits: Limits) -> JoinRequest:
    """The request with each protocol once, with a rebalance timeout within the limits, and a client id to be shown."""
    first = dict(reversed(request.protocols))
    names = dict.fromkeys(name for name, _ in request.protocols)
    return msgspec.structs.replace(
        request,
        protocols=tuple((name, first[name]) for name in names),
        rebalance_timeout=min(max(request.rebalance_timeout, 0), limits.max_rebalance_timeout),
        client_id=request.client_id[:MAX_CLIENT_ID],
    )


def join(group: GroupState, waiter: int, request: JoinRequest, mint: str, now: float) -> None:
    """`mint`: makes a new member id unique."""
    error = check(request, group.limits)
    if not error and group.state is ClassicState.DEAD:
        error = KafkaError.COORDINATOR_NOT_AVAILABLE
    if error:
        _refuse(group, waiter, request.member_id, error)
        return
    request = normalized(request, group.limits)
    if not _has_room(group, request):
        group.remove(request.member_id, "the group has too many members")
        _refuse(group, waiter, "", KafkaError.GROUP_MAX_SIZE_REACHED)
        rebalance.complete_if_joined(group, now)
    elif not group.supports(request.protocol_type, request.protocols):
        _refuse(group, waiter, request.member_id, KafkaError.INCONSISTENT_GROUP_PROTOCOL)
    elif request.member_id:
        _known(group, waiter, request, now)
    elif request.instance_id is not None:
        _static(group, waiter, request, f"{request.instance_id}-{mint}", now)
    elif request.requires_known_member:
        _give_id(group, waiter, request, f"{request.client_id}-{mint}", now)
    else:
        _add(group, waiter, request, f"{request.client_id}-{mint}", now)


def _refuse(group: GroupState, waiter: int, member_id: str, error: KafkaError) -> None:
    group.out.reply(waiter, JoinAnswer(error=error, member_id=member_id))


def _has_room(group: GroupState, request: JoinRequest) -> bool:
    """In a rebalance those count that have joined, so that the last to come are left out if the limit was lowered.
    Beyond Kafka, members that have only been given an id are limited too, and the bytes of all members' metadata."""
    most, member = group.limits.max_members, group.members.get(request.member_id)
    if not request.member_id and len(group.pending) >= most:
        return False
    now_used = bytes_of(member.protocols) if member else 0
    if group.members.bytes - now_used + bytes_of(request.protocols) > group.limits.max_group_bytes:
        return False
    match group.state:
        case ClassicState.PREPARING_REBALANCE:
            return (member is not None and member.awaits_join) or group.members.awaiting_join < most
        case ClassicState.COMPLETING_REBALANCE | ClassicState.STABLE:
            return member is not None or len(group.members) < most
        case _:
            return True


def _give_id(group: GroupState, waiter: int, request: JoinRequest, member_id: str, now: float) -> None:
    group.add_pending(member_id, now, request.session_timeout)
    group.dirty = group.dirty or group.stored is None
    _refuse(group, waiter, member_id, KafkaError.MEMBER_ID_REQUIRED)


def _add(group: GroupState, waiter: int, request: JoinRequest, member_id: str, now: float) -> None:
    member = Member(member_of(request, member_id))
    member.is_new = True
    group.grew = group.was_empty and group.state is ClassicState.PREPARING_REBALANCE
    group.add(member, request.protocol_type)
    group.hold_join(member, request, waiter)
    # Nobody could tell whether it is still there: it can't send heartbeats before it knows its generation.
    group.renew(member, now, group.limits.new_member_timeout)
    rebalance.prepare_or_complete(group, f"member {member_id} joined{_why(request)}", now)


def _static(group: GroupState, waiter: int, request: JoinRequest, member_id: str, now: float) -> None:
    """A process with an instance id and without a member id: a new member, or the next process of a known one."""
    member = group.members.static(request.instance_id or "")
    if member is None:
        _add(group, waiter, request, member_id, now)
        return
    leader, old_id = group.leader, member.member_id
    before = (member.protocols, member.session_timeout, member.rebalance_timeout)
    group.replace_static(member, member_id)
    member.is_new = False
    member.client_id, member.client_host = request.client_id, request.client_host
    group.update(member, request, waiter)
    group.renew(member, now)
    reason = f"another process joined as instance {request.instance_id}{_why(request)}"
    if group.state is not ClassicState.STABLE:
        # The leader may be assigning to the old id just now, so what it sends could not count.
        rebalance.prepare_or_complete(group, reason, now)
    elif group.members.elected_protocol() != group.protocol:
        rebalance.prepare(group, f"{reason}, and the group elects another protocol", now)
    else:
        group.static_joins.append(StaticJoin(member, old_id, leader, before))
        group.dirty = True


def _known(group: GroupState, waiter: int, request: JoinRequest, now: float) -> None:
    member_id = request.member_id
    if member_id in group.pending:
        if request.instance_id is not None:
            _refuse(group, waiter, member_id, KafkaError.UNKNOWN_SERVER_ERROR)
        else:
            _add(group, waiter, request, member_id, now)
        return
    error = group.validate(member_id, request.instance_id)
    member = group.members.get(member_id)
    if error or member is None:
        _refuse(group, waiter, member_id, error)
    elif _is_up_to_date(group, member, request):
        group.renew(member, now)
        group.out.reply(waiter, group.generation_answer(member))
    else:
        reason = f"member {member_id} joined again{_why(request)}"
        group.update(member, request, waiter)
        rebalance.prepare_or_complete(group, reason, now)


def _is_up_to_date(group: GroupState, member: Member, request: JoinRequest) -> bool:
    """Whether the present generation is one that the member may have missed the answer of.

    A leader of a stable group wants a rebalance: the topics changed, which no member's metadata shows."""
    if group.state is ClassicState.STABLE and group.told_leader == member.member_id:
        return False
    settled = group.state in (ClassicState.STABLE, ClassicState.COMPLETING_REBALANCE)
    return settled and member.protocols == request.protocols


def _why(request: JoinRequest) -> str:
    return f": {request.reason}" if request.reason else ""
