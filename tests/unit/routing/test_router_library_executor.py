"""The executor by itself: the order of requests that wait, at its edges, and what it costs to be woken or cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from assigner.core.routing.table import RoutingTable
from assigner.model.keys import TopicPartition
from assigner.model.routes import Route, TableChanges
from assigner.routing import CutoverExecutor, RouterClosed, StashLimits

TP = TopicPartition("t", 0)
ROUTE = Route("a", "a:80", 1)


class Scene:
    """An executor, and requests that note the order in which they were let through."""

    def __init__(self, **limits: int) -> None:
        table = RoutingTable()
        table.begin_stream()
        table.apply(TableChanges(full=True, revision=1, routes=((TP, ROUTE),), topics=(("t", 4),)))
        self.may_route = True
        self.asked = 0
        self.executor = CutoverExecutor(table, self._may_route, lambda: 0.0, limits=StashLimits(**limits))
        self.sent: list[int] = []

    def _may_route(self) -> bool:
        self.asked += 1
        return self.may_route

    async def send(self, number: int) -> None:
        async with self.executor.route_partition("t", 0):
            self.sent.append(number)

    async def ask(self, count: int) -> list[asyncio.Task[None]]:
        first = self.executor.counts().stashed
        tasks = [asyncio.create_task(self.send(first + number)) for number in range(count)]
        await settled()
        return tasks

    def open(self) -> None:
        self.executor.switch(TP, ROUTE)
        self.executor.flush(TP)


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_request_that_finds_its_partition_open_does_not_go_before_those_that_found_it_closed() -> None:
    """The first is woken in vain; before the second looks, which was woken with it, the partition opens."""
    scene = Scene()
    tasks = await scene.ask(2)
    queue = scene.executor._lane(TP).queue
    assert queue is not None
    first, second = queue._waiting
    first.wake()
    asyncio.get_running_loop().call_soon(scene.open)
    second.wake()
    await asyncio.gather(*tasks)
    assert scene.sent == [0, 1]


async def test_whoever_is_cancelled_after_being_woken_passes_the_turn_on() -> None:
    scene = Scene()
    tasks = await scene.ask(3)
    scene.open()
    tasks[0].cancel()
    tasks[1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert scene.sent == [2]
    assert scene.executor.counts().given_up == 2


async def test_no_timer_is_left_of_requests_that_have_gone_on_or_were_cancelled() -> None:
    """Or each would be kept until its age is over, however short it waited."""
    scene = Scene()
    before = timers()
    tasks = await scene.ask(20)
    assert timers() == before + 20
    tasks[0].cancel()
    scene.open()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert timers() == before


def timers() -> int:
    """How many timers of the loop are not cancelled."""
    scheduled: list[asyncio.TimerHandle] = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
    return sum(not timer.cancelled() for timer in scheduled)


async def test_a_request_is_asked_for_its_permit_at_the_moment_it_goes() -> None:
    scene = Scene()
    tasks = await scene.ask(2)
    scene.open()
    scene.may_route = False
    await settled()
    assert scene.sent == []
    scene.may_route = True
    scene.executor.resume()
    await asyncio.gather(*tasks)
    assert scene.sent == [0, 1]


async def test_ten_thousand_that_wait_cost_ten_thousand_looks_to_flush_and_to_cancel() -> None:
    scene = Scene()
    tasks = await scene.ask(10_000)
    scene.asked = 0
    scene.open()
    await asyncio.gather(*tasks)
    assert scene.sent == list(range(10_000))
    assert scene.asked <= 20_000
    scene.executor.stop(TP)
    tasks = await scene.ask(10_000)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert scene.executor.counts().stashed == 0


async def drain_of(scene: Scene) -> None:
    await scene.executor.drain(TP)


async def idleness_of(scene: Scene) -> None:
    await scene.executor.until_idle()


@pytest.mark.parametrize("waiting", [drain_of, idleness_of])
async def test_several_requests_in_flight_are_all_waited_for(waiting: Callable[[Scene], Awaitable[None]]) -> None:
    scene = Scene()
    scene.open()
    async with scene.executor.route_partition("t", 0):
        async with scene.executor.route_partition("t", 0):
            scene.executor.stop(TP)
            task = asyncio.ensure_future(waiting(scene))
            await settled()
            assert not task.done()
        await settled()
        assert not task.done()
    await task


async def test_a_closed_executor_lets_nothing_through_though_its_partitions_are_open() -> None:
    scene = Scene()
    scene.open()
    scene.executor.close("over")
    with pytest.raises(RouterClosed, match="over; the request was not sent"):
        await scene.send(1)
    assert scene.sent == []


async def test_what_a_closed_executor_raises_keeps_no_request_alive() -> None:
    """A program may go on asking a router that has ended; an error raised again would keep the frames of each try."""
    scene = Scene()
    tasks = await scene.ask(3)
    scene.executor.close("over")
    errors = await asyncio.gather(*tasks, return_exceptions=True)
    for number in range(3):
        try:
            await scene.send(number)
        except RouterClosed as error:
            errors.append(error)
    assert [str(error) for error in errors] == ["over; the request was not sent, send it by another router"] * 6
    assert len({id(error) for error in errors}) == 6


async def test_a_request_is_entered_once() -> None:
    scene = Scene()
    scene.open()
    request = scene.executor.route_partition("t", 0)
    async with request:
        pass
    with pytest.raises(RuntimeError, match="entered once"):
        await request.__aenter__()


async def test_the_lanes_of_a_topic_that_is_gone_are_forgotten_when_they_are_idle() -> None:
    scene = Scene()
    scene.open()
    table = scene.executor._table
    async with scene.executor.route_partition("t", 0):
        scene.executor.stop(TP)
        scene.executor.forget()
        assert scene.executor._lanes["t"]
        table.apply(TableChanges(revision=2, topics=(("t", 0),)))
        scene.executor.forget()
        assert scene.executor._lanes["t"], "a request is in flight"
    scene.executor.forget()
    assert not scene.executor._lanes


async def test_topics_that_are_asked_for_before_the_first_table_are_not_remembered() -> None:
    executor = CutoverExecutor(RoutingTable(), lambda: True, lambda: 0.0)
    tasks = [asyncio.create_task(executor.route(f"t{one}", b"").__aenter__()) for one in range(10)]
    await settled()
    assert executor.counts().stashed == 10
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not executor._unresolved
