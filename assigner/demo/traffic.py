"""Describes the requests of the demo's routers: what a router process says of them, and what that adds up to."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec

GROUP, TOPIC, PARTITIONS = "demo", "events", 64
RATE = 75
"""Requests per second that each router gets."""
SAID_EVERY = 0.1
RATE_OVER = 1.0
"""Seconds over which requests per second are counted."""
HISTORY = 42
"""Of requests per second, the latest that are drawn."""


class RouterCounts(msgspec.Struct, frozen=True):
    """A line that a router process prints: its requests since it started."""

    made: int = 0
    answered: int = 0
    refused: int = 0
    """Ended by a typed error, so that whoever sent them knows that they were not served."""
    lost: int = 0
    """Ended in any other way."""
    again: int = 0
    """Sent again after an owner refused them, or could not be reached."""
    stashed: int = 0
    """Held back now."""
    in_flight: int = 0
    frozen: int = 0
    """Partitions that it holds requests of back, because they move."""


class RouterLine(msgspec.Struct, frozen=True):
    """A router as it is displayed."""

    name: str
    present: bool
    counts: RouterCounts
    per_second: float = 0.0


class Traffic(msgspec.Struct, frozen=True):
    """The requests of all routers, those that have left included."""

    routers: tuple[RouterLine, ...] = ()
    history: tuple[float, ...] = ()
    """Requests answered per second, lately."""

    @property
    def per_second(self) -> float:
        return sum(router.per_second for router in self.routers)

    def total(self, name: str) -> int:
        return sum(getattr(router.counts, name) for router in self.routers)


class RouterTraffic:
    """The counts that one router process said, with their times."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.present = True
        self.counts = RouterCounts()
        self._said: deque[tuple[float, int]] = deque()

    def add(self, counts: RouterCounts, at: float) -> None:
        self.counts = counts
        self._said.append((at, counts.answered))

    def line(self, now: float) -> RouterLine:
        while self._said and self._said[0][0] < now - RATE_OVER:
            self._said.popleft()
        answered = self._said[-1][1] - self._said[0][1] if self._said else 0
        return RouterLine(self.name, self.present, self.counts, answered / RATE_OVER)


class TrafficRecord:
    """Adds up what the routers say, from snapshot to snapshot."""

    def __init__(self) -> None:
        self._history: deque[float] = deque(maxlen=HISTORY)

    def take(self, routers: Iterable[RouterTraffic], now: float) -> Traffic:
        lines = tuple(router.line(now) for router in routers)
        self._history.append(sum(line.per_second for line in lines))
        return Traffic(lines, tuple(self._history))
