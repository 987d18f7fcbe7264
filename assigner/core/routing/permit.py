"""Decides whether a router may route at all, by its own clock.

While it is registered, no partition moves on without its ack. So it may route while its lease can't be over, that is
for two thirds of the TTL from the moment it *sent* its last confirmed renewal, and once it has a whole table. When that
time has passed, or the service said that the session is gone, moves may have gone on without its ack: then it needs
a renewal, and the whole table of a registration that began after that.

No timer ends it: each question is answered from the time it is asked at. A process that was stopped for a minute may
not route from its first step on.
"""

from __future__ import annotations

import math

from assigner.model.defaults import SAFE_SHARE


class RoutingPermit:
    def __init__(self) -> None:
        self.deadline = -math.inf
        """Until when the last confirmed renewal allows to route."""
        self.lapses = 0
        """How often the deadline passed, or the session was lost."""
        self._registered_at = -math.inf
        self._table_since = -math.inf
        """When the registration began that the table in use came from."""
        self._needed_since = -math.inf
        """A table of an earlier registration does not count."""

    def registering(self, now: float) -> None:
        """A registration is about to be sent."""
        self._registered_at = now

    def completed(self) -> None:
        """The whole table of the last registration is in use."""
        self._table_since = self._registered_at

    def renewed(self, sent_at: float, ttl: float, now: float) -> None:
        """A renewal that was sent at that time was confirmed."""
        if now >= self.deadline > -math.inf:
            self._lapse(self.deadline)
        self.deadline = max(self.deadline, sent_at + ttl * SAFE_SHARE)

    def end(self, now: float) -> None:
        """The service does not know the session, or the router leaves."""
        self._lapse(now)
        self.deadline = -math.inf

    def _lapse(self, since: float) -> None:
        self.lapses += 1
        self._needed_since = max(self._needed_since, since)

    @property
    def needs_table(self) -> bool:
        """Whether the table in use came before a lapse; a new registration brings another one."""
        return self._table_since == -math.inf or self._table_since < self._needed_since

    def holds(self, now: float) -> bool:
        return now < self.deadline and not self.needs_table
