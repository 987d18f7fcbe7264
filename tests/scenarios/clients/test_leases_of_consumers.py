"""Consumers of the client library whose lease, registration, connection or instance is lost: when their gates shut,
what their handler is told, and with what they go on.
"""

from __future__ import annotations

import anyio
import pytest

from assigner.client import GateClosed, Shut
from assigner.store import LeaseGone
from assigner.testing.faults import Refuse
from assigner.testing.waiting import eventually
from tests.support.clients.library_consumers import PATIENCE, QUICK, consuming, owns, serving, serving_by_faults
from tests.support.clients.recording_handler import Recorder
from tests.support.cluster import EXPIRES, Cluster, tp
from tests.support.network.tcp_proxy import proxied


async def lease_of(cluster: Cluster, name: str) -> int:
    return (await cluster.state()).consumers[name].lease


def calls_about(handler: Recorder, partition: int) -> list[str]:
    """The kinds of the calls about a partition, in their order."""
    return [call.partition(" ")[0] for call in handler.calls if f" t/{partition}@" in call]


# --- lost ----------------------------------------------------------------------------------------------------------


async def test_a_consumer_whose_lease_is_revoked_gives_everything_up_and_joins_again_under_another_lease(
    wired_cluster: Cluster,
) -> None:
    cluster, handler = wired_cluster, Recorder()
    await serving(cluster)
    async with consuming(cluster, handler) as a:
        await owns(a, 4)
        before = await lease_of(cluster, "a")
        await cluster.store.revoke(before)
        await eventually(lambda: a.statistics().revoked == 4, within=PATIENCE)
        await owns(a, 4)
        assert await lease_of(cluster, "a") != before
        for partition in range(4):
            assert calls_about(handler, partition) == ["assigned", "revoked", "assigned"]


async def test_a_consumer_whose_registration_is_deleted_shuts_its_gates_and_registers_again(
    wired_cluster: Cluster,
) -> None:
    """The lease of the lost registration is left to run out: nobody may count on what still lives under it."""
    cluster, handler = wired_cluster, Recorder()
    await serving(cluster)
    async with consuming(cluster, handler) as a:
        await owns(a, 4)
        lease = await lease_of(cluster, "a")
        open_when_revoked: list[bool] = []

        async def look() -> None:
            open_when_revoked.extend(a.gate("t", number).is_open for number in range(4))

        handler.during["revoked"] = look
        await cluster.store.delete(cluster.group.consumer("a"))
        await eventually(lambda: a.statistics().revoked == 4, within=PATIENCE)
        await owns(a, 4)
        assert len(open_when_revoked) == 16
        assert not any(open_when_revoked)
        assert await lease_of(cluster, "a") != lease
        assert not isinstance(await cluster.store.remaining(lease), LeaseGone)


async def test_the_deletion_of_a_registration_costs_no_other_consumer_its_session(wired_cluster: Cluster) -> None:
    cluster, handler = wired_cluster, Recorder()
    service = await serving(cluster)
    async with consuming(cluster, handler) as a:
        await owns(a, 4)
        for name in ("a-2", "a~", "b"):
            await cluster.join(name, service.instance)
        await cluster.until_counts(**{"a": 1, "a-2": 1, "a~": 1, "b": 1})
        before = (await cluster.state()).consumers["a"]
        for name in ("a-2", "a~", "b"):
            cluster.consumers[name].crash()
            await cluster.store.delete(cluster.group.consumer(name))
        await cluster.until_counts(a=4)
        await owns(a, 4)
        after = (await cluster.state()).consumers["a"]
        assert (after.create_revision, after.lease) == (before.create_revision, before.lease)
        assert a.statistics().links == 1
        assert not any(call.startswith("revoked") for call in handler.calls)


@pytest.mark.cluster(etcd_ttl=EXPIRES)
async def test_a_consumer_between_two_tries_to_connect_gives_up_its_partitions_as_soon_as_its_lease_may_be_over(
    wired_cluster: Cluster,
) -> None:
    cluster, handler = wired_cluster, Recorder()
    await serving(cluster)
    patient = type(QUICK)(call_timeout=5.0, first_pause=3600.0, longest_pause=3600.0)
    async with consuming(cluster, handler, timing=patient) as a:
        await owns(a, 4)
        await cluster.stop_service()
        await eventually(lambda: a.statistics().failed_tries > 0, within=PATIENCE)
        await eventually(lambda: a.statistics().revoked == 4, within=cluster.ttl + cluster.allowance)
        assert a.statistics().links == 1
        assert not a.partitions


# --- away ----------------------------------------------------------------------------------------------------------


async def test_a_connection_that_is_cut_again_and_again_costs_a_consumer_no_partition(wired_cluster: Cluster) -> None:
    cluster, handler = wired_cluster, Recorder()
    service = await serving(cluster)
    async with proxied(service.address) as proxy, consuming(cluster, handler, addresses=[proxy.endpoint]) as a:
        before = await owns(a, 4)
        registered = (await cluster.state()).consumers["a"].create_revision
        for links in range(2, 17):
            proxy.cut()
            await eventually(lambda links=links: a.statistics().links == links, within=PATIENCE)  # type: ignore[misc]
            assert a.partitions == before
        assert (await cluster.state()).consumers["a"].create_revision == registered
        assert a.statistics().leases_lost == 0
        assert len(handler.calls) == 4


