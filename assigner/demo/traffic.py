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
"""How many of the latest numbers are kept to be drawn."""


class RouterCounts(msgspec.Struct, frozen=True):
    """A line that a router process prints: its requests since it started."""

    made: int = 0
    answered: int = 0
    refused: int = 0
    """Ended by a typed error, so that whoever sent them knows that they were not served."""
    lost: int = 0
    """Ended in any other way."""
    held: int = 0
    """How many were held back, because their partition was moving."""
    retries: int = 0
    """How often one was sent again because its owner refused it, or could not be reached."""
    retrying: int = 0
    """How many wait before they are sent again."""
    stashed: int = 0
    """Held back now."""
    in_flight: int = 0
    """Sent, and not answered yet."""


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
    waiting: tuple[int, ...] = ()
    """Requests that were held back or about to be sent again, lately."""

    @property
    def per_second(self) -> float:
        return sum(router.per_second for router in self.routers)

    def total(self, name: str) -> int:
        """The sum of one of the numbers of `RouterCounts`."""
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
        # The oldest one kept is that from which the last second's requests are counted.
        while len(self._said) > 1 and self._said[1][0] <= now - RATE_OVER:
            self._said.popleft()
        rate = 0.0
        if self._said and self._said[-1][0] > now - RATE_OVER:
            (since, before), (until, answered) = self._said[0], self._said[-1]
            rate = (answered - before) / max(until - since, RATE_OVER)
        return RouterLine(self.name, self.present, self.counts, rate)


class TrafficRecord:
    """Adds up what the routers say, from snapshot to snapshot."""

    def __init__(self) -> None:
        self._history: deque[float] = deque(maxlen=HISTORY)
        self._waiting: deque[int] = deque(maxlen=HISTORY)

    def take(self, routers: Iterable[RouterTraffic], now: float) -> Traffic:
        lines = tuple(router.line(now) for router in routers)
        self._history.append(sum(line.per_second for line in lines))
        self._waiting.append(sum(line.counts.stashed + line.counts.retrying for line in lines))
        return Traffic(lines, tuple(self._history), tuple(self._waiting))
