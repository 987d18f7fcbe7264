"""Brings a cluster to where routers matter: a partition that is warm at its new owner, and frozen."""

from __future__ import annotations

from assigner.core.group import GroupState
from assigner.model.keys import TopicPartition
from assigner.model.records import Step
from assigner.testing.waiting import eventually
from tests.support.cluster import GROUP, Cluster
from tests.support.stepped_consumer import SteppedConsumer


async def warm_at_b(cluster: Cluster, *, partitions: int = 2) -> tuple[SteppedConsumer, SteppedConsumer]:
    """`a` owns everything, `b` joins and warms its half. An instance runs, and routers are registered, if any."""
    await cluster.add_topic(partitions=partitions)
    if not cluster.instances:
        await cluster.start_instance()
    await until_led(cluster)
    a = await cluster.join("a", address="10.0.0.1:1")
    await cluster.until_counts(a=partitions)
    b = await cluster.join("b", answers_warm=False, address="10.0.0.2:1")
    await b.until("asked to warm", lambda c: len(c.to_warm) == partitions // 2)
    return a, b


async def until_led(cluster: Cluster) -> None:
    """Wait until the group is led, so that its leader sees everybody join: then nobody who dies has a grace period."""
    leads = [one.coordinators.leading for one in cluster.instances.values()]
    await eventually(lambda: any(GROUP in one for one in leads), within=cluster.patience, what="led")


async def moving(cluster: Cluster) -> tuple[SteppedConsumer, SteppedConsumer, TopicPartition]:
    """One partition of two moves from `a` to `b`, and has just become ready."""
    a, b = await warm_at_b(cluster)
    (partition,) = b.to_warm
    await b.ready(partition)
    return a, b, partition


async def until_step(cluster: Cluster, tp: TopicPartition, step: Step = Step.FREEZING) -> str:
    """Wait until the partition's handoff is at that step; its id."""
    state = await cluster.until(step.value, lambda s: tp in s.handoffs and s.handoffs[tp].record.at is step)
    return state.handoffs[tp].record.handoff_id


def owners(state: GroupState) -> dict[TopicPartition, tuple[str, int]]:
    return {tp: (held.record.owner, held.record.epoch) for tp, held in state.assignments.items()}
