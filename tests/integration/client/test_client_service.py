"""The client and the real service together: what the two promise only as a pair."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.to_thread
import pytest

from assigner.client import AssignerConsumer, Ending, GateClosed, Handler, Ownership, Release, Superseded
from assigner.embedded import EmbeddedAssigner
from assigner.model.records import HandoffMode
from tests.support.clients.recording_handler import QUICK, Recorder

GROUP, TOPIC, COUNT = "billing", "orders", 8


@asynccontextmanager
async def serving(mode: HandoffMode = HandoffMode.OVERLAP) -> AsyncIterator[EmbeddedAssigner]:
    assigner = EmbeddedAssigner(topics={GROUP: {TOPIC: COUNT}})
    await anyio.to_thread.run_sync(assigner.__enter__)
    try:
        changes = {"debounce": 0.05, "handoff_mode": mode}
        await anyio.to_thread.run_sync(
            assigner.call, lambda service: service.instance.operations.set_options(GROUP, changes)
        )
        with anyio.fail_after(60):
            yield assigner
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(assigner.__exit__, None, None, None)


def member(assigner: EmbeddedAssigner, name: str, handler: Handler) -> AssignerConsumer:
    return AssignerConsumer(assigner.address, GROUP, name, [TOPIC], handler, timing=QUICK)


async def holds(consumer: AssignerConsumer, count: int) -> None:
    await consumer.wait_for(lambda one: len(one.partitions) == count)


async def test_a_second_consumer_warms_its_half_and_the_first_releases_it() -> None:
    first, second = Recorder(), Recorder()
    async with serving() as assigner, member(assigner, "a", first) as a:
        await holds(a, COUNT)
        async with member(assigner, "b", second) as b:
            await holds(a, COUNT // 2)
            await holds(b, COUNT // 2)
            assert not a.partitions.keys() & b.partitions.keys()
            assert sum(call.startswith("release") for call in first.calls) == COUNT // 2
            assert sum(call.startswith("warm") for call in second.calls) == COUNT // 2
            assert not any(call.startswith("revoked") for call in first.calls)


async def test_a_drained_consumer_hands_everything_over_before_it_ends() -> None:
    leaving = Recorder()
    async with serving() as assigner, member(assigner, "a", Handler()) as a, member(assigner, "b", leaving) as b:
        await holds(a, COUNT // 2)
        await holds(b, COUNT // 2)
        await b.drain(timeout=20)
        assert await b.closed() is Ending.DRAINED
        await holds(a, COUNT)
        assert sum(call.startswith("release") for call in leaving.calls) == COUNT // 2
        assert not any(call.startswith("revoked") for call in leaving.calls)


async def test_the_last_consumer_drains_without_anyone_to_hand_over_to() -> None:
    leaving = Recorder()
    async with serving() as assigner, member(assigner, "a", leaving) as a:
        await holds(a, COUNT)
        await a.drain(timeout=20)
        assert sum(call.startswith("release") for call in leaving.calls) == COUNT


async def test_partitions_of_a_consumer_that_leaves_move_without_waiting_for_its_lease() -> None:
    async with serving() as assigner, member(assigner, "a", Handler()) as a:
        async with member(assigner, "b", Handler()) as b:
            await holds(b, COUNT // 2)
        with anyio.fail_after(15):
            await holds(a, COUNT)


async def test_a_second_process_of_the_same_name_takes_over_with_higher_epochs() -> None:
    async with serving() as assigner, member(assigner, "a", Handler()) as old:
        await holds(old, COUNT)
        before = dict(old.partitions)
        async with member(assigner, "a", Handler()) as new:
            with pytest.raises(Superseded, match="give each process a name of its own"):
                await old.closed()
            await holds(new, COUNT)
            assert all(new.partitions[tp] > epoch for tp, epoch in before.items())
            assert not old.partitions


class Witness(Handler):
    """In an exclusive group: holds a partition only while nobody else does."""

    def __init__(self, name: str, holders: dict[int, str], offences: list[str]) -> None:
        self._name = name
        self._holders = holders
        self._offences = offences

    async def assigned(self, partition: Ownership) -> None:
        other = self._holders.get(partition.partition)
        if other is not None:
            self._offences.append(f"{partition} given to {self._name} while {other} holds it")
        self._holders[partition.partition] = self._name

    async def release(self, partition: Ownership, order: Release) -> None:
        await anyio.sleep(0.02)
        self._let_go(partition)

    async def revoked(self, partition: Ownership, reason: str) -> None:
        self._let_go(partition)

    def _let_go(self, partition: Ownership) -> None:
        if self._holders.get(partition.partition) == self._name:
            del self._holders[partition.partition]


async def test_in_an_exclusive_group_no_two_hold_a_partition_at_a_time() -> None:
    holders: dict[int, str] = {}
    offences: list[str] = []
    async with (
        serving(HandoffMode.EXCLUSIVE) as assigner,
        member(assigner, "a", Witness("a", holders, offences)) as a,
    ):
        await holds(a, COUNT)
        async with member(assigner, "b", Witness("b", holders, offences)) as b:
            await holds(b, COUNT // 2)
            async with member(assigner, "c", Witness("c", holders, offences)) as c:
                await c.wait_for(lambda one: len(one.partitions) >= COUNT // 3)
                await b.drain(timeout=20)
            await holds(a, COUNT)
    assert not offences


async def test_work_that_began_before_a_release_ends_before_the_next_owner_starts() -> None:
    async with serving(HandoffMode.EXCLUSIVE) as assigner, member(assigner, "a", Handler()) as a:
        await holds(a, COUNT)
        gates = [a.gate(TOPIC, partition) for partition in range(COUNT)]
        blocks = [gate.enter() for gate in gates]
        for block in blocks:
            block.__enter__()
        async with member(assigner, "b", Handler()) as b:
            await a.wait_for(lambda one: len(one.partitions) == COUNT // 2)
            assert not b.partitions
            for block in blocks:
                block.__exit__(None, None, None)
            await holds(b, COUNT // 2)
            moved = next(gate for gate in gates if not gate.is_open)
            with pytest.raises(GateClosed):
                moved.admit()
