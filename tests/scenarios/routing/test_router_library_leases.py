"""Routers of the library whose lease, registration or connection is lost, or that are stopped while the store hangs,
with whole instances over real gRPC; and what is not repeated when all is well.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from assigner.client.session import DEREGISTER_TIMEOUT
from assigner.clock import LoopClock
from assigner.model.keys import TopicPartition
from assigner.model.records import GroupOptions
from assigner.model.routes import Route
from assigner.routing import Router, RouterClosed, Target
from assigner.store import Put
from assigner.testing.faults import Refuse
from assigner.testing.waiting import eventually
from tests.support.clients.library_consumers import PATIENCE, QUICK, serving, serving_by_faults
from tests.support.cluster import EXPIRES, GROUP, Cluster, tp
from tests.support.network.tcp_proxy import proxied

OPTIONS = GroupOptions(debounce=0.1, freeze_timeout=60.0)
pytestmark = pytest.mark.cluster(options=OPTIONS)


@asynccontextmanager
async def routing(cluster: Cluster, addresses: Sequence[str] = (), **options: Any) -> AsyncIterator[Router]:
    """A router of a group whose partitions all belong to `a`."""
    (service,) = cluster.services.values()
    await cluster.join("a", service.instance, address="a.pods:80")
    await cluster.until_counts(a=4)
    with anyio.fail_after(600):
        addresses = addresses or [service.address]
        async with Router(addresses, GROUP, "r1", timing=QUICK, clock=LoopClock(), **options) as router:
            yield router


async def send(router: Router) -> Target:
    async with router.route_partition("t", 0) as target:
        return target


async def is_sent_now(router: Router) -> bool:
    """Whether a request is given a target without having to wait."""
    with anyio.move_on_after(0):
        await send(router)
        return True
    return False


async def test_a_connection_that_is_cut_again_and_again_holds_no_request_back(wired_cluster: Cluster) -> None:
    cluster = wired_cluster
    service = await serving(cluster)
    async with proxied(service.address) as proxy, routing(cluster, [proxy.endpoint]) as router:
        registered = (await cluster.state()).routers["r1"].create_revision
        for registrations in range(2, 17):
            proxy.cut()
            assert await is_sent_now(router)
            await eventually(
                lambda count=registrations: router.statistics().registrations == count,  # type: ignore[misc]
                within=PATIENCE,
            )
            assert await is_sent_now(router)
        assert (await cluster.state()).routers["r1"].create_revision == registered
        assert router.statistics().lapses == 0


async def test_a_router_whose_registration_is_deleted_registers_again_before_it_sends_anything(
    wired_cluster: Cluster,
) -> None:
    cluster = wired_cluster
    await serving(cluster)
    async with routing(cluster) as router:
        lease = (await cluster.state()).routers["r1"].lease
        await cluster.store.delete(cluster.group.router("r1"))
        await eventually(lambda: router.statistics().lapses == 1, within=PATIENCE)
        assert (await send(router)).owner == "a"
        assert router.statistics().registrations == 2
        again = (await cluster.state()).routers["r1"]
        assert again.lease != lease
        assert again.record.session == router.session


@pytest.mark.cluster(options=OPTIONS, etcd_ttl=EXPIRES)
async def test_renewals_that_the_store_does_not_confirm_hold_every_request_back_until_one_is_confirmed(
    wired_cluster: Cluster,
) -> None:
    cluster = wired_cluster
    faults = await serving_by_faults(cluster)
    async with routing(cluster) as router:
        lease = (await cluster.state()).routers["r1"].lease
        refused = faults.inject(Refuse(), kinds={"keep_alive"}, times=None, where=lambda _, kept: kept == lease)
        await eventually(lambda: not router.may_route, within=cluster.ttl + cluster.allowance, every=0.1)
        assert refused.hits > 0
        assert not await is_sent_now(router)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send, router)
            await eventually(lambda: router.statistics().stashed == 1, within=PATIENCE)
            refused.remove()
        assert router.statistics().stashed == 0
        assert router.statistics().lapses >= 1


async def test_a_router_that_is_stopped_while_the_store_hangs_ends_within_its_bounds(wired_cluster: Cluster) -> None:
    cluster = wired_cluster
    faults = await serving_by_faults(cluster)
    async with routing(cluster) as router:
        assert await is_sent_now(router)
        faults.freeze()
        began = cluster.clock.now()
    assert cluster.clock.now() - began < DEREGISTER_TIMEOUT + 1.0 + cluster.allowance
    with pytest.raises(RouterClosed):
        await send(router)
    faults.heal()


# --- acks and steps ------------------------------------------------------------------------------------------------


async def test_acks_that_the_store_refuses_for_a_while_are_given_once_it_takes_them(wired_cluster: Cluster) -> None:
    cluster = wired_cluster
    faults = await serving_by_faults(cluster)
    async with routing(cluster) as router:
        acks = f"{cluster.group.prefix}handoff_acks/"
        refused = faults.inject(
            Refuse(),
            kinds={"transact"},
            times=4,
            where=lambda _, __, operations: any(isinstance(one, Put) and acks in one.key for one in operations),
        )
        (service,) = cluster.services.values()
        await cluster.join("b", service.instance, address="b.pods:80")
        await cluster.until_counts(a=2, b=2)
        assert refused.hits == 4
        assert router.statistics().lapses == 0
        await eventually(lambda: not router.statistics().frozen, within=PATIENCE)


class Steps:
    """A program's own way of carrying out cutovers, which notes the steps."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, int]] = []

    def stop(self, partition: TopicPartition) -> None:
        self.taken.append(("stop", partition.partition))

    def stash(self, partition: TopicPartition) -> None:
        self.taken.append(("stash", partition.partition))

    async def drain(self, partition: TopicPartition) -> None:
        self.taken.append(("drain", partition.partition))

    def switch(self, partition: TopicPartition, route: Route) -> None:
        self.taken.append(("switch", partition.partition))

    def flush(self, partition: TopicPartition) -> None:
        self.taken.append(("flush", partition.partition))


async def test_no_step_is_repeated_for_a_settled_partition_by_renewals_or_whole_tables(wired_cluster: Cluster) -> None:
    cluster, steps = wired_cluster, Steps()
    service = await serving(cluster)
    async with proxied(service.address) as proxy, routing(cluster, [proxy.endpoint], handler=steps) as router:
        await cluster.join("b", service.instance, address="b.pods:80")
        moved = (await cluster.until_counts(a=2, b=2)).owned["b"]
        await eventually(lambda: len(steps.taken) == 8 + 5 * 2, within=PATIENCE)
        for partition in range(4):
            cutover = ["stop", "stash", "drain", "switch", "flush"] if tp(partition) in moved else []
            assert [step for step, about in steps.taken if about == partition] == ["switch", "flush", *cutover]
        for registrations in (2, 3, 4):
            proxy.cut()
            await eventually(
                lambda count=registrations: router.statistics().registrations == count,  # type: ignore[misc]
                within=PATIENCE,
            )
        await eventually(lambda: router.statistics().lease_left > 0, within=PATIENCE)
        assert len(steps.taken) == 8 + 5 * 2
