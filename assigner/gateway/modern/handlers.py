"""Puts together what serves Kafka 4's members at a gateway, and names the calls that it answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from assigner.gateway.groups import Listed
from assigner.gateway.modern.encoding import DESCRIBE, HEARTBEAT
from assigner.gateway.modern.heartbeats import Heartbeats
from assigner.gateway.modern.members import Members
from assigner.gateway.modern.offsets import ModernOffsets
from assigner.gateway.modern.parts import InstanceParts
from assigner.gateway.modern.subscriptions import Subscriptions
from assigner.gateway.modern.views import ModernViews
from assigner.gateway.requests import HandledApi, Handlers, Request
from assigner.model.kafka_groups import (
    ClassicCommit,
    ClassicFetch,
    ClassicGroupDescription,
    CommitAnswer,
    FetchAnswer,
    KafkaError,
    OffsetDeletion,
    OffsetDeletionAnswer,
)


class ModernGroups:
    """Assigner groups as Kafka clients see them. Implements `assigner.gateway.groups.KafkaGroups`, also for groups that
    do not exist yet."""

    def __init__(self, parts: InstanceParts) -> None:
        self._members = Members(parts, Subscriptions(parts))
        self._heartbeats = Heartbeats(parts, self._members)
        self._offsets = ModernOffsets(parts, self._members)
        self._views = ModernViews(parts, self._members)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[ModernGroups]:
        async with self._members.running():
            yield self

    @property
    def members(self) -> int:
        """How many members are served here."""
        return len(self._members)

    def handlers(self) -> Handlers:
        """The calls of this protocol alone."""
        return {
            HEARTBEAT: HandledApi(0, 1, self._heartbeats.handle, self._heartbeats.failed),
            DESCRIBE: HandledApi(0, 1, self._views.describe_modern),
        }

    # --- calls that both kinds of groups have --------------------------------------------------------------------

    async def commit(self, request: Request, call: ClassicCommit) -> CommitAnswer:
        return await self._offsets.commit(request, call)

    async def fetch(
        self, request: Request, call: ClassicFetch, member_id: str | None, member_epoch: int
    ) -> FetchAnswer:
        return await self._offsets.fetch(request, call, member_id, member_epoch)

    async def listed(self, request: Request) -> Sequence[Listed]:
        return await self._views.listed(request)

    async def describe(self, request: Request, group: str) -> ClassicGroupDescription:
        return await self._views.describe(request, group)

    async def delete(self, request: Request, group: str) -> KafkaError:
        return await self._views.delete(request, group)

    async def delete_offsets(self, request: Request, call: OffsetDeletion) -> OffsetDeletionAnswer:
        return await self._views.delete_offsets(request, call)
