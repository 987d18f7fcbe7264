"""Which topics move as one: the sets an operator named and, under `copartitioned`, those that look alike.

Topics look alike if they have as many partitions and the same subscribers. So such sets come and go with consumers;
partitions already in flight go on as they began.

What moves as one is written as one, so no set is larger than a transaction of the store allows. Larger ones are cut, in
name order: topics that look alike as a matter of course, named ones only if they are on record from elsewhere, for an
operator who names one is refused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from assigner.core.group import GroupState
from assigner.model.keys import TopicPartition
from assigner.store import Limits

BY_LIKENESS = "copartitioned"
"""The strategy that joins topics by itself."""
_PER_TOPIC = 2
"""What a write compares for each topic of a set: the assignment and the handoff. It puts no more than that."""
_BESIDES = 4
"""What it may compare besides: the leader's term, both ends' registrations, the group's options."""


def largest_set(limits: Limits) -> int:
    """The most topics whose partitions one transaction can give to another owner."""
    return max(1, (limits.operations - _BESIDES) // _PER_TOPIC)


def copartition_sets(state: GroupState) -> list[tuple[str, ...]]:
    """Sets of two or more topics, each in name order."""
    sets: list[tuple[str, ...]] = []
    for topics in state.options.copartitioned:
        sets += _cut(state, sorted({topic for topic in topics if topic in state.topics}))
    if state.options.strategy == BY_LIKENESS:
        sets += _alike(state, {topic for topics in sets for topic in topics})
    return sets


def slots(state: GroupState, topics: tuple[str, ...]) -> int:
    """How many partitions of each topic move as one. Topics of a set never grow at the same instant: what the others
    do not have yet moves by itself until they do."""
    return min(state.topics[topic].record.partition_count for topic in topics)


def companions_by_topic(state: GroupState) -> Mapping[str, tuple[str, ...]]:
    return {topic: topics for topics in copartition_sets(state) for topic in topics}


def _cut(state: GroupState, topics: list[str]) -> Iterator[tuple[str, ...]]:
    most = largest_set(state.limits)
    for first in range(0, len(topics), most):
        part = tuple(topics[first : first + most])
        if len(part) > 1:
            yield part


def _alike(state: GroupState, taken: set[str]) -> Iterator[tuple[str, ...]]:
    subscribers = _subscribers(state)
    found: defaultdict[tuple[int, tuple[int, ...]], list[str]] = defaultdict(list)
    for topic in sorted(state.topics):
        if topic not in taken:
            found[state.topics[topic].record.partition_count, subscribers.get(topic, ())].append(topic)
    for topics in found.values():
        yield from _cut(state, topics)


def _subscribers(state: GroupState) -> dict[str, tuple[int, ...]]:
    """Topic -> the kinds of consumers that name it. Those that want everything tell no topic from another, and those
    that want the same are one kind."""
    kinds = sorted({consumer.record.topics for consumer in state.consumers.values() if consumer.record.topics})
    named: defaultdict[str, list[int]] = defaultdict(list)
    for number, topics in enumerate(kinds):
        for topic in topics:
            named[topic].append(number)
    return {topic: tuple(numbers) for topic, numbers in named.items()}


# Partitions that move as one: the same number in each topic of a co-partition set. One flip, one pin.


class CopartitionUnits:
    def __init__(self, state: GroupState) -> None:
        self._state = state
        self._known: Mapping[str, tuple[str, ...]] | None = None

    def refresh(self) -> None:
        """Topics or options changed."""
        self._known = None

    def consumers_changed(self) -> None:
        if self._state.options.strategy == BY_LIKENESS:
            self._known = None

    @property
    def _topics(self) -> Mapping[str, tuple[str, ...]]:
        # Worked out when it is needed: many consumers may come at once.
        if self._known is None:
            self._known = companions_by_topic(self._state)
        return self._known

    def of(self, tp: TopicPartition) -> str:
        """The name of the set the partition moves with; none: it moves by itself."""
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
