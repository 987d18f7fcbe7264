"""Consumers that commit, and the check that the store's history holds nothing but what owners committed."""

from __future__ import annotations

from typing import Any

from assigner.api import OffsetCommit, RefusedCommit, WantedOffsets
from assigner.instance import Instance
from assigner.model.keys import TopicPartition
from assigner.model.records import Assignment, Offset, decode
from assigner.store import Batch, DeleteEvent, Event, PutEvent
from tests.support.cluster import GROUP, Cluster
from tests.support.stepped_consumer import SteppedConsumer

RUBBISH = b"rubbish"


async def commit(
    consumer: SteppedConsumer,
    offsets: dict[TopicPartition, int],
    *,
    epoch: int | None = None,
    at: Instance | None = None,
) -> list[RefusedCommit]:
    """As the consumer, under the epochs it was sent, or under `epoch`."""
    instance = at or consumer.instance
    assert instance
    commits = [
        OffsetCommit(one, consumer.owned.get(one, 0) if epoch is None else epoch, offset)
        for one, offset in offsets.items()
    ]
    return await instance.offsets.commit(GROUP, consumer.name, consumer.session, commits)


async def fetch(instance: Instance, *partitions: TopicPartition) -> dict[TopicPartition, Offset | None]:
    return dict((await instance.offsets.fetch(GROUP, WantedOffsets(partitions))).offsets)


async def offset_of(instance: Instance, partition: TopicPartition) -> tuple[int, int] | None:
    """(offset, epoch)"""
    record = (await fetch(instance, partition))[partition]
    return (record.offset, record.epoch) if record else None


async def everything_since(cluster: Cluster, revision: int) -> list[Event]:
    end = cluster.keys.root + "~the-end"
    await cluster.store.put(end, b"")
    events: list[Event] = []
    async with cluster.store.watch(cluster.keys.root, start_revision=revision + 1) as items:
        async for item in items:
            events += item.events if isinstance(item, Batch) else ()
            if any(isinstance(event, PutEvent) and event.entry.key == end for event in events):
                return events
    raise AssertionError("the watch ended")


async def every_commit_was_the_owners(cluster: Cluster) -> None:
    """By the store's own history: each offset was written under the epoch that was in force right then."""
    epochs: dict[TopicPartition, int] = {}
    prefix = cluster.keys.offsets(GROUP)
    for event in await everything_since(cluster, cluster.began):
        key = event.entry.key if isinstance(event, PutEvent) else event.key
        if key.startswith(cluster.group.assignments):
            topic, _, number = key[len(cluster.group.assignments) :].partition("/")
            held = TopicPartition(topic, int(number))
            if isinstance(event, DeleteEvent) or event.entry.value == RUBBISH:
                epochs.pop(held, None)
            else:
                epochs[held] = decode(Assignment, event.entry.value)[0].epoch
        elif key.startswith(prefix) and isinstance(event, PutEvent) and event.entry.value != RUBBISH:
            record = decode(Offset, event.entry.value)[0]
            about = cluster.keys.parse_offset(GROUP, key)
            assert about
            assert record.epoch == epochs.get(about, 0), f"{about} was committed under an epoch that was over"


async def two_owners(cluster: Cluster, partitions: int = 2) -> tuple[SteppedConsumer, SteppedConsumer]:
    await cluster.add_topic(partitions=partitions)
    await cluster.start_instance()
    a, b = await cluster.join("a"), await cluster.join("b")
    await cluster.until_counts(a=partitions // 2, b=partitions // 2)
    for one in (a, b):
        await one.until("told what it owns", lambda c: len(c.owned) == partitions // 2)
    return a, b


async def sole_owner(cluster: Cluster, partitions: int = 1, **how: Any) -> SteppedConsumer:
    await cluster.add_topic(partitions=partitions)
    await cluster.start_instance()
    a = await cluster.join("a", **how)
    await a.until("owns everything", lambda c: len(c.owned) == partitions)
    return a


def instance_of(cluster: Cluster, name: str = "i1") -> Instance:
    return cluster.instances[name]
