"""A router that tests run step by step: it calls `Instance.routers` directly, the way the gRPC handlers do."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import anyio
import anyio.abc

from assigner.api import RouterRegistration, Routers
from assigner.errors import AssignerError
from assigner.instance import Instance
from assigner.model.keys import TopicPartition
from assigner.model.routes import FreezeAck, Route, TableChanges
from assigner.testing.waiting import eventually

if TYPE_CHECKING:
    from tests.support.cluster import Cluster


class SteppedRouter:
    """A router that acks freezes by itself, or when the test calls for it: `acks_freezes`."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        *,
        session: str | None = None,
        acks_freezes: bool = True,
        renews: bool = True,
        loads: bool = False,
    ) -> None:
        self.cluster = cluster
        self.name = name
        self.group = cluster.group.group
        self.session = f"session-of-{name}" if session is None else session
        self.acks_freezes = acks_freezes
        self.renews = renews
        self.heard: list[TableChanges] = []
        """Everything the stream said, in order."""
        self.table: dict[TopicPartition, Route] = {}
        self.topics: dict[str, int] = {}
        self.loads: dict[TopicPartition, float] = {}
        self.acked: list[FreezeAck] = []
        self.ended: AssignerError | None = None
        """Why the stream ended."""
        self._registration = RouterRegistration(self.group, name, self.session, loads)
        self._scope: anyio.CancelScope | None = None
        self.instance: Instance | None = None

    # --- the life of the process ---------------------------------------------------------------------------------

    async def connect(self, instance: Instance) -> None:
        """Register, and return when the whole table is there."""
        self.instance = instance
        self.ended = None
        await self.cluster.tasks.start(self._run)

    async def _run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        stream = await self.service.register(self._registration)
        complete = False
        with anyio.CancelScope() as self._scope:
            try:
                async with anyio.create_task_group() as tasks:
                    if self.renews:
                        tasks.start_soon(self._renew)
                    async for changes in stream.updates():
                        await self._take(changes)
                        if not complete and not changes.more:
                            complete = True
                            task_status.started()
            except* AssignerError as errors:
                self.ended = _first(errors)
            finally:
                with anyio.CancelScope(shield=True):
                    await stream.leave()

    def crash(self) -> None:
        """The process is gone: no more acks, no more renewals. Its lease runs out by itself."""
        assert self._scope is not None
        self._scope.cancel()

    async def _renew(self) -> None:
        while True:
            await anyio.sleep(self.cluster.ttl / 4)
            try:
                await self.renew()
            except AssignerError:
                continue

    # --- calls ---------------------------------------------------------------------------------------------------

    @property
    def service(self) -> Routers:
        assert self.instance is not None
        return self.instance.routers

    async def renew(self) -> float:
        return await self.service.renew(self.group, self.name, self.session)

    async def ack(self, *tps: TopicPartition, handoff_id: str = "") -> None:
        """Ack these freezes, with the ids of the table unless `handoff_id` is given. Raises the first rejection."""
        acks = [FreezeAck(tp, handoff_id or self.table[tp].handoff_id) for tp in tps]
        for rejected in await self.service.cutover_ack(self.group, self.name, self.session, acks):
            raise rejected.error
        self.acked += acks

    async def deregister(self) -> None:
        await self.service.deregister(self.group, self.name, self.session)

    # --- the table -----------------------------------------------------------------------------------------------

    async def _take(self, changes: TableChanges) -> None:
        self.heard.append(changes)
        if changes.full:
            self.table.clear()
            self.topics.clear()
        for tp in changes.unowned:
            self.table.pop(tp, None)
        self.table.update(changes.routes)
        for topic, count in changes.topics:
            self.topics[topic] = count
        for loads in changes.loads:
            for partition, load in zip(loads.partitions, loads.loads, strict=True):
                self.loads[TopicPartition(loads.topic, partition)] = load
        if self.acks_freezes and not changes.more:
            fresh = [tp for tp in sorted(self.frozen) if FreezeAck(tp, self.table[tp].handoff_id) not in self.acked]
            if fresh:
                await self.ack(*fresh)

    @property
    def frozen(self) -> set[TopicPartition]:
        return {tp for tp, route in self.table.items() if route.frozen}

    def owners(self) -> dict[TopicPartition, tuple[str, int]]:
        return {tp: (route.owner, route.epoch) for tp, route in self.table.items()}

    async def until(self, what: str, holds: Callable[[SteppedRouter], bool], within: float | None = None) -> None:
        within = (within or self.cluster.patience) + self.cluster.allowance
        await eventually(lambda: holds(self), within=within, what=f"{self.name}: {what}")


def _first(errors: BaseExceptionGroup[AssignerError]) -> AssignerError:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, AssignerError)
    return error
