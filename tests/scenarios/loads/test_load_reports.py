"""Loads from the consumers to the record: by any instance, in few writes, and only what owners say."""

from __future__ import annotations

import anyio
import pytest

from assigner.api import LoadReport, Weights
from assigner.core.loads.records import BLOCK
from assigner.errors import NotRegistered
from assigner.store import Found, Put, Store
from assigner.testing.waiting import eventually
from tests.support.cluster import GROUP, Cluster
from tests.support.faulty_stores import NotingStore
from tests.support.loads import BY_LOAD, FAST, SLOW, reads_as, report, report_own, stored, until_written, written

pytestmark = [pytest.mark.virtual_time, pytest.mark.cluster(options=BY_LOAD)]


async def test_reports_to_two_instances_end_in_one_record(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.add_topic(partitions=8)
    first = await cluster.start_instance("i1", loads=FAST)
    second = await cluster.start_instance("i2", loads=FAST)
    a = await cluster.join("a", first)
    b = await cluster.join("b", second)
    await cluster.until_counts(a=4, b=4)
    await report(a, {one.partition: 1.0 for one in a.owned}, node=0.5)
    await report(b, {one.partition: 1.5 for one in b.owned}, node=0.75)
    await until_written(cluster, lambda loads: len(loads) == 8)
    assert await written(cluster) == {
        **{one.partition: 1.0 for one in a.owned},
        **{one.partition: 1.5 for one in b.owned},
    }

    async def nodes() -> set[str]:
        record = await stored(cluster, cluster.keys.node_loads(GROUP))
        return set(record.nodes) if record else set()

    await eventually(lambda: reads_as({"a", "b"}, nodes), what="both nodes are written")


@pytest.mark.parametrize("often", [1.0, 15.0])
async def test_however_often_consumers_report_a_record_is_written_once_per_interval(
    cluster: Cluster, often: float
) -> None:
    """Loads that double and halve all the time are worth a write each time; each instance makes one per interval."""
    await cluster.add_topic(partitions=8)
    stores: list[NotingStore] = []

    def wrap(store: Store) -> Store:
        stores.append(NotingStore(store))
        return stores[-1]

    consumers = []
    for number in range(2):
        instance = await cluster.start_instance(f"i{number}", wrap=wrap)
        consumers.append(await cluster.join(f"c{number}", instance))
    await cluster.until_counts(c0=4, c1=4)
    await cluster.set_options(paused=True)
    load, passed = 1.0, 0.0
    while passed < 1200:
        load = 5.0 if load == 1.0 else 1.0
        for consumer in consumers:
            await report(consumer, {one.partition: load for one in consumer.owned}, node=load)
        await anyio.sleep(often)
        passed += often
    key = cluster.keys.topic_loads(GROUP, "t")
    for store in stores:
        puts = [one.key for _, operations in store.transactions for one in operations if isinstance(one, Put)]
        # A conflict with the other instance costs a try more.
        assert 1 <= puts.count(key) <= 2 * 1200 / SLOW.interval
        assert sum(one.startswith(cluster.keys.loads(GROUP)) for one in puts) <= 2 * 2 * 1200 / SLOW.interval


async def test_loads_that_do_not_change_cost_two_writes_in_the_time_they_count(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=8)
    await cluster.start_instance()
    a = await cluster.join("a")
    await cluster.until_counts(a=8)
    for _ in range(240):
        await report_own(a, lambda one: 1.0 + one.partition)
        await anyio.sleep(15)
    found = await cluster.store.get(cluster.keys.topic_loads(GROUP, "t"))
    assert isinstance(found, Found)
    assert 10 <= found.entry.version <= 3600 / (SLOW.stale_after / 2) + 1


async def test_only_the_owners_report_counts_for_a_partition(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=8)
    await cluster.start_instance()
    a, b = await cluster.join("a"), await cluster.join("b")
    await cluster.until_counts(a=4, b=4)
    everything = dict.fromkeys(range(8), 99.0)
    receipt = await report(a, everything)
    assert receipt.taken == 4
    await until_written(cluster, bool)
    assert await written(cluster) == {one.partition: 99.0 for one in a.owned}
    assert (await report(b, {one.partition: 1.0 for one in a.owned})).taken == 0


async def test_a_session_that_is_not_the_registered_one_is_refused(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=2)
    instance = await cluster.start_instance()
    a = await cluster.join("a")
    await cluster.until_counts(a=2)
    with pytest.raises(NotRegistered):
        await instance.members.report_load(GROUP, "a", "another", LoadReport())
    with pytest.raises(NotRegistered):
        await instance.members.report_load(GROUP, "nobody", "", LoadReport())
    assert (await report(a, {0: 1.0})).taken == 1


async def test_unknown_topics_and_partitions_past_the_count_are_left_out(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=2)
    await cluster.start_instance()
    a = await cluster.join("a")
    await cluster.until_counts(a=2)
    assert (await report(a, {0: 1.0, 2: 1.0, 999_999_999: 1.0})).taken == 1
    assert (await report(a, {0: 1.0}, topic="unknown")).taken == 0


async def test_a_report_says_when_the_next_one_is_of_use(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=1)
    await cluster.start_instance()
    a = await cluster.join("a")
    assert (await report(a, {})).next_report == SLOW.interval / 4


async def test_loads_are_written_when_the_store_is_back(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=2)
    faults = await cluster.start_faulty()
    a = await cluster.join("a")
    await cluster.until_counts(a=2)
    await report(a, {0: 1.0, 1: 2.0})
    faults.freeze()
    await anyio.sleep(SLOW.interval + 1)
    assert await written(cluster) == {}
    faults.thaw()
    await until_written(cluster, lambda loads: loads == {0: 1.0, 1: 2.0})


async def test_a_record_that_cannot_be_read_is_left_alone_and_the_others_are_written(cluster: Cluster) -> None:
    await cluster.add_topic("t", partitions=1)
    await cluster.add_topic("u", partitions=1)
    key = cluster.keys.topic_loads(GROUP, "t")
    await cluster.store.put(key, b"rubbish")
    await cluster.start_instance()
    a = await cluster.join("a")
    await cluster.until_counts(a=2)
    await report(a, {0: 1.0}, topic="t")
    await report(a, {0: 2.0}, topic="u")

    async def is_written() -> bool:
        return await written(cluster, "u") == {0: 2.0}

    await eventually(is_written, within=200)
    found = await cluster.store.get(key)
    assert isinstance(found, Found)
    assert found.entry.value == b"rubbish"


async def test_a_large_topic_is_kept_in_blocks(cluster: Cluster) -> None:
    await cluster.set_options(paused=True)
    await cluster.add_topic(partitions=BLOCK + 10)
    instance = await cluster.start_instance()
    await instance.operations.set_loads(GROUP, [Weights("t", BLOCK - 1, (1.0, 2.0, 3.0))], 60, keep_others=False)
    described = await instance.operations.loads(GROUP, 10)
    assert [(one.tp.partition, one.load) for one in described.heaviest] == [
        (BLOCK + 1, 3.0),
        (BLOCK, 2.0),
        (BLOCK - 1, 1.0),
    ]
    assert await stored(cluster, cluster.keys.topic_loads(GROUP, "t", 1)) is not None
