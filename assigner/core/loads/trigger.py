"""When a coordinator plans for load's sake, and that such a plan says so.

A group is looked at when its loads changed, and whenever a plan begins, since loads also go stale by themselves. Plans
that an operator asks for need not wait for the time between two changes of weights to pass.
"""

from __future__ import annotations

from assigner.core.group import GroupState
from assigner.core.loads.weights import GroupLoads, TopicSizes
from assigner.core.work_queue import Timer, WorkQueue
from assigner.model.records import Cause


class LoadTrigger:
    def __init__(self, state: GroupState, work: WorkQueue) -> None:
        self._state = state
        self._work = work
        self._loads: GroupLoads | None = None

    def changed(self, loads: GroupLoads | None, now: float) -> None:
        """They are others, or say something else. None: plans do not go by load."""
        self._loads = loads
        self._work.timers.sooner(Timer.LOADS, now)

    def consider(self, now: float, wall: float) -> None:
        """Ask for a plan if what is recorded is far from what plans are made by."""
        at = self._loads.wanted_at(self._sizes(), len(self._state.consumers), now, wall) if self._loads else None
        if at is None:
            return
        if at > now:
            self._work.timers.sooner(Timer.LOADS, at)
        else:
            self._work.want_plan(None, now)

    def begin_plan(self, causes: set[Cause], now: float, wall: float) -> GroupLoads | None:
        """The loads for a plan that is about to be made, and load among its causes if it differs for it."""
        at_once = Cause.OPERATOR in causes
        members = len(self._state.consumers)
        if self._loads and self._loads.take_up(self._sizes(), members, now, wall, at_once=at_once):
            causes.add(Cause.LOAD)
        return self._loads

    def _sizes(self) -> TopicSizes:
        topics = self._state.topics
        return [(topic, topics[topic].record.partition_count) for topic in sorted(topics)]
