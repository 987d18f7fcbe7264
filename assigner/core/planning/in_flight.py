"""Counts the handoffs in flight, stored or about to be created, for the limits on how many there may be.

This is the only place that counts them. A handoff whose creation is being written counts at once, and is not counted
twice when the mirror shows it before its write is settled.
"""

from __future__ import annotations

from collections import Counter

from assigner.core.group import Change, GroupState
from assigner.core.writes import Write
from assigner.model.keys import TopicPartition
from assigner.model.records import Handoff, Step


class HandoffsInFlight:
    def __init__(self, state: GroupState) -> None:
        self._state = state
        self._warming: Counter[str] = Counter()
        """Consumer -> stored handoffs that it warms."""
        self._moving: Counter[str] = Counter()
        """Topic -> its stored handoffs that have a new owner."""
        self._starting: dict[TopicPartition, Write] = {}
        """Partitions whose handoff is being created."""
        self._starting_for: Counter[str] = Counter()
        self._targets: dict[Write, str] = {}
        for handoff in state.handoffs.values():
            self._count(handoff.record, 1)

    def observe(self, change: Change) -> None:
        """Take a change of a handoff's record."""
        for stored, by in ((change.before, -1), (change.after, 1)):
            if stored:
                self._count(stored.record, by)

    def begin(self, write: Write, target: str) -> None:
        """Count the handoffs to `target` that a write in flight creates. Empty: to a consumer that warms nothing."""
        self._targets[write] = target
        _add(self._starting_for, target, len(write.partitions))
        self._starting.update(dict.fromkeys(write.partitions, write))

    def settle(self, write: Write) -> None:
        """Drop a write that is over, and mirrored if it went in."""
        target = self._targets.pop(write, None)
        if target is None:
            return
        _add(self._starting_for, target, -len(write.partitions))
        for tp in write.partitions:
            if self._starting.get(tp) is write:
                del self._starting[tp]

    def is_starting(self, tp: TopicPartition) -> bool:
        return tp in self._starting

    def warming(self, name: str) -> int:
        """How many partitions the consumer warms or is about to warm."""
        return self._warming[name] + self._starting_for[name]

    def __len__(self) -> int:
        """How many partitions are on their way to a new owner. Those of topics that are gone or unreadable do not
        count: nothing moves them on."""
        moving = sum(count for topic, count in self._moving.items() if topic in self._state.topics)
        return moving + sum(tp not in self._state.handoffs for tp in self._starting)

    def _count(self, handoff: Handoff, by: int) -> None:
        if handoff.at is Step.WARMING:
            _add(self._warming, handoff.new_owner, by)
        if not handoff.to_nobody:
            _add(self._moving, handoff.topic, by)


def _add(counter: Counter[str], key: str, by: int) -> None:
    """Add to a name's count, and drop the name at zero: pods' names would pile up with every deploy."""
    counter[key] += by
    if not counter[key]:
        del counter[key]
