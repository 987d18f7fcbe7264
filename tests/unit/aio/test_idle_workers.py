"""Workers that share a queue: one is woken for each piece of work, and none sleeps while there is work for it."""

from __future__ import annotations

import random
from collections import deque

import anyio
import anyio.lowlevel
import pytest

from assigner.aio.idle_workers import IdleWorkers
from assigner.aio.shutdown import background
from assigner.aio.supervision import Supervisor
from assigner.testing.waiting import eventually
from tests.support.measurement import counted_turns

pytestmark = pytest.mark.virtual_time

WORKERS = 4


class Pool:
    """Workers that take one piece at a time and work on it for a second."""

    def __init__(self) -> None:
        self.queue: deque[int] = deque()
        self.idle = IdleWorkers(lambda: bool(self.queue))
        self.done: list[int] = []
        self.busy = 0
        self.failing = 0
        """How many of the next looks at the queue raise."""

    def add(self, *pieces: int) -> None:
        for piece in pieces:
            self.queue.append(piece)
            self.idle.notify()

    async def work(self) -> None:
        while True:
            (piece,) = await self.idle.next(self._take)
            self.busy += 1
            try:
                await anyio.sleep(1)
            finally:
                self.busy -= 1
            self.done.append(piece)

    def _take(self) -> list[int]:
        if self.failing:
            self.failing -= 1
            raise KeyError("a bug")
        return [self.queue.popleft()]


async def test_each_piece_wakes_one_worker_and_a_long_queue_all_of_them() -> None:
    pool = Pool()
    async with background() as tasks:
        for number in range(WORKERS):
            tasks.start_soon(pool.work, name=f"worker {number}")
        await anyio.wait_all_tasks_blocked()
        for pieces in range(1, WORKERS + 1):
            with counted_turns() as turns:
                pool.add(*range(pieces))
                await anyio.wait_all_tasks_blocked()
            assert len([name for name in turns if name.startswith("worker ")]) == pieces
            assert pool.busy == pieces
            await eventually(lambda: not pool.busy)


async def test_work_is_taken_although_the_worker_that_was_woken_is_cancelled_before_it_looks() -> None:
    pool, first = Pool(), anyio.CancelScope()

    async def cancelled() -> None:
        with first:
            await pool.work()

    async with background() as tasks:
        tasks.start_soon(cancelled)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(pool.work)
        await anyio.wait_all_tasks_blocked()
        pool.add(1)
        first.cancel()
        await anyio.wait_all_tasks_blocked()
        assert pool.busy == 1


async def test_work_is_taken_although_the_worker_that_was_woken_is_cancelled_a_turn_later() -> None:
    pool, first = Pool(), anyio.CancelScope()

    async def cancelled() -> None:
        with first:
            await pool.work()

    async with background() as tasks:
        tasks.start_soon(cancelled)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(pool.work)
        await anyio.wait_all_tasks_blocked()
        pool.add(1)
        await anyio.lowlevel.checkpoint()
        first.cancel()
        await anyio.wait_all_tasks_blocked()
        assert pool.busy == 1


async def test_a_cancelled_worker_that_was_idle_is_not_woken_in_place_of_another() -> None:
    pool = Pool()
    with anyio.move_on_after(1):
        await pool.work()
    async with background() as tasks:
        tasks.start_soon(pool.work)
        await anyio.wait_all_tasks_blocked()
        pool.add(1)
        await anyio.wait_all_tasks_blocked()
        assert pool.busy == 1


async def test_work_is_taken_at_once_although_the_worker_that_was_woken_fails_before_it_has_taken_it() -> None:
    pool, supervisor = Pool(), Supervisor()
    async with background() as tasks:
        for _ in range(WORKERS):
            tasks.start_soon(supervisor.keep, "worker", pool.work)
        await anyio.wait_all_tasks_blocked()
        pool.failing = WORKERS - 1
        pool.add(1)
        await anyio.wait_all_tasks_blocked()
        assert pool.busy == 1
        assert supervisor.restarts["worker"] == WORKERS - 1


@pytest.mark.parametrize("seed", range(20))
async def test_nobody_idles_while_there_is_work_whatever_is_cancelled_and_fails(seed: int) -> None:
    chance, pool, supervisor = random.Random(seed), Pool(), Supervisor()
    scopes: list[anyio.CancelScope] = []

    async def cancellable() -> None:
        with anyio.CancelScope() as scope:
            scopes.append(scope)
            await supervisor.keep("worker", pool.work)

    added = 0
    async with background() as tasks:
        for _ in range(WORKERS):
            tasks.start_soon(cancellable)
        for _ in range(200):
            match chance.randrange(5):
                case 0:
                    pool.add(*range(added, added + (count := chance.randint(1, 6))))
                    added += count
                case 1:
                    pool.failing += chance.randint(0, 1)
                case 2 if scopes:
                    scopes.pop(chance.randrange(len(scopes))).cancel()
                    tasks.start_soon(cancellable)
                case 3:
                    await anyio.lowlevel.checkpoint()
                case 4:
                    await anyio.sleep(chance.uniform(0.0, 1.5))
        pool.failing = 0
        # The supervisor restarts within its longest pause; from then on every worker is there.
        await anyio.sleep(10)
        await anyio.wait_all_tasks_blocked()
        assert pool.busy == min(WORKERS, pool.busy + len(pool.queue))
        await eventually(lambda: not pool.queue and not pool.busy, within=added + 10)
