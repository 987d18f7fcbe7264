"""What a coordinator has to look at, and when: partitions to examine, timers, the next plan and its causes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto

from assigner.core.group import GroupState
from assigner.core.schedule import Schedule
from assigner.keys import TopicPartition
from assigner.records import Cause

RETRY = 0.05
"""After a conflict: long enough for the mirror to show what it conflicted with."""


class Timer(Enum):
    DOUBT = auto()
    """Somebody who was waited for is given up."""
    EMPTY = auto()
    """Nobody has been registered for so long that ownership is forgotten."""
    LEASES = auto()
    """Leases whose end is awaited are asked about."""
    LOADS = auto()
    """Loads may have become worth a plan."""
    FLOOR = auto()
    """The epoch floor is to follow the epochs."""
    PLAN = auto()
    """The plan's record was written by somebody else; the mirror will show it."""


@dataclass(frozen=True)
class Note:
    """Something a person should be able to read in the log."""

    event: str
    tp: TopicPartition | None = None
    consumer: str = ""
    reason: str = ""


class Agenda:
    def __init__(self, state: GroupState, now: float) -> None:
        self._state = state
        self.dirty: dict[TopicPartition, None] = {}
        """Partitions to examine, in order."""
        self.timers: Schedule[Timer] = Schedule()
        self.stays: Schedule[TopicPartition] = Schedule()
        """Partitions whose move was given up, until they may be moved again."""
        self.plan_due: float | None = now
        self._planned_at = now - RETRY
        self.causes: set[Cause] = set()
        """Why the next plan is wanted."""
        self._retries: Schedule[TopicPartition] = Schedule()
        self._notes: list[Note] = []

    def mark(self, tps: Iterable[TopicPartition]) -> None:
        self.dirty.update(dict.fromkeys(tps))

    def pop(self) -> TopicPartition:
        tp = next(iter(self.dirty))
        del self.dirty[tp]
        return tp

    def retry(self, tps: Iterable[TopicPartition], now: float) -> None:
        for tp in tps:
            self._retries.set(tp, now + RETRY)

    def want_plan(self, cause: Cause | None, now: float, delay: float | None = None) -> None:
        """Open the debounce window, or leave it as it is if it is open."""
        if cause:
            self.causes.add(cause)
        at = now + (self._state.options.debounce if delay is None else delay)
        self.plan_due = at if self.plan_due is None else min(at, self.plan_due)

    def plan_is_due(self, now: float) -> bool:
        """Never two plans in a row without a pause, however short the debounce."""
        if self.plan_due is None:
            return False
        self.plan_due = max(self.plan_due, self._planned_at + RETRY)
        return now >= self.plan_due

    def take_plan(self, now: float) -> set[Cause]:
        """A plan is made now; its causes."""
        self.plan_due, self._planned_at = None, now
        causes, self.causes = self.causes, set()
        return causes

    def note(self, note: Note) -> None:
        self._notes.append(note)

    def take_notes(self) -> list[Note]:
        notes, self._notes = self._notes, []
        return notes

    def is_staying(self, tp: TopicPartition, now: float) -> bool:
        return tp in self.stays and not self.stays.passed(tp, now)

    def forgive_stays(self) -> None:
        self.stays = Schedule()

    def wake(self, now: float) -> list[Timer]:
        """Mark what is due; the timers that went off."""
        self.mark(self._retries.pop_due(now))
        free = self.stays.pop_due(now)
        if free:
            self.mark(free)
            self.want_plan(None, now)
        return self.timers.pop_due(now)

    def next_wake(self, *, plans: bool) -> float | None:
        """`plans`: whether a plan could be made when it is due."""
        times = [self.plan_due if plans else None, self._retries.next(), self.stays.next(), self.timers.next()]
        return min((at for at in times if at is not None), default=None)
