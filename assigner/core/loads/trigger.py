"""Decides when changed loads are a reason to plan, and adds load to the causes of such a plan.

Loads are checked when they changed, and whenever a plan begins, since loads also go stale by themselves. Plans that an
operator asks for do not wait for the minimum time between two changes of weights.
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
        """Take changed loads. None: the group does not use them."""
        self._loads = loads
        self._work.timers.sooner(Timer.LOADS, now)

    def consider(self, now: float, wall: float) -> None:
        """Ask for a plan if the recorded loads have shifted from the weights in force."""
        at = self._loads.wanted_at(self._sizes(), len(self._state.consumers), now, wall) if self._loads else None
        if at is None:
            return
        if at > now:
            self._work.timers.sooner(Timer.LOADS, at)
        else:
            self._work.want_plan(None, now)

    def begin_plan(self, causes: set[Cause], now: float, wall: float) -> GroupLoads | None:
        """Return the loads for a plan that is about to be made. Adds load to its `causes` if the weights change."""
        at_once = Cause.OPERATOR in causes
        members = len(self._state.consumers)
        if self._loads and self._loads.take_up(self._sizes(), members, now, wall, at_once=at_once):
            causes.add(Cause.LOAD)
        return self._loads

    def _sizes(self) -> TopicSizes:
        topics = self._state.topics
        return [(topic, topics[topic].record.partition_count) for topic in sorted(topics)]