async def test_a_consumer_whose_instance_stops_goes_on_at_another_one_with_what_it_had(wired_cluster: Cluster) -> None:
    cluster, handler = wired_cluster, Recorder()
    first = await serving(cluster)
    second = await cluster.start_service("s2")
    async with consuming(cluster, handler) as a:
        before = await owns(a, 4)
        registered = (await cluster.state()).consumers["a"].create_revision
        left, other = ("s1", second) if a.statistics().address == first.address else ("s2", first)
        await cluster.stop_service(left)
        await eventually(lambda: a.statistics().address == other.address, within=PATIENCE)
        assert a.partitions == before
        assert (await cluster.state()).consumers["a"].create_revision == registered
        assert len(handler.calls) == 4


@pytest.mark.cluster(etcd_ttl=EXPIRES)
async def test_an_outage_shuts_the_gates_at_two_thirds_of_the_ttl_which_is_before_the_lease_is_over(
    wired_cluster: Cluster,
) -> None:
    cluster, handler = wired_cluster, Recorder()
    service = await serving(cluster)
    async with proxied(service.address) as proxy, consuming(cluster, handler, addresses=[proxy.endpoint]) as a:
        await owns(a, 4)
        lease = await lease_of(cluster, "a")
        await proxy.stop()
        await eventually(lambda: not a.is_connected, within=PATIENCE)
        left = a.statistics().lease_left
        assert left <= cluster.ttl * 2 / 3
        until = cluster.clock.now() + left
        gates = [a.gate("t", number) for number in range(4)]
        is_over = False
        while not is_over:
            is_over = isinstance(await cluster.store.remaining(lease), LeaseGone)
            before = cluster.clock.now()
            # In this order: a gate that is open now was so when the lease was looked at.
            are_open = [gate.is_open for gate in gates]
            if cluster.clock.now() < until - 0.01:
                assert all(are_open)
            if before >= until or is_over:
                assert not any(are_open)
            await anyio.sleep(0.05)
        with pytest.raises(GateClosed) as refused:
            gates[0].admit()
        assert refused.value.reason is Shut.LEASE_OVER
        await eventually(lambda: a.statistics().revoked == 4, within=PATIENCE)


@pytest.mark.cluster(etcd_ttl=EXPIRES)
async def test_renewals_that_the_store_does_not_confirm_let_the_lease_lapse_at_its_consumer(
    wired_cluster: Cluster,
) -> None:
    cluster, handler = wired_cluster, Recorder()
    faults = await serving_by_faults(cluster)
    async with consuming(cluster, handler) as a:
        await owns(a, 4)
        lease = await lease_of(cluster, "a")
        refused = faults.inject(Refuse(), kinds={"keep_alive"}, times=None, where=lambda _, kept: kept == lease)
        await eventually(lambda: a.statistics().revoked == 4, within=cluster.ttl + cluster.allowance)
        assert refused.hits > 0
        assert not any(a.gate("t", number).is_open for number in range(4))
        refused.remove()
        await owns(a, 4)


# --- a handler that hangs ------------------------------------------------------------------------------------------


async def test_a_revoked_call_that_hangs_keeps_its_own_partition_and_no_other(wired_cluster: Cluster) -> None:
    """What could not be given up is not worked on again, though the consumer owns it: that waits for the call."""
    cluster, handler, may_end = wired_cluster, Recorder(), anyio.Event()
    await serving(cluster)
    handler.during["revoked t/0@1"] = may_end.wait
    async with consuming(cluster, handler) as a:
        await owns(a, 4)
        await cluster.store.revoke(await lease_of(cluster, "a"))
        await eventually(lambda: set(a.partitions) == {tp(1), tp(2), tp(3)}, within=PATIENCE)
        await cluster.until_counts(a=4)
        assert calls_about(handler, 0) == ["assigned", "revoked"]
        assert not a.gate("t", 0).is_open
        may_end.set()
        await owns(a, 4)
        assert calls_about(handler, 0) == ["assigned", "revoked", "assigned"]


async def test_a_revoked_call_that_fails_keeps_no_other_partition_from_being_given_up(wired_cluster: Cluster) -> None:
    cluster, handler = wired_cluster, Recorder()
    await serving(cluster)

    async def fail() -> None:
        raise RuntimeError("closing failed")

    handler.during["revoked"] = fail
    async with consuming(cluster, handler) as a:
        await owns(a, 4)
        await cluster.store.revoke(await lease_of(cluster, "a"))
        await eventually(lambda: a.statistics().handler_failures == 4, within=PATIENCE)
        await owns(a, 4)
        for partition in range(4):
            assert calls_about(handler, partition) == ["assigned", "revoked", "assigned"]
        handler.during.clear()


async def test_a_partition_that_the_handler_fails_to_take_costs_neither_the_session_nor_another_partition(
    wired_cluster: Cluster,
) -> None:
    """It is tried again and again, while the others are worked on."""
    cluster, handler = wired_cluster, Recorder()
    await serving(cluster)
    failures: list[None] = []

    async def fail_three_times() -> None:
        if len(failures) < 3:
            failures.append(None)
            raise RuntimeError("not yet")

    handler.during["assigned t/0@1"] = fail_three_times
    async with consuming(cluster, handler) as a:
        await owns(a, 3)
        registered = (await cluster.state()).consumers["a"].create_revision
        await owns(a, 4)
        assert (await cluster.state()).consumers["a"].create_revision == registered
        assert calls_about(handler, 0) == ["assigned"] * 4
        for partition in (1, 2, 3):
            assert calls_about(handler, partition) == ["assigned"]
        assert a.statistics().links == 1
