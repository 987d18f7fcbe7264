"""Decides when the driver asks the store whether a lease is over.

In an `exclusive` group a session is dead only when its lease is over, and a store announces no end of a lease. So as
long as liveness waits for some leases, all of them are asked about every `INTERVAL`. A question that fails is not
reported back; the next interval asks again.
"""

from __future__ import annotations

from assigner.core.liveness import SessionLiveness
from assigner.core.work_queue import Timer, WorkQueue

INTERVAL = 0.5
"""Seconds between two questions about the same lease."""


class LeaseChecks:
    def __init__(self, liveness: SessionLiveness, work: WorkQueue) -> None:
        self._liveness = liveness
        self._work = work

    def due(self, now: float) -> tuple[int, ...]:
        """The leases to ask about now."""
        if not self._liveness.leases_to_check or Timer.LEASES in self._work.timers:
            return ()
        self._work.timers.set(Timer.LEASES, now + INTERVAL)
        return tuple(sorted(self._liveness.leases_to_check))

    def answered(self, lease: int, *, over: bool, now: float) -> None:
        """Record the store's answer whether the lease is over."""
        if over:
            self._liveness.lease_over(lease)
        elif self._liveness.leases_to_check:
            self._work.timers.sooner(Timer.LEASES, now + INTERVAL)
