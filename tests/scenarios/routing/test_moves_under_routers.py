"""Whole courses with routers registered: first owners, drains, rolling updates, and topics that move as one."""

from __future__ import annotations

import anyio
import pytest

from assigner.model.records import GroupOptions, HandoffMode, Step
from tests.support.cluster import Cluster, tp
from tests.support.frozen_moves import owners, until_led, until_step
from tests.support.stepped_router import SteppedRouter

OPTIONS = GroupOptions(debounce=0.1, freeze_timeout=60.0)
pytestmark = [pytest.mark.virtual_time, pytest.mark.cluster(options=OPTIONS)]


async def agree(cluster: Cluster, *routers: SteppedRouter) -> None:
    state = await cluster.state()
    for router in routers:
        await router.until("the owners on record", lambda r: r.owners() == owners(state) and not r.frozen)


async def test_a_first_owner_waits_for_no_router_because_nobody_sends_anywhere_yet(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.start_instance()
    router = await cluster.route("silent", acks_freezes=False)
    await cluster.add_topic(partitions=4)
    await cluster.join("a")
    await cluster.until_counts(a=4)
    await agree(cluster, router)
    assert not any(route.handoff_id for update in router.heard for _, route in update.routes)


@pytest.mark.parametrize("mode", list(HandoffMode))
async def test_a_consumer_that_drains_hands_over_by_freezes_and_each_is_acked_once(
    any_cluster: Cluster, mode: HandoffMode
) -> None:
    cluster = any_cluster
    await cluster.set_options(handoff_mode=mode)
    await cluster.start_instance()
    await cluster.add_topic(partitions=6)
    routers = [await cluster.route("r1"), await cluster.route("r2")]
    a = await cluster.join("a")
    await cluster.join("b")
    await cluster.until_counts(a=3, b=3)
    before = [len(router.acked) for router in routers]
    await a.deregister()
    await cluster.until_counts(b=6)
    await agree(cluster, *routers)
    assert [len(router.acked) - count for router, count in zip(routers, before, strict=True)] == [3, 3]


async def test_a_rolling_update_leaves_every_router_with_the_new_owners(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.start_instance()
    await cluster.add_topic(partitions=6)
    await until_led(cluster)
    routers = [await cluster.route("r1"), await cluster.route("r2")]
    for name in ("old1", "old2", "old3"):
        await cluster.join(name)
    await cluster.until_counts(old1=2, old2=2, old3=2)
    for number in (1, 2, 3):
        await cluster.join(f"new{number}")
        await cluster.consumers[f"old{number}"].deregister()
        await cluster.until(
            "gone",
            lambda s, name=f"old{number}": name not in s.owned and not s.handoffs,  # type: ignore[misc]
        )
    await cluster.until_counts(new1=2, new2=2, new3=2)
    await agree(cluster, *routers)


async def test_a_copartition_set_flips_when_every_partition_of_it_is_acked(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.set_options(copartitioned=(("t", "u"),))
    await cluster.add_topic("t", partitions=2)
    await cluster.add_topic("u", partitions=2)
    await cluster.start_instance()
    router = await cluster.route("r1", acks_freezes=False)
    await cluster.join("a")
    await cluster.until_counts(a=4)
    b = await cluster.join("b")
    await router.until("both frozen", lambda r: len(r.frozen) == 2)
    one, other = sorted(router.frozen)
    assert one.partition == other.partition
    assert router.table[one].handoff_id == router.table[other].handoff_id
    await router.ack(one)
    await anyio.sleep(0.5)
    assert not b.owned
    await router.ack(other)
    await cluster.until_counts(a=2, b=2)
    await agree(cluster, router)


async def test_an_owner_that_comes_back_as_another_process_while_frozen_is_followed_by_the_new_owner(
    any_cluster: Cluster,
) -> None:
    """Its new session has no part in the handoff, so nobody sends to it any more for this partition."""
    cluster = any_cluster
    await cluster.start_instance()
    await cluster.add_topic(partitions=2)
    await until_led(cluster)
    router = await cluster.route("silent", acks_freezes=False)
    await cluster.join("a")
    await cluster.until_counts(a=2)
    await cluster.join("b")
    await router.until("frozen", lambda r: bool(r.frozen))
    (partition,) = router.frozen
    await until_step(cluster, partition, Step.FREEZING)
    await cluster.join("a", session="another")
    state = await cluster.until_counts(a=1, b=1)
    assert state.assignments[partition].record.owner == "b"
    assert tp(1 - partition.partition) in state.owned["a"]
    await agree(cluster, router)
