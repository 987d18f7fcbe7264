"""Racks in a running group: owners end up where replicas are, as far as an even share allows."""

from __future__ import annotations

import anyio
import pytest

from assigner.core.group import GroupState
from tests.support.cluster import Cluster

pytestmark = pytest.mark.virtual_time


def mismatches(state: GroupState) -> int:
    """Partitions whose owner's rack is known, and none of whose replicas, of known racks, is there."""
    found = 0
    for at, held in state.assignments.items():
        racks = state.topics[at.topic].record.replica_racks
        replicas = racks[at.partition] if at.partition < len(racks) else ()
        rack = state.consumers[held.record.owner].record.rack
        found += bool(rack and replicas and rack not in replicas)
    return found


async def at_rest(cluster: Cluster, **counts: int) -> GroupState:
    await cluster.until_counts(**counts)
    # The generation of a group's first plan is written after the last of its assignments.
    state = await cluster.until("the plan is written to its end", lambda state: state.plan.generation > 0)
    await anyio.sleep(1.0)
    after = await cluster.until_counts(**counts)
    assert after.plan.generation == state.plan.generation
    return after


THREE = (("r1",), ("r2",), ("r3",)) * 3


async def test_owners_are_where_the_replicas_are(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.add_topic(partitions=9, replica_racks=THREE)
    await cluster.start_instance()
    for name, rack in (("a", "r2"), ("b", "r3"), ("c", "r1")):
        await cluster.join(name, rack=rack)
    assert mismatches(await at_rest(cluster, a=3, b=3, c=3)) == 0


async def test_when_a_rack_has_nobody_its_partitions_are_shared_and_nothing_else_moves(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=9, replica_racks=THREE)
    await cluster.start_instance()
    for name, rack in (("a", "r1"), ("b", "r2"), ("c", "r3")):
        await cluster.join(name, rack=rack)
    before = await at_rest(cluster, a=3, b=3, c=3)
    cluster.consumers["c"].crash()
    await cluster.until("c is gone", lambda state: "c" not in state.consumers, within=90)
    await cluster.until("all is owned", lambda state: state.unowned() == 0 and not state.handoffs)
    after = await cluster.state()
    assert mismatches(after) == 3
    assert before.owned["a"] < after.owned["a"]
    assert before.owned["b"] < after.owned["b"]


async def test_an_even_share_comes_before_racks(cluster: Cluster) -> None:
    """Everything lies in one rack, and half of the members are elsewhere: half is read from afar."""
    await cluster.add_topic(partitions=8, replica_racks=(("r1",),) * 8)
    await cluster.start_instance()
    for name, rack in (("a", "r1"), ("b", "r2"), ("c", "r1"), ("d", "r2")):
        await cluster.join(name, rack=rack)
    assert mismatches(await at_rest(cluster, a=2, b=2, c=2, d=2)) == 4


async def test_replicas_in_several_racks_leave_a_choice_and_it_is_made_well(cluster: Cluster) -> None:
    """Only one way round has no mismatch: what could go to either goes where nothing else can."""
    racks = (("r1", "r2"), ("r1", "r2"), ("r1",), ("r1",))
    await cluster.add_topic(partitions=4, replica_racks=racks)
    await cluster.start_instance()
    await cluster.join("a", rack="r1")
    await cluster.until_counts(a=4)
    await cluster.join("b", rack="r2")
    assert mismatches(await at_rest(cluster, a=2, b=2)) == 0


async def test_members_and_partitions_without_a_known_rack_match_anything(cluster: Cluster) -> None:
    racks = (("r1",), (), ("r2",), ())
    await cluster.add_topic(partitions=4, replica_racks=racks)
    await cluster.add_topic("u", 2)
    await cluster.start_instance()
    await cluster.join("a", rack="r2")
    await cluster.join("b")
    state = await at_rest(cluster, a=3, b=3)
    assert mismatches(state) == 0


async def test_racks_that_become_known_later_are_taken_into_account(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=6)
    await cluster.start_instance()
    await cluster.join("a", rack="r1")
    await cluster.join("b", rack="r2")
    await at_rest(cluster, a=3, b=3)
    await cluster.add_topic(partitions=6, replica_racks=(("r2",), ("r1",)) * 3)
    await cluster.until("no mismatch is left", lambda state: mismatches(state) == 0 and not state.handoffs)
    await at_rest(cluster, a=3, b=3)


async def test_racks_can_be_ignored(cluster: Cluster) -> None:
    await cluster.set_options(strategy_options={"racks": "ignore"})
    await cluster.add_topic(partitions=4, replica_racks=(("r2",), ("r2",), ("r1",), ("r1",)))
    await cluster.start_instance()
    await cluster.join("a", rack="r1")
    await cluster.join("b", rack="r2")
    state = await at_rest(cluster, a=2, b=2)
    await cluster.set_options(strategy_options={})
    await cluster.until("racks count again", lambda state: mismatches(state) == 0 and not state.handoffs)
    assert mismatches(state) > 0
