"""Wakes whoever waits for something about the consumer to become true.

Waiters look again at each change, so what they wait for may be anything; they never miss a change, but may miss a
state that lasted no longer than one. Those who wait for something about one partition alone look again only when that
is what changed, so that a thousand gates that are drained do not wake each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable

import anyio


class Wakeup:
    def __init__(self) -> None:
        self._event: anyio.Event | None = None
        self._about: dict[Hashable, anyio.Event] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """The loop that waiters run on, so that other threads can wake them."""
        self._loop = loop

    def notify(self, about: Hashable = None) -> None:
        """Wake those who wait for anything; and, of those who wait for something about one thing, its own."""
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
            # The loop was closed in this moment: nobody waits any more.
            return

    async def until(self, predicate: Callable[[], bool]) -> None:
        while not predicate():
            await self.next()

    async def until_about(self, about: Hashable, predicate: Callable[[], bool]) -> None:
        """The same, for what changes only together with a `notify(about)`."""
        while not predicate():
            await self._about.setdefault(about, anyio.Event()).wait()

    async def next(self) -> None:
        if self._event is None:
            self._event = anyio.Event()
        await self._event.wait()
