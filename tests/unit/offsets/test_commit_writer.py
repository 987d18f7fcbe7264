"""Offsets travel to the store in several transactions at a time, and a lone commit wakes one worker."""

from __future__ import annotations

import anyio
import pytest

from assigner.aio.shutdown import background
from assigner.aio.supervision import Supervisor
from assigner.api import CommitRefusal, OffsetCommit, RefusedCommit
from assigner.backends.memory import MemoryState, MemoryStore
from assigner.clock import LoopClock
from assigner.core.offset_commits import COMPARES, Admitted, CommitQueue, Committer, FencedCommit, PendingCommit
from assigner.model.records import Offset
from assigner.offsets.commit import IN_FLIGHT, CommitWriter
from assigner.store import Missing, ModRevisionIs, Store
from assigner.testing.faults import Delay, FaultyStore
from tests.support.cluster import tp
from tests.support.measurement import counted_turns

pytestmark = pytest.mark.virtual_time


async def pending(store: Store, partition: int) -> PendingCommit:
    assignment = f"/assignments/{partition}"
    revision = (await store.put(assignment, b"{}")).revision
    who, commit = Committer("a", "s"), OffsetCommit(tp(partition), 7, 1)
    return PendingCommit(f"/offsets/{partition}", assignment, who, commit, Admitted(revision, "id"), 0.0)


async def test_commits_that_come_after_a_rest_are_written_several_transactions_at_a_time() -> None:
    """Each worker that finds nothing to do has to be woken by what comes next, not only the last of them."""
    clock = LoopClock()
    store = FaultyStore(MemoryStore(MemoryState(clock)))
    writer = CommitWriter(store, CommitQueue(), clock)
    many = [await pending(store, number) for number in range(1, 1 + IN_FLIGHT * (store.limits.operations // COMPARES))]
    async with background() as tasks:
        tasks.start_soon(writer.run, Supervisor())
        assert await writer.write([await pending(store, 0)]) == []
        store.inject(Delay(1.0), kinds={"transact"}, times=None)
        began = clock.now()
        assert await writer.write(many) == []
        assert writer.transactions == 1 + IN_FLIGHT
        assert clock.now() - began == pytest.approx(1.0)
    await store.close()


async def test_a_lone_commit_wakes_one_worker() -> None:
    clock = LoopClock()
    store = MemoryStore(MemoryState(clock))
    writer = CommitWriter(store, CommitQueue(), clock)
    lone = await pending(store, 0)
    async with background() as tasks:
        tasks.start_soon(writer.run, Supervisor())
        await anyio.wait_all_tasks_blocked()
        with counted_turns() as turns:
            assert await writer.write([lone]) == []
            await anyio.wait_all_tasks_blocked()
    workers = {name for name in turns if name.startswith("offset writer ")}
    assert len(workers) == 1, turns
    await store.close()


async def test_a_commit_whose_fence_fell_is_refused_and_takes_no_other_along() -> None:
    clock = LoopClock()
    store = MemoryStore(MemoryState(clock))
    writer = CommitWriter(store, CommitQueue(), clock)
    stands = ModRevisionIs("/groups/a", (await store.put("/groups/a", b"{}")).revision)
    fell = ModRevisionIs("/groups/b", (await store.put("/groups/b", b"{}")).revision)
    await store.put("/groups/b", b"{}")
    good = [FencedCommit(f"/offsets/a/{number}", tp(number), Offset(offset=1), (stands,), 0.0) for number in range(3)]
    bad = FencedCommit("/offsets/b/9", tp(9), Offset(offset=1), (fell,), 0.0)
    async with background() as tasks:
        tasks.start_soon(writer.run, Supervisor())
        assert await writer.write([*good, bad]) == [RefusedCommit(tp(9), CommitRefusal.FENCED)]
    assert isinstance(await store.get("/offsets/b/9"), Missing)
    assert len((await store.list("/offsets/a/")).entries) == 3
    await store.close()
