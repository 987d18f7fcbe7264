"""A net under every scenario: no task without a name, none left behind, none whose failure nobody looked at.

A task that ends by an error which nobody reads is silent until it is collected, and one that is forgotten is silent for
ever. So every task of a scenario is noted as it is made; in the end the garbage is collected, the loop's complaints are
read, and what still runs is told by name."""

from __future__ import annotations

import asyncio
import gc
import re
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

ROOT = Path(__file__).parents[2]
ASYNCIO = str(Path(str(asyncio.__file__)).parent)
BETWEEN = (ASYNCIO, str(Path(str(anyio.__file__)).parent))
"""By whose functions tasks are made."""
OURS = tuple(f"{ROOT / folder}/" for folder in ("assigner", "backends", "strategies"))
GRACE = 200
"""Turns of the loop, and hundredths of a second after them, in which what was cancelled may still end."""

UNNAMED = re.compile(r"Task-\d+")
"""What asyncio calls a task that nobody has named. anyio calls it by its function, which says enough."""


class TaskNet:
    def __init__(self) -> None:
        self.complaints: list[str] = []
        """What the loop had to say: failures that nobody read, tasks destroyed while pending."""
        self.unnamed: set[str] = set()
        """Tasks that our code makes without a name, with the function they run."""
        self.has_failures = False
        """Whether any task ended by an error: only then is there something to be found in the garbage."""
        self._before = asyncio.all_tasks()

    def make(self, loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **more: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=loop, **more)
        task.add_done_callback(self._note_failure)
        if _maker().startswith(OURS) and not _file_of(coro).startswith(ASYNCIO):
            task.add_done_callback(self._ended)
        return task

    def _note_failure(self, task: asyncio.Task[Any]) -> None:
        # Not by `exception()`, which would count as having looked at it.
        self.has_failures = self.has_failures or getattr(task, "_exception", None) is not None

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if UNNAMED.fullmatch(task.get_name()):
            self.unnamed.add(f"{task.get_name()!r} runs {task.get_coro()}")

    def complain(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        about = context.get("task") or context.get("future") or context.get("handle") or ""
        self.complaints.append(f"{context.get('message')}: {error!r} {about!r}")

    async def left(self) -> list[str]:
        """Tasks that were made since and have not ended, after a moment's grace."""
        for turn in range(2 * GRACE):
            if not self._left():
                return []
            await asyncio.sleep(0 if turn < GRACE else 0.01)
        return [f"{task.get_name()!r} runs {task.get_coro()}" for task in self._left()]

    def _left(self) -> list[asyncio.Task[Any]]:
        mine = asyncio.current_task()
        return [task for task in asyncio.all_tasks() - self._before if task is not mine]


def _file_of(coro: Coroutine[Any, Any, Any]) -> str:
    code = getattr(coro, "cr_code", None)
    return str(code.co_filename) if code is not None else ""


def _maker() -> str:
    """The file of the code that makes the task which is being made."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(BETWEEN):
        frame = frame.f_back
    return frame.f_code.co_filename


@asynccontextmanager
async def no_unread_tasks() -> AsyncIterator[TaskNet]:
    """Fails when the block has left a task, an unread failure or a task of ours without a name."""
    loop = asyncio.get_running_loop()
    net = TaskNet()
    factory, handler = loop.get_task_factory(), loop.get_exception_handler()
    loop.set_task_factory(net.make)  # type: ignore[arg-type]
    loop.set_exception_handler(net.complain)
    try:
        yield net
        left = await net.left()
        if net.has_failures:
            gc.collect()
            await asyncio.sleep(0)
    finally:
        loop.set_task_factory(factory)
        loop.set_exception_handler(handler)
    assert not net.complaints, "failures that nobody looked at:\n" + "\n".join(net.complaints)
    assert not left, "tasks that are left:\n" + "\n".join(left)
    assert not net.unnamed, "tasks without a name:\n" + "\n".join(sorted(net.unnamed))
