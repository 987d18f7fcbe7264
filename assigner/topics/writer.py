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
    OutcomeUnknown,
    SourceUnavailable,
    UnknownTopic,
    UnreadableRecord,
)
from assigner.logs import get_logger
from assigner.model.keys import Keys
from assigner.model.names import check_topic
from assigner.model.records import Stored, TopicConfig, encode, stored
from assigner.store import Absent, Committed, Entry, Found, ModRevisionIs, Put, Store
from assigner.topics.quota import TopicQuota
from assigner.topics.source import TopicMissing, TopicSource, TopicUnavailable

_TRIES = 10

log = get_logger("assigner.topics")


async def set_topic(store: Store, keys: Keys, group: str, config: TopicConfig, *, force: bool = False) -> TopicConfig:
    """Write the topic's configuration and return it as it is now. Raises `FailedPrecondition` for fewer partitions than
    there
    are, unless forced, and `UnreadableRecord` for a record that only force may replace."""
    keys.check_group(group)
    check_config(config)
    key = keys.group(group).topic(config.topic)
    for _ in range(_TRIES):
        entry = await _entry(store, key)
        before = _readable(entry, config.topic, force) if entry else None
        after = _merged(before, config, group, force)
        if before is not None and after == before.record:
            return after
        if await _put(store, key, entry, before.encode(after) if before else encode(after)):
            log.info("topic_set", group=group, topic=after.topic, partitions=after.partition_count, source=after.source)
            return after
    raise FailedPrecondition(f"topic {config.topic!r} of group {group!r} kept changing while it was set; try again")


def check_config(config: TopicConfig) -> None:
    check_topic(config.topic)
    if not 1 <= config.partition_count <= MAX_PARTITIONS:
        raise InvalidInput(
            f"topic {config.topic!r} can't have {config.partition_count} partitions; use 1 to {MAX_PARTITIONS}"
        )


async def _entry(store: Store, key: str) -> Entry | None:
    found = await store.get(key)
    return found.entry if isinstance(found, Found) else None


def _readable(entry: Entry, topic: str, force: bool) -> Stored[TopicConfig] | None:
    try:
        return stored(TopicConfig, entry)
    except UnreadableRecord as error:
        if force:
            return None
        raise UnreadableRecord(
            f"the stored configuration of topic {topic!r} can't be read ({error}); "
            f"repair {entry.key!r}, or replace it by setting the topic with force"
        ) from error


def _merged(before: Stored[TopicConfig] | None, config: TopicConfig, group: str, force: bool) -> TopicConfig:
    if before is None:
        return config
    count, had = config.partition_count, before.record.partition_count
    if count < had and not force:
        raise FailedPrecondition(
            f"topic {config.topic!r} of group {group!r} has {had} partitions; {count} would drop the ownership of "
            f"{had - count}. Use force (--force) if the topic really became smaller"
        )
    return msgspec.structs.replace(
        config,
        topic_id=config.topic_id or before.record.topic_id,
        replica_racks=config.replica_racks or before.record.replica_racks[:count],
    )


async def _put(store: Store, key: str, entry: Entry | None, value: bytes) -> bool:
    """Write over what was read. False if that has changed, or if the outcome is unknown: read again."""
    compare = Absent(key) if entry is None else ModRevisionIs(key, entry.mod_revision)
    try:
        result = await store.transact([compare], [Put(key, value)])
    except OutcomeUnknown:
        return False
    return isinstance(result, Committed)


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
    """Write it unless somebody was faster; then theirs counts."""
    check_config(config)
    for _ in range(_TRIES):
        if await _put(store, key, None, encode(config)):
            log.info("topic_discovered", topic=config.topic, partitions=config.partition_count, source=config.source)
            return config
        entry = await _entry(store, key)
        if entry is not None:
            return stored(TopicConfig, entry).record
    raise FailedPrecondition(f"topic {config.topic!r} kept changing while it was written; try again")
