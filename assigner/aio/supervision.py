"""Supervises background loops: a loop that fails is logged, counted, and restarted with exponential backoff.

A loop fails by raising, by returning, and by a `CancelledError` that this program did not cause: some libraries raise
their own, and asyncio then ends the task silently. A loop that keeps failing is still restarted, and is listed in
`problems`, which makes `/livez` fail so that the process is restarted. A loop that serves one group is not listed: a
restart would not cure that group, and would interrupt all others.

Not promised: that a loop which hangs is detected. It can't be distinguished from one that waits for work.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel

from assigner.aio.backoff import Backoff
from assigner.errors import AssignerError
from assigner.logs import get_logger

HOPELESS = 8
"""Consecutive failures after which a loop is a problem of the process: about 10 s of retries."""
STEADY = 30.0
"""Seconds of running after which the count of consecutive failures is reset."""

Work = Callable[[], Awaitable[object]]

log = get_logger("assigner.aio.supervision")


class LoopEnded(AssignerError):
    """A loop that must not end returned without an error."""


async def is_cancelled() -> bool:
    """Whether the running task itself is being cancelled; if not, a `CancelledError` is a library's own.

    If a surrounding anyio scope is cancelled, its cancellation is raised instead."""
    await anyio.lowlevel.checkpoint_if_cancelled()
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def unending(name: str, work: Work) -> None:
    """Run work that must not end by itself. Raises its error, or `LoopEnded` if it returned."""
    await _ending(name, work)
    raise LoopEnded(f"{name} ended by itself")


class _Loop:
    """The state of one supervised loop."""

    def __init__(self, name: str, group: str | None) -> None:
        self.name = name
        self.group = group
        self.failures = 0
        """In a row."""
        self.reason = ""
        self.began = anyio.current_time()
        """When it was last started."""

    @property
    def is_steady(self) -> bool:
        return anyio.current_time() - self.began >= STEADY

    def problem(self) -> str | None:
        # A restart would not cure what one group's records cause, and would take all other groups along.
        if self.group is not None or self.failures < HOPELESS or self.is_steady:
            return None
        return f"{self.name} failed {self.failures} times in a row: {self.reason}"


class Supervisor:
    """Keeps any number of loops running. The same name may stand for several, one per group for example."""

    def __init__(self, *, first_pause: float = 0.1, longest_pause: float = 5.0) -> None:
        self._first_pause = first_pause
        self._longest_pause = longest_pause
        self._loops: set[_Loop] = set()
        self.restarts: Counter[str] = Counter()
        """By the loop's name."""

    def problems(self) -> list[str]:
        """The loops that keep failing, one line each."""
        return sorted(problem for loop in self._loops if (problem := loop.problem()))

    @property
    def running(self) -> Counter[str]:
        """How many loops of each name are supervised."""
        return Counter(loop.name for loop in self._loops)

    async def keep(
        self,
        name: str,
        work: Work,
        *,
        may_end: bool = False,
        final: tuple[type[Exception], ...] = (),
        group: str | None = None,
        **about: str,
    ) -> None:
        """Run `work` and restart it whenever it ends, until cancelled. Each failure is logged with `group` and `about`.

        `may_end`: returning is not a failure and ends the supervision. `final`: errors that no restart can cure; they
        are raised. `group`: the work serves one group, so its failures are never a problem of the process."""
        loop = _Loop(name, group)
        if group is not None:
            about = {"group": group, **about}
        self._loops.add(loop)
        backoff = Backoff(f"{name} {about}", first=self._first_pause, most=self._longest_pause)
        try:
            while True:
                loop.began = anyio.current_time()
                try:
                    await (_ending(name, work) if may_end else unending(name, work))
                    return
                except final:
                    raise
                except Exception as error:  # noqa: BLE001 - after any error, the loop is restarted
                    if loop.is_steady:
                        loop.failures = 0
                        backoff.reset()
                    await self._restart(loop, error, backoff.next(), about)
        finally:
            self._loops.discard(loop)

    async def _restart(self, loop: _Loop, error: Exception, pause: float, about: dict[str, str]) -> None:
        loop.failures += 1
        loop.reason = _one_line(error)
        self.restarts[loop.name] += 1
        log.error(
            "loop_failed",
            loop=loop.name,
            **about,
            error=loop.reason,
            failures=loop.failures,
            restart_in=round(pause, 2),
            exc_info=error,
        )
        await anyio.sleep(pause)


async def _ending(name: str, work: Work) -> None:
    """Run work that may return, but must not end by a cancellation that this program did not cause."""
    try:
        await work()
    except asyncio.CancelledError as error:
        if await is_cancelled():
            raise
        raise LoopEnded(f"{name} was cancelled from outside this program") from error


def _one_line(error: BaseException) -> str:
    """Format the error in one line; of an exception group its first error, which is usually the only one."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


def report_failure(task: asyncio.Task[Any]) -> None:
    """Log a task's failure, as the done callback of a task that is not awaited: it would be lost otherwise."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("task_failed", task=task.get_name(), error=_one_line(error), exc_info=error)
