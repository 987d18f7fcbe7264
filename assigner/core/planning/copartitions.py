"""Finds the co-partition sets: topics whose partitions of the same number move as one.

A set is named by an operator or, under the strategy `copartitioned`, found by likeness: topics with equal partition
counts and the same subscribers. So such sets change with the consumers; partitions in flight finish as they began.

What moves as one is written as one, so no set is larger than a transaction of the store allows. Larger ones are cut, in
name order. An operator that names a larger set is refused; one on record from another writer is cut like the others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from assigner.core.group import GroupState
from assigner.model.keys import TopicPartition
from assigner.store import Limits

BY_LIKENESS = "copartitioned"
"""The strategy that finds sets by likeness."""
_PER_TOPIC = 2
"""Preconditions of a write for each topic of a set: the assignment and the handoff. It has no more operations."""
_BESIDES = 4
"""Its other preconditions: the leader's term, both owners' registrations, the group's options."""


def largest_set(limits: Limits) -> int:
    """The most topics whose partitions one transaction can give to another owner."""
    return max(1, (limits.operations - _BESIDES) // _PER_TOPIC)


def copartition_sets(state: GroupState) -> list[tuple[str, ...]]:
    """Sets of two or more topics, each in name order."""
    sets: list[tuple[str, ...]] = []
    for topics in state.options.copartitioned:
        sets += _cut(state, sorted({topic for topic in topics if topic in state.topics}))
    if state.options.strategy == BY_LIKENESS:
        sets += _by_likeness(state, {topic for topics in sets for topic in topics})
    return sets


def slots(state: GroupState, topics: tuple[str, ...]) -> int:
    """How many partitions of each topic move as one. Topics of a set never grow at the same instant: partitions that
    the others do not have yet move by themselves until they do."""
    return min(state.topics[topic].record.partition_count for topic in topics)


def companions_by_topic(state: GroupState) -> Mapping[str, tuple[str, ...]]:
    return {topic: topics for topics in copartition_sets(state) for topic in topics}


def _cut(state: GroupState, topics: list[str]) -> Iterator[tuple[str, ...]]:
    most = largest_set(state.limits)
    for first in range(0, len(topics), most):
        part = tuple(topics[first : first + most])
        if len(part) > 1:
            yield part


def _by_likeness(state: GroupState, taken: set[str]) -> Iterator[tuple[str, ...]]:
    subscribers = _subscribers(state)
    found: defaultdict[tuple[int, tuple[int, ...]], list[str]] = defaultdict(list)
    for topic in sorted(state.topics):
        if topic not in taken:
            found[state.topics[topic].record.partition_count, subscribers.get(topic, ())].append(topic)
    for topics in found.values():
        yield from _cut(state, topics)


def _subscribers(state: GroupState) -> dict[str, tuple[int, ...]]:
    """Topic -> the subscriptions that name it, by number. Equal subscriptions count once; those to all topics are left
    out, because they do not distinguish topics."""
    kinds = sorted({consumer.record.topics for consumer in state.consumers.values() if consumer.record.topics})
    named: defaultdict[str, list[int]] = defaultdict(list)
    for number, topics in enumerate(kinds):
        for topic in topics:
            named[topic].append(number)
    return {topic: tuple(numbers) for topic, numbers in named.items()}


class CopartitionUnits:
    """Knows which partitions move as one: the same number in each topic of a co-partition set. They are pinned, handed
    over and cut over together."""

    def __init__(self, state: GroupState) -> None:
        self._state = state
        self._known: Mapping[str, tuple[str, ...]] | None = None

    def refresh(self) -> None:
        """Compute the sets again, after a change of topics or options."""
        self._known = None

    def consumers_changed(self) -> None:
        if self._state.options.strategy == BY_LIKENESS:
            self._known = None

    @property
    def _topics(self) -> Mapping[str, tuple[str, ...]]:
        # Computed when it is needed: many consumers may join at once.
        if self._known is None:
            self._known = companions_by_topic(self._state)
        return self._known

    def of(self, tp: TopicPartition) -> str:
        """The name of the set that the partition moves with; empty: it moves by itself."""
        topics = self._topics.get(tp.topic)
        return topics[0] if topics and tp.partition < slots(self._state, topics) else ""

    def in_flight(self, tp: TopicPartition, handoff_id: str) -> tuple[TopicPartition, ...]:
        """The partitions of the same set that are in the same handoff."""
        topics = self._topics.get(tp.topic)
        if not topics or not handoff_id:
            return (tp,)
        others = (TopicPartition(topic, tp.partition) for topic in topics)
        return tuple(
            other
            for other in others
            if (handoff := self._state.handoffs.get(other)) and handoff.record.handoff_id == handoff_id
        )
