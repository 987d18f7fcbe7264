"""Loops that must not die unseen: one that fails is reported, restarted after a growing pause, and counted.

A loop fails by raising, by returning, and by a `CancelledError` that nobody here has asked for: some libraries raise
one of their own, and asyncio ends a task by it in silence. One that keeps failing is still restarted, but it is named
among the `problems`, by which `/livez` fails: then a restart of the process is the remedy. A loop that works for one
group is not: its trouble is that group's.

Not promised: that a loop which hangs is noticed; what waits for ever looks like what has nothing to do.
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
"""Failures in a row after which a loop counts as one that can't go on: some 10 s of trying."""
STEADY = 30.0
"""Seconds of running after which a failure is the first one again."""

Work = Callable[[], Awaitable[object]]

log = get_logger("assigner.aio.supervision")


class LoopEnded(AssignerError):
    """A loop that has to go on for ever has ended without saying why."""


async def is_cancelled() -> bool:
    """Whether the running task is being cancelled: asked about a `CancelledError`, which may be a library's own.

    Where an anyio scope around us is cancelled, its own cancellation is raised instead."""
    await anyio.lowlevel.checkpoint_if_cancelled()
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def unending(name: str, work: Work) -> None:
    """Do work that must not end by itself. Raises what it raises, or `LoopEnded` when it ended without an error."""
    await _ending(name, work)
    raise LoopEnded(f"{name} ended by itself")


class _Loop:
    """One loop that is kept running."""

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
        """The loops that can't go on. Empty: all is well."""
        return sorted(problem for loop in self._loops if (problem := loop.problem()))

    @property
    def running(self) -> Counter[str]:
        """How many loops of each name are kept."""
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
        """Do `work` again and again until cancelled, however it ends. `group` and `about` are told with each failure.

        `may_end`: returning is no failure, and the end. `final`: errors that no restart can cure; they are raised.
        `group`: the work is for one group only, so it is never a problem of the process."""
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
                except Exception as error:  # noqa: BLE001 - whatever it is, the loop goes on
                    if loop.is_steady:
                        loop.failures = 0
                        backoff.reset()
                    await self._restart(loop, error, backoff.next(), about)
        finally:
            self._loops.discard(loop)

    async def _restart(self, loop: _Loop, error: Exception, pause: float, about: dict[str, str]) -> None:
        loop.failures += 1
        loop.reason = _told(error)
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
    """Work that may end by itself, but not by a cancellation that nobody has asked for."""
    try:
        await work()
    except asyncio.CancelledError as error:
        if await is_cancelled():
            raise
        raise LoopEnded(f"{name} was cancelled by nobody here") from error


def _told(error: BaseException) -> str:
    """The error in a line; of a group the first one, which is most often the only one."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


def report_failure(task: asyncio.Task[Any]) -> None:
    """To be called when a task is done that nobody waits for: its failure is logged instead of lost."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("task_failed", task=task.get_name(), error=_told(error), exc_info=error)
