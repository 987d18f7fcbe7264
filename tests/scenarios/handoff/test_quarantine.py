"""Warming that fails is tried elsewhere, and a partition that fails enough consumers is quarantined."""

from __future__ import annotations

import anyio
import pytest

from assigner.model.records import encode
from tests.support.cluster import Cluster, tp
from tests.support.stepped_consumer import SteppedConsumer

pytestmark = pytest.mark.virtual_time


async def draining_with(cluster: Cluster, *names: str) -> tuple[SteppedConsumer, list[SteppedConsumer]]:
    """`a` owns the only partition and drains; the others are there to warm it."""
    await cluster.add_topic(partitions=1)
    await cluster.start_instance()
    a = await cluster.join("a")
    await cluster.until_counts(a=1)
    others = [await cluster.join(name, answers_warm=False) for name in names]
    await a.deregister()
    return a, others


async def asked(consumers: list[SteppedConsumer]) -> SteppedConsumer:
    """The one that is asked to warm."""
    found: list[SteppedConsumer] = []

    def somebody(_: SteppedConsumer) -> bool:
        found[:] = [c for c in consumers if c.to_warm]
        return bool(found)

    await consumers[0].until("somebody is asked to warm", somebody)
    return found[0]


async def test_a_warm_that_fails_is_tried_elsewhere(any_cluster: Cluster) -> None:
    cluster = any_cluster
    a, others = await draining_with(cluster, "b", "c")
    first = await asked(others)
    await first.ready(tp(0), failure="disk full")
    others.remove(first)
    second = await asked(others)
    assert second is not first
    assert a.ended is None
    assert (await cluster.owners())[tp(0)] == "a"
    await second.ready(tp(0))
    await cluster.until_counts(**{second.name: 1})


async def test_a_partition_that_fails_enough_consumers_is_quarantined_and_shown_and_retried(cluster: Cluster) -> None:
    await cluster.set_options(quarantine_after=2, balance_backoff=5.0)
    a, others = await draining_with(cluster, "b", "c", "d")
    for _ in range(2):
        consumer = await asked(others)
        others.remove(consumer)
        await consumer.ready(tp(0), failure="poisoned")
    instance = cluster.instances["i1"]
    state = await cluster.until("quarantined", lambda s: bool(s.plan.quarantined))
    (shown,) = (await instance.operations.describe("g")).quarantined
    assert (shown.topic, shown.partition, shown.reason) == ("t", 0, "poisoned")
    assert len(set(shown.failed)) == 2
    assert all(handoff.record.to_nobody for handoff in state.handoffs.values())
    await a.until("drained all the same", lambda c: c.ended == "drained")
    # It stays quarantined, whatever else happens.
    await cluster.join("e", answers_warm=False)
    await anyio.sleep(200)
    assert not any(c.to_warm for c in cluster.consumers.values())
    assert tp(0) not in await cluster.owners()
    await instance.operations.rebalance("g")
    await cluster.until("somebody has it", lambda s: tp(0) in s.assignments and not s.plan.quarantined)


async def test_the_same_consumer_failing_again_does_not_count_twice(cluster: Cluster) -> None:
    await cluster.set_options(quarantine_after=2, balance_backoff=2.0, warming_timeout=1000.0, release_timeout=1000.0)
    await cluster.add_topic(partitions=2)
    await cluster.start_instance()
    await cluster.join("a")
    await cluster.until_counts(a=2)
    b = await cluster.join("b", answers_warm=False)
    for _ in range(3):
        await b.until("asked to warm", lambda c: bool(c.to_warm), within=40)
        await b.ready(*b.to_warm, failure="not yet")
    assert not (await cluster.plan()).quarantined
    await b.until("asked to warm", lambda c: bool(c.to_warm), within=40)
    await b.ready(*b.to_warm)
    await cluster.until_counts(a=1, b=1)


async def test_the_quarantine_outlives_its_leader(cluster: Cluster) -> None:
    await cluster.set_options(quarantine_after=1, balance_backoff=5.0)
    await cluster.add_topic(partitions=1)
    await cluster.start_instance("i1")
    other = await cluster.start_instance("i2", leads=False)
    a = await cluster.join("a", other)
    await cluster.until_counts(a=1)
    b = await cluster.join("b", other, answers_warm=False)
    await a.deregister()
    await b.until("asked to warm", lambda c: bool(c.to_warm))
    await b.ready(tp(0), failure="poisoned")
    await cluster.until("quarantined", lambda s: bool(s.plan.quarantined))
    await cluster.stop_instance("i1")
    await cluster.start_instance("i3")
    await anyio.sleep(100)
    assert not b.to_warm
    assert len((await cluster.plan()).quarantined) == 1


async def test_a_rebalance_ends_the_quarantine_after_the_options_were_written_anew(cluster: Cluster) -> None:
    await cluster.set_options(quarantine_after=1, balance_backoff=5.0)
    a, (b,) = await draining_with(cluster, "b")
    operations = cluster.instances["i1"].operations
    await operations.rebalance("g")
    await cluster.until("forgiven", lambda s: s.options.rebalance_requests == 1)
    consumer = await asked([b])
    await consumer.ready(tp(0), failure="poisoned")
    await cluster.until("quarantined", lambda s: bool(s.plan.quarantined) and s.plan.forgiven == 1)
    await a.until("drained all the same", lambda c: c.ended == "drained")
    # By hand or from a backup: without the count of requests.
    await cluster.store.put(cluster.group.options, encode(cluster.options))
    await operations.rebalance("g")
    await cluster.until("consumer b has it", lambda s: tp(0) in s.assignments and not s.plan.quarantined)


async def test_partitions_that_move_as_one_are_quarantined_as_one(cluster: Cluster) -> None:
    await cluster.set_options(quarantine_after=1, balance_backoff=5.0, copartitioned=(("left", "right"),))
    for topic in ("left", "right"):
        await cluster.add_topic(topic, partitions=2)
    await cluster.start_instance()
    a = await cluster.join("a")
    await cluster.until_counts(a=4)
    b = await cluster.join("b", answers_warm=False)
    await b.until("asked to warm a pair", lambda c: len(c.to_warm) == 2)
    one, other = sorted(b.to_warm)
    b.answers_warm = True
    await b.ready(one, failure="poisoned")
    state = await cluster.until("quarantined", lambda s: bool(s.plan.quarantined))
    assert {(q.topic, q.partition) for q in state.plan.quarantined} == {
        (one.topic, one.partition),
        (other.topic, other.partition),
    }
    await anyio.sleep(100)
    assert {one, other} <= (await cluster.state()).owned["a"], "neither moves for balance"
    await a.deregister()
    await a.until("drained", lambda c: c.ended == "drained")
    assert len((await cluster.until_counts(b=4)).plan.quarantined) == 2
