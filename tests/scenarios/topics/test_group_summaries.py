"""The list of groups costs a few reads, however many there are, and opens none of them."""

from __future__ import annotations

import pytest

from assigner.model.records import TopicConfig, encode
from assigner.storage.groups import make_known
from assigner.store import Store
from assigner.testing.counting import CountingStore
from assigner.testing.waiting import eventually
from tests.support.cluster import GROUP, Cluster

pytestmark = pytest.mark.virtual_time


async def test_a_thousand_groups_are_listed_without_opening_one(cluster: Cluster) -> None:
    await cluster.start_instance("leader")
    made: list[CountingStore] = []

    def wrap(store: Store) -> Store:
        made.append(CountingStore(store))
        return made[0]

    for number in range(1_000):
        group = f"g{number:04}"
        await cluster.store.put(cluster.keys.group(group).topic("t"), encode(TopicConfig(topic="t", partition_count=3)))
        await make_known(cluster.store, cluster.keys, group)
    asked = await cluster.start_instance("asked", wrap=wrap, leads=False)

    async def all_are_listed() -> bool:
        made[0].reset()
        return sum(one.partitions for one in await asked.operations.groups()) == 3_000 and made[0].requests["list"] < 10

    await eventually(all_are_listed, within=120, every=5)
    told = await asked.operations.groups()
    assert asked.mirrors.open == 0
    assert {one.leader for one in told} == {"leader"}
    assert [one.group for one in told] == [f"g{number:04}" for number in range(1_000)]


async def test_another_instance_lists_the_same_as_the_leader_does(any_cluster: Cluster) -> None:
    await any_cluster.add_topic(partitions=4)
    first = await any_cluster.start_instance("i1")
    second = await any_cluster.start_instance("i2", leads=False)
    await any_cluster.join("a", first)
    await any_cluster.until_counts(a=4)

    async def both_tell_the_same() -> bool:
        return await second.operations.groups() == await first.operations.groups()

    await eventually(both_tell_the_same, within=30, every=0.5)
    (told,) = await second.operations.groups()
    assert (told.consumers, told.partitions, told.unowned, told.leader) == (1, 4, 0, "i1")
    assert second.mirrors.get(GROUP) is None


async def test_a_group_without_a_summary_is_read_once_and_not_kept(any_cluster: Cluster) -> None:
    await any_cluster.add_topic(partitions=4)
    await any_cluster.put_consumer("a")
    instance = await any_cluster.start_instance(leads=False)
    (told,) = await instance.operations.groups()
    assert (told.consumers, told.partitions, told.leader) == (1, 4, "")
    assert instance.mirrors.open == 0


async def test_a_leader_that_is_gone_is_not_listed(any_cluster: Cluster) -> None:
    await any_cluster.add_topic(partitions=4)
    first = await any_cluster.start_instance("i1")
    second = await any_cluster.start_instance("i2", leads=False)

    async def leader_is(name: str) -> bool:
        return [one.leader for one in await second.operations.groups()] == [name]

    await eventually(lambda: leader_is("i1"), within=30, every=0.5)
    assert first.leadership is not None
    await any_cluster.stop_instance("i1")
    await eventually(lambda: leader_is(""), within=30, every=0.5)


async def test_an_idle_group_is_written_once_and_a_busy_one_now_and_then(cluster: Cluster) -> None:
    made: list[CountingStore] = []

    def wrap(store: Store) -> Store:
        made.append(CountingStore(store))
        return made[0]

    await cluster.add_topic(partitions=4)
    instance = await cluster.start_instance(wrap=wrap)
    await eventually(lambda: instance.summaries.written == 1, within=30)
    made[0].reset()
    await eventually(lambda: cluster.clock.now() > 600, within=1200, every=10)
    assert instance.summaries.written == 1
