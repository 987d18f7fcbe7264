"""Shares the event loop between many streams: only a few do a piece of work per round of the loop.

When a change reaches thousands of streams at once, all of them would run in one round, and timers and pings would wait
for the last. Here the others queue, in order, and each round lets the next few go on.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Turns:
    def __init__(self, per_round: int = 8) -> None:
        self._per_round = per_round
        self._given = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._armed = False

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    async def take(self) -> None:
        """Return when it is the caller's turn to work for up to about a millisecond."""
        self._arm()
        if self._given < self._per_round and not self._waiting:
            self._given += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        await turn

    def _arm(self) -> None:
        if not self._armed:
            self._armed = True
            asyncio.get_running_loop().call_soon(self._next_round)

    def _next_round(self) -> None:
        self._armed = False
        self._given = 0
        while self._waiting and self._given < self._per_round:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                self._given += 1
        if self._given:
            self._arm()
