"""Topics as the rows of a strategy's problem.

A topic is a row. One that has more partitions than others of its co-partition set have yet is two: what moves as one
with them, and the rest, which moves by itself. So every set a strategy is told of has topics of equal counts, and the
flat order of partitions stays what it is.
"""

from __future__ import annotations

import msgspec
import numpy as np

from assigner.core.copartitions import BY_LIKENESS, copartition_sets, slots
from assigner.core.group import GroupState
from assigner.strategy import NONE, BoolArray, IntArray, Topics, name_keys


class _Row(msgspec.Struct, frozen=True, gc=False):
    name: str
    topic: int
    """Its place among the topics in name order."""
    count: int
    joined: int
    """The number of its set or NONE."""


class TopicRows:
    def __init__(self, state: GroupState) -> None:
        sets = copartition_sets(state)
        self._by_likeness = state.options.strategy == BY_LIKENESS
        self._joined = {topic: number for number, topics in enumerate(sets) for topic in topics}
        self._slots = [slots(state, topics) for topics in sets]
        names = sorted(state.topics)
        counts = [state.topics[name].record.partition_count for name in names]
        self._rows = [row for place, name in enumerate(names) for row in self._of(place, name, counts[place])]
        self._split = len(self._rows) > len(names)

    def _of(self, place: int, name: str, count: int) -> list[_Row]:
        number = self._joined.get(name, NONE)
        if number == NONE or count == self._slots[number]:
            return [_Row(name, place, count, number)]
        together = self._slots[number]
        return [_Row(name, place, together, number), _Row(f"{name}+{together}", place, count - together, NONE)]

    def topics(self) -> Topics:
        counts = np.asarray([row.count for row in self._rows], np.int32)
        return Topics(partitions=counts, copartition=self._sets(), key=name_keys([row.name for row in self._rows]))

    def columns(self, wanted: BoolArray) -> BoolArray:
        """[member, row], from [member, topic in name order]."""
        return wanted[:, [row.topic for row in self._rows]] if self._split else wanted

    def _sets(self) -> IntArray | None:
        """Set number per row; None: every topic moves by itself."""
        numbers = [row.joined for row in self._rows]
        if self._by_likeness:
            # It would join by itself what is not in a set, by the members of the plan alone. Partitions move as one
            # where the sets here say so, and the two must agree.
            alone = iter(range(len(self._slots), len(self._slots) + len(self._rows)))
            numbers = [next(alone) if number == NONE else number for number in numbers]
        return np.asarray(numbers, np.int32) if any(number != NONE for number in numbers) else None
