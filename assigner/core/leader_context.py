"""Holds what the state machines of one leader share: the mirror, liveness, transitions and the writes in flight.

One value instead of five parameters. It decides nothing; each machine keeps its own state to itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from assigner.core.group import GroupState
from assigner.core.liveness import SessionLiveness, SessionState
from assigner.core.transitions import Transitions
from assigner.core.work_queue import Timer, WorkQueue
from assigner.core.writes import PendingWrites


@dataclass(frozen=True)
class LeaderContext:
    state: GroupState
    liveness: SessionLiveness
    transitions: Transitions
    """Spells decisions as writes."""
    work: WorkQueue
    pending: PendingWrites
    ttl: float
    """Of consumers' leases, in seconds."""

    @property
    def has_consumers(self) -> bool:
        """Whether a consumer is registered; a registration that can't be read counts."""
        return bool(self.state.consumers or self.state.unreadable_consumers)

    def recheck_session(self, name: str, session: str, now: float) -> None:
        """Wake up when the session's state stops being unknown, if time alone brings that about."""
        if self.liveness.session_state(name, session, now) is SessionState.UNKNOWN:
            until = self.liveness.unknown_until(name, session, now)
            if until is not None:
                self.work.timers.sooner(Timer.GRACE_PERIOD, until)
