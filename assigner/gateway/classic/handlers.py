"""Answers JoinGroup, SyncGroup, Heartbeat and LeaveGroup in all their versions: translates, and checks who may.

What an old version lacks is filled in as Kafka's broker does it: a JoinGroup without a rebalance timeout has the
session timeout for one, and a LeaveGroup without a list has one member. What an answer has no room for is left out.

A JoinGroup waits for the slowest member. If its client goes away, nobody waits any more; the client is a member until
its session times out. If the gateway ends, the client is told to look for another coordinator.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Coroutine
from typing import Any, TypeVar

from assigner.api import ClassicGroups
from assigner.auth.actions import Action
from assigner.gateway.codec import NO_TIME, error_code, heartbeat_answer, make, nested, response_class
from assigner.gateway.requests import Answer, Entity, HandledApi, Handlers, Interruption, Request
from assigner.model.kafka_groups import (
    HeartbeatRequest,
    JoinAnswer,
    JoinRequest,
    KafkaError,
    LeaveAnswer,
    LeaveRequest,
    LeavingMember,
    LeftMember,
    SyncAnswer,
    SyncRequest,
)

JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP = 11, 12, 13, 14
_REQUIRES_KNOWN_MEMBER = 4
_MAY_HAVE_NO_PROTOCOL = 7
_CAN_SKIP_ASSIGNMENT = 9
_LEAVES_IN_LISTS = 3
_DENIED = KafkaError.GROUP_AUTHORIZATION_FAILED
A = TypeVar("A")


class ClassicHandlers:
    def __init__(self, groups: ClassicGroups) -> None:
        self._groups = groups

    def handlers(self) -> Handlers:
        return {
            JOIN_GROUP: HandledApi(0, 9, self.join_group),
            HEARTBEAT: HandledApi(0, 4, self.heartbeat),
            LEAVE_GROUP: HandledApi(0, 5, self.leave_group),
            SYNC_GROUP: HandledApi(0, 5, self.sync_group),
        }

    # --- JoinGroup ---------------------------------------------------------------------------------------------------

    async def join_group(self, request: Request, entity: Entity) -> Answer:
        instance_id = getattr(entity, "group_instance_id", None)
        if self._is_denied(request, Action.REGISTER, entity, instance_id):
            return _joined(request, JoinAnswer(error=_DENIED, member_id=entity.member_id))
        session = _milliseconds(entity.session_timeout)
        rebalance = getattr(entity, "rebalance_timeout", None)
        join = JoinRequest(
            group=entity.group_id,
            session_timeout=session,
            rebalance_timeout=session if rebalance is None else _milliseconds(rebalance),
            protocol_type=entity.protocol_type,
            protocols=tuple((one.name, bytes(one.metadata)) for one in entity.protocols),
            member_id=entity.member_id,
            instance_id=instance_id,
            client_id=request.client_id,
            # As Kafka shows it.
            client_host=f"/{request.client.host}",
            requires_known_member=request.version >= _REQUIRES_KNOWN_MEMBER,
            can_skip_assignment=request.version >= _CAN_SKIP_ASSIGNMENT,
            reason=getattr(entity, "reason", None) or "",
        )
        call = self._groups.join(request.client.org, join, principal=request.client.identity)
        elsewhere = JoinAnswer(error=KafkaError.NOT_COORDINATOR, member_id=entity.member_id)
        return _joined(request, await _unless_interrupted(request, call, elsewhere))

    # --- SyncGroup ---------------------------------------------------------------------------------------------------

    async def sync_group(self, request: Request, entity: Entity) -> Answer:
        instance_id = getattr(entity, "group_instance_id", None)
        if self._is_denied(request, Action.REGISTER, entity, instance_id):
            return _synced(request, SyncAnswer(error=_DENIED))
        sync = SyncRequest(
            group=entity.group_id,
            member_id=entity.member_id,
            generation=entity.generation_id,
            instance_id=instance_id,
            protocol_type=getattr(entity, "protocol_type", None),
            protocol=getattr(entity, "protocol_name", None),
            assignments=tuple((one.member_id, bytes(one.assignment)) for one in entity.assignments),
        )
        call = self._groups.sync(request.client.org, sync, principal=request.client.identity)
        elsewhere = SyncAnswer(error=KafkaError.NOT_COORDINATOR)
        return _synced(request, await _unless_interrupted(request, call, elsewhere))

    # --- Heartbeat ---------------------------------------------------------------------------------------------------

    async def heartbeat(self, request: Request, entity: Entity) -> Answer:
        instance_id = getattr(entity, "group_instance_id", None)
        if self._is_denied(request, Action.RENEW, entity, instance_id):
            return heartbeat_answer(request.version, _DENIED)
        heartbeat = HeartbeatRequest(
            group=entity.group_id,
            member_id=entity.member_id,
            generation=entity.generation_id,
            instance_id=instance_id,
        )
        answer = await self._groups.heartbeat(request.client.org, heartbeat, principal=request.client.identity)
        return heartbeat_answer(request.version, answer.error)

    # --- LeaveGroup --------------------------------------------------------------------------------------------------

    async def leave_group(self, request: Request, entity: Entity) -> Answer:
        if request.version >= _LEAVES_IN_LISTS:
            leaving = tuple(
                LeavingMember(one.member_id, one.group_instance_id, getattr(one, "reason", None) or "")
                for one in entity.members
            )
        else:
            leaving = (LeavingMember(entity.member_id),)
        if any(self._is_denied(request, Action.DEREGISTER, entity, one.instance_id, one.member_id) for one in leaving):
            return _left(request, LeaveAnswer(error=_DENIED))
        leave = LeaveRequest(group=entity.group_id, members=leaving)
        answer = await self._groups.leave(request.client.org, leave, principal=request.client.identity)
        return _left(request, answer)

    def _is_denied(
        self, request: Request, action: Action, entity: Entity, instance_id: str | None, member_id: str | None = None
    ) -> bool:
        """Whether the client may not do this in the group, or not under this name: its static one, or else its client
        id, which its member id begins with."""
        name = instance_id or member_id or getattr(entity, "member_id", "") or request.client_id
        return request.client.reason(action, group=entity.group_id, name=name) is not None


async def _unless_interrupted(request: Request, call: Coroutine[Any, Any, A], otherwise: A) -> A:
    """Wait for the answer until nobody does any more: the client has gone, or the gateway ends."""
    work = asyncio.ensure_future(call)

    def tell(what: Interruption) -> None:
        if what is not Interruption.FOLLOWED:
            work.cancel()

    request.on_interruption(tell)
    try:
        await asyncio.wait([work])
    finally:
        work.cancel()
    return otherwise if work.cancelled() else work.result()


def _milliseconds(time: dt.timedelta) -> int:
    return round(time.total_seconds() * 1000)


def _joined(request: Request, answer: JoinAnswer) -> Answer:
    response = response_class(JOIN_GROUP, request.version)
    member = nested(response, "JoinGroupResponseMember")
    protocol = answer.protocol if request.version >= _MAY_HAVE_NO_PROTOCOL else answer.protocol or ""
    return make(
        response,
        throttle_time=NO_TIME,
        error_code=error_code(answer.error),
        generation_id=answer.generation,
        protocol_type=answer.protocol_type,
        protocol_name=protocol,
        leader=answer.leader,
        skip_assignment=answer.skip_assignment,
        member_id=answer.member_id,
        members=tuple(
            make(member, member_id=one.member_id, group_instance_id=one.instance_id, metadata=one.metadata)
            for one in answer.members
        ),
    )


def _synced(request: Request, answer: SyncAnswer) -> Answer:
    return make(
        response_class(SYNC_GROUP, request.version),
        throttle_time=NO_TIME,
        error_code=error_code(answer.error),
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol,
        assignment=answer.assignment,
    )


def _left(request: Request, answer: LeaveAnswer) -> Answer:
    response = response_class(LEAVE_GROUP, request.version)
    if request.version < _LEAVES_IN_LISTS:
        error = answer.error or next((one.error for one in answer.members), KafkaError.NONE)
        return make(response, throttle_time=NO_TIME, error_code=error_code(error))
    member = nested(response, "MemberResponse")

    def left(one: LeftMember) -> Any:
        code = error_code(one.error)
        return make(member, member_id=one.member_id, group_instance_id=one.instance_id, error_code=code)

    members = tuple(map(left, answer.members))
    return make(response, throttle_time=NO_TIME, error_code=error_code(answer.error), members=members)
