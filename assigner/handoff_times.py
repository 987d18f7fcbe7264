"""How long handoffs stay in each step, as the leader sees it."""

from __future__ import annotations

from assigner.clock import Clock
from assigner.core.group import Change
from assigner.keys import HandoffKey, TopicPartition
from assigner.metrics import Metrics
from assigner.records import Step


class HandoffTimes:
    def __init__(self, clock: Clock, metrics: Metrics) -> None:
        self._clock = clock
        self._metrics = metrics
        self._since: dict[TopicPartition, tuple[Step, float]] = {}

    def observe(self, change: Change) -> None:
        if not isinstance(change.key, HandoffKey):
            return
        tp = change.key.tp
        now = self._clock.now()
        step = change.after.record.at if change.after else None
        before = self._since.get(tp)
        if before and before[0] is not step:
            self._metrics.handoff_step(before[0], now - before[1])
        if step is None:
            self._since.pop(tp, None)
        elif before is None or before[0] is not step:
            self._since[tp] = (step, now)
