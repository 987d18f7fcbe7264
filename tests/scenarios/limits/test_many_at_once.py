"""N of anything costs O(N): who waits is woken by what it waits for, never all by everything.

Counted in wake-ups, not in seconds, so that a busy machine changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager

import anyio
import pytest

from assigner.aio.wakeup import Wakeup
from assigner.api import Registration
from assigner.backends.memory import MemoryState, MemoryStore
from assigner.client.gate import PartitionGate
from assigner.clock import LoopClock
from assigner.core.client.gate import Gate, Lease
from assigner.errors import StoreUnavailable
from assigner.model.keys import Keys
from assigner.model.records import GroupOptions, TopicConfig, encode
from assigner.storage.mirror import GroupMirror
from assigner.store import Batch, PutEvent, WatchItem
from assigner.testing.faults import FaultyStore
from tests.support.cluster import GROUP, Cluster, tp
from tests.support.measurement import Wakes

pytestmark = pytest.mark.virtual_time


class TellsOneByOne(FaultyStore):
    """Its watches are as slow as etcd's under load: each change is delivered alone, a millisecond after the last."""

    def watch(self, prefix: str, *, start_revision: int) -> AbstractAsyncContextManager[AsyncIterator[WatchItem]]:
        return self._watch(prefix, start_revision)

    @asynccontextmanager
    async def _watch(self, prefix: str, start_revision: int) -> AsyncIterator[AsyncIterator[WatchItem]]:
        async with super().watch(prefix, start_revision=start_revision) as items:
            yield _one_by_one(items)


async def _one_by_one(items: AsyncIterator[WatchItem]) -> AsyncIterator[WatchItem]:
    async for item in items:
        for event in item.events if isinstance(item, Batch) else ():
            await anyio.sleep(0.001)
            revision = event.entry.mod_revision if isinstance(event, PutEvent) else event.mod_revision
            yield Batch(revision, (event,))


async def wakes_of_registrations(cluster: Cluster, count: int) -> float:
    """For each of so many that come at once."""
    instance = await cluster.start_instance(f"i{count}", wrap=TellsOneByOne, leads=False)
    wakes = Wakes()

    async def register(number: int) -> None:
        wanted = Registration(group=f"group-{count}", name=f"c{number}", session="s", renews=True)
        await wakes.counted(instance.members.register(wanted, cluster.clock.now))

    async with anyio.create_task_group() as tasks:
        for number in range(count):
            tasks.start_soon(register, number)
    return wakes.count / count


async def test_rule_20_a_registration_costs_the_same_however_many_come_at_once(cluster: Cluster) -> None:
    alone = await wakes_of_registrations(cluster, 10)
    among_many = await wakes_of_registrations(cluster, 500)
    assert among_many <= 1.5 * alone


async def mirrored() -> tuple[MemoryStore, GroupMirror]:
    keys = Keys().group(GROUP)
    store = MemoryStore(MemoryState(LoopClock()))
    await store.put(keys.topic("t"), encode(TopicConfig(topic="t", partition_count=1)))
    return store, GroupMirror(store, keys, GroupOptions())


async def test_who_waits_for_a_revision_is_woken_once() -> None:
    store, mirror = await mirrored()
    wakes, count = Wakes(), 300
    async with anyio.create_task_group() as running:
        running.start_soon(mirror.run)
        await mirror.wait_for(1)
        async with anyio.create_task_group() as tasks:
            # In no order: who waits for the last one comes first.
            for number in reversed(range(count)):
                tasks.start_soon(wakes.counted, mirror.wait_for(mirror.state.revision + 1 + number))
            for number in range(count):
                config = TopicConfig(topic="t", partition_count=number + 2)
                written = await store.put(mirror.state.keys.topic("t"), encode(config))
                await mirror.wait_for(written.revision)
        running.cancel_scope.cancel()
    assert wakes.count <= 2 * count


async def test_who_stops_waiting_for_a_revision_leaves_nothing_behind() -> None:
    store, mirror = await mirrored()
    async with anyio.create_task_group() as running:
        running.start_soon(mirror.run)
        await mirror.wait_for(1)
        for round_ in range(5):
            async with anyio.create_task_group() as tasks:
                for number in range(100):
                    tasks.start_soon(gives_up, mirror, 1_000 * (round_ + 1) + number)
        assert mirror.waiting == 0
        written = await store.put(mirror.state.keys.topic("t"), encode(TopicConfig(topic="t", partition_count=2)))
        await mirror.wait_for(written.revision)
        running.cancel_scope.cancel()


async def gives_up(mirror: GroupMirror, revision: int) -> None:
    with pytest.raises(StoreUnavailable, match="not yet"):
        await mirror.wait_for(revision, within=0.1)


async def test_a_gate_that_is_drained_is_woken_by_its_own_work() -> None:
    changes, lease, clock = Wakeup(), Lease(), LoopClock()
    changes.attach(asyncio.get_running_loop())
    lease.renewed(clock.now(), 1e9)
    wakes, count = Wakes(), 300
    gates = [PartitionGate(Gate(tp(number), lease), clock, changes) for number in range(count)]
    work = [ExitStack() for _ in gates]
    for gate, in_progress in zip(gates, work, strict=True):
        gate._gate.open(1)
        in_progress.enter_context(gate.enter())
    async with anyio.create_task_group() as tasks:
        for gate in gates:
            tasks.start_soon(wakes.counted, gate.drained())
        await anyio.sleep(1)
        for in_progress in work:
            in_progress.close()
            await anyio.sleep(0.01)
    assert wakes.count <= 2 * count


async def test_a_waiter_for_any_change_of_a_consumer_is_woken_by_a_gate_too() -> None:
    changes, heard = Wakeup(), [False]

    async def speak() -> None:
        await anyio.sleep(1)
        heard[0] = True
        changes.notify(about=tp(0))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(speak)
        with anyio.fail_after(5):
            await changes.until(lambda: heard[0])
