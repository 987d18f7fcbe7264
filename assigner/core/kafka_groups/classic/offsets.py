"""Decides about committed offsets of classic groups: which commits and deletes are refused, and which offsets expire.

A group that nobody ever joined, a simple group, has no protocol type. Its consumers choose their partitions themselves
and only commit; a commit without a generation brings such a group into being.

Offsets expire when they have not been needed for the retention time: those of a group without members counted from
when it became empty, those of a simple group from their commit. In a stable group they expire from their commit too,
topic by topic, once no member subscribes to the topic. Where subscriptions are not known, nothing expires.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from assigner.core.kafka_groups.classic.machine import ClassicGroup
from assigner.model.kafka_groups import (
    ClassicCommit,
    ClassicOffset,
    ClassicState,
    CommitAnswer,
    KafkaError,
    PartitionError,
)

PartitionCount = Callable[[str], int | None]
"""How many partitions a topic has; None: there is no such topic."""


def refused(commit: ClassicCommit, error: KafkaError) -> CommitAnswer:
    """Refuse a commit as a whole."""
    return CommitAnswer(partitions=tuple(PartitionError(one.topic, one.partition, error) for one in commit.offsets))


def check_partition(offset: ClassicOffset, partitions: PartitionCount, max_metadata: int) -> KafkaError:
    count = partitions(offset.topic)
    if count is None or not 0 <= offset.partition < count:
        return KafkaError.UNKNOWN_TOPIC_OR_PARTITION
    if len(offset.metadata or "") > max_metadata:
        return KafkaError.OFFSET_METADATA_TOO_LARGE
    return KafkaError.NONE


def check_partitions(
    commit: ClassicCommit, partitions: PartitionCount, max_metadata: int
) -> tuple[tuple[ClassicOffset, KafkaError], ...]:
    """What is wrong with each offset of a commit that the group accepts. Those with nothing wrong are to be written.
    Of several offsets of one partition, the last one is written, so the earlier ones are what it replaces."""
    return tuple((offset, check_partition(offset, partitions, max_metadata)) for offset in commit.offsets)


def check_offset_delete(group: ClassicGroup) -> KafkaError:
    """Whether offsets of the group may be deleted at all; see `check_topic_delete` for each topic."""
    match group.state:
        case ClassicState.EMPTY if group.exists:
            return KafkaError.NONE
        case ClassicState.EMPTY | ClassicState.DEAD:
            return KafkaError.GROUP_ID_NOT_FOUND
        case _:
            return KafkaError.NONE if group.uses_consumer_protocol else KafkaError.NON_EMPTY_GROUP


def check_topic_delete(group: ClassicGroup, topic: str) -> KafkaError:
    return KafkaError.GROUP_SUBSCRIBED_TO_TOPIC if group.is_subscribed(topic) else KafkaError.NONE


class Expiry:
    """Which offsets of a group have expired by now."""

    def __init__(self, group: ClassicGroup, since: int, retention: int, wall: int) -> None:
        """`since`: when the group became empty, if it is. All times in milliseconds."""
        self._group = group
        self._limit = wall - retention
        self._since = since

    @property
    def can_tell(self) -> bool:
        """Whether any offset can have expired, so that it is worth to look at them."""
        group = self._group
        if group.protocol_type is None:
            return True
        if group.state is ClassicState.EMPTY:
            return self._since <= self._limit
        return group.state is ClassicState.STABLE and group.uses_consumer_protocol and group.topics is not None

    def has_expired(self, topic: str, committed_at: int) -> bool:
        group = self._group
        if not self.can_tell or group.is_subscribed(topic):
            return False
        is_empty = group.protocol_type is not None and group.state is ClassicState.EMPTY
        return is_empty or committed_at <= self._limit

    def expired(self, offsets: Iterable[tuple[str, int, int]]) -> list[tuple[str, int]]:
        """`offsets`: (topic, partition, committed at)."""
        return [(topic, partition) for topic, partition, at in offsets if self.has_expired(topic, at)]
