"""Whom to ask what a topic is like.

A source answers for each topic it is asked about: its configuration, that there is no such topic, or that it can't
tell right now. Not being able to tell is never taken for absence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from assigner.model.records import TopicConfig


class TopicMissing(msgspec.Struct, frozen=True):
    """The source knows for sure that it has no such topic."""


class TopicUnavailable(msgspec.Struct, frozen=True):
    """The source could not tell; asking again may help."""

    reason: str


TopicAnswer = TopicConfig | TopicMissing | TopicUnavailable


class TopicSource(Protocol):
    @property
    def name(self) -> str:
        """What records written from this source say of their origin."""
        ...

    @property
    def remedy(self) -> str:
        """What to do about a topic it does not have."""
        ...

    async def describe(self, topics: Sequence[str]) -> Mapping[str, TopicAnswer]:
        """An answer for every topic asked about. Ends within a time of its own and does not raise for a topic."""
        ...


class SettingsSource:
    """Partition counts as the settings give them."""

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
