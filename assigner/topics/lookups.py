"""`TopicLookups` finds the configuration of a topic that a consumer names, and stores it if the group has none."""

from __future__ import annotations

from contextlib import nullcontext

import anyio

from assigner.errors import (
    AssignerError,
    InvalidInput,
    LimitReached,
    SourceUnavailable,
    UnknownTopic,
    UnreadableRecord,
)
from assigner.model.keys import Keys
from assigner.model.names import check_topic
from assigner.model.records import TopicConfig, stored
from assigner.store import Found, Store
from assigner.topics.quota import TopicQuota
from assigner.topics.source import TopicMissing, TopicSource, TopicUnavailable
from assigner.topics.writer import add_topic


class _Lookup:
    """A lookup in progress, whose outcome all concurrent callers share."""

    def __init__(self) -> None:
        self.done = anyio.Event()
        self.outcome: TopicConfig | AssignerError | None = None
        """None once `done` is set: the caller that made the lookup was cancelled, so the next one makes its own."""


class TopicLookups:
    """Looks topics up for consumers. Concurrent callers for the same topic share one lookup, so that a thousand
    consumers that start together cause one question to the source."""

    def __init__(self, store: Store, keys: Keys, quota: TopicQuota | None = None) -> None:
        self._store = store
        self._keys = keys
        self._quota = quota
        self._in_progress: dict[tuple[str, str], _Lookup] = {}
        """(group, topic) -> its lookup; removed with its outcome."""

    async def ensure(self, group: str, topic: str, source: TopicSource) -> TopicConfig:
        """Return the topic's configuration; if there is none, ask the source and write its answer.

        Raises `UnknownTopic` if the source has no such topic, `SourceUnavailable` if it can't answer."""
        self._keys.check_group(group)
        check_topic(topic)
        while True:
            found = await self._store.get(self._keys.group(group).topic(topic))
            if isinstance(found, Found):
                return stored(TopicConfig, found.entry).record
            lookup = self._in_progress.get((group, topic))
            if lookup is None:
                return await self._look_up(group, topic, source)
            await lookup.done.wait()
            match lookup.outcome:
                case TopicConfig() as config:
                    return config
                case AssignerError() as error:
                    raise type(error)(*error.args)
                case None:
                    pass

    async def _look_up(self, group: str, topic: str, source: TopicSource) -> TopicConfig:
        lookup = self._in_progress[group, topic] = _Lookup()
        try:
            lookup.outcome = await self._ask(group, topic, source)
            return lookup.outcome
        except (UnknownTopic, SourceUnavailable, InvalidInput, UnreadableRecord, LimitReached) as error:
            lookup.outcome = error
            raise
        finally:
            del self._in_progress[group, topic]
            lookup.done.set()

    async def _ask(self, group: str, topic: str, source: TopicSource) -> TopicConfig:
        answer = (await source.describe([topic]))[topic]
        match answer:
            case TopicMissing():
                raise UnknownTopic(
                    f"topic {topic!r} of group {group!r} is not known, and {source.name} does not have it; "
                    f"{source.remedy}"
                )
            case TopicUnavailable(reason=reason):
                raise SourceUnavailable(
                    f"topic {topic!r} of group {group!r} is not known, and {source.name} can't tell: {reason}; "
                    f"try again"
                )
            case TopicConfig():
                async with self._quota.room_for(group, answer) if self._quota else nullcontext():
                    return await add_topic(self._store, self._keys, group, answer)
