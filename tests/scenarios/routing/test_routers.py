"""Cutover acknowledgements: while routers are registered, a handoff freezes until each of them has said so.

The routers here are records in the store, written by hand; what they do around them is their own affair.
"""

from __future__ import annotations

import anyio
import pytest

from assigner.model.keys import TopicPartition
from assigner.model.records import GroupOptions, HandoffMode, Router, RouterAck, Step, encode
from tests.support.cluster import Cluster
from tests.support.stepped_consumer import SteppedConsumer

OPTIONS = GroupOptions(debounce=0.1, freeze_timeout=60.0)
pytestmark = [pytest.mark.virtual_time, pytest.mark.cluster(options=OPTIONS)]


async def register(cluster: Cluster, name: str) -> int:
    lease = (await cluster.store.grant(600)).lease
    await cluster.store.put(cluster.group.router(name), encode(Router(router_name=name)), lease=lease)
    return lease


async def acknowledge(cluster: Cluster, router: str, partition: TopicPartition, handoff_id: str) -> None:
    ack = RouterAck(router_name=router, topic=partition.topic, partition=partition.partition, handoff_id=handoff_id)
    await cluster.store.put(cluster.group.ack(partition, router), encode(ack))


async def moving(cluster: Cluster, *routers: str) -> tuple[SteppedConsumer, SteppedConsumer, TopicPartition]:
    """One partition of two is warm at `b`, and the routers are waited for."""
    for router in routers:
        await register(cluster, router)
    await cluster.add_topic(partitions=2)
    await cluster.start_instance()
    a = await cluster.join("a")
    await cluster.until_counts(a=2)
    b = await cluster.join("b", answers_warm=False)
    await b.until("asked to warm", lambda c: bool(c.to_warm))
    (partition,) = b.to_warm
    await b.ready(partition)
    return a, b, partition


async def frozen(cluster: Cluster, partition: TopicPartition) -> str:
    """Wait until the handoff freezes; its id."""
    state = await cluster.until(
        "freezing", lambda s: partition in s.handoffs and s.handoffs[partition].record.at is Step.FREEZING
    )
    return state.handoffs[partition].record.handoff_id


async def test_a_handoff_freezes_until_every_router_has_acknowledged_it(any_cluster: Cluster) -> None:
    cluster = any_cluster
    _, b, partition = await moving(cluster, "r1", "r2")
    handoff_id = await frozen(cluster, partition)
    await acknowledge(cluster, "r1", partition, handoff_id)
    await anyio.sleep(0.5)
    assert partition not in b.owned
    await acknowledge(cluster, "r2", partition, handoff_id)
    state = await cluster.until_counts(a=1, b=1)
    assert not state.acks, "acknowledgements outlive their handoff"


async def test_without_routers_nothing_freezes(any_cluster: Cluster) -> None:
    cluster = any_cluster
    _, b, partition = await moving(cluster)
    await cluster.until_counts(a=1, b=1)
    steps = [event.entry.value for event in await cluster.history() if hasattr(event, "entry")]
    assert not any(b'"freezing"' in value for value in steps)
    assert partition in b.owned


