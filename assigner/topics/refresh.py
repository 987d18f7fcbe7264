"""Polls Kafka, as the group's leader, for changes of the topics that were discovered there.

More partitions are recorded. Another topic id means that the topic was recreated: the new id is recorded, the offsets
of before are deleted, and the coordinator starts the topic without warm copies. A topic that Kafka has with fewer
partitions under the same id is logged and left alone. Topics set by an operator or by the settings are not touched.

A topic that Kafka no longer has is marked as missing, and its offsets count for nothing until it is back. Nothing is
destroyed for that, because Kafka's word is not final: a broker that has just started may not know a topic yet, and the
settings may name another cluster. So the mark needs several such answers in turn, and goes with the first other one.

Every write is fenced by the leader's term and by the record it was decided on. Not promised: that a change is seen
sooner than the interval, or at all while Kafka can't be reached.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from itertools import islice
from typing import Protocol

import anyio
import msgspec

from assigner.aio.backoff import Backoff
from assigner.errors import AssignerError
from assigner.logs import get_logger
from assigner.model.keys import Keys
from assigner.model.records import Stored, TopicConfig
from assigner.storage.update import Swapped, swap
from assigner.store import Committed, CreateRevisionIs, Delete, ModRevisionIs, Put, Store
from assigner.topics.source import TopicAnswer, TopicMissing, TopicSource, TopicUnavailable
from assigner.topics.writer import check_config

MISSING_AFTER = 3
"""Answers in turn that Kafka has no such topic, before it is marked as missing."""
CONFIRM_AFTER = 5.0
"""Seconds between these answers, if the interval is longer."""
_PAGE = 1_000

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
        self._all_keys = keys
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
        self._absent: dict[str, int] = {}
        """Topic -> how often in turn Kafka did not have it. No more entries than topics."""

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
                await anyio.sleep(min(self._interval, CONFIRM_AFTER) if self._is_to_confirm() else self._interval)

    def _is_to_confirm(self) -> bool:
        """Whether a topic was missing, and not often enough to be taken for missing."""
        return any(times < MISSING_AFTER for times in self._absent.values())

    async def refresh(self) -> int:
        """Refresh once, and return how many configurations were written. Raises what the source or the store raises."""
        mine = {topic: it for topic, it in self._current().items() if it.record.source == self._source.name}
        self._reported = {topic: problem for topic, problem in self._reported.items() if topic in mine}
        self._absent = {topic: times for topic, times in self._absent.items() if topic in mine}
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
                self._absent[topic] = self._absent.get(topic, 0) + 1
                if self._absent[topic] >= MISSING_AFTER and not known.record.missing:
                    return await self._mark_missing(known)
            case TopicUnavailable(reason=reason):
                self._report(topic, f"{self._source.name} can't tell: {reason}")
            case TopicConfig():
                self._absent.pop(topic, None)
                return await self._write_change(known, answer)
        return False

    async def _mark_missing(self, known: Stored[TopicConfig]) -> bool:
        written = await self._write(known, msgspec.structs.replace(known.record, missing=True))
        if written:
            log.warning("topic_missing", group=self._group, topic=known.record.topic)
        return written

    async def _write(self, known: Stored[TopicConfig], now: TopicConfig) -> bool:
        put = Put(known.key, known.encode(now))
        result = await swap(self._store, put, known.mod_revision, fences=[self._fence])
        if not isinstance(result, Swapped):
            # There is another leader, or the topic was set meanwhile: the next refresh starts from the stored record.
            log.info("topic_write_conflicted", group=self._group, topic=now.topic)
        return isinstance(result, Swapped)

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
        # Listed before the topic gets its new id: what is committed from then on is not of before.
        void = [entry async for entry in self._offsets_of(was.topic)] if recreated else []
        if not await self._write(known, now):
            return False
        await self._delete_unchanged(void)
        log.info(
            "topic_recreated" if recreated else "topic_changed",
            group=self._group,
            topic=was.topic,
            partitions=now.partition_count,
            previous_partitions=was.partition_count,
            topic_id=now.topic_id,
        )
        return True

    async def _offsets_of(self, topic: str) -> AsyncIterator[ModRevisionIs]:
        """The committed offsets of a topic, as preconditions that they are still the same."""
        prefix, after, more = self._all_keys.offsets(self._group, topic), "", True
        while more:
            page = await self._store.list(prefix, after=after, limit=_PAGE)
            for entry in page.entries:
                after = entry.key
                yield ModRevisionIs(entry.key, entry.mod_revision)
            more = page.more

    async def _delete_unchanged(self, offsets: Iterable[ModRevisionIs]) -> None:
        """Delete offsets. One that was committed again since stays: it is of the topic that is there now."""
        rest = iter(offsets)
        while part := tuple(islice(rest, self._store.limits.operations - 1)):
            deletes = [Delete(offset.key) for offset in part]
            if isinstance(await self._store.transact([self._fence, *part], deletes), Committed):
                continue
            for offset, delete in zip(part, deletes, strict=True):
                await self._store.transact([self._fence, offset], [delete])

    def _report(self, topic: str, problem: str) -> None:
        if self._reported.get(topic) != problem:
            self._reported[topic] = problem
            log.warning("topic_change_rejected", group=self._group, topic=topic, reason=problem)
