"""How long each handoff may stay in its step, on the leader's own clock.

A deadline starts when the leader first sees the step, so a new leader gives every step its full time again: a change
of leader must not cost anybody a warm that was nearly done.
"""

from __future__ import annotations

from assigner.core.schedule import Schedule
from assigner.keys import TopicPartition
from assigner.records import Step


class Deadlines:
    def __init__(self) -> None:
        self._armed: dict[TopicPartition, tuple[str, Step]] = {}
        self._due: Schedule[TopicPartition] = Schedule()
        self._overdue: set[TopicPartition] = set()

    def arm(self, tp: TopicPartition, handoff_id: str, step: Step, limit: float | None, now: float) -> None:
        """Start the clock if this handoff or this step is new."""
        if self._armed.get(tp) != (handoff_id, step):
            self._armed[tp] = (handoff_id, step)
            self.restart(tp, limit, now)

    def restart(self, tp: TopicPartition, limit: float | None, now: float) -> None:
        self._overdue.discard(tp)
        if limit is None:
            self._due.clear(tp)
        else:
            self._due.set(tp, now + limit)

    def disarm(self, tp: TopicPartition) -> None:
        if self._armed.pop(tp, None):
            self._due.clear(tp)
            self._overdue.discard(tp)

    def overdue(self, tp: TopicPartition) -> bool:
        return tp in self._overdue

    def pop_due(self, now: float) -> list[TopicPartition]:
        due = self._due.pop_due(now)
        self._overdue.update(due)
        return due

    def next(self) -> float | None:
        return self._due.next()
