"""Waits for a number that only grows, such as a revision, to reach a value; each waiter is woken once, at its value.

A thousand waiters for a thousand revisions cost a thousand wake-ups, in any order of arrival.
"""

from __future__ import annotations

import heapq

import anyio


class Waiters:
    def __init__(self) -> None:
        self._numbers: list[int] = []
        """A heap of awaited numbers; some have no waiter any more."""
        self._events: dict[int, anyio.Event] = {}
        self._count: dict[int, int] = {}

    def __len__(self) -> int:
        """How many tasks wait."""
        return sum(self._count.values())

    async def wait(self, number: int) -> None:
        """Wait until `reached` was called with this number or a higher one."""
        event = self._events.get(number)
        if event is None:
            event = self._events[number] = anyio.Event()
            self._count[number] = 0
            heapq.heappush(self._numbers, number)
        self._count[number] += 1
        try:
            await event.wait()
        finally:
            if not event.is_set():
                self._leave(number)

    def reached(self, number: int) -> None:
        while self._numbers and self._numbers[0] <= number:
            wanted = heapq.heappop(self._numbers)
            self._count.pop(wanted, None)
            event = self._events.pop(wanted, None)
            if event is not None:
                event.set()

    def _leave(self, number: int) -> None:
        self._count[number] -= 1
        if self._count[number]:
            return
        del self._count[number], self._events[number]
        if len(self._numbers) > 2 * len(self._events):
            # Removing one entry from the middle of a heap costs as much as rebuilding it, so it is rebuilt rarely.
            self._numbers = sorted(self._events)
