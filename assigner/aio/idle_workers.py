"""Wakes the workers that share a queue one at a time: as many as there is work for, and no more.

An arrival wakes one idle worker. A worker that has looked at the queue and leaves work in it wakes the next one. So a
lone piece of work costs one wake-up, and a long queue still gets every worker.

No wake-up is lost: while there is work and somebody is idle, a worker that was woken is on its way to look. One that is
cancelled or fails before it has taken anything wakes the next one in its place.
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
        self._on_its_way = False
        """A worker was woken and has not looked at the queue yet."""

    def notify(self) -> None:
        """Work has arrived. Whoever is on its way already sees it too."""
        if self._idle and not self._on_its_way:
            self._on_its_way = True
            self._idle.popleft().set()

    async def next(self, take: Callable[[], list[T]]) -> list[T]:
        """Wait for work and take some of it. `take` may find nothing after all; what is returned is never empty."""
        is_idle = False
        while True:
            try:
                if is_idle:
                    await self._woken()
                # What arrives in the same turn of the event loop is taken together.
                await anyio.lowlevel.checkpoint()
                taken = take() if self._has_work() else []
            finally:
                # This worker may have been the one on its way, and however it ended, it is no more. Where it was
                # another one, the worst that comes of it is a worker that is woken and finds nothing.
                self._on_its_way = False
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
