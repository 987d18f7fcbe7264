"""Knows Kafka's topics by name and by id: Kafka 4's calls name topics by ids, and the assigner's records by names.

What is known comes from the brokers' Metadata, which passes through the gateway or is asked for, and from the topics
that a group's records describe. A topic that was deleted and made again has another id, so an id never means another
topic, and nobody has to be told of a deletion.

A topic counts as gone when two lists in a row lack it, some seconds apart: a broker that has just started may not know
all topics yet, and members lose partitions and offsets of a topic that is gone.

Not promised: that the list is current. `current` asks the brokers again, if the last list is older than a moment.
"""

from __future__ import annotations

import base64
import binascii
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import lru_cache
from uuid import UUID

import anyio
import msgspec

from assigner.clock import Clock
from assigner.core.group import GroupState
from assigner.errors import SourceUnavailable
from assigner.logs import get_logger

MOST_TOPICS = 200_000
"""Topics that are remembered; the one that was seen the longest ago is forgotten."""
FRESH = 1.0
"""Seconds in which a list is not asked for again."""
APART = 3.0
"""Seconds between two lists that both lack a topic that is gone."""

log = get_logger("assigner.gateway.topics")


class KafkaTopic(msgspec.Struct, frozen=True, gc=False):
    name: str
    topic_id: UUID | None = None
    partitions: int = 0


ListTopics = Callable[[], Awaitable[Sequence[KafkaTopic]]]
"""Asks the brokers for all topics. Raises `SourceUnavailable`."""


class KafkaTopics:
    def __init__(self, clock: Clock, list_topics: ListTopics | None = None) -> None:
        """`list_topics`: None: there are no brokers to ask, and a group's topics are all that is known."""
        self._clock = clock
        self._list_topics = list_topics
        self._ids: OrderedDict[str, UUID] = OrderedDict()
        self._names: dict[UUID, str] = {}
        self._counts: OrderedDict[str, int] = OrderedDict()
        """Partitions by topic, also of brokers that know no ids."""
        self._listed: frozenset[str] | None = None
        self._listed_at = 0.0
        self._before: frozenset[str] = frozenset()
        """An earlier list, some seconds older than the last one."""
        self._before_at = 0.0
        self._listing = anyio.Lock()

    def __len__(self) -> int:
        return len(self._ids)

    # --- learning ------------------------------------------------------------------------------------------------

    def learn(self, topics: Iterable[KafkaTopic]) -> None:
        """Take topics that a broker described."""
        for topic in topics:
            self._counts[topic.name] = topic.partitions
            self._counts.move_to_end(topic.name)
            if topic.topic_id is None or topic.topic_id.int == 0:
                continue
            before = self._ids.get(topic.name)
            if before is not None and before != topic.topic_id:
                del self._names[before]
            self._ids[topic.name] = topic.topic_id
            self._ids.move_to_end(topic.name)
            self._names[topic.topic_id] = topic.name
        while len(self._ids) > MOST_TOPICS:
            _, forgotten = self._ids.popitem(last=False)
            del self._names[forgotten]
        while len(self._counts) > MOST_TOPICS:
            self._counts.popitem(last=False)

    async def current(self, *, within: float = FRESH) -> frozenset[str] | None:
        """The names of all topics, no older than so many seconds; None: there are no brokers to ask. Raises
        `SourceUnavailable`."""
        if self._list_topics is None:
            return None
        async with self._listing:
            if self._listed is None or self._clock.now() - self._listed_at >= within:
                await self._list()
            return self.listed

    @property
    def listed(self) -> frozenset[str] | None:
        """The names of all topics, however old the last list is; None: there is none."""
        if self._listed is None or self._before <= self._listed:
            return self._listed
        return self._listed | self._before

    async def _list(self) -> None:
        assert self._list_topics is not None
        topics = await self._list_topics()
        self.learn(topics)
        now, listed = self._clock.now(), frozenset(topic.name for topic in topics)
        if self._listed is not None and now - self._before_at >= APART:
            self._before, self._before_at = self._listed, self._listed_at
        # The same object while nothing changes, because others remember what they made of it.
        if listed != self._listed:
            self._listed = listed
        self._listed_at = now

    async def know(self, state: GroupState | None, ids: Iterable[UUID]) -> None:
        """Ask the brokers if one of these ids is not known."""
        if any(self.name_of(state, one) is None for one in ids):
            try:
                await self.current()
            except SourceUnavailable as error:
                log.warning("topics_not_listed", error=str(error))

    # --- names and ids -------------------------------------------------------------------------------------------

    def id_of(self, state: GroupState | None, name: str) -> UUID | None:
        """The id of a topic, as the group's records have it, else as the brokers say it. A group's assignments are of
        the topic that its records describe: one that was made again a moment ago is not in them yet."""
        return _id_on_record(state, name) or self._ids.get(name)

    def has(self, name: str, partition: int) -> bool:
        """Whether a broker has said that there is this partition."""
        return 0 <= partition < self._counts.get(name, 0)

    def name_of(self, state: GroupState | None, topic_id: UUID) -> str | None:
        known = self._names.get(topic_id)
        if known is not None or state is None:
            return known
        return next((name for name in state.topics if self.id_of(state, name) == topic_id), None)


def _id_on_record(state: GroupState | None, name: str) -> UUID | None:
    topic = state.topics.get(name) if state else None
    return parse_topic_id(topic.record.topic_id) if topic else None


@lru_cache(maxsize=100_000)
def parse_topic_id(text: str) -> UUID | None:
    """Parse a topic's id as a record has it: in Kafka's own spelling (base64 without padding), or as a UUID."""
    try:
        if len(text) == _KAFKA_SPELLING:
            return UUID(bytes=base64.urlsafe_b64decode(text + "=="))
        return UUID(text) if text else None
    except (ValueError, binascii.Error):
        return None


_KAFKA_SPELLING = 22
