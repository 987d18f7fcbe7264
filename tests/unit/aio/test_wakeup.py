"""An event that can happen again: no order of marks, changes and waits loses a wake-up."""

from __future__ import annotations

import anyio
import pytest

from assigner.aio.shutdown import background, shielded
from assigner.aio.wakeup import Wakeup
from assigner.testing.waiting import eventually

pytestmark = pytest.mark.virtual_time


async def test_a_change_between_the_mark_and_the_wait_ends_the_wait_at_once() -> None:
    wakeup = Wakeup()
    mark = wakeup.mark()
    wakeup.notify()
    with anyio.fail_after(1):
        await wakeup.since(mark)


async def test_a_change_before_the_mark_does_not_count() -> None:
    wakeup = Wakeup()
    wakeup.notify()
    with anyio.move_on_after(1) as waiting:
        await wakeup.since(wakeup.mark())
    assert waiting.cancelled_caught


async def test_a_change_wakes_all_who_wait() -> None:
    """Where each waiter makes an event of its own, only the last one is woken."""
    wakeup, woken = Wakeup(), 0

    async def wait() -> None:
        nonlocal woken
        await wakeup.next()
        woken += 1

    async with background() as tasks:
        for _ in range(4):
            tasks.start_soon(wait)
        await anyio.sleep(1)
        wakeup.notify()
        await eventually(lambda: woken == 4)


async def test_a_wait_that_was_cancelled_leaves_the_others_waiting_and_woken() -> None:
    wakeup = Wakeup()
    with anyio.move_on_after(1):
        await wakeup.next()
    async with background() as tasks:
        tasks.start_soon(_after, 1.0, wakeup.notify)
        with anyio.fail_after(5):
            await wakeup.next()


async def test_until_looks_again_at_each_change() -> None:
    wakeup, seen = Wakeup(), [0]

    def count() -> None:
        seen[0] += 1
        wakeup.notify()

    async with background() as tasks:
        for pause in (1.0, 2.0, 3.0):
            tasks.start_soon(_after, pause, count)
        with anyio.fail_after(10):
            await wakeup.until(lambda: seen[0] == 3)


async def _after(seconds: float, work: object) -> None:
    await anyio.sleep(seconds)
    assert callable(work)
    work()


async def test_shielded_work_is_done_although_the_caller_is_cancelled() -> None:
    done = anyio.Event()

    async def work() -> None:
        await anyio.sleep(1)
        done.set()

    with anyio.CancelScope() as scope:
        scope.cancel()
        await shielded(work, 5)
    assert done.is_set()


async def test_shielded_work_is_abandoned_after_its_timeout() -> None:
    with anyio.fail_after(10):
        await shielded(anyio.sleep_forever, 5)
