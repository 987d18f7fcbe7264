"""The epoch floor follows the epochs, so that nothing others delete or rewrite can make one go back."""

from __future__ import annotations

import anyio
import msgspec
import pytest

from assigner.core.coordination.publishing import LAG
from assigner.model.keys import AssignmentKey, PlanKey, TopicPartition
from assigner.model.records import Assignment, Plan, decode
from assigner.store import PutEvent
from tests.support.cluster import EXPIRES, Cluster
from tests.support.faulty_stores import key_of

pytestmark = pytest.mark.virtual_time


async def granted(cluster: Cluster) -> dict[TopicPartition, list[int]]:
    """Every epoch that was ever on record, in order; a record without one grants none."""
    found: dict[TopicPartition, list[int]] = {}
    for event in await cluster.history():
        if isinstance(event, PutEvent) and isinstance(key := cluster.group.parse(event.entry.key), AssignmentKey):
            epoch = decode(Assignment, event.entry.value)[0].epoch
            if epoch:
                found.setdefault(key.tp, []).append(epoch)
    return found


async def only_went_up(cluster: Cluster) -> None:
    for partition, epochs in (await granted(cluster)).items():
        assert epochs == sorted(set(epochs)), f"{partition}: {epochs}"


async def plans(cluster: Cluster) -> list[Plan]:
    return [
        decode(Plan, event.entry.value)[0]
        for event in await cluster.history()
        if isinstance(event, PutEvent) and isinstance(cluster.group.parse(key_of(event)), PlanKey)
    ]


async def some_life(cluster: Cluster) -> None:
    """Moves, a takeover, somebody who leaves: epochs rise, by plans and between them."""
    await cluster.add_topic(partitions=6)
    await cluster.start_instance("i1")
    await cluster.join("a")
    await cluster.until_counts(a=6)
    await cluster.join("b")
    await cluster.until_counts(a=3, b=3)
    for number in range(3):
        heir = await cluster.join("b", session=f"b-{number}")
        await heir.until("took over", lambda c: len(c.owned) == 3)
    await cluster.join("c")
    await cluster.until_counts(a=2, b=2, c=2)


async def replaced_by_a_service_without_epochs(cluster: Cluster, *, deletes: bool) -> None:
    """It rewrites assignments as it knows them, or deletes them when nobody is registered; `plan` it leaves alone."""
    for consumer in cluster.consumers.values():
        consumer.crash()
    await cluster.stop_instance("i1")
    for partition, held in (await cluster.state()).assignments.items():
        if deletes:
            await cluster.store.delete(held.key)
        else:
            theirs = {"topic": partition.topic, "partition": partition.partition, "owner": "a", "status": "Active"}
            await cluster.store.put(held.key, msgspec.json.encode(theirs))


@pytest.mark.cluster(etcd_ttl=EXPIRES)
@pytest.mark.parametrize("deletes", [False, True], ids=["rewritten", "deleted"])
async def test_rule_18_epochs_only_rise_although_a_service_without_epochs_was_here_meanwhile(
    any_cluster: Cluster, deletes: bool
) -> None:
    cluster = any_cluster
    await some_life(cluster)
    await anyio.sleep(2 * LAG)
    before = await granted(cluster)
    assert max(max(epochs) for epochs in before.values()) > 4
    await replaced_by_a_service_without_epochs(cluster, deletes=deletes)
    instance = await cluster.start_instance("i2")
    await cluster.join("d", instance)
    await cluster.until_counts(d=6, within=6 * cluster.ttl)
    await only_went_up(cluster)
    after = await granted(cluster)
    assert all(after[partition][-1] > max(epochs) for partition, epochs in before.items())


async def test_the_floor_follows_takeovers_in_one_write_for_all_of_a_moment(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=20)
    await cluster.start_instance("i1")
    await cluster.join("a")
    await cluster.until_counts(a=20)
    await anyio.sleep(2 * LAG)
    published = len(await plans(cluster))
    heir = await cluster.join("a", session="another")
    await heir.until("took over", lambda c: set(c.owned.values()) == {2})
    await anyio.sleep(2 * LAG)
    assert [plan.epoch_floor for plan in (await plans(cluster))[published:]] == [2]


async def test_a_plan_takes_the_floor_along_without_another_write(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=20)
    await cluster.start_instance("i1")
    await cluster.join("a")
    await cluster.until_counts(a=20)
    await anyio.sleep(5 * LAG)
    assert [(plan.generation, plan.epoch_floor) for plan in await plans(cluster)] == [(1, 1)]


async def test_a_new_leader_raises_a_floor_that_was_left_behind(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=4)
    await cluster.start_faulty("i1")
    await cluster.join("a")
    await cluster.until_counts(a=4)
    heir = await cluster.join("a", session="another")
    await heir.until("took over", lambda c: set(c.owned.values()) == {2})
    assert (await cluster.plan()).epoch_floor == 1, "the leader died before it could follow"
    cluster.crash_instance("i1")
    heir.crash()
    await cluster.start_instance("i2")
    await cluster.until("the floor is raised", lambda s: s.plan.epoch_floor == 2, within=3 * cluster.ttl)
