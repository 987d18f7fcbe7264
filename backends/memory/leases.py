"""Leases on an injected clock.

Whether a lease has ended is decided by the clock alone, before every operation of the store; a timer on the running
loop only makes sure that somebody looks in time when there are no operations. So a clock that jumps ends the leases it
jumped over, and they never come back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

from assigner.clock import Clock

LOOK = 1.0
"""Seconds after which the clock is looked at again at the latest: it may run differently from the loop's."""
FIRST_ID = 0x5EA5E_0000_0000
"""Far from any revision, so that one taken for the other is noticed."""


class StoredLease:
    __slots__ = ("deadline", "id", "keys", "ttl")

    def __init__(self, lease: int, ttl: float, deadline: float) -> None:
        self.id = lease
        self.ttl = ttl
        self.deadline = deadline
        self.keys: set[str] = set()


class Leases:
    def __init__(self, clock: Clock, end: Callable[[StoredLease], None]) -> None:
        self._clock = clock
        self._end = end
        """Deletes the lease's keys, as one write."""
        self._ids = count(FIRST_ID)
        self._leases: dict[int, StoredLease] = {}
        self._deadlines: list[tuple[float, int]] = []
        """A heap with one place per lease; a renewed one is moved back when its old place comes up."""
        self._timer: asyncio.TimerHandle | None = None

    def get(self, lease: int) -> StoredLease | None:
        return self._leases.get(lease)

    def grant(self, ttl: float) -> StoredLease:
        lease = StoredLease(next(self._ids), ttl, self._clock.now() + ttl)
        self._leases[lease.id] = lease
        heappush(self._deadlines, (lease.deadline, lease.id))
        if self._timer is None or ttl < LOOK:
            self._arm()
        return lease

    def renew(self, lease: StoredLease) -> None:
        lease.deadline = self._clock.now() + lease.ttl

    def remaining(self, lease: StoredLease) -> float:
        return lease.deadline - self._clock.now()

    def revoke(self, lease: StoredLease) -> None:
        del self._leases[lease.id]
        self._end(lease)

    def expire(self) -> None:
        """End every lease whose time is over, the one that ended first before the others."""
        if not self._leases:
            return
        now = self._clock.now()
        while self._deadlines and self._deadlines[0][0] <= now:
            planned, number = heappop(self._deadlines)
            lease = self._leases.get(number)
            if lease is None:
                continue
            if lease.deadline > planned:
                heappush(self._deadlines, (lease.deadline, number))
            else:
                self.revoke(lease)
        if self._timer is None:
            self._arm()

    def stop(self) -> None:
        """Stop looking by ourselves, when nobody is left to see it. The next operation starts it again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        self.stop()
        if len(self._deadlines) > 2 * len(self._leases) + 64:
            self._deadlines = sorted((lease.deadline, lease.id) for lease in self._leases.values())
        if self._leases:
            delay = min(max(self._deadlines[0][0] - self._clock.now(), 0.0), LOOK)
            self._timer = asyncio.get_running_loop().call_later(delay, self._look)

    def _look(self) -> None:
        self._timer = None
        self.expire()
