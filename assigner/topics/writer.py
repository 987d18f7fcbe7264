"""Write a topic's configuration, so that nobody's word is lost.

Every write compares what it read. Fields we do not know are kept, and so are the topic id and the racks when the new
word on a topic says nothing of them: losing the id would make the topic look recreated. Fewer partitions than before
are refused unless forced, because ownership and offsets of the rest would be dropped.
"""

from __future__ import annotations

from contextlib import nullcontext

import anyio
import msgspec

from assigner.core.group import MAX_PARTITIONS
from assigner.errors import (
    AssignerError,
    FailedPrecondition,
    InvalidInput,
    LimitReached,
    SourceUnavailable,
    UnknownTopic,
    UnreadableRecord,
)
from assigner.logs import get_logger
from assigner.model.keys import Keys
from assigner.model.names import check_topic
from assigner.model.records import Stored, TopicConfig, stored
from assigner.storage.update import FenceFailed, Unchanged, Updated, update
from assigner.store import Entry, Found, Store
from assigner.topics.quota import TopicQuota
from assigner.topics.source import TopicMissing, TopicSource, TopicUnavailable

log = get_logger("assigner.topics")


async def set_topic(store: Store, keys: Keys, group: str, config: TopicConfig, *, force: bool = False) -> TopicConfig:
    """Write the topic's configuration and return it as it is now.

    Raises `FailedPrecondition` for fewer partitions than there are, unless forced, and `UnreadableRecord` for a record
    that only force may replace."""
    keys.check_group(group)
    check_config(config)
    key = keys.group(group).topic(config.topic)

    def merged(current: Stored[TopicConfig] | None) -> TopicConfig:
        return _merged(current.record, config, group, force) if current else config

    what = f"topic {config.topic!r} of group {group!r}"
    try:
        result = await update(store, key, TopicConfig, merged, what=what, replace_unreadable=force)
    except UnreadableRecord as error:
        raise UnreadableRecord(
            f"the stored configuration of topic {config.topic!r} can't be read ({error}); "
            f"repair {key!r}, or replace it by setting the topic with force"
        ) from error
    after = _record_of(result)
    if isinstance(result, Updated):
        log.info("topic_set", group=group, topic=after.topic, partitions=after.partition_count, source=after.source)
    return after


def _record_of(result: Updated[TopicConfig] | Unchanged[TopicConfig] | FenceFailed) -> TopicConfig:
    assert not isinstance(result, FenceFailed), "no fences are given"
    assert result.record is not None, "nothing is removed"
    return result.record


def check_config(config: TopicConfig) -> None:
    check_topic(config.topic)
    if not 1 <= config.partition_count <= MAX_PARTITIONS:
        raise InvalidInput(
            f"topic {config.topic!r} can't have {config.partition_count} partitions; use 1 to {MAX_PARTITIONS}"
        )


async def _entry(store: Store, key: str) -> Entry | None:
    found = await store.get(key)
    return found.entry if isinstance(found, Found) else None


def _merged(before: TopicConfig, config: TopicConfig, group: str, force: bool) -> TopicConfig:
    count, had = config.partition_count, before.partition_count
    if count < had and not force:
        raise FailedPrecondition(
            f"topic {config.topic!r} of group {group!r} has {had} partitions; {count} would drop the ownership of "
            f"{had - count}. Use force (--force) if the topic really became smaller"
        )
    return msgspec.structs.replace(
        config,
        topic_id=config.topic_id or before.topic_id,
        replica_racks=config.replica_racks or before.replica_racks[:count],
    )


# --- topics that a consumer names --------------------------------------------------------------------------------


class _Flight:
    """One question under way. Its outcome is everybody's who asked meanwhile."""

    def __init__(self) -> None:
        self.landed = anyio.Event()
        self.outcome: TopicConfig | AssignerError | None = None
        """None after landing: whoever asked was cancelled, so ask yourself."""


_flights: dict[tuple[int, str], _Flight] = {}
"""By store and key. As many as there are unknown topics being asked about, and each is gone with its answer."""


async def ensure_topic(
    store: Store, keys: Keys, group: str, topic: str, source: TopicSource, quota: TopicQuota | None = None
) -> TopicConfig:
    """The topic's configuration; if nobody set it yet, the source is asked and its answer is written.

    Raises `UnknownTopic` if the source has no such topic, `SourceUnavailable` if it can't tell. Callers that ask for
    the same topic at once cause one question."""
    keys.check_group(group)
    check_topic(topic)
    key = keys.group(group).topic(topic)
    while True:
        entry = await _entry(store, key)
        if entry is not None:
            return stored(TopicConfig, entry).record
        flight = _flights.get((id(store), key))
        if flight is None:
            return await _fly(store, key, group, topic, source, quota)
        await flight.landed.wait()
        match flight.outcome:
            case TopicConfig() as config:
                return config
            case AssignerError() as error:
                raise type(error)(*error.args)
            case None:
                pass


async def _fly(
    store: Store, key: str, group: str, topic: str, source: TopicSource, quota: TopicQuota | None
) -> TopicConfig:
    flight = _flights[id(store), key] = _Flight()
    try:
        flight.outcome = await _discover(store, key, group, topic, source, quota)
        return flight.outcome
    except (UnknownTopic, SourceUnavailable, InvalidInput, UnreadableRecord, LimitReached) as error:
        flight.outcome = error
        raise
    finally:
        del _flights[id(store), key]
        flight.landed.set()


async def _discover(
    store: Store, key: str, group: str, topic: str, source: TopicSource, quota: TopicQuota | None
) -> TopicConfig:
    answer = (await source.describe([topic]))[topic]
    match answer:
        case TopicMissing():
            raise UnknownTopic(
                f"topic {topic!r} of group {group!r} is not known, and {source.name} does not have it; {source.remedy}"
            )
        case TopicUnavailable(reason=reason):
            raise SourceUnavailable(
                f"topic {topic!r} of group {group!r} is not known, and {source.name} can't tell: {reason}; try again"
            )
        case TopicConfig():
            async with quota.room_for(group, answer) if quota else nullcontext():
                return await _write_new(store, key, answer)


async def _write_new(store: Store, key: str, config: TopicConfig) -> TopicConfig:
    """Write the configuration if there is none; otherwise the one that is there counts."""
    check_config(config)

    def first(current: Stored[TopicConfig] | None) -> TopicConfig | None:
        return None if current else config

    result = await update(store, key, TopicConfig, first, what=f"topic {config.topic!r}")
    if isinstance(result, Updated):
        log.info("topic_discovered", topic=config.topic, partitions=config.partition_count, source=config.source)
    return _record_of(result)
