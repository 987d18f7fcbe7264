"""Supervised loops: restarted whatever ends them, never in silence, and named on /livez when nothing helps."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable
from functools import partial

import anyio
import anyio.lowlevel
import pytest

from assigner.aio.supervision import HOPELESS, STEADY, LoopEnded, Supervisor, report_failure, unending
from assigner.errors import Superseded
from assigner.testing.waiting import eventually

pytestmark = pytest.mark.virtual_time


class Loop:
    """Fails as often as it is told, then runs until cancelled."""

    def __init__(self, fail: Callable[[], Awaitable[object]], times: int, after: float = 0.0) -> None:
        self._fail = fail
        self._times = times
        self._after = after
        self.starts = 0

    async def run(self) -> None:
        self.starts += 1
        if self.starts <= self._times:
            await anyio.sleep(self._after)
            await self._fail()
            return
        await anyio.sleep_forever()


async def by_raising() -> None:
    raise KeyError("a bug")


async def by_returning() -> None:
    return


async def by_a_librarys_cancellation() -> None:
    raise asyncio.CancelledError


async def by_a_librarys_cancellation_of_a_child() -> None:
    """anyio cancels the group of a child that ended so, without any error: the loop seems to have returned."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(by_a_librarys_cancellation)
        await anyio.sleep_forever()


ENDINGS = [by_raising, by_returning, by_a_librarys_cancellation, by_a_librarys_cancellation_of_a_child]


def errors(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("ending", ENDINGS)
async def test_a_loop_is_restarted_however_it_ends_and_each_end_is_an_error_line(
    ending: Callable[[], Awaitable[object]], caplog: pytest.LogCaptureFixture
) -> None:
    supervisor, loop = Supervisor(), Loop(ending, times=3)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.keep, "the loop", loop.run)
        await eventually(lambda: loop.starts == 4)
        assert supervisor.restarts == {"the loop": 3}
        assert supervisor.running == {"the loop": 1}
        assert not supervisor.problems()
        tasks.cancel_scope.cancel()
    assert len(errors(caplog)) == 3
    assert all("the loop" in record.getMessage() and record.exc_info for record in errors(caplog))
    assert not supervisor.running


async def test_pauses_grow_and_start_over_after_a_steady_run() -> None:
    supervisor, starts = Supervisor(first_pause=1.0, longest_pause=8.0), list[float]()

    async def work() -> None:
        starts.append(anyio.current_time())
        await anyio.sleep(STEADY if len(starts) == 6 else 0)
        raise KeyError("a bug")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.keep, "the loop", work)
        await eventually(lambda: len(starts) == 8, within=300)
        tasks.cancel_scope.cancel()
    pauses = [later - earlier for earlier, later in itertools.pairwise(starts)]
    for pause, whole in zip(pauses[:5], (1, 2, 4, 8, 8), strict=True):
        assert whole / 2 <= pause <= whole
    assert 0.5 <= pauses[5] - STEADY <= 1
    assert 1 <= pauses[6] <= 2


async def test_a_loop_that_keeps_failing_is_a_problem_until_it_runs_steadily() -> None:
    supervisor, loop = Supervisor(), Loop(by_raising, times=HOPELESS)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.keep, "the loop", loop.run)
        await eventually(lambda: bool(supervisor.problems()), within=60)
        assert supervisor.problems() == [f"the loop failed {HOPELESS} times in a row: KeyError: 'a bug'"]
        await eventually(lambda: not supervisor.problems(), within=2 * STEADY)
        assert loop.starts == HOPELESS + 1
        tasks.cancel_scope.cancel()


async def test_a_loop_of_one_group_that_keeps_failing_is_no_problem_of_the_process() -> None:
    """A restart of the process would take all other groups along, and the one would fail again."""
    supervisor, loop = Supervisor(), Loop(by_raising, times=3 * HOPELESS)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(supervisor.keep, "mirror", loop.run, group="poisoned"))
        await eventually(lambda: loop.starts > 2 * HOPELESS or bool(supervisor.problems()), within=300)
        assert not supervisor.problems()
        assert supervisor.restarts["mirror"] >= 2 * HOPELESS
        tasks.cancel_scope.cancel()


async def test_a_loop_that_fails_now_and_then_is_no_problem() -> None:
    supervisor, loop = Supervisor(), Loop(by_raising, times=3 * HOPELESS, after=STEADY)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.keep, "the loop", loop.run)
        await eventually(lambda: loop.starts > 3 * HOPELESS or bool(supervisor.problems()), within=3000, every=1)
        assert not supervisor.problems()
        tasks.cancel_scope.cancel()


async def test_a_loop_that_is_no_longer_kept_is_no_problem() -> None:
    supervisor, loop = Supervisor(), Loop(by_raising, times=1000)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.keep, "the loop", loop.run)
        await eventually(lambda: bool(supervisor.problems()), within=60)
        tasks.cancel_scope.cancel()
    assert not supervisor.problems()


async def test_a_final_error_is_passed_on_and_nothing_is_restarted(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        raise Superseded("another process has the name")

    supervisor = Supervisor()
    with pytest.raises(Superseded):
        await supervisor.keep("the loop", work, final=(Superseded,))
    assert not supervisor.restarts
    assert not errors(caplog)


async def test_a_loop_that_may_end_ends_by_returning_and_in_no_other_way() -> None:
    supervisor = Supervisor()
    await supervisor.keep("the loop", by_returning, may_end=True)
    assert not supervisor.restarts
    for ending in (by_raising, by_a_librarys_cancellation):
        loop = Loop(ending, times=1)
        with anyio.move_on_after(1):
            await supervisor.keep("the loop", loop.run, may_end=True)
        assert loop.starts == 2


async def test_cancelling_the_keeper_cancels_the_loop_by_a_scope_and_by_its_task() -> None:
    supervisor = Supervisor()
    with anyio.move_on_after(1) as scope:
        await supervisor.keep("the loop", anyio.sleep_forever)
    assert scope.cancelled_caught
    task = asyncio.create_task(supervisor.keep("the loop", anyio.sleep_forever))
    await anyio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not supervisor.restarts


async def test_unending_work_that_ends_raises() -> None:
    for ending in (by_returning, by_a_librarys_cancellation, by_a_librarys_cancellation_of_a_child):
        with pytest.raises(LoopEnded, match="the work"):
            await unending("the work", ending)
    with pytest.raises(KeyError):
        await unending("the work", by_raising)


async def test_a_task_that_nobody_waits_for_has_its_failure_logged(caplog: pytest.LogCaptureFixture) -> None:
    task = asyncio.create_task(by_raising(), name="a task")
    task.add_done_callback(report_failure)
    await asyncio.wait([task])
    await anyio.lowlevel.checkpoint()
    assert ["a task" in record.getMessage() for record in errors(caplog)] == [True]
