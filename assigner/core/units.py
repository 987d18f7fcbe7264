"""Partitions that move as one: the same number in each topic of a co-partition set. One flip, one pin."""

from __future__ import annotations

from collections.abc import Mapping

from assigner.core.copartitions import BY_LIKENESS, companions_by_topic, slots
from assigner.core.group import GroupState
from assigner.keys import TopicPartition


class Units:
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
