"""A leader's look at Kafka, now and then: what has changed about the topics that were discovered there.

More partitions are taken over. Another topic id means that the topic was deleted and made again: the new id is
recorded, and the coordinator starts it without offsets and warmth. A topic that Kafka no longer has, or has with fewer
partitions under the same id, is reported and left alone. Topics that somebody set are not touched.

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


class RefreshTally(Protocol):
    """Who counts what a refresher does."""

    def topics_looked_up(self, group: str, outcome: str, changed: int) -> None:
        """`outcome`: ok, partial (Kafka did not tell of all topics) or failed."""


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
        tally: RefreshTally,
    ) -> None:
        """`current` gives the group's configurations as they are known now; `fence` is the leader's term."""
        self._store = store
        self._keys = keys.group(group)
        self._group = group
        self._source = source
        self._fence = fence
        self._interval = interval
        self._current = current
        self._tally = tally
        self._backoff = Backoff(f"topics/{group}", first=1.0, most=max(interval, 1.0))
        self._doubts: dict[str, str] = {}
        """What was already reported of a topic, so that it is said once. No more entries than topics."""

    async def run(self) -> None:
        """Look, wait, look again, until cancelled. A failure shortens the wait at first, then lengthens it."""
        while True:
            try:
                await self.refresh()
            except AssignerError as error:
                log.warning("topic_refresh_failed", group=self._group, error=str(error))
                self._tally.topics_looked_up(self._group, "failed", 0)
                await self._backoff.pause()
            else:
                self._backoff.reset()
                await anyio.sleep(self._interval)

    async def refresh(self) -> int:
        """One look; how many configurations were written. Raises what the source or the store raise."""
        mine = {topic: it for topic, it in self._current().items() if it.record.source == self._source.name}
        self._doubts = {topic: said for topic, said in self._doubts.items() if topic in mine}
        if not mine:
            return 0
        answers = await self._source.describe(sorted(mine))
        changed, untold = 0, 0
        for topic, known in mine.items():
            answer = answers.get(topic, TopicUnavailable("no answer"))
            untold += isinstance(answer, TopicUnavailable)
            changed += await self._take(known, answer)
        outcome = "ok" if not untold else "partial" if untold < len(mine) else "failed"
        self._tally.topics_looked_up(self._group, outcome, changed)
        return changed

    async def _take(self, known: Stored[TopicConfig], answer: TopicAnswer) -> bool:
        topic = known.record.topic
        match answer:
            case TopicMissing():
                self._doubt(topic, f"{self._source.name} has no such topic any more; left as it is")
            case TopicUnavailable(reason=reason):
                self._doubt(topic, f"{self._source.name} can't tell: {reason}")
            case TopicConfig():
                return await self._follow(known, answer)
        return False

    async def _follow(self, known: Stored[TopicConfig], found: TopicConfig) -> bool:
        was = known.record
        now = msgspec.structs.replace(found, topic_id=found.topic_id or was.topic_id)
        if now == was:
            self._doubts.pop(was.topic, None)
            return False
        recreated = bool(was.topic_id) and now.topic_id != was.topic_id
        if now.partition_count < was.partition_count and not recreated:
            self._doubt(was.topic, f"{was.partition_count} partitions became {now.partition_count}; left as they are")
            return False
        check_config(now)
        self._doubts.pop(was.topic, None)
        put = Put(known.key, known.encode(now))
        result = await swap(self._store, put, known.mod_revision, fences=[self._fence])
        if not isinstance(result, Swapped):
            # There is another leader, or the topic was set by somebody else: the next look starts from what is there.
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

    def _doubt(self, topic: str, said: str) -> None:
        if self._doubts.get(topic) != said:
            self._doubts[topic] = said
            log.warning("topic_change_rejected", group=self._group, topic=topic, reason=said)
