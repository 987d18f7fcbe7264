"""Which topics move as one: the sets an operator named and, under `copartitioned`, those that look alike.

Topics look alike if they have as many partitions and the same subscribers. So such sets come and go with consumers;
partitions already in flight go on as they began.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from assigner.core.group import GroupState

BY_LIKENESS = "copartitioned"
"""The strategy that joins topics by itself."""


def copartition_sets(state: GroupState) -> list[tuple[str, ...]]:
    """Sets of two or more topics, each in name order. A named set with unequal counts can't move as one: its topics
    count as if it were not there."""
    sets: list[tuple[str, ...]] = []
    for topics in state.options.copartitioned:
        known = tuple(sorted({topic for topic in topics if topic in state.topics}))
        counts = {state.topics[topic].record.partition_count for topic in known}
        if len(known) > 1 and len(counts) == 1:
            sets.append(known)
    if state.options.strategy == BY_LIKENESS:
        sets += _alike(state, {topic for topics in sets for topic in topics})
    return sets


def companions_by_topic(state: GroupState) -> Mapping[str, tuple[str, ...]]:
    return {topic: topics for topics in copartition_sets(state) for topic in topics}


def _alike(state: GroupState, taken: set[str]) -> list[tuple[str, ...]]:
    subscribers = _subscribers(state)
    found: defaultdict[tuple[int, tuple[int, ...]], list[str]] = defaultdict(list)
    for topic in sorted(state.topics):
        if topic not in taken:
            found[state.topics[topic].record.partition_count, subscribers.get(topic, ())].append(topic)
    return [tuple(topics) for topics in found.values() if len(topics) > 1]


def _subscribers(state: GroupState) -> dict[str, tuple[int, ...]]:
    """Topic -> the kinds of consumers that name it. Those that want everything tell no topic from another, and those
    that want the same are one kind."""
    kinds = sorted({consumer.record.topics for consumer in state.consumers.values() if consumer.record.topics})
    named: defaultdict[str, list[int]] = defaultdict(list)
    for number, topics in enumerate(kinds):
        for topic in topics:
            named[topic].append(number)
    return {topic: tuple(numbers) for topic, numbers in named.items()}
