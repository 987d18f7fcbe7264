"""Wakes the workers that share a queue one at a time: as many as there is work for, and no more.

An arrival wakes one idle worker. A worker that has looked at the queue and leaves work in it wakes the next one. So a
lone piece of work costs one wake-up, and a long queue still gets every worker.

No wake-up is lost: while there is work and a worker is idle, some worker was woken and has yet to look at the queue. If
that one is cancelled or fails before it has taken anything, it wakes the next one in its place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeVar

import anyio
import anyio.lowlevel

T = TypeVar("T")


class IdleWorkers:
    def __init__(self, has_work: Callable[[], bool]) -> None:
        """`has_work`: whether there is something in the queue that a worker can take."""
        self._has_work = has_work
        self._idle: deque[anyio.Event] = deque()
        """One for each idle worker, the longest idle first."""
        self._wake_pending = False
        """A worker was woken and has not looked at the queue yet."""

    def notify(self) -> None:
        """Wake an idle worker for work that arrived, unless a woken worker has yet to look at the queue."""
        if self._idle and not self._wake_pending:
            self._wake_pending = True
            self._idle.popleft().set()

    async def next(self, take: Callable[[], list[T]]) -> list[T]:
        """Wait for work and take some of it. `take` may return nothing; then this waits on. The result is never
        empty."""
        is_idle = False
        while True:
            try:
                if is_idle:
                    await self._woken()
                # What arrives in the same turn of the event loop is taken together.
                await anyio.lowlevel.checkpoint()
                taken = take() if self._has_work() else []
            finally:
                # If this is the worker that was woken last, it has looked now, or ended. If another one is, the worst
                # outcome is one more worker that is woken and finds nothing.
                self._wake_pending = False
                if self._has_work():
                    self.notify()
            if taken:
                return taken
            is_idle = True

    async def _woken(self) -> None:
        event = anyio.Event()
        self._idle.append(event)
        try:
            await event.wait()
        finally:
            if not event.is_set():
                self._idle.remove(event)
