"""Makes the calls of classic members where their group is led: in this process, or at another instance by gRPC.

A leader that is gone, or that is none any more, is nothing that clients should see: the call is made again at the next
one, for as long as an election takes. Only then a client is told, each call in the way that its clients take well:

- a heartbeat is answered without an error, as by a broker that is loading the group: any error but a few would end the
  member, and while nobody leads the group, nobody takes anything from it either;
- a commit with 14 (COORDINATOR_LOAD_IN_PROGRESS), which clients repeat at once;
- a SyncGroup with 27 (REBALANCE_IN_PROGRESS), upon which the member joins again;
- all else with 15 (COORDINATOR_NOT_AVAILABLE).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import msgspec

from assigner.aio.backoff import Backoff
from assigner.api import ClassicGroups
from assigner.client.channel import Unavailable
from assigner.clock import Clock
from assigner.errors import AssignerError, InvalidInput, LimitReached, PermissionDenied, StoreError, Unauthenticated
from assigner.gateway.classic.connections import LeaderConnections
from assigner.gateway.classic.leaders import Leaders
from assigner.logs import get_logger
from assigner.model.kafka_groups import (
    ClassicCommit,
    ClassicFetch,
    ClassicGroupDescription,
    CommitAnswer,
    FetchAnswer,
    GroupListing,
    HeartbeatAnswer,
    HeartbeatRequest,
    JoinAnswer,
    JoinRequest,
    KafkaError,
    LeaveAnswer,
    LeaveRequest,
    OffsetDeletion,
    OffsetDeletionAnswer,
    PartitionError,
    SyncAnswer,
    SyncRequest,
)
from assigner.model.names import qualified_group
from assigner.proto import classic_groups as wire
from assigner.proto.classic_groups import Method

NOT_AVAILABLE = KafkaError.COORDINATOR_NOT_AVAILABLE
PATIENCE = 10.0
"""Seconds for which a group's leader is looked for."""
HEARTBEAT_PATIENCE = 2.0
"""Of a heartbeat, whose client expects an answer soon."""
CALL_TIMEOUT = 10.0
"""Seconds that a leader has for a short call."""
WAITING_TIMEOUT = 4_000.0
"""Seconds that a JoinGroup or SyncGroup may wait: longer than the longest rebalance timeout."""
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 0.5
A = TypeVar("A", bound=msgspec.Struct)

log = get_logger("assigner.gateway.classic")


class LocalGroups(ClassicGroups, Protocol):
    """The classic groups of the instance in this process."""

    def leads(self, org: str, group: str) -> bool: ...


@dataclass(frozen=True, kw_only=True)
class _Call(Generic[A]):
    method: Method
    answer: type[A]
    org: str
    name: str
    """Of the group, as its clients know it."""
    request: msgspec.Struct
    principal: str
    local: Callable[[], Awaitable[A]]
    """Makes the call at this instance."""
    refused: Callable[[KafkaError], A]
    """The answer for an error that no leader has answered; 15: there is none."""
    timeout: float = CALL_TIMEOUT

    @property
    def group(self) -> str:
        return qualified_group(self.org, self.name)


