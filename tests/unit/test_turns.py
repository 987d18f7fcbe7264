"""Sharing the loop: few work per round, in order, and nobody is forgotten."""

from __future__ import annotations

import asyncio

from assigner.server.turns import Turns


async def test_only_a_few_work_in_one_round_of_the_loop() -> None:
    turns, worked, per_round = Turns(per_round=3), 0, []

    async def work() -> None:
        nonlocal worked
        await turns.take()
        worked += 1

    async def count_rounds() -> None:
        before = 0
        while worked < 30:
            await asyncio.sleep(0)
            per_round.append(worked - before)
            before = worked

    await asyncio.gather(count_rounds(), *(work() for _ in range(30)))
    assert sum(per_round) == 30
    assert max(per_round) <= 3


async def test_turns_are_given_in_order() -> None:
    turns, order = Turns(per_round=2), []

    async def work(number: int) -> None:
        await turns.take()
        order.append(number)

    await asyncio.gather(*(work(number) for number in range(20)))
    assert order == list(range(20))


async def test_a_waiter_that_gave_up_takes_nobodys_turn() -> None:
    turns = Turns(per_round=1)
    await turns.take()
    waiting = [asyncio.create_task(turns.take()) for _ in range(10)]
    await asyncio.sleep(0)
    for task in waiting[:9]:
        task.cancel()
    await asyncio.wait_for(waiting[9], 5)
    assert len(turns) == 0


async def test_a_lone_worker_need_not_wait() -> None:
    turns = Turns()
    async with asyncio.timeout(5):
        for _ in range(1_000):
            await turns.take()
