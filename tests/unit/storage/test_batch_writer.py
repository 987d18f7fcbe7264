"""The batching writer: writes share transactions, which do not wait for each other; one write wakes one worker."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import anyio
import pytest

from assigner.aio.shutdown import background
from assigner.aio.supervision import Supervisor
from assigner.backends.memory import MemoryState, MemoryStore
from assigner.clock import LoopClock
from assigner.core.writes import Purpose, Write
from assigner.storage.batch_writer import IN_FLIGHT, BatchWriter
from assigner.store import Committed, Compare, Operation, Put, TransactionResult
from assigner.testing.waiting import eventually
from tests.support.measurement import counted_turns

pytestmark = pytest.mark.virtual_time


class HeldStore(MemoryStore):
    """Transactions wait until told to go on."""

    def __init__(self) -> None:
        super().__init__(MemoryState(LoopClock()))
        self.held = 0
        self.go_on = anyio.Event()

    def holds(self, count: int) -> bool:
        return self.held == count

    async def transact(
        self, compares: Sequence[Compare], operations: Sequence[Operation], *, otherwise: Sequence[str] = ()
    ) -> TransactionResult:
        self.held += 1
        await self.go_on.wait()
        return await super().transact(compares, operations, otherwise=otherwise)


def write(number: int) -> Write:
    return Write(Purpose.ACK, (), (Put(f"/{number}", b""),))


async def test_writes_that_come_together_share_a_transaction_and_later_ones_do_not_wait_for_it() -> None:
    store = HeldStore()
    writer = BatchWriter(store)
    outcomes: list[object] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(writer.run, Supervisor())
        await anyio.wait_all_tasks_blocked()
        for turn in range(1, IN_FLIGHT + 1):
            for number in range(3):
                writer.submit(write(10 * turn + number), lambda _, outcome: outcomes.append(outcome))
            on_their_way = partial(store.holds, turn)
            await eventually(on_their_way, what=f"{turn} transactions are on their way")
        store.go_on.set()
        await eventually(lambda: len(outcomes) == 3 * IN_FLIGHT, what="everything is written")
        tasks.cancel_scope.cancel()
    assert all(isinstance(outcome, Committed) for outcome in outcomes)
    assert writer.transactions == IN_FLIGHT
    await store.close()


async def test_a_lone_write_wakes_one_worker() -> None:
    store = MemoryStore(MemoryState(LoopClock()))
    writer = BatchWriter(store)
    async with background() as tasks:
        tasks.start_soon(writer.run, Supervisor())
        await anyio.wait_all_tasks_blocked()
        with counted_turns() as turns:
            assert isinstance(await writer.write(write(1)), Committed)
            await anyio.wait_all_tasks_blocked()
    workers = {name for name in turns if name.startswith("batch writer ")}
    assert len(workers) == 1, turns
    await store.close()
