"""Limits how many topics and partitions a group may have, checked when a call adds some.

One call at a time for each group, so that concurrent calls do not exceed the quota together. Existing topics stay, even
if the quota was lowered since, and may shrink.

Not promised: that two instances called at the same moment do not exceed the quota together, or that a topic which grows
in Kafka is limited.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio

from assigner.errors import LimitReached, UnreadableRecord
from assigner.model.keys import Keys
from assigner.model.records import TopicConfig, decode
from assigner.store import Store, read_all


class TopicQuota:
    def __init__(
        self,
        store: Store,
        keys: Keys,
        *,
        topics: int,
        partitions: int,
        topic_partitions: int,
        refused: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`refused` is called with the reason of each refusal."""
        self._store = store
        self._keys = keys
        self._topics = topics
        self._partitions = partitions
        self._topic_partitions = topic_partitions
        self._refused = refused
        self._locks: dict[str, anyio.Lock] = {}

    @asynccontextmanager
    async def room_for(self, group: str, config: TopicConfig) -> AsyncIterator[None]:
        """Hold the group's lock while `config` is written. Raises `LimitReached` if it exceeds the quota."""
        lock = self._locks.setdefault(group, anyio.Lock())
        try:
            async with lock:
                self._check(group, config, await self._counts(group))
                yield
        finally:
            if not lock.locked() and not lock.statistics().tasks_waiting:
                self._locks.pop(group, None)

    async def _counts(self, group: str) -> dict[str, int]:
        prefix = self._keys.group(group).topic("")
        page = await read_all(self._store, prefix)
        return {entry.key: _count(entry.value) for entry in page.entries}

    def _check(self, group: str, config: TopicConfig, counts: dict[str, int]) -> None:
        key, wanted = self._keys.group(group).topic(config.topic), config.partition_count
        had = counts.get(key, 0)
        if wanted <= had:
            return
        total = sum(counts.values()) - had + wanted
        if wanted > self._topic_partitions:
            self._refuse(
                "partitions",
                f"topic {config.topic!r} of group {group!r} would have {wanted} partitions; a topic may have "
                f"{self._topic_partitions}: raise quotas.topic_partitions if it is meant",
            )
        if total > self._partitions:
            self._refuse(
                "partitions",
                f"group {group!r} would have {total} partitions; it may have {self._partitions}: use fewer, or raise "
                "quotas.partitions",
            )
        if key not in counts and len(counts) >= self._topics:
            self._refuse(
                "topics",
                f"group {group!r} has {len(counts)} topics, as many as quotas.topics allows; delete some with "
                "`assigner topics delete`, or raise it",
            )

    def _refuse(self, reason: str, message: str) -> None:
        self._refused(reason)
        raise LimitReached(message)


def _count(value: bytes) -> int:
    try:
        return decode(TopicConfig, value)[0].partition_count
    except UnreadableRecord:
        return 0
