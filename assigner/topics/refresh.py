"""Polls Kafka, as the group's leader, for changes of the topics that were discovered there.

More partitions are recorded. Another topic id means that the topic was recreated: the new id is recorded, and the
coordinator starts the topic without offsets and warm copies. A topic that Kafka no longer has, or has with fewer
partitions under the same id, is logged and left alone. Topics set by an operator or by the settings are not touched.

Every write is fenced by the leader's term and by the record it was decided on. Not promised: that a change is seen
sooner than the interval, or at all while Kafka can't be reached.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import anyio
import msgspec

from assigner.aio.backoff import Backoff
from assigner.errors import AssignerError
from assigner.logs import get_logger
from assigner.model.keys import Keys
from assigner.model.records import Stored, TopicConfig
from assigner.storage.update import Swapped, swap
from assigner.store import CreateRevisionIs, Put, Store
from assigner.topics.source import TopicAnswer, TopicMissing, TopicSource, TopicUnavailable
from assigner.topics.writer import check_config

log = get_logger("assigner.topics")


class RefreshCounter(Protocol):
    """Counts a refresher's lookups, for metrics."""

    def topics_looked_up(self, group: str, outcome: str, changed: int) -> None:
        """Count a lookup. `outcome`: ok, partial (Kafka described only some of the topics) or failed."""


class TopicRefresher:
    def __init__(
        self,
        store: Store,
        keys: Keys,
        group: str,
        source: TopicSource,
        fence: CreateRevisionIs,
        interval: float,
        current: Callable[[], Mapping[str, Stored[TopicConfig]]],
        counter: RefreshCounter,
    ) -> None:
        """`current` returns the mirrored configurations of the group; `fence` is the leader's term."""
        self._store = store
        self._keys = keys.group(group)
        self._group = group
        self._source = source
        self._fence = fence
        self._interval = interval
        self._current = current
        self._counter = counter
        self._backoff = Backoff(f"topics/{group}", first=1.0, most=max(interval, 1.0))
        self._reported: dict[str, str] = {}
        """Topic -> the problem that was logged last, so that it is logged once. No more entries than topics."""

    async def run(self) -> None:
        """Refresh at the interval until cancelled. After a failure the pause is short, and grows with each further
        one."""
        while True:
            try:
                await self.refresh()
            except AssignerError as error:
                log.warning("topic_refresh_failed", group=self._group, error=str(error))
                self._counter.topics_looked_up(self._group, "failed", 0)
                await self._backoff.pause()
            else:
                self._backoff.reset()
                await anyio.sleep(self._interval)

    async def refresh(self) -> int:
        """Refresh once, and return how many configurations were written. Raises what the source or the store raises."""
        mine = {topic: it for topic, it in self._current().items() if it.record.source == self._source.name}
        self._reported = {topic: problem for topic, problem in self._reported.items() if topic in mine}
        if not mine:
            return 0
        answers = await self._source.describe(sorted(mine))
        changed, unavailable = 0, 0
        for topic, known in mine.items():
            answer = answers.get(topic, TopicUnavailable("no answer"))
            unavailable += isinstance(answer, TopicUnavailable)
            changed += await self._apply(known, answer)
        outcome = "ok" if not unavailable else "partial" if unavailable < len(mine) else "failed"
        self._counter.topics_looked_up(self._group, outcome, changed)
        return changed

    async def _apply(self, known: Stored[TopicConfig], answer: TopicAnswer) -> bool:
        topic = known.record.topic
        match answer:
            case TopicMissing():
                self._report(topic, f"{self._source.name} has no such topic any more; left as it is")
            case TopicUnavailable(reason=reason):
                self._report(topic, f"{self._source.name} can't tell: {reason}")
            case TopicConfig():
                return await self._write_change(known, answer)
        return False

    async def _write_change(self, known: Stored[TopicConfig], found: TopicConfig) -> bool:
        was = known.record
        now = msgspec.structs.replace(found, topic_id=found.topic_id or was.topic_id)
        if now == was:
            self._reported.pop(was.topic, None)
            return False
        recreated = bool(was.topic_id) and now.topic_id != was.topic_id
        if now.partition_count < was.partition_count and not recreated:
            self._report(was.topic, f"{was.partition_count} partitions became {now.partition_count}; left as they are")
            return False
        check_config(now)
        self._reported.pop(was.topic, None)
        put = Put(known.key, known.encode(now))
        result = await swap(self._store, put, known.mod_revision, fences=[self._fence])
        if not isinstance(result, Swapped):
            # There is another leader, or the topic was set meanwhile: the next refresh starts from the stored record.
            log.info("topic_write_conflicted", group=self._group, topic=was.topic)
            return False
        log.info(
            "topic_recreated" if recreated else "topic_changed",
            group=self._group,
            topic=was.topic,
            partitions=now.partition_count,
            previous_partitions=was.partition_count,
            topic_id=now.topic_id,
        )
        return True

    def _report(self, topic: str, problem: str) -> None:
        if self._reported.get(topic) != problem:
            self._reported[topic] = problem
            log.warning("topic_change_rejected", group=self._group, topic=topic, reason=problem)
