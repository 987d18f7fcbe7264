"""Provides `Wakeup`, an event that can be set repeatedly, to wake tasks that wait for a change.

- `until(predicate)` looks again at each change, so what it waits for may be anything. It never misses a change, but
  may miss a state that lasted no longer than one.
- `mark` and `since` are for a loop that works before it waits: a change that comes while it works ends the wait at
  once. No order of a mark, a change and a wait loses a wake-up, however many wait.
- `next` waits for a change from now on. It suits a loop that has looked just before, without an `await` in between.
- `until_about` waits for a change of one subject, and is woken by notifications about that subject only. So a thousand
  gates that are drained do not wake each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable

import anyio


class Wakeup:
    def __init__(self) -> None:
        self._count = 0
        self._event: anyio.Event | None = None
        """Set by the next change; created by the first waiter."""
        self._about: dict[Hashable, anyio.Event] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Set the event loop that waiters run on, so that other threads can wake them."""
        self._loop = loop

    def notify(self, about: Hashable = None) -> None:
        """Wake all waiters for any change, and those that wait for a change of this subject."""
        self._count += 1
        if about is not None and (waited_for := self._about.pop(about, None)):
            waited_for.set()
        if self._event is not None:
            event, self._event = self._event, None
            event.set()

    def notify_from_any_thread(self, about: Hashable = None) -> None:
        if self._loop is None or self._loop.is_closed():
            return
        try:
            self._loop.call_soon_threadsafe(self.notify, about)
        except RuntimeError:
            # The loop was closed meanwhile, so there are no waiters.
            return

    def mark(self) -> int:
        """Return a mark for `since`: changes before it do not end that wait."""
        return self._count

    async def since(self, mark: int) -> None:
        """Wait until something has changed since the mark was taken."""
        if self._count == mark:
            await self.next()

    async def next(self) -> None:
        if self._event is None:
            self._event = anyio.Event()
        await self._event.wait()

    async def until(self, predicate: Callable[[], bool]) -> None:
        while not predicate():
            await self.next()

    async def until_about(self, about: Hashable, predicate: Callable[[], bool]) -> None:
        """Wait until the predicate holds; it is evaluated again only after a `notify(about)`."""
        while not predicate():
            await self._about.setdefault(about, anyio.Event()).wait()
