"""Defines `Clock`, the only source of time in the service.

`now()` only ever moves forward and counts suspension, so that a deadline set before the machine slept is over
after it. `wall()` is for people to read, and for the ends of tokens and certificates, which others wrote by theirs.
Sleeping is anyio's business, not the clock's.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Seconds on a clock that never goes back; only differences are meaningful."""
        ...

    def wall(self) -> float:
        """Unix time in seconds, for display and for what others date by it."""
        ...


class SystemClock:
    """The machine's clock. CLOCK_BOOTTIME counts suspension; CLOCK_MONOTONIC would not."""

    _SOURCE = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

    def now(self) -> float:
        return time.clock_gettime(self._SOURCE)

    def wall(self) -> float:
        return time.time()


class LoopClock:
    """The running event loop's time: virtual where a test runs on a virtual-time loop."""

    def __init__(self, wall_at_zero: float = 1_700_000_000.0) -> None:
        self._wall_at_zero = wall_at_zero

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def wall(self) -> float:
        return self._wall_at_zero + self.now()
