"""The interface of a source of topic configurations, and the source that reads them from the settings.

For each topic a source answers with its configuration, that there is no such topic, or that it is unavailable.
Unavailable is never taken for missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from assigner.model.records import TopicConfig


class TopicMissing(msgspec.Struct, frozen=True):
    """The source has no such topic, for certain."""


class TopicUnavailable(msgspec.Struct, frozen=True):
    """The source could not answer; a retry may help."""

    reason: str


TopicAnswer = TopicConfig | TopicMissing | TopicUnavailable


class TopicSource(Protocol):
    @property
    def name(self) -> str:
        """The origin in records written from this source."""
        ...

    @property
    def remedy(self) -> str:
        """What an error tells the user to do about a missing topic."""
        ...

    async def describe(self, topics: Sequence[str]) -> Mapping[str, TopicAnswer]:
        """Describe the topics, with an answer for each. Ends within the source's own timeout and does not raise for a
        topic."""
        ...


class SettingsSource:
    """Reads partition counts from the settings."""

    name = "settings"
    remedy = "add it to the settings, or set it with `assigner topics set`"

    def __init__(self, partitions: Mapping[str, int]) -> None:
        self._partitions = dict(partitions)

    async def describe(self, topics: Sequence[str]) -> Mapping[str, TopicAnswer]:
        return {topic: self._answer(topic) for topic in topics}

    def _answer(self, topic: str) -> TopicAnswer:
        count = self._partitions.get(topic)
        if count is None:
            return TopicMissing()
        return TopicConfig(topic=topic, partition_count=count, source=self.name)
