"""Routers of the library whose lease, registration or connection is lost, or that are stopped while the store hangs,
with whole instances over real gRPC.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio
import pytest

from assigner.client.session import DEREGISTER_TIMEOUT
from assigner.clock import LoopClock
from assigner.model.records import GroupOptions
from assigner.routing import Router, RouterClosed, Target
from assigner.testing.faults import Refuse
from assigner.testing.waiting import eventually
from tests.support.clients.library_consumers import PATIENCE, QUICK, serving, serving_by_faults
from tests.support.cluster import EXPIRES, GROUP, Cluster
from tests.support.network.tcp_proxy import proxied

OPTIONS = GroupOptions(debounce=0.1, freeze_timeout=60.0)
pytestmark = pytest.mark.cluster(options=OPTIONS)


@asynccontextmanager
async def routing(cluster: Cluster, addresses: Sequence[str] = ()) -> AsyncIterator[Router]:
    """A router of a group whose partitions all belong to `a`."""
    (service,) = cluster.services.values()
    await cluster.join("a", service.instance, address="a.pods:80")
    await cluster.until_counts(a=4)
    with anyio.fail_after(600):
        async with Router(addresses or [service.address], GROUP, "r1", timing=QUICK, clock=LoopClock()) as router:
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
        await eventually(lambda: not router.may_route, within=cluster.ttl + cluster.allowance)
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
