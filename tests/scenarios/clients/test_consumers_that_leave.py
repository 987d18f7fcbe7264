"""Consumers of the client library that leave or drain while something is in their way: a lease that ends, work that
does not, a handler that fails, a store that refuses or hangs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest

from assigner.client import Ending, Handler
from assigner.client.session import DEREGISTER_TIMEOUT
from assigner.model.records import GroupOptions, HandoffMode, Status
from assigner.store import LeaseGone
from assigner.testing.faults import Refuse
from assigner.testing.waiting import eventually
from tests.support.clients.library_consumers import PATIENCE, QUICK, consuming, owns, serving, serving_by_faults
from tests.support.clients.recording_handler import Recorder
from tests.support.cluster import Cluster, tp

EXCLUSIVE = GroupOptions(handoff_mode=HandoffMode.EXCLUSIVE, debounce=0.1)
HASTY = type(QUICK)(call_timeout=5.0, first_pause=0.01, longest_pause=0.2, close_timeout=0.1)


def failing_once() -> Callable[[], Awaitable[None]]:
    calls: list[None] = []

    async def fail() -> None:
        calls.append(None)
        if len(calls) == 1:
            raise RuntimeError("failed on request")

    return fail


def writes_to(key: str) -> Callable[..., bool]:
    """For `FaultyStore.inject`: a transaction that writes the key."""
    return lambda _, __, operations: any(operation.key == key for operation in operations)


# --- what happens to a drain -----------------------------------------------------------------------------------------


async def test_a_lease_that_ends_during_a_drain_revokes_what_is_left_and_the_drain_ends(wired_cluster: Cluster) -> None:
    cluster, handler = wired_cluster, Recorder()
    service = await serving(cluster)
    async with consuming(cluster, handler) as a:
        await owns(a, 4)
        b = await cluster.join("b", service.instance, answers_warm=False)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(a.drain)
            await b.until("asked to warm all", lambda c: len(c.to_warm) == 4)
            state = await cluster.state()
            assert state.consumers["a"].record.status is Status.DRAINING
            await cluster.store.revoke(state.consumers["a"].lease)
            await eventually(lambda: a.statistics().revoked == 4, within=PATIENCE)
        assert await a.closed() is Ending.DRAINED
        assert not any(call.startswith("release") for call in handler.calls)
        await cluster.until_counts(b=4)


async def test_a_drain_that_can_not_be_recorded_leaves_the_consumer_at_work_and_it_leaves_in_order(
    wired_cluster: Cluster,
) -> None:
    cluster, handler = wired_cluster, Recorder()
    faults = await serving_by_faults(cluster)
    async with consuming(cluster, handler) as a:
        await owns(a, 4)
        key = cluster.group.consumer("a")
        refused = faults.inject(Refuse(), kinds={"transact"}, times=None, where=writes_to(key))
        with pytest.raises(TimeoutError):
            await a.drain(timeout=1.0)
        assert refused.hits > 0
        assert len(a.partitions) == 4
        assert (await cluster.state()).consumers["a"].record.status is Status.READY
    assert await a.closed() is Ending.LEFT
    assert [call.partition(" ")[0] for call in handler.calls] == ["assigned"] * 4 + ["revoked"] * 4


async def test_a_consumer_whose_registration_is_gone_drains_to_its_end(wired_cluster: Cluster) -> None:
    cluster, handler = wired_cluster, Recorder()
    service = await serving(cluster)
    async with consuming(cluster, handler) as a:
        await owns(a, 4)
        await cluster.join("b", service.instance)
        await cluster.until_counts(a=2, b=2)
        await cluster.store.delete(cluster.group.consumer("a"))
        await a.drain(timeout=PATIENCE)
    assert await a.closed() is Ending.DRAINED
    assert not a.partitions
    await cluster.until_counts(b=4)


async def test_a_drain_goes_on_where_the_handler_fails_to_release_a_partition(wired_cluster: Cluster) -> None:
    cluster, handler = wired_cluster, Recorder()
    service = await serving(cluster)
    handler.during["release"] = failing_once()
    async with consuming(cluster, handler) as a:
        await owns(a, 4)
        await cluster.join("b", service.instance)
        await cluster.until_counts(a=2, b=2)
        await a.drain(timeout=PATIENCE)
        assert await a.closed() is Ending.DRAINED
        await cluster.until_counts(b=4)
        assert a.statistics().handler_failures == 1
        assert a.statistics().released == 4


async def test_a_release_whose_ack_the_store_refuses_is_acked_again_and_not_released_again(
    wired_cluster: Cluster,
) -> None:
    cluster, handler = wired_cluster, Recorder()
    faults = await serving_by_faults(cluster, partitions=2)

    async def refuse_what_follows() -> None:
        (moving,) = (await cluster.state()).handoffs
        refused.append(
            faults.inject(Refuse(), kinds={"transact"}, times=3, where=writes_to(cluster.group.handoff(moving)))
        )

    refused: list[object] = []
    handler.during["release"] = refuse_what_follows
    async with consuming(cluster, handler) as a:
        await owns(a, 2)
        await cluster.join("b", cluster.services["s1"].instance)
        await cluster.until_counts(a=1, b=1)
        await eventually(lambda: a.statistics().pending_acks == 0, within=PATIENCE)
        (fault,) = refused
        assert fault.hits == 3  # type: ignore[attr-defined]
        assert sum(call.startswith("release") for call in handler.calls) == 1


# --- leaving at once -------------------------------------------------------------------------------------------------


async def test_a_consumer_that_leaves_has_shut_its_gates_before_it_is_deregistered(wired_cluster: Cluster) -> None:
    cluster, handler = wired_cluster, Recorder()
    await serving(cluster)
    found: list[tuple[bool, bool]] = []
    async with consuming(cluster, handler) as a:
        await owns(a, 4)

        async def look() -> None:
            is_registered = "a" in (await cluster.state()).consumers
            found.append((any(a.gate("t", number).is_open for number in range(4)), is_registered))

        handler.during["revoked"] = look
    assert found == [(False, True)] * 4
    assert not (await cluster.state()).consumers


@pytest.mark.cluster(options=EXCLUSIVE)
async def test_a_consumer_whose_work_does_not_end_in_time_is_not_taken_for_stopped(wired_cluster: Cluster) -> None:
    """It leaves, but nobody gets its partitions before its lease is over."""
    cluster = wired_cluster
    service = await serving(cluster)
    b = await cluster.join("b", service.instance)
    async with consuming(cluster, Handler(), timing=HASTY) as a:
        await owns(a, 2)
        work = [a.gate("t", number).enter() for number in range(4) if tp(number) in a.partitions]
        for one in work:
            one.__enter__()
    registered = (await cluster.state()).consumers["a"]
    assert not isinstance(await cluster.store.remaining(registered.lease), LeaseGone)
    await anyio.sleep(0.5)
    assert len(b.owned) == 2
    await cluster.store.revoke(registered.lease)
    await cluster.until_counts(b=4)
    for one in work:
        one.__exit__(None, None, None)


@pytest.mark.parametrize("drains", [False, True])
async def test_a_consumer_that_is_stopped_while_the_store_hangs_ends_within_its_bounds(
    wired_cluster: Cluster, drains: bool
) -> None:
    cluster, handler = wired_cluster, Recorder()
    faults = await serving_by_faults(cluster)
    async with consuming(cluster, handler) as a:
        await owns(a, 4)
        faults.freeze()
        if drains:
            with pytest.raises(TimeoutError):
                await a.drain(timeout=1.0)
        began = cluster.clock.now()
    assert cluster.clock.now() - began < DEREGISTER_TIMEOUT + 1.0 + cluster.allowance
    assert await a.closed() is Ending.LEFT
    assert a.statistics().revoked == 4
    assert not a.gate("t", 0).is_open
    faults.heal()
    assert {tp(number) for number in range(4)} == set((await cluster.state()).assignments)


# --- evicted ---------------------------------------------------------------------------------------------------------


async def test_an_evicted_consumer_does_not_join_again_before_its_work_has_ended(wired_cluster: Cluster) -> None:
    cluster = wired_cluster
    await cluster.set_options(release_timeout=1.0)
    service = await serving(cluster, partitions=2)
    async with consuming(cluster, Handler()) as a:
        await owns(a, 2)
        session, works = a.session, [a.gate("t", number).enter() for number in (0, 1)]
        for work in works:
            work.__enter__()
        await cluster.join("b", service.instance)
        await cluster.until("evicted", lambda s: bool(s.consumers["a"].record.evicted))
        await eventually(lambda: not a.is_connected, within=PATIENCE)
        await anyio.sleep(0.5)
        assert (a.session, a.statistics().links) == (session, 1)
        for work in works:
            work.__exit__(None, None, None)
        await eventually(lambda: a.statistics().links == 2, within=PATIENCE)
        assert a.session != session
        await cluster.until_counts(a=1, b=1)
