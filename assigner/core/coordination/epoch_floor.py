"""The epoch floor follows the epochs, so that nothing others delete or rewrite can make one go back.

A plan that is published takes the floor along. Between two plans epochs rise too: by flips, takeovers and
reaffirmations; for these the floor follows in one write, at most `LAG` behind. What was granted in the last moment
before a leader died, or stopped to make room for a service that knows no epochs, is not covered until one leads again:
if all assignments are deleted or rewritten by somebody else before that, those epochs may be given once more.
"""

from __future__ import annotations

import msgspec

from assigner.core.agenda import Agenda, Timer
from assigner.core.group import GroupState
from assigner.model.records import Plan

LAG = 1.0
"""Seconds from an epoch above the floor to the write that raises it: one write for all that rises meanwhile."""


class EpochFloorKeeper:
    def __init__(self, state: GroupState, agenda: Agenda) -> None:
        self._state = state
        self._agenda = agenda
        self._due: float | None = None

    @property
    def _is_behind(self) -> bool:
        return self._state.plan.epoch_floor < self._state.highest_epoch

    def raised(self, plan: Plan) -> Plan:
        """The plan with the floor at the highest epoch there is."""
        return msgspec.structs.replace(plan, epoch_floor=max(plan.epoch_floor, self._state.highest_epoch))

    def is_due(self, now: float) -> bool:
        """Whether the floor is to be raised by a write of its own."""
        if not self._is_behind:
            self._due = None
        elif self._due is None:
            self._due = now + LAG
            self._agenda.timers.set(Timer.FLOOR, self._due)
        return self._due is not None and now >= self._due
