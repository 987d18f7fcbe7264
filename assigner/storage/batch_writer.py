"""Writes to the store in batches: many independent writes per transaction, several transactions at a time.

Each write is applied or rejected by itself: when a shared transaction fails, it is split until the write that failed it
is alone. Preconditions make any order safe, so no order is promised.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import anyio

from assigner.aio.idle_workers import IdleWorkers
from assigner.aio.supervision import Supervisor, unending
from assigner.core.writes import Write, pack
from assigner.errors import LeaseNotFound, LimitReached, OutcomeUnknown, StoreError, TransactionTooLarge
from assigner.logs import get_logger
from assigner.store import Committed, Compare, Conflict, Store

IN_FLIGHT = 4
MAX_WAITING = 200_000

log = get_logger("assigner.storage.batch_writer")

Outcome = Committed | Conflict | StoreError
"""A `StoreError` that is not `OutcomeUnknown` means: not written."""
Done = Callable[[Write, Outcome], None]


class BatchWriter:
    def __init__(
        self,
        store: Store,
        *,
        fence: Compare | None = None,
        may_write: Callable[[], bool] = lambda: True,
        in_flight: int = IN_FLIGHT,
    ) -> None:
        """`may_write` is called right before each transaction; once it returns false, writes end as conflicts."""
        self._store = store
        self._fence = fence
        self._may_write = may_write
        self._in_flight = in_flight
        self._waiting: deque[tuple[Write, Done]] = deque()
        self._workers = IdleWorkers(lambda: bool(self._waiting))
        self.transactions = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def submit(self, write: Write, done: Done) -> None:
        if len(self._waiting) >= MAX_WAITING:
            raise LimitReached(f"{MAX_WAITING} writes are waiting for the store; try again later")
        self._waiting.append((write, done))
        self._workers.notify()

    async def write(self, write: Write) -> Outcome:
        """Submit a write and wait for its outcome."""
        return (await self.write_all([write]))[0][1]

    async def write_all(self, writes: Sequence[Write]) -> list[tuple[Write, Outcome]]:
        """Submit writes together and wait for all outcomes."""
        outcomes: list[tuple[Write, Outcome]] = []
        ended = anyio.Event()

        def done(write: Write, outcome: Outcome) -> None:
            outcomes.append((write, outcome))
            if len(outcomes) == len(writes):
                ended.set()

        for write in writes:
            self.submit(write, done)
        if writes:
            await ended.wait()
        return outcomes

    async def run(self, supervisor: Supervisor | None = None) -> None:
        """Send batches until cancelled. Without a supervisor the first failure ends it."""
        keep = supervisor.keep if supervisor else unending
        async with anyio.create_task_group() as tasks:
            for number in range(self._in_flight):
                tasks.start_soon(keep, "batch writer", self._work, name=f"batch writer {number}")

    async def _work(self) -> None:
        while True:
            # Writes submitted in the same turn of the event loop share a transaction.
            await self._commit(await self._workers.next(self._take))

    def _take(self) -> list[tuple[Write, Done]]:
        return [self._waiting.popleft() for _ in range(self._fitting())]

    def _fitting(self) -> int:
        """How many of the waiting writes fit into one transaction."""
        head = [write for write, _ in _first(self._waiting, 2 * self._store.limits.operations)]
        return len(pack(head, self._store.limits, self._fence).writes)

    async def _commit(self, writes: list[tuple[Write, Done]]) -> None:
        outcome = await self._transact([write for write, _ in writes])
        if len(writes) > 1 and isinstance(outcome, Conflict | TransactionTooLarge):
            middle = len(writes) // 2
            await self._commit(writes[:middle])
            await self._commit(writes[middle:])
            return
        for write, done in writes:
            done(write, outcome)

    async def _transact(self, writes: Sequence[Write]) -> Outcome:
        if not self._may_write():
            return Conflict(0)
        packed = pack(writes, self._store.limits, self._fence)
        self.transactions += 1
        try:
            return await self._store.transact(packed.compares, packed.operations)
        except LeaseNotFound:
            # The lease of a key has ended meanwhile: the same as finding the key deleted.
            return Conflict(0)
        except StoreError as error:
            return error
        except Exception as error:
            # Any error is passed to the waiting callers, and the worker goes on.
            log.exception("write_crashed")
            return OutcomeUnknown(f"the write failed: {error!r}; read again")


def _first(waiting: deque[tuple[Write, Done]], count: int) -> list[tuple[Write, Done]]:
    return [waiting[number] for number in range(min(count, len(waiting)))]
