"""The leader's work queue: partitions to examine, timers, cooldowns, and when the next plan is due and why.

The core never reads a clock. Work that is due later is put into a `Schedule`, and `next_wake` says when the driver
has to come back. A partition that is enqueued several times before it is examined is examined once.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Generic, TypeVar

from assigner.core.group import GroupState
from assigner.model.keys import TopicPartition
from assigner.model.records import Cause

K = TypeVar("K", bound=Hashable)


class Schedule(Generic[K]):
    """Due times by key on one heap. A key has at most one; a later `set` replaces an earlier one."""

    def __init__(self) -> None:
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, key: K) -> bool:
        return key in self._due

    def set(self, key: K, at: float) -> None:
        self._due[key] = at
        self._count += 1
        heapq.heappush(self._heap, (at, self._count, key))

    def sooner(self, key: K, at: float) -> None:
        """Set a due time unless the key is due earlier already."""
        if at < self._due.get(key, float("inf")):
            self.set(key, at)

    def clear(self, key: K) -> None:
        self._due.pop(key, None)

    def passed(self, key: K, now: float) -> bool:
        return self._due.get(key, float("inf")) <= now

    def pop_due(self, now: float) -> list[K]:
        due: list[K] = []
        while self._heap and self._heap[0][0] <= now:
            at, _, key = heapq.heappop(self._heap)
            if self._due.get(key) == at:
                del self._due[key]
                due.append(key)
        return due

    def next(self) -> float | None:
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None


RETRY = 0.05
"""Seconds after a conflict: long enough for the mirror to show what the write conflicted with."""


class Timer(Enum):
    """The leader's timers, besides those of partitions and plans. Each is set at most once at a time."""

    GRACE_PERIOD = auto()
    """The grace period of an absent session is over."""
    EMPTY = auto()
    """No consumer has been registered for so long that ownership is removed."""
    LEASES = auto()
    """Leases whose end decides about a session are asked about again."""
    LOADS = auto()
    """Loads may have changed enough for a plan."""
    FLOOR = auto()
    """The epoch floor has to be raised."""
    PLAN = auto()
    """The plan record was written by another writer, or was too large: it is not written before."""


@dataclass(frozen=True)
class Note:
    """A decision that an operator should find in the log."""

    event: str
    tp: TopicPartition | None = None
    consumer: str = ""
    reason: str = ""


class WorkQueue:
    def __init__(self, state: GroupState, now: float) -> None:
        self._state = state
        self.dirty: dict[TopicPartition, None] = {}
        """Partitions to examine, in the order they were enqueued."""
        self.timers: Schedule[Timer] = Schedule()
        self.cooldowns: Schedule[TopicPartition] = Schedule()
        """Partitions whose move was abandoned, until they may be moved again."""
        self.plan_due: float | None = now
        self._planned_at = now - RETRY
        self._causes: set[Cause] = set()
        """Why the next plan is wanted."""
        self._retries: Schedule[TopicPartition] = Schedule()
        self._notes: list[Note] = []

    def enqueue(self, tps: Iterable[TopicPartition]) -> None:
        self.dirty.update(dict.fromkeys(tps))

    def pop(self) -> TopicPartition:
        tp = next(iter(self.dirty))
        del self.dirty[tp]
        return tp

    def retry(self, tps: Iterable[TopicPartition], now: float) -> None:
        for tp in tps:
            self._retries.set(tp, now + RETRY)

    def want_plan(self, cause: Cause | None, now: float, delay: float | None = None) -> None:
        """Ask for a plan within the debounce time. A plan that is due earlier stays due earlier."""
        if cause:
            self._causes.add(cause)
        at = now + (self._state.options.debounce if delay is None else delay)
        self.plan_due = at if self.plan_due is None else min(at, self.plan_due)

    def want_plan_again(self, causes: Iterable[Cause], now: float, delay: float | None = None) -> None:
        """Ask for a plan for all causes of one that has to be repeated, within the debounce time."""
        self._causes.update(causes)
        self.want_plan(None, now, delay)

    def plan_is_due(self, now: float) -> bool:
        """Whether to plan now. Two plans are at least `RETRY` apart, however short the debounce."""
        if self.plan_due is None:
            return False
        self.plan_due = max(self.plan_due, self._planned_at + RETRY)
        return now >= self.plan_due

    def take_plan(self, now: float) -> set[Cause]:
        """Begin the plan that was asked for. Returns its causes."""
        self.plan_due, self._planned_at = None, now
        causes, self._causes = self._causes, set()
        return causes

    def note(self, note: Note) -> None:
        self._notes.append(note)

    def take_notes(self) -> list[Note]:
        notes, self._notes = self._notes, []
        return notes

    def is_cooling_down(self, tp: TopicPartition, now: float) -> bool:
        return tp in self.cooldowns and not self.cooldowns.passed(tp, now)

    def clear_cooldowns(self) -> None:
        self.cooldowns = Schedule()

    def wake(self, now: float) -> list[Timer]:
        """Enqueue what is due. Returns the timers that went off."""
        self.enqueue(self._retries.pop_due(now))
        free = self.cooldowns.pop_due(now)
        if free:
            self.enqueue(free)
            self.want_plan(None, now)
        return self.timers.pop_due(now)

    def next_wake(self, *, plans: bool) -> float | None:
        """When to wake up next; None: never. `plans`: whether a plan could be made when it is due."""
        times = [self.plan_due if plans else None, self._retries.next(), self.cooldowns.next(), self.timers.next()]
        return min((at for at in times if at is not None), default=None)
