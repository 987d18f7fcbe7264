"""Watches a classic group's options and topics, and has its coordinator act on what changes.

- An operator asked for a rebalance: everybody joins again.
- The option `assignor` changed: the group is loaded again, and the next generation is assigned as it says.
- A topic has more partitions than the service assigned: everybody joins again. Where a member assigns, that member
  watches the topics by itself, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from assigner.core.group import Change
from assigner.kafka_groups.coordinator import GroupCoordinator
from assigner.model.keys import OptionsKey, TopicKey
from assigner.model.records import Assignor
from assigner.storage.mirror import GroupMirror


class GroupWatch:
    def __init__(self, mirror: GroupMirror, group: GroupCoordinator) -> None:
        self._mirror = mirror
        self._group = group
        self._asked = mirror.state.options.rebalance_requests
        """Requests for rebalances that were there before, or were carried out."""
        self.server_assigns = self._wants_server

    @property
    def _wants_server(self) -> bool:
        return self._mirror.state.options.assignor is Assignor.SERVER

    @contextmanager
    def listening(self) -> Iterator[None]:
        self._mirror.listen(self)
        try:
            yield
        finally:
            self._mirror.unlisten(self)

    def changed(self, changes: Sequence[Change]) -> None:
        if self._group.refusal or not any(isinstance(one.key, OptionsKey | TopicKey) for one in changes):
            return
        asked = self._mirror.state.options.rebalance_requests
        if self._wants_server is not self.server_assigns:
            self._group.reload("the option `assignor` has changed")
        elif asked > self._asked:
            self._asked = asked
            self._group.rebalance("an operator asked for it")
        elif grown := self._grown():
            self._group.rebalance(f"topic {grown!r} has more partitions")

    def _grown(self) -> str:
        """A topic with more partitions than the service assigned; empty: there is none."""
        assigned = self._group.assigned
        if assigned is None:
            return ""
        for topic in self._group.machine.topics or ():
            known = self._mirror.state.topics.get(topic)
            if known is not None and known.record.partition_count > assigned.get(topic, 0):
                return topic
        return ""
