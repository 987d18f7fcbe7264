"""Reads from the records who holds a copy of a partition beside its owner.

A record of standbys names consumers, not sessions: a copy lies on a disk and outlives the process that made it. It may
name the owner, to which it means nothing until the partition moves; so an old owner keeps its copy once it releases.

Not promised: that a copy is complete. Consumers do not report that; a holder is a consumer that was asked to keep one.
"""

from __future__ import annotations

from assigner.core.group import GroupState
from assigner.model.keys import TopicPartition
from assigner.model.records import Standbys, TopicConfig


def is_of_topic(record: Standbys, topic: TopicConfig) -> bool:
    """Whether the copies are of the topic as it is now, and not of one that had the name before."""
    return not record.topic_id or not topic.topic_id or record.topic_id == topic.topic_id


def holders(state: GroupState, tp: TopicPartition) -> tuple[str, ...]:
    """The consumers that the record names; none, if it is about an earlier topic of the same name."""
    stored = state.standbys.get(tp)
    if stored is None:
        return ()
    topic = state.topics.get(tp.topic)
    return stored.record.holders if topic is None or is_of_topic(stored.record, topic.record) else ()


def holds_copy(state: GroupState, tp: TopicPartition, name: str) -> bool:
    return name in holders(state, tp)


def is_standby(state: GroupState, tp: TopicPartition, name: str) -> bool:
    """Whether the consumer is to hold a copy without being the owner."""
    held = state.assignments.get(tp)
    return (held is None or held.record.owner != name) and holds_copy(state, tp, name)


def copy_is_elsewhere(state: GroupState, tp: TopicPartition, name: str) -> bool:
    """Whether a registered consumer stands by, and `name` does not."""
    named = holders(state, tp)
    return name not in named and any(other in state.consumers and is_standby(state, tp, other) for other in named)
