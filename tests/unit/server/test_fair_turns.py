"""Sharing the loop: few work per round, in order, and nobody is forgotten."""

from __future__ import annotations

import asyncio
import time

import pytest

from assigner.server.transport.fair_turns import PIECE, ConnectionShare, FairTurns


async def test_only_a_few_work_in_one_round_of_the_loop() -> None:
    turns, worked, per_round = FairTurns(per_round=3), 0, []

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
    turns, order = FairTurns(per_round=2), []

    async def work(number: int) -> None:
        await turns.take()
        order.append(number)

    await asyncio.gather(*(work(number) for number in range(20)))
    assert order == list(range(20))


async def test_a_cancelled_waiter_takes_nobodys_turn() -> None:
    turns = FairTurns(per_round=1)
    await turns.take()
    waiting = [asyncio.create_task(turns.take()) for _ in range(10)]
    await asyncio.sleep(0)
    for task in waiting[:9]:
        task.cancel()
    await asyncio.wait_for(waiting[9], 5)
    assert len(turns) == 0


async def test_a_lone_worker_need_not_wait() -> None:
    turns = FairTurns()
    async with asyncio.timeout(5):
        for _ in range(1_000):
            await turns.take()


# --- between connections -----------------------------------------------------------------------------------------


def with_consumer() -> ConnectionShare:
    share = ConnectionShare()
    share.consumers = 1
    return share


async def order_of(turns: FairTurns, *asked: tuple[str, ConnectionShare, bool]) -> list[str]:
    """Who worked when, if all of them ask in this order."""
    order: list[str] = []

    async def work(name: str, share: ConnectionShare, urgent: bool) -> None:
        await turns.take(share, urgent=urgent)
        order.append(name)

    await asyncio.wait_for(asyncio.gather(*(work(*one) for one in asked)), 10)
    return order


async def test_who_asks_for_little_does_not_wait_for_who_asks_for_much() -> None:
    greedy, modest = ConnectionShare(), ConnectionShare()
    asked = [("greedy", greedy, False)] * 1_000 + [("modest", modest, False)]
    order = await order_of(FairTurns(), *asked)
    assert order.index("modest") < 20


async def test_connections_that_ask_for_much_take_turns() -> None:
    shares = {name: ConnectionShare() for name in "abc"}
    order = await order_of(FairTurns(per_round=2), *((name, shares[name], False) for name in "abc" for _ in range(100)))
    assert all(sorted(order[at : at + 3]) == ["a", "b", "c"] for at in range(30, 270, 3))


async def test_thousands_of_connections_without_consumers_do_not_delay_a_consumer() -> None:
    strangers = [("stranger", ConnectionShare(), False) for _ in range(5_000)]
    order = await order_of(FairTurns(), *strangers, ("consumer", with_consumer(), False))
    assert order.index("consumer") < 20


async def test_connections_without_consumers_are_served_while_consumers_call_without_end() -> None:
    busy = with_consumer()
    order = await order_of(FairTurns(), *[("busy", busy, False)] * 1_000, ("stranger", ConnectionShare(), False))
    assert order.index("stranger") < 20


async def test_a_renewal_comes_before_what_else_its_connection_asks_for() -> None:
    share = with_consumer()
    order = await order_of(FairTurns(), *[("other", share, False)] * 500, ("renewal", share, True))
    assert order.index("renewal") < 20


async def test_a_connection_without_a_consumer_has_nothing_urgent() -> None:
    share = ConnectionShare()
    order = await order_of(FairTurns(), *[("other", share, False)] * 100, ("pushy", share, True))
    assert order[-1] == "pushy"


async def test_a_connection_with_more_consumers_gets_more_turns() -> None:
    one, nine = with_consumer(), ConnectionShare()
    nine.consumers = 9
    order = await order_of(FairTurns(), *[("one", one, False)] * 300, *[("nine", nine, False)] * 300)
    assert order[:200].count("nine") > 150


async def test_reading_that_takes_long_waits_until_others_have_read() -> None:
    turns, costly, cheap, order = FairTurns(), ConnectionShare(), ConnectionShare(), list[str]()

    def read_costly() -> None:
        order.append("costly")
        began = time.thread_time()
        while time.thread_time() - began < 20 * PIECE:
            pass
        turns.read_later(costly, read_costly)

    def read_cheap() -> None:
        order.append("cheap")

    assert turns.read(costly, read_costly)
    assert not turns.read(cheap, read_cheap)
    turns.read_later(cheap, read_cheap)
    async with asyncio.timeout(10):
        while "cheap" not in order:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert order.count("costly") <= 3


async def test_what_a_lost_connection_waited_for_is_forgotten() -> None:
    turns, share, worked = FairTurns(per_round=1), ConnectionShare(), list[str]()
    await turns.take(share)
    await turns.take(ConnectionShare())
    turns.read_later(share, lambda: worked.append("read"))
    share.forget()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not worked


async def test_more_work_than_can_be_done_is_noticed_and_its_end_too(monkeypatch: pytest.MonkeyPatch) -> None:
    turns, share = FairTurns(), ConnectionShare()
    waiting = [asyncio.create_task(turns.take(share)) for _ in range(100)]
    for _ in range(3):
        await asyncio.sleep(0)
    later = time.monotonic() + 5
    with monkeypatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: later)
        assert turns.late
    await asyncio.wait_for(asyncio.gather(*waiting), 10)
    for _ in range(3):
        await asyncio.sleep(0)
    assert not turns.late
