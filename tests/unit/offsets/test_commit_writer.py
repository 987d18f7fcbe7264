"""Offsets travel to the store in several transactions at a time."""

from __future__ import annotations

import pytest

from assigner.aio.shutdown import background
from assigner.aio.supervision import Supervisor
from assigner.api import OffsetCommit
from assigner.backends.memory import MemoryState, MemoryStore
from assigner.clock import LoopClock
from assigner.core.offset_commits import COMPARES, Admitted, CommitQueue, Committer, PendingCommit
from assigner.offsets.commit import IN_FLIGHT, CommitWriter
from assigner.testing.faults import Delay, FaultyStore
from tests.support.cluster import tp

pytestmark = pytest.mark.virtual_time


async def test_commits_that_come_after_a_rest_are_written_several_transactions_at_a_time() -> None:
    """Each worker that finds nothing to do has to be woken by what comes next, not only the last of them."""
    clock = LoopClock()
    store = FaultyStore(MemoryStore(MemoryState(clock)))

    async def pending(partition: int) -> PendingCommit:
        assignment = f"/assignments/{partition}"
        revision = (await store.put(assignment, b"{}")).revision
        who, commit = Committer("a", "s"), OffsetCommit(tp(partition), 7, 1)
        return PendingCommit(f"/offsets/{partition}", assignment, who, commit, Admitted(revision, "id"), 0.0)

    writer = CommitWriter(store, CommitQueue(), clock)
    many = [await pending(number) for number in range(1, 1 + IN_FLIGHT * (store.limits.operations // COMPARES))]
    async with background() as tasks:
        tasks.start_soon(writer.run, Supervisor())
        assert await writer.write([await pending(0)]) == []
        store.inject(Delay(1.0), kinds={"transact"}, times=None)
        began = clock.now()
        assert await writer.write(many) == []
        assert writer.transactions == 1 + IN_FLIGHT
        assert clock.now() - began == pytest.approx(1.0)
    await store.close()
