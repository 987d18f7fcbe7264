"""A topic that was set a moment ago is there, also for an instance whose picture of the group lags behind."""

from __future__ import annotations

import pytest

from assigner.api import NewOffset, Weights
from assigner.errors import InvalidInput, UnknownTopic
from assigner.testing.faults import Refuse
from tests.support.cluster import GROUP, Cluster, tp
from tests.support.committing import instance_of, offset_of

pytestmark = pytest.mark.virtual_time


async def lagging(cluster: Cluster) -> None:
    """An instance that keeps the group's mirror and hears of nothing any more."""
    behind = await cluster.start_faulty("i1", leads=False)
    await cluster.join("a")
    whole = cluster.group.prefix
    behind.inject(Refuse(), kinds={"list", "watch"}, times=None, where=lambda _, prefix, *__: prefix == whole)
    behind.end_watches()


async def test_offsets_of_a_topic_that_was_just_set_are_set(any_cluster: Cluster) -> None:
    await lagging(any_cluster)
    i1 = instance_of(any_cluster)
    await i1.operations.set_topic(GROUP, "t", 2)
    assert await i1.operations.set_offsets(GROUP, {tp(0): NewOffset(5)}, force=False) == 1
    assert await offset_of(i1, tp(0)) == (5, 0)
    await i1.operations.set_topic(GROUP, "t", 4)
    assert await i1.operations.set_offsets(GROUP, {tp(3): NewOffset(6)}, force=True) == 1


async def test_an_offset_is_set_for_the_topic_as_it_is_now(any_cluster: Cluster) -> None:
    """Under the identity of its predecessor it would count as none."""
    await any_cluster.add_topic(partitions=1, topic_id="first")
    await lagging(any_cluster)
    await any_cluster.add_topic(partitions=1, topic_id="second")
    i1 = instance_of(any_cluster)
    assert await i1.operations.set_offsets(GROUP, {tp(0): NewOffset(5)}, force=True) == 1
    assert await offset_of(i1, tp(0)) == (5, 0)


async def test_loads_of_a_topic_that_was_just_set_are_published(any_cluster: Cluster) -> None:
    await lagging(any_cluster)
    i1 = instance_of(any_cluster)
    await i1.operations.set_topic(GROUP, "t", 2)
    assert await i1.operations.set_loads(GROUP, [Weights("t", 0, (1.0, 2.0))], 60, keep_others=False) == 2


async def test_what_really_does_not_exist_is_still_refused(any_cluster: Cluster) -> None:
    i1 = await any_cluster.start_instance(leads=False)
    await any_cluster.add_topic(partitions=2)
    with pytest.raises(UnknownTopic, match="no topic 'u'"):
        await i1.operations.set_offsets(GROUP, {tp(0, "u"): NewOffset(5)}, force=True)
    with pytest.raises(InvalidInput, match="partitions 0 to 1"):
        await i1.operations.set_offsets(GROUP, {tp(2): NewOffset(5)}, force=True)
    with pytest.raises(UnknownTopic, match="no topic 'u'"):
        await i1.operations.set_loads(GROUP, [Weights("u", 0, (1.0,))], 60, keep_others=False)
