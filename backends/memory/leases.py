"""Keeps the leases of the memory store, which expire by an injected clock.

The clock alone decides, before every operation of the store, which leases have expired; a timer on the event loop
checks when there are no operations. So a clock that jumps ends the leases it jumped over, and they never come back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

from assigner.clock import Clock

CHECK_SECONDS = 1.0
"""Most seconds between two checks of the clock, because it may run faster than the event loop's."""
FIRST_ID = 0x5EA5E_0000_0000
"""Far from any revision, so that a mix-up of the two is noticed."""


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
        """Deletes the keys of a lease in one write."""
        self._ids = count(FIRST_ID)
        self._leases: dict[int, StoredLease] = {}
        self._deadlines: list[tuple[float, int]] = []
        """A heap with one entry per lease; the entry of a renewed lease is pushed back when its old deadline comes."""
        self._timer: asyncio.TimerHandle | None = None

    def get(self, lease: int) -> StoredLease | None:
        return self._leases.get(lease)

    def grant(self, ttl: float) -> StoredLease:
        lease = StoredLease(next(self._ids), ttl, self._clock.now() + ttl)
        self._leases[lease.id] = lease
        heappush(self._deadlines, (lease.deadline, lease.id))
        if self._timer is None or ttl < CHECK_SECONDS:
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
        """End every expired lease, in the order of their deadlines."""
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
        """Stop the timer, when no handle is open. The next operation starts it again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        self.stop()
        if len(self._deadlines) > 2 * len(self._leases) + 64:
            self._deadlines = sorted((lease.deadline, lease.id) for lease in self._leases.values())
        if self._leases:
            delay = min(max(self._deadlines[0][0] - self._clock.now(), 0.0), CHECK_SECONDS)
            self._timer = asyncio.get_running_loop().call_later(delay, self._check)

    def _check(self) -> None:
        self._timer = None
        self.expire()
