"""Makes spans of the calls of classic groups at their leader, whether they came from a gateway in this process or from
another one.

A join ends when its generation begins, which is a span of its own in it. A call for a group that is led elsewhere has
no span here, but for those that every instance answers.
"""

from __future__ import annotations

from typing import Protocol

from assigner.api import ClassicGroups
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
    SyncAnswer,
    SyncRequest,
)
from assigner.observability.tracing import UNTRACED, Attribute, SpanHandle, instant, span


class LeadingGroups(ClassicGroups, Protocol):
    def leads(self, org: str, group: str) -> bool: ...


class TracedClassicGroups:
    """Implements `assigner.api.ClassicGroups` by another implementation."""

    def __init__(self, groups: LeadingGroups) -> None:
        self._groups = groups

    def leads(self, org: str, group: str) -> bool:
        return self._groups.leads(org, group)

    def _span(self, name: str, org: str, group: str, **attributes: Attribute) -> SpanHandle:
        return span(name, org=org, group=group, **attributes) if self.leads(org, group) else UNTRACED

    async def join(self, org: str, request: JoinRequest, *, principal: str = "") -> JoinAnswer:
        with self._span("assigner.group.join", org, request.group, client_id=request.client_id) as one:
            answer = await self._groups.join(org, request, principal=principal)
            if answer.error is KafkaError.NONE:
                instant(
                    "assigner.coordinator.rebalance-complete",
                    generation_id=answer.generation,
                    leader_id=answer.leader,
                )
            one.set(error_code=int(answer.error))
            return answer

    async def sync(self, org: str, request: SyncRequest, *, principal: str = "") -> SyncAnswer:
        with self._span("assigner.group.sync", org, request.group, generation_id=request.generation) as one:
            answer = await self._groups.sync(org, request, principal=principal)
            one.set(error_code=int(answer.error))
            return answer

    async def heartbeat(self, org: str, request: HeartbeatRequest, *, principal: str = "") -> HeartbeatAnswer:
        with self._span("assigner.group.heartbeat", org, request.group, generation_id=request.generation) as one:
            answer = await self._groups.heartbeat(org, request, principal=principal)
            one.set(error_code=int(answer.error))
            return answer

    async def leave(self, org: str, request: LeaveRequest, *, principal: str = "") -> LeaveAnswer:
        with self._span("assigner.group.leave", org, request.group) as one:
            answer = await self._groups.leave(org, request, principal=principal)
            one.set(error_code=int(answer.error))
            return answer

    async def commit(self, org: str, request: ClassicCommit, *, principal: str = "") -> CommitAnswer:
        with self._span("assigner.group.offset-commit", org, request.group, partitions=len(request.offsets)):
            return await self._groups.commit(org, request, principal=principal)

    async def fetch(self, org: str, request: ClassicFetch, *, principal: str = "") -> FetchAnswer:
        with span("assigner.group.offset-fetch", org=org, group=request.group) as one:
            answer = await self._groups.fetch(org, request, principal=principal)
            one.set(error_code=int(answer.error))
            return answer

    async def list_groups(self, org: str, *, principal: str = "") -> GroupListing:
        return await self._groups.list_groups(org, principal=principal)

    async def describe(self, org: str, group: str, *, principal: str = "") -> ClassicGroupDescription:
        return await self._groups.describe(org, group, principal=principal)

    async def delete(self, org: str, group: str, *, principal: str = "") -> KafkaError:
        return await self._groups.delete(org, group, principal=principal)

    async def delete_offsets(self, org: str, request: OffsetDeletion, *, principal: str = "") -> OffsetDeletionAnswer:
        return await self._groups.delete_offsets(org, request, principal=principal)
