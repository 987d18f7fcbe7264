"""When things are due: one heap of wake-ups, for a core that never looks at a clock itself."""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Schedule(Generic[K]):
    """At most one due time per key; a later `set` replaces an earlier one."""

    def __init__(self) -> None:
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, key: K) -> bool:
        return key in self._due

    def set(self, key: K, at: float) -> None:
        self._due[key] = at
        self._count += 1
        heapq.heappush(self._heap, (at, self._count, key))

    def sooner(self, key: K, at: float) -> None:
        """Like `set`, but never postpones."""
        if at < self._due.get(key, float("inf")):
            self.set(key, at)

    def clear(self, key: K) -> None:
        self._due.pop(key, None)

    def passed(self, key: K, now: float) -> bool:
        return self._due.get(key, float("inf")) <= now

    def pop_due(self, now: float) -> list[K]:
        due: list[K] = []
        while self._heap and self._heap[0][0] <= now:
            at, _, key = heapq.heappop(self._heap)
            if self._due.get(key) == at:
                del self._due[key]
                due.append(key)
        return due

    def next(self) -> float | None:
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None
