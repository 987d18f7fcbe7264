"""Wakes whoever waits for something about the consumer to become true.

Waiters look again at each change, so what they wait for may be anything; they never miss a change, but may miss a
state that lasted no longer than one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import anyio


class Changes:
    def __init__(self) -> None:
        self._event: anyio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """The loop that waiters run on, so that other threads can wake them."""
        self._loop = loop

    def notify(self) -> None:
        if self._event is not None:
            event, self._event = self._event, None
            event.set()

    def notify_from_any_thread(self) -> None:
        if self._loop is None or self._loop.is_closed():
            return
        try:
            self._loop.call_soon_threadsafe(self.notify)
        except RuntimeError:
            # The loop was closed in this moment: nobody waits any more.
            return

    async def until(self, predicate: Callable[[], bool]) -> None:
        while not predicate():
            await self.next()

    async def next(self) -> None:
        if self._event is None:
            self._event = anyio.Event()
        await self._event.wait()
