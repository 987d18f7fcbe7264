"""What things cost the store, counted on the way to it."""

from __future__ import annotations

from collections import Counter

import anyio
import pytest

from assigner.store import Limits, PutEvent, Store
from tests.support.cluster import Cluster, cluster_on
from tests.support.faulty_stores import NotingStore, key_of
from tests.support.stepped_consumer import SteppedConsumer

pytestmark = pytest.mark.virtual_time


async def counted_instance(cluster: Cluster, name: str = "i1") -> NotingStore:
    stores: list[NotingStore] = []

    def wrap(store: Store) -> Store:
        stores.append(NotingStore(store))
        return stores[0]

    await cluster.start_instance(name, wrap=wrap)
    return stores[0]


async def settle(store: NotingStore, seconds: float = 3.0) -> None:
    """Let what is under way end (history and index are written after the fact), and start to count."""
    await anyio.sleep(seconds)
    store.reset()
    store.transactions.clear()


async def cost_of_acks(partitions: int) -> tuple[Counter[str], Counter[str]]:
    """(operations for one Ready, operations for one Released) in a group of that many partitions."""
    async with cluster_on("memory", ttl=100_000.0) as cluster:
        await cluster.add_topic(partitions=partitions)
        store = await counted_instance(cluster)
        a = await cluster.join("a", answers_release=False)
        await cluster.until_counts(a=partitions)
        await cluster.set_options(max_concurrent_handoffs=1)
        b = await cluster.join("b", answers_warm=False)
        await b.until("asked to warm", lambda c: len(c.to_warm) == 1)
        await cluster.set_options(paused=True)
        (moving,) = b.to_warm
        await settle(store)
        await b.ready(moving)
        await a.until("told to release", lambda c: moving in c.to_release)
        await settle_and_take(store, ready := Counter[str]())
        await a.release(moving)
        await cluster.until("over", lambda s: not s.handoffs)
        await settle_and_take(store, released := Counter[str]())
        return ready, released


async def settle_and_take(store: NotingStore, into: Counter[str]) -> None:
    await anyio.sleep(3.0)
    into.update(store.operations)
    store.reset()


async def test_a_ready_and_a_released_cost_the_same_in_a_group_ten_times_as_large() -> None:
    small, large = await cost_of_acks(1_000), await cost_of_acks(10_000)
    assert small == large
    ready, released = small
    # Answer and flip, with what they compare, the line of history and that of the list; then the handoff's end.
    assert sum(ready.values()) <= 17
    assert sum(released.values()) <= 4


async def test_moving_n_partitions_takes_operations_in_proportion_to_n() -> None:
    costs = {}
    for partitions in (200, 400, 800):
        async with cluster_on("memory", ttl=100_000.0) as cluster:
            await cluster.add_topic(partitions=partitions)
            store = await counted_instance(cluster)
            await cluster.join("a")
            await cluster.until_counts(a=partitions)
            await settle(store)
            await cluster.join("b")
            await cluster.until_counts(a=partitions // 2, b=partitions // 2)
            moved = partitions // 2
            costs[partitions] = store.writes / moved
            assert store.requests["transact"] < moved, "writes do not share transactions"
            assert all(len(compares) <= 128 and len(ops) <= 128 for compares, ops in store.transactions)
    # Begin, ready, flip (two records), released; the same for each, however many there are.
    assert max(costs.values()) <= 5.5
    assert max(costs.values()) - min(costs.values()) <= 0.5


async def test_large_plans_are_chunked_below_the_stores_limit() -> None:
    async with cluster_on("memory", limits=Limits(operations=16)) as cluster:
        await cluster.add_topic(partitions=500)
        store = await counted_instance(cluster)
        await cluster.join("a")
        await cluster.until_counts(a=500)
        assert max(len(operations) for _, operations in store.transactions) <= 16
        assert max(len(compares) for compares, _ in store.transactions) <= 16
        assert store.requests["transact"] < 100


async def test_a_plan_equal_to_what_is_published_writes_nothing(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.add_topic(partitions=50)
    await counted_instance(cluster)
    await cluster.join("a")
    await cluster.join("b")
    await cluster.until_counts(a=25, b=25)
    before = await cluster.until_quiet()
    for _ in range(3):
        await cluster.instances["i1"].operations.rebalance("g")
        await anyio.sleep(0.5)
    written = {event.entry.key for event in await cluster.history(before) if isinstance(event, PutEvent)}
    assert written == {cluster.group.options}


async def test_a_change_of_leader_writes_nothing_but_its_own_keys(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.add_topic(partitions=50)
    await cluster.start_instance("i1")
    other = await cluster.start_instance("i2", leads=False)
    for name in ("a", "b"):
        await cluster.join(name, other)
    before = await cluster.until_counts(a=25, b=25)
    revision = await cluster.until_quiet()
    await cluster.stop_instance("i1")
    await cluster.start_instance("i3")
    await cluster.until("another leader", lambda s: bool(s.leader and s.leader.record.holder == "i3"))
    await anyio.sleep(2)
    touched = {key_of(event) for event in await cluster.history(revision)}
    assert touched == {cluster.group.leader}
    after = await cluster.state()
    assert {p: h.mod_revision for p, h in after.assignments.items()} == {
        p: h.mod_revision for p, h in before.assignments.items()
    }


async def test_an_idle_group_asks_for_nothing_but_renewals_and_reconcile_passes() -> None:
    async with cluster_on("memory", ttl=30.0) as cluster:
        await cluster.add_topic(partitions=100)
        store = await counted_instance(cluster)
        await cluster.join("a")
        await cluster.until_counts(a=100)
        await settle(store, 31)
        await anyio.sleep(300)
        assert store.requests["transact"] == 0
        assert store.requests["put"] == 0
        # Ten reconcile passes read the group; the lease of the instance and of the consumer are renewed.
        assert store.requests["list"] <= 12
        assert store.requests["keep_alive"] <= 80


async def test_a_registration_costs_the_same_whatever_the_group_holds() -> None:
    costs = []
    for partitions in (100, 5_000):
        async with cluster_on("memory", ttl=100_000.0) as cluster:
            await cluster.add_topic(partitions=partitions)
            store = await counted_instance(cluster)
            a = await cluster.join("a")
            await cluster.until_counts(a=partitions)
            await cluster.set_options(paused=True)
            await settle(store)
            joined: SteppedConsumer = await cluster.join("b")
            assert joined.heard[0].full
            costs.append(store.operations.total())
            assert a.ended is None
    assert costs[0] == costs[1] <= 6
