"""An operator's write whose answer the store loses: the service finds out what became of it and tells the operator."""

from __future__ import annotations

import anyio
import pytest

from assigner.api import Weights
from assigner.instance import Instance
from assigner.model.records import HandoffMode, TopicConfig, decode
from assigner.store import Found
from assigner.testing.faults import EffectAfter, Fault, FaultyStore, Injected, LoseAnswer
from assigner.testing.waiting import eventually
from tests.support.cluster import EXPIRES, GROUP, Cluster

pytestmark = pytest.mark.virtual_time
FAULTS = [
    pytest.param(LoseAnswer(applied=True), id="took_effect"),
    pytest.param(LoseAnswer(applied=False), id="had_no_effect"),
    pytest.param(EffectAfter(error_after=0.2, effect_after=1.5), id="takes_effect_later"),
]


@pytest.fixture
async def cluster(any_cluster: Cluster) -> Cluster:
    await any_cluster.add_topic(partitions=4)
    return any_cluster


async def instance_on_faults(cluster: Cluster) -> tuple[Instance, FaultyStore]:
    faults = await cluster.start_faulty("i1")
    return cluster.instances["i1"], faults


def losing(faults: FaultyStore, fault: Fault, key: str, times: int = 1) -> Injected:
    """The next writes of this record meet the fault."""
    return faults.inject(
        fault,
        kinds={"transact"},
        times=times,
        where=lambda _, __, operations: any(operation.key == key for operation in operations),
    )


async def until_everything_took_effect(faults: FaultyStore) -> None:
    await eventually(lambda: not faults.late_effects, within=30, what="late effects came")


@pytest.mark.parametrize("fault", FAULTS)
async def test_options_are_set_although_the_response_was_lost(cluster: Cluster, fault: Fault) -> None:
    instance, faults = await instance_on_faults(cluster)
    lost = losing(faults, fault, cluster.keys.group(GROUP).options)
    assert (await instance.operations.set_options(GROUP, {"debounce": 7.0})).debounce == 7.0
    await until_everything_took_effect(faults)
    assert ((await cluster.state()).options.debounce, lost.hits) == (7.0, 1)


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_rebalance_is_asked_for_once_although_the_response_was_lost(cluster: Cluster, fault: Fault) -> None:
    instance, faults = await instance_on_faults(cluster)
    losing(faults, fault, cluster.keys.group(GROUP).options)
    await instance.operations.rebalance(GROUP)
    await until_everything_took_effect(faults)
    assert (await cluster.state()).options.rebalance_requests == 1


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_group_becomes_exclusive_although_the_response_was_lost(cluster: Cluster, fault: Fault) -> None:
    instance, faults = await instance_on_faults(cluster)
    losing(faults, fault, cluster.keys.group(GROUP).options)
    await instance.operations.set_options(GROUP, {"handoff_mode": "exclusive"})
    await until_everything_took_effect(faults)
    assert (await cluster.state()).options.handoff_mode is HandoffMode.EXCLUSIVE


@pytest.mark.parametrize("fault", FAULTS)
async def test_weights_are_published_although_the_response_was_lost(cluster: Cluster, fault: Fault) -> None:
    instance, faults = await instance_on_faults(cluster)
    lost = losing(faults, fault, cluster.keys.topic_loads(GROUP, "t"))
    weights = [Weights("t", 0, (1.0, 2.0, 3.0))]
    assert await instance.operations.set_loads(GROUP, weights, 60, keep_others=False) == 3
    await until_everything_took_effect(faults)
    assert lost.hits == 1
    assert (await instance.operations.loads(GROUP, 10)).partitions


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_topic_is_set_although_the_response_was_lost(cluster: Cluster, fault: Fault) -> None:
    instance, faults = await instance_on_faults(cluster)
    key = cluster.keys.group(GROUP).topic("t")
    lost = losing(faults, fault, key)
    assert (await instance.operations.set_topic(GROUP, "t", 9)).partition_count == 9
    await until_everything_took_effect(faults)
    found = await cluster.store.get(key)
    assert isinstance(found, Found)
    assert (decode(TopicConfig, found.entry.value)[0].partition_count, lost.hits) == (9, 1)


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_group_is_made_although_the_response_was_lost(cluster: Cluster, fault: Fault) -> None:
    instance, faults = await instance_on_faults(cluster)
    lost = losing(faults, fault, cluster.keys.group_index("new"))
    await instance.operations.set_topic("new", "t", 3)
    await until_everything_took_effect(faults)
    assert lost.hits == 1
    assert "new" in {one.group for one in await instance.operations.groups()}


@pytest.mark.cluster(etcd_ttl=EXPIRES)
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_group_is_deleted_and_its_epochs_are_kept_although_the_response_was_lost(
    cluster: Cluster, fault: Fault
) -> None:
    instance, faults = await instance_on_faults(cluster)
    consumer = await cluster.join("a", instance)
    await cluster.until_counts(a=4)
    await consumer.deregister(gates_closed=True)
    await cluster.until("nothing is owned", lambda state: not state.assignments, within=120)
    floor = (await cluster.plan()).epoch_floor
    assert floor, "the group has had epochs"
    lost = losing(faults, fault, cluster.keys.epochs)
    with anyio.fail_after(60):
        while (await instance.operations.delete_group(GROUP, force=False))[1]:
            pass
    await until_everything_took_effect(faults)
    assert lost.hits == 1
    await instance.operations.set_topic(GROUP, "t", 4)
    assert (await cluster.plan()).epoch_floor >= floor