class ForwardingGroups:
    """Implements `assigner.api.ClassicGroups` for every group, wherever it is led."""

    def __init__(self, local: LocalGroups, leaders: Leaders, connections: LeaderConnections, clock: Clock) -> None:
        self._local = local
        self._leaders = leaders
        self._connections = connections
        self._clock = clock

    # --- members ---------------------------------------------------------------------------------------------------

    async def join(self, org: str, request: JoinRequest, *, principal: str = "") -> JoinAnswer:
        call = _Call(
            method=wire.JOIN,
            answer=JoinAnswer,
            org=org,
            name=request.group,
            request=request,
            principal=principal,
            local=lambda: self._local.join(org, request, principal=principal),
            refused=lambda error: JoinAnswer(error=error, member_id=request.member_id),
            timeout=WAITING_TIMEOUT,
        )
        return await self._make(call)

    async def sync(self, org: str, request: SyncRequest, *, principal: str = "") -> SyncAnswer:
        call = _Call(
            method=wire.SYNC,
            answer=SyncAnswer,
            org=org,
            name=request.group,
            request=request,
            principal=principal,
            local=lambda: self._local.sync(org, request, principal=principal),
            refused=lambda error: SyncAnswer(error=_or(error, KafkaError.REBALANCE_IN_PROGRESS)),
            timeout=WAITING_TIMEOUT,
        )
        return await self._make(call)

    async def heartbeat(self, org: str, request: HeartbeatRequest, *, principal: str = "") -> HeartbeatAnswer:
        call = _Call(
            method=wire.HEARTBEAT,
            answer=HeartbeatAnswer,
            org=org,
            name=request.group,
            request=request,
            principal=principal,
            local=lambda: self._local.heartbeat(org, request, principal=principal),
            refused=lambda error: HeartbeatAnswer(error=_or(error, KafkaError.NONE)),
            timeout=HEARTBEAT_PATIENCE,
        )
        return await self._make(call, HEARTBEAT_PATIENCE)

    async def leave(self, org: str, request: LeaveRequest, *, principal: str = "") -> LeaveAnswer:
        call = _Call(
            method=wire.LEAVE,
            answer=LeaveAnswer,
            org=org,
            name=request.group,
            request=request,
            principal=principal,
            local=lambda: self._local.leave(org, request, principal=principal),
            refused=lambda error: LeaveAnswer(error=error),
        )
        return await self._make(call)

    # --- offsets ---------------------------------------------------------------------------------------------------

    async def commit(self, org: str, request: ClassicCommit, *, principal: str = "") -> CommitAnswer:
        def refused(error: KafkaError) -> CommitAnswer:
            code = _or(error, KafkaError.COORDINATOR_LOAD_IN_PROGRESS)
            return CommitAnswer(
                partitions=tuple(PartitionError(one.topic, one.partition, code) for one in request.offsets)
            )

        call = _Call(
            method=wire.COMMIT,
            answer=CommitAnswer,
            org=org,
            name=request.group,
            request=request,
            principal=principal,
            local=lambda: self._local.commit(org, request, principal=principal),
            refused=refused,
        )
        return await self._make(call)

    async def fetch(self, org: str, request: ClassicFetch, *, principal: str = "") -> FetchAnswer:
        return await self._local.fetch(org, request, principal=principal)

    async def delete_offsets(self, org: str, request: OffsetDeletion, *, principal: str = "") -> OffsetDeletionAnswer:
        call = _Call(
            method=wire.DELETE_OFFSETS,
            answer=OffsetDeletionAnswer,
            org=org,
            name=request.group,
            request=request,
            principal=principal,
            local=lambda: self._local.delete_offsets(org, request, principal=principal),
            refused=lambda error: OffsetDeletionAnswer(error=error),
        )
        return await self._make(call)

    # --- groups ----------------------------------------------------------------------------------------------------

    async def list_groups(self, org: str, *, principal: str = "") -> GroupListing:
        return await self._local.list_groups(org, principal=principal)

    async def describe(self, org: str, group: str, *, principal: str = "") -> ClassicGroupDescription:
        call = _Call(
            method=wire.DESCRIBE,
            answer=ClassicGroupDescription,
            org=org,
            name=group,
            request=wire.GroupName(group),
            principal=principal,
            local=lambda: self._local.describe(org, group, principal=principal),
            refused=lambda error: ClassicGroupDescription(group=group, error=error),
        )
        return await self._make(call)

    async def delete(self, org: str, group: str, *, principal: str = "") -> KafkaError:
        async def local() -> wire.Outcome:
            return wire.Outcome(await self._local.delete(org, group, principal=principal))

        call = _Call(
            method=wire.DELETE,
            answer=wire.Outcome,
            org=org,
            name=group,
            request=wire.GroupName(group),
            principal=principal,
            local=local,
            refused=wire.Outcome,
        )
        return (await self._make(call)).error

    # --- one call --------------------------------------------------------------------------------------------------

    async def _make(self, call: _Call[A], patience: float = PATIENCE) -> A:
        """Make a call where the group is led, as often as its leader changes meanwhile."""
        # Here first: this instance enters a new group in the index, and knows of which no leader has to be asked.
        answer = await call.local()
        began, backoff = self._clock.now(), Backoff(call.group, first=_FIRST_PAUSE, most=_LONGEST_PAUSE)
        while _is_elsewhere(answer):
            asked = self._clock.now()
            if asked > began + patience:
                log.warning("classic_group_without_leader", group=call.group, call=call.method.name)
                return call.refused(NOT_AVAILABLE)
            found = await self._ask_leader(call)
            if found is not None:
                return found
            if self._clock.now() > asked + patience:
                # It waited at a leader for long, and that one is gone now: the next one is looked for anew.
                began = self._clock.now()
                backoff.reset()
            await backoff.pause()
        return answer

    async def _ask_leader(self, call: _Call[A]) -> A | None:
        """Make the call at whoever leads the group by now; None: it has to be made again."""
        if self._local.leads(call.org, call.name):
            answer = await call.local()
            return None if _is_elsewhere(answer) else answer
        try:
            address = await self._leaders.address(call.group)
        except StoreError as error:
            log.info("classic_leader_not_found", group=call.group, error=str(error))
            return None
        if not address:
            return None
        try:
            answer = await self._connections.call(
                address,
                call.method,
                call.answer,
                call.request,
                org=call.org,
                principal=call.principal,
                timeout=call.timeout,
            )
        except Unavailable as error:
            log.info("classic_leader_not_reached", group=call.group, address=address, error=str(error))
            self._leaders.forget(call.group, address)
            return None
        except AssignerError as error:
            return call.refused(_refusal(call.group, address, error))
        if _is_elsewhere(answer):
            self._leaders.forget(call.group, address)
            return None
        return answer


def _or(error: KafkaError, without_leader: KafkaError) -> KafkaError:
    return without_leader if error is NOT_AVAILABLE else error


def _refusal(group: str, address: str, error: AssignerError) -> KafkaError:
    """The code for a call that the leader's instance refused before the group's coordinator saw it."""
    log.warning("classic_call_refused", group=group, address=address, error=str(error))
    match error:
        case PermissionDenied() | Unauthenticated():
            return KafkaError.GROUP_AUTHORIZATION_FAILED
        case InvalidInput() | LimitReached():
            return KafkaError.MESSAGE_TOO_LARGE
    return NOT_AVAILABLE


def _is_elsewhere(answer: msgspec.Struct) -> bool:
    """Whether the answer is that another instance coordinates the group, or none."""
    if isinstance(answer, CommitAnswer):
        return any(one.error is KafkaError.NOT_COORDINATOR for one in answer.partitions)
    return getattr(answer, "error", None) is KafkaError.NOT_COORDINATOR
