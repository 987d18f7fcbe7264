"""Writes topic configurations by compare-and-swap.

Every write has the record that it read as a precondition. Unknown fields are kept, and so are the topic id and the
racks if the new configuration has none: without its id the topic would look recreated. Fewer partitions than before are
rejected unless forced, because ownership and offsets of the rest would be deleted.
"""

from __future__ import annotations

import msgspec

from assigner.core.group import MAX_PARTITIONS
from assigner.errors import FailedPrecondition, InvalidInput, UnreadableRecord
from assigner.logs import get_logger
from assigner.model.keys import Keys
from assigner.model.names import check_topic
from assigner.model.records import Stored, TopicConfig
from assigner.storage.update import FenceFailed, Unchanged, Updated, update
from assigner.store import Store

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


async def add_topic(store: Store, keys: Keys, group: str, config: TopicConfig) -> TopicConfig:
    """Write the configuration unless the group has one for the topic, and return the stored one."""
    check_config(config)

    def first(current: Stored[TopicConfig] | None) -> TopicConfig | None:
        return None if current else config

    key = keys.group(group).topic(config.topic)
    result = await update(store, key, TopicConfig, first, what=f"topic {config.topic!r}")
    if isinstance(result, Updated):
        log.info("topic_discovered", topic=config.topic, partitions=config.partition_count, source=config.source)
    return _record_of(result)


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
