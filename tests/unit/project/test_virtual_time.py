"""The virtual-time loop: it jumps when nothing is under way, waits when something is, and says when all is stuck."""

from __future__ import annotations

import asyncio
import threading
import time

import anyio
import anyio.abc
import anyio.lowlevel
import anyio.to_thread
import pytest

from assigner.clock import LoopClock
from assigner.testing import virtual_time
from assigner.testing.virtual_time import Deadlock, VirtualTimeLoop

pytestmark = pytest.mark.virtual_time


async def test_an_hour_passes_in_no_time() -> None:
    began, clock = time.monotonic(), LoopClock()
    before = clock.now()
    await anyio.sleep(3600)
    assert clock.now() == before + 3600
    assert time.monotonic() - began < 60


async def test_timers_fire_in_the_order_of_their_times() -> None:
    fired: list[int] = []

    async def after(seconds: int) -> None:
        await anyio.sleep(seconds)
        fired.append(seconds)

    async with anyio.create_task_group() as tasks:
        for seconds in (30, 10, 20):
            tasks.start_soon(after, seconds)
    assert fired == [10, 20, 30]


async def test_time_stands_still_while_something_is_ready() -> None:
    before = virtual_time.current().time()
    for _ in range(100):
        await anyio.lowlevel.checkpoint()
    assert virtual_time.current().time() == before


async def test_a_deadline_of_anyio_is_virtual_too() -> None:
    with anyio.move_on_after(600) as scope:
        await anyio.sleep_forever()
    assert scope.cancelled_caught


@pytest.mark.parametrize("how", ["executor", "to_thread", "anyio"])
async def test_it_does_not_jump_while_a_thread_works(how: str) -> None:
    def work() -> str:
        time.sleep(0.05)
        return "done"

    with anyio.fail_after(3600):
        if how == "executor":
            answer = await asyncio.get_running_loop().run_in_executor(None, work)
        elif how == "to_thread":
            answer = await asyncio.to_thread(work)
        else:
            answer = await anyio.to_thread.run_sync(work)
    assert answer == "done"
    assert virtual_time.current().time() < 1000 + 60


async def test_it_does_not_jump_while_a_socket_is_waited_for() -> None:
    async def hang_up(stream: anyio.abc.SocketStream) -> None:
        await stream.aclose()

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, hang_up)
        await anyio.lowlevel.checkpoint()
        began, before = time.monotonic(), virtual_time.current().time()
        await anyio.sleep(0.05)
        assert time.monotonic() - began >= 0.04
        assert virtual_time.current().time() - before >= 0.05
        tasks.cancel_scope.cancel()


async def test_while_something_outside_is_waited_for_the_time_of_callbacks_counts() -> None:
    loop = virtual_time.current()
    with loop.outside():
        await anyio.sleep(0.01)
        before = loop.time()
        for _ in range(3):
            time.sleep(0.05)  # noqa: ASYNC251 - a callback that takes long
            await anyio.sleep(0.01)
        assert loop.time() - before >= 3 * 0.05
    await anyio.sleep(3600)
    assert loop.time() - before >= 3600


@pytest.mark.virtual_time(sockets="local")
async def test_with_local_sockets_it_jumps_once_they_are_silent() -> None:
    async def echo(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await anyio.sleep(60)
            await stream.send(await stream.receive())

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    began, before = time.monotonic(), virtual_time.current().time()
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, echo)
        async with await anyio.connect_tcp("127.0.0.1", port) as client:
            await client.send(b"hello")
            assert await client.receive() == b"hello"
        tasks.cancel_scope.cancel()
    assert virtual_time.current().time() - before >= 60
    assert time.monotonic() - began < 30


def test_a_deadlock_names_where_the_test_waits() -> None:
    async def wait_for_nobody() -> None:
        await anyio.Event().wait()

    with pytest.raises(Deadlock, match="wait_for_nobody"):
        virtual_time.run(wait_for_nobody)


def test_timers_that_only_rearm_themselves_end_at_the_horizon() -> None:
    async def tick_for_ever() -> None:
        while True:  # noqa: ASYNC110
            await anyio.sleep(10)

    with pytest.raises(Deadlock, match="timers go round"):
        virtual_time.run(tick_for_ever, horizon=1000)


def test_work_of_a_thread_of_ones_own_is_waited_for_when_declared() -> None:
    async def with_own_thread() -> str:
        loop = virtual_time.current()
        done: asyncio.Future[str] = loop.create_future()

        def work() -> None:
            time.sleep(0.05)
            loop.call_soon_threadsafe(done.set_result, "done")

        threading.Thread(target=work).start()
        with loop.outside(), anyio.fail_after(3600):
            return await done

    assert virtual_time.run(with_own_thread) == "done"


async def test_the_mark_chooses_the_loop() -> None:
    assert isinstance(asyncio.get_running_loop(), VirtualTimeLoop)
