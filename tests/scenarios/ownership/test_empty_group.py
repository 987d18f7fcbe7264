"""A group without consumers: what is forgotten, when, and what never is."""

from __future__ import annotations

import anyio
import pytest

from assigner.model.records import Plan, decode
from assigner.store import DeleteEvent, Found, PutEvent
from tests.support.cluster import EXPIRES, Cluster, tp

pytestmark = pytest.mark.virtual_time


@pytest.mark.cluster(etcd_ttl=EXPIRES)
async def test_after_two_ttls_without_consumers_assignments_are_removed_and_offsets_kept(any_cluster: Cluster) -> None:
    cluster = any_cluster
    await cluster.add_topic(partitions=3)
    await cluster.start_instance()
    a = await cluster.join("a")
    await cluster.until_counts(a=3)
    offset = cluster.keys.offset("g", tp(0))
    await cluster.store.put(offset, b"{}")
    await a.deregister(gates_closed=True)
    left = cluster.clock.now()
    state = await cluster.until("forgotten", lambda s: not s.assignments, within=4 * cluster.ttl)
    assert -1.5 <= cluster.clock.now() - left - 2 * cluster.ttl <= 1.5 + cluster.allowance
    assert state.plan.epoch_floor == 1
    assert isinstance(await cluster.store.get(offset), Found)
    b = await cluster.join("b")
    await b.until("owns all, with higher epochs", lambda c: set(c.owned.values()) == {2} and len(c.owned) == 3)


async def test_the_floor_is_raised_before_anything_is_deleted(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=3)
    await cluster.start_instance()
    a = await cluster.join("a")
    await cluster.until_counts(a=3)
    await a.deregister(gates_closed=True)
    await cluster.until("forgotten", lambda s: not s.assignments, within=4 * cluster.ttl)
    events = await cluster.history()
    raised = next(
        e.entry.mod_revision
        for e in events
        if isinstance(e, PutEvent) and e.entry.key == cluster.group.plan and decode(Plan, e.entry.value)[0].epoch_floor
    )
    assert raised < min(e.mod_revision for e in events if isinstance(e, DeleteEvent) and "/assignments/" in e.key)


async def test_a_consumer_that_returns_in_time_finds_everything_as_it_was(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=3)
    instance = await cluster.start_instance()
    a = await cluster.join("a")
    before = await cluster.until_counts(a=3)
    a.crash()
    await cluster.until("a is gone", lambda s: not s.consumers, within=2 * cluster.ttl)
    await anyio.sleep(1.9 * cluster.ttl)
    await a.connect(instance)
    await a.until("owns what it owned", lambda c: len(c.owned) == 3)
    await anyio.sleep(5 * cluster.ttl)
    assert {p: h.record for p, h in (await cluster.state()).assignments.items()} == {
        p: h.record for p, h in before.assignments.items()
    }


async def test_another_consumer_that_comes_in_time_gets_it_all_at_once(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=3)
    await cluster.start_instance()
    a = await cluster.join("a")
    await cluster.until_counts(a=3)
    await a.deregister(gates_closed=True)
    await anyio.sleep(cluster.ttl)
    await cluster.join("b")
    state = await cluster.until_counts(b=3)
    assert {h.record.epoch for h in state.assignments.values()} == {2}, "none was forgotten and begun anew"
    history = await cluster.history()
    assert not [e for e in history if isinstance(e, DeleteEvent) and "/assignments/" in e.key]


async def test_the_last_consumer_to_drain_releases_everything(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=3)
    await cluster.start_instance()
    a = await cluster.join("a")
    before = await cluster.until_counts(a=3)
    assert await a.deregister() is False, "there is nobody to wait for"
    await a.until("closed after the drain", lambda c: c.ended == "drained")
    await cluster.until("nobody owns anything", lambda s: not s.assignments and not s.handoffs)
    await cluster.join("b")
    after = await cluster.until_counts(b=3)
    assert all(after.assignments[p].record.epoch > h.record.epoch for p, h in before.assignments.items())


async def test_an_unreadable_registration_keeps_the_group_from_being_empty(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=3)
    await cluster.start_instance()
    a = await cluster.join("a")
    before = await cluster.until_counts(a=3)
    await cluster.store.put(cluster.group.consumer("a"), b"?", lease=(await cluster.store.grant(3600)).lease)
    a.crash()
    await anyio.sleep(10 * cluster.ttl)
    assert set((await cluster.state()).assignments) == set(before.assignments)


async def test_a_new_leader_gives_an_empty_group_its_two_ttls_again(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=3)
    await cluster.start_instance("i1")
    a = await cluster.join("a")
    await cluster.until_counts(a=3)
    await a.deregister(gates_closed=True)
    await anyio.sleep(1.5 * cluster.ttl)
    await cluster.stop_instance("i1")
    await cluster.start_instance("i2")
    await anyio.sleep(1.5 * cluster.ttl)
    assert len((await cluster.state()).assignments) == 3
    await cluster.until("forgotten", lambda s: not s.assignments, within=cluster.ttl)


async def test_a_handoff_left_behind_is_forgotten_with_the_rest(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=2)
    await cluster.start_instance()
    a = await cluster.join("a")
    await cluster.until_counts(a=2)
    b = await cluster.join("b", answers_warm=False)
    await b.until("asked to warm", lambda c: bool(c.to_warm))
    for consumer in (a, b):
        consumer.crash()
    state = await cluster.until("forgotten", lambda s: not s.assignments, within=5 * cluster.ttl)
    assert not state.handoffs
    await cluster.join("c")
    await cluster.until_counts(c=2)
