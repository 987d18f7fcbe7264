"""Operators publish loads and look at those of a group."""

from __future__ import annotations

import numpy as np
import pytest

from assigner.api import Weights
from assigner.core.loads.records import read
from assigner.errors import InvalidInput, UnknownTopic
from assigner.model.records import Loads, decode, encode
from assigner.store import Found
from tests.support.cluster import GROUP, Cluster, tp
from tests.support.loads import BY_LOAD, FAST, Weighing, hot_group, owns_hot, report, stored, written

pytestmark = [pytest.mark.virtual_time, pytest.mark.cluster(options=BY_LOAD)]


async def test_published_weights_are_planned_by_and_count_for_as_long_as_was_said(
    any_cluster: Cluster, strategy: Weighing
) -> None:
    cluster = any_cluster
    await cluster.add_topic(partitions=12)
    instance = await cluster.start_instance(loads=FAST)
    for name in ("a", "b", "c"):
        await cluster.join(name)
    await cluster.until_counts(a=4, b=4, c=4)
    count = await instance.operations.set_loads(
        GROUP, [Weights("t", 0, (6.0,)), Weights("t", 1, (1.0,) * 11)], 3600, keep_others=False
    )
    assert count == 12
    await cluster.until("the hot one is alone", lambda s: owns_hot(s) == {tp(0)} and not s.handoffs)
    record = await stored(cluster, cluster.keys.topic_loads(GROUP, "t"))
    assert record is not None
    assert read(record).at(record.at + 3590).tolist() == [6.0] + [1.0] * 11
    assert np.isnan(read(record).at(record.at + 3610)).all()


async def test_publishing_replaces_what_was_known_of_a_topic_by_default(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=4)
    instance = await cluster.start_instance()
    publish = instance.operations.set_loads
    await publish(GROUP, [Weights("t", 0, (1.0, 2.0, 3.0, 4.0))], 60, keep_others=False)
    await publish(GROUP, [Weights("t", 1, (9.0,))], 60, keep_others=True)
    assert await written(cluster) == {0: 1.0, 1: 9.0, 2: 3.0, 3: 4.0}
    await publish(GROUP, [Weights("t", 3, (7.0,))], 60, keep_others=False)
    assert await written(cluster) == {3: 7.0}


async def test_publishing_takes_the_place_of_a_record_that_cannot_be_read(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=1)
    await cluster.store.put(cluster.keys.topic_loads(GROUP, "t"), b"rubbish")
    instance = await cluster.start_instance()
    assert len((await instance.operations.loads(GROUP, 3)).unreadable) == 1
    await instance.operations.set_loads(GROUP, [Weights("t", 0, (1.0,))], 60, keep_others=False)
    assert await written(cluster) == {0: 1.0}


async def test_weights_of_what_is_not_there_are_refused(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=2)
    instance = await cluster.start_instance()
    with pytest.raises(UnknownTopic, match="'u'"):
        await instance.operations.set_loads(GROUP, [Weights("u", 0, (1.0,))], 60, keep_others=False)
    with pytest.raises(InvalidInput, match="partition 2"):
        await instance.operations.set_loads(GROUP, [Weights("t", 1, (1.0, 1.0))], 60, keep_others=False)
    assert await stored(cluster, cluster.keys.topic_loads(GROUP, "t")) is None


async def test_fields_of_others_in_a_record_survive_a_write(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=2)
    key = cluster.keys.topic_loads(GROUP, "t")
    await cluster.store.put(key, encode(Loads(at=1, topic="t"), {"note": "mine"}))
    instance = await cluster.start_instance()
    await instance.operations.set_loads(GROUP, [Weights("t", 0, (1.0,))], 60, keep_others=True)
    found = await cluster.store.get(key)
    assert isinstance(found, Found)
    assert decode(Loads, found.entry.value)[1] == {"note": "mine"}


async def test_the_description_lists_the_heaviest_partitions_and_their_owners(cluster: Cluster) -> None:
    instance = await cluster.start_instance()
    consumers = await hot_group(cluster, instance)
    await report(consumers[0], {}, node=0.9)
    await cluster.until("the hot one is alone", lambda s: owns_hot(s) == {tp(0)} and not s.handoffs, within=200)
    described = await instance.operations.loads(GROUP, 2)
    assert (described.used, described.partitions, described.known) == (True, 12, 12)
    assert [one.tp.partition for one in described.heaviest] == [0, 1]
    assert described.heaviest[0].share == pytest.approx(6 / 17)
    assert len(described.busiest) == 2
    busy = {one.consumer: one.busy for one in (await instance.operations.loads(GROUP, 3)).busiest}
    assert busy["a"] == pytest.approx(0.9)
    assert np.isnan(busy["b"])
