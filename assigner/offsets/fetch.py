"""Reads committed offsets from the store, never from a mirror: a new owner must see what the last one committed.

A page that gets too long for one message is cut, and the caller continues from there. The offset of a topic that is
missing in Kafka, or was deleted and recreated, counts as none, even before it is deleted. An unreadable offset is named
as such: if it counted as none, its owner would go back to the beginning.

Not promised: that the offsets of different partitions are of the same moment.
"""

from __future__ import annotations

from collections.abc import Sequence

from assigner.api import FoundOffsets, WantedOffsets
from assigner.errors import InvalidInput, UnreadableRecord
from assigner.logs import get_logger
from assigner.model.keys import Keys, TopicPartition
from assigner.model.records import Offset, TopicConfig, decode
from assigner.storage.multi_get import IN_FLIGHT, multi_get
from assigner.store import Entry, Found, GetResult, Store

MAX_PAGE = 10_000
"""Partitions in one page."""
MAX_PAGE_BYTES = 1024 * 1024
_LISTED = 1_000
"""Offsets read in one call to the store."""

log = get_logger("assigner.offsets.fetch")


class OffsetReader:
    def __init__(self, store: Store, keys: Keys) -> None:
        self._store = store
        self._keys = keys

    async def fetch(self, group: str, wanted: WantedOffsets) -> FoundOffsets:
        page = _Page()
        if wanted.partitions:
            await self._fetch_named(group, wanted.partitions, page)
        else:
            await self._fetch_all(group, wanted, page)
        # After the offsets, or the first commits of a topic recreated in between would look like its predecessor's.
        configs = await self._configs(group, {tp.topic for tp, record in page.read if record is not None})
        return page.found(configs)

    async def _fetch_named(self, group: str, partitions: Sequence[TopicPartition], page: _Page) -> None:
        size = IN_FLIGHT * self._store.limits.operations
        for start in range(0, len(partitions), size):
            part = partitions[start : start + size]
            found = await multi_get(self._store, [self._keys.offset(group, tp) for tp in part])
            for tp, result in zip(part, found, strict=True):
                if not page.takes(tp, _value(result)):
                    return

    async def _fetch_all(self, group: str, wanted: WantedOffsets, page: _Page) -> None:
        after = wanted.after
        topics = list(wanted.topics)
        if after and topics:
            if after.topic not in topics:
                raise InvalidInput(f"after names topic {after.topic!r}, which is not among the topics asked for")
            topics = topics[topics.index(after.topic) :]
        for topic in topics or [""]:
            last = self._keys.offset(group, after) if after and topic in ("", after.topic) else ""
            if not await self._fetch_under(group, self._keys.offsets(group, topic), last, page):
                return

    async def _fetch_under(self, group: str, prefix: str, after: str, page: _Page) -> bool:
        """Add the offsets under the prefix to the page; whether all of them fitted."""
        while True:
            listed = await self._store.list(prefix, after=after, limit=_LISTED)
            if not all(self._take(group, entry, page) for entry in listed.entries):
                return False
            if not listed.more:
                return True
            after = listed.entries[-1].key

    def _take(self, group: str, entry: Entry, page: _Page) -> bool:
        tp = self._keys.parse_offset(group, entry.key)
        return tp is None or page.takes(tp, entry.value)

    async def _configs(self, group: str, topics: set[str]) -> dict[str, TopicConfig]:
        """Read the configurations of these topics, as far as they have one."""
        keys, names = self._keys.group(group), sorted(topics)
        found = await multi_get(self._store, [keys.topic(name) for name in names]) if names else []
        configs = ((name, _config(result)) for name, result in zip(names, found, strict=True))
        return {name: config for name, config in configs if config}


class _Page:
    """The offsets read so far, within the bounds of one message."""

    def __init__(self) -> None:
        self.read: list[tuple[TopicPartition, Offset | None]] = []
        self._unreadable: list[TopicPartition] = []
        self._count = self._size = 0
        self._last: TopicPartition | None = None
        self._more = False

    def takes(self, tp: TopicPartition, value: bytes | None) -> bool:
        """Add an offset to the page; false if there is no room for it."""
        size = len(value or b"") + len(tp.topic)
        if self._count >= MAX_PAGE or (self._count and self._size + size > MAX_PAGE_BYTES):
            self._more = True
            return False
        self._count += 1
        self._size += size
        self._last = tp
        try:
            self.read.append((tp, decode(Offset, value)[0] if value is not None else None))
        except UnreadableRecord as error:
            log.error("offset_unreadable", partition=str(tp), error=str(error))
            self._unreadable.append(tp)
        return True

    def found(self, configs: dict[str, TopicConfig]) -> FoundOffsets:
        offsets = tuple((tp, None if _is_void(record, configs.get(tp.topic)) else record) for tp, record in self.read)
        return FoundOffsets(offsets, tuple(self._unreadable), self._last if self._more else None)


def _is_void(record: Offset | None, topic: TopicConfig | None) -> bool:
    """Whether the offset is of a topic that is missing, or of a predecessor of the one that is there."""
    if record is None or topic is None:
        return False
    return topic.missing or bool(record.topic_id and topic.topic_id and record.topic_id != topic.topic_id)


def _value(found: GetResult) -> bytes | None:
    return found.entry.value if isinstance(found, Found) else None


def _config(found: GetResult) -> TopicConfig | None:
    try:
        return decode(TopicConfig, found.entry.value)[0] if isinstance(found, Found) else None
    except UnreadableRecord:
        return None
