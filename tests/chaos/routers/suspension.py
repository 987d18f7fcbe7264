"""A process that can be stopped for a while, as by SIGSTOP: its tasks stand still and its clock goes on."""

from __future__ import annotations

import asyncio

import anyio

from assigner.clock import Clock


class Suspension:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until = float("-inf")
        self._over = anyio.Event()

    @property
    def lasts(self) -> bool:
        return self._clock.now() < self._until

    def begin(self, seconds: float) -> None:
        """Stop the process for that long from now on, if it is not stopped for longer."""
        until = self._clock.now() + seconds
        if until > self._until:
            self._until = until
            asyncio.get_running_loop().call_later(seconds, self._end)

    def _end(self) -> None:
        if not self.lasts:
            self._over.set()
            self._over = anyio.Event()

    async def awake(self) -> None:
        """Wait until the process goes on. Its tasks do so in the order in which they were stopped."""
        while self.lasts:
            await self._over.wait()