async def test_exclusively_the_old_owner_is_asked_to_release_after_the_freeze(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.set_options(handoff_mode=HandoffMode.EXCLUSIVE)
    a, _, partition = await moving(cluster, "r1")
    handoff_id = await frozen(cluster, partition)
    assert not a.to_release
    assert partition in a.owned
    await acknowledge(cluster, "r1", partition, handoff_id)
    await cluster.until_counts(a=1, b=1)
    steps = [event.entry.value for event in await cluster.history() if hasattr(event, "entry")]
    order = [
        step
        for value in steps
        for step in ("freezing", "releasing", "released")
        if f'"step":"{step}"'.encode() in value
    ]
    assert order == ["freezing", "releasing", "released"]


async def test_a_router_that_leaves_is_not_waited_for(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await register(cluster, "r1")
    lease = await register(cluster, "r2")
    _, _, partition = await moving(cluster)
    handoff_id = await frozen(cluster, partition)
    await acknowledge(cluster, "r1", partition, handoff_id)
    await cluster.store.revoke(lease)
    await cluster.until_counts(a=1, b=1)


async def test_a_router_that_comes_meanwhile_is_waited_for_too(any_cluster: Cluster) -> None:
    cluster = any_cluster
    _, b, partition = await moving(cluster, "r1")
    handoff_id = await frozen(cluster, partition)
    await register(cluster, "r2")
    await acknowledge(cluster, "r1", partition, handoff_id)
    await anyio.sleep(cluster.a_while)
    assert partition not in b.owned
    await acknowledge(cluster, "r2", partition, handoff_id)
    await cluster.until_counts(a=1, b=1)


async def test_an_acknowledgement_of_an_earlier_handoff_does_not_count(any_cluster: Cluster) -> None:
    cluster = any_cluster
    _, b, partition = await moving(cluster, "r1")
    handoff_id = await frozen(cluster, partition)
    await acknowledge(cluster, "r1", partition, "an-earlier-one")
    await anyio.sleep(cluster.a_while)
    assert partition not in b.owned
    await acknowledge(cluster, "r1", partition, handoff_id)
    await cluster.until_counts(a=1, b=1)


async def test_the_acknowledgement_of_a_router_that_is_gone_stands_in_for_no_other(any_cluster: Cluster) -> None:
    """As many have acknowledged as are registered, but they are not the same."""
    cluster = any_cluster
    _, b, partition = await moving(cluster, "r1")
    handoff_id = await frozen(cluster, partition)
    await acknowledge(cluster, "gone", partition, handoff_id)
    await anyio.sleep(0.5)
    assert partition not in b.owned
    await acknowledge(cluster, "r1", partition, handoff_id)
    await cluster.until_counts(a=1, b=1)


async def test_acknowledgements_that_were_there_before_the_freeze_count(any_cluster: Cluster) -> None:
    """A router may see a handoff become ready before the leader writes that it freezes."""
    cluster = any_cluster
    await register(cluster, "r1")
    await cluster.add_topic(partitions=2)
    await cluster.start_instance()
    await cluster.join("a")
    await cluster.until_counts(a=2)
    b = await cluster.join("b", answers_warm=False)
    await b.until("asked to warm", lambda c: bool(c.to_warm))
    (partition,) = b.to_warm
    await acknowledge(cluster, "r1", partition, b.to_warm[partition].handoff_id)
    await b.ready(partition)
    await cluster.until_counts(a=1, b=1)


async def test_the_last_router_to_leave_ends_the_freeze(any_cluster: Cluster) -> None:
    cluster = any_cluster
    lease = await register(cluster, "r1")
    _, _, partition = await moving(cluster)
    await frozen(cluster, partition)
    await cluster.store.revoke(lease)
    await cluster.until_counts(a=1, b=1)


async def test_a_new_leader_goes_on_where_the_freeze_stood(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await register(cluster, "r1")
    await register(cluster, "r2")
    await cluster.add_topic(partitions=2)
    await cluster.start_instance("i1")
    other = await cluster.start_instance("i2", leads=False)
    await cluster.join("a", other)
    await cluster.until_counts(a=2)
    b = await cluster.join("b", other, answers_warm=False)
    await b.until("asked to warm", lambda c: bool(c.to_warm))
    (partition,) = b.to_warm
    await b.ready(partition)
    handoff_id = await frozen(cluster, partition)
    await acknowledge(cluster, "r1", partition, handoff_id)
    await cluster.stop_instance("i1")
    await cluster.start_instance("i3")
    await cluster.until("a leader", lambda s: s.leader is not None)
    assert await frozen(cluster, partition) == handoff_id
    await acknowledge(cluster, "r2", partition, handoff_id)
    await cluster.until_counts(a=1, b=1)


async def test_an_unreadable_acknowledgement_is_none(any_cluster: Cluster) -> None:
    cluster = any_cluster
    _, b, partition = await moving(cluster, "r1")
    handoff_id = await frozen(cluster, partition)
    await cluster.store.put(cluster.group.ack(partition, "r1"), b"{")
    await anyio.sleep(cluster.a_while)
    assert partition not in b.owned
    await acknowledge(cluster, "r1", partition, handoff_id)
    await cluster.until_counts(a=1, b=1)
