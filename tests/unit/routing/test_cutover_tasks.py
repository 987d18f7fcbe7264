"""The steps of cutovers at the handler: rows of an update are performed whole, and each drain is a task of its own."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from assigner.aio.wakeup import Wakeup
from assigner.core.routing.table import RowChange
from assigner.model.keys import TopicPartition
from assigner.model.routes import FreezeAck, Route
from assigner.routing.cutovers import AT_ONCE, CutoverTasks

ROUTE = Route("a", "a:80", 1)
MANY = 5 * AT_ONCE


class Handler:
    def __init__(self) -> None:
        self.switched: list[int] = []
        self.drains = 0
        self.may_drain = anyio.Event()
        self.fails: set[int] = set()

    def stop(self, partition: TopicPartition) -> None: ...

    def stash(self, partition: TopicPartition) -> None: ...

    async def drain(self, partition: TopicPartition) -> None:
        self.drains += 1
        if partition.partition in self.fails:
            raise RuntimeError("the connection pool is gone")
        await self.may_drain.wait()

    def switch(self, partition: TopicPartition, route: Route) -> None:
        self.switched.append(partition.partition)

    def flush(self, partition: TopicPartition) -> None: ...


def tp(partition: int) -> TopicPartition:
    return TopicPartition("t", partition)


def frozen(handoff_id: str) -> Route:
    return Route("a", "a:80", 1, handoff_id, frozen=True)


def tasks_of(handler: Handler) -> CutoverTasks:
    return CutoverTasks(handler, Wakeup(), drain_timeout=60.0)


async def settled() -> None:
    for _ in range(10):
        await anyio.lowlevel.checkpoint()


async def test_rows_that_the_table_shows_are_performed_to_the_last_though_the_registration_ends() -> None:
    """It ends by a renewal or an ack that fails, while a long update is being performed."""
    handler = Handler()
    cutovers = tasks_of(handler)
    rows = [RowChange(tp(partition), None, ROUTE) for partition in range(MANY)]
    with anyio.CancelScope() as registration:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(cutovers.perform, rows)
            await anyio.lowlevel.checkpoint()
            assert 0 < len(handler.switched) < MANY, "others get a turn meanwhile"
            registration.cancel()
    assert handler.switched == list(range(MANY))


async def test_a_drain_outlives_the_registration_in_which_it_began() -> None:
    handler = Handler()
    cutovers = tasks_of(handler)
    async with anyio.create_task_group() as tasks:
        cutovers.begin(tasks)
        with anyio.CancelScope() as registration:
            await cutovers.perform([RowChange(tp(0), ROUTE, frozen("h1"))])
            registration.cancel()
        await settled()
        assert cutovers.core.pending_acks(10) == []
        handler.may_drain.set()
        await settled()
        assert cutovers.core.pending_acks(10) == [FreezeAck(tp(0), "h1")]


@pytest.mark.parametrize("thaws", [True, False])
async def test_a_drain_that_is_not_needed_any_more_ends(thaws: bool) -> None:
    """The partition thaws, or freezes anew after it had no owner."""
    handler = Handler()
    cutovers = tasks_of(handler)
    async with anyio.create_task_group() as tasks:
        cutovers.begin(tasks)
        await cutovers.perform([RowChange(tp(0), ROUTE, frozen("h1"))])
        await settled()
        if thaws:
            await cutovers.perform([RowChange(tp(0), frozen("h1"), Route("b", "b:80", 2))])
        else:
            await cutovers.perform([RowChange(tp(0), frozen("h1"), None), RowChange(tp(0), None, frozen("h1"))])
        await settled()
        assert len(cutovers._drains) == (0 if thaws else 1)
        handler.may_drain.set()
        await settled()
        assert cutovers.core.pending_acks(10) == ([] if thaws else [FreezeAck(tp(0), "h1")])
        assert not cutovers._drains


async def test_a_drain_that_raises_leaves_the_others_and_the_router_alone() -> None:
    handler = Handler()
    handler.fails.add(1)
    handler.may_drain.set()
    cutovers = tasks_of(handler)
    async with anyio.create_task_group() as tasks:
        cutovers.begin(tasks)
        await cutovers.perform([RowChange(tp(one), ROUTE, frozen(f"h{one}")) for one in range(3)])
        await settled()
        assert cutovers.core.pending_acks(10) == [FreezeAck(tp(0), "h0"), FreezeAck(tp(2), "h2")]
        assert cutovers.core.overdue_count == 1
        assert not cutovers._drains
