"""What upstream's coordinator is tested for, scenario by scenario, on both stores: eight partitions, one group.

Consumers that are there before the service are records in the store, as upstream leaves them; all others connect to an
instance and answer for themselves, unless the scenario wants to see a handoff stand still.
"""

from __future__ import annotations

import pytest

from assigner.core.group import GroupState
from assigner.model.records import Phase, Status
from assigner.store import Batch, PutEvent
from tests.support.cluster import EXPIRES, Cluster, tp

pytestmark = pytest.mark.virtual_time
ALL = {tp(number) for number in range(8)}
LONG = 600.0
"""Seconds a registration without anybody behind it stays."""


def in_phase(state: GroupState, phase: Phase) -> set[int]:
    return {tp.partition for tp, handoff in state.handoffs.items() if handoff.record.phase is phase}


async def no_handoff_was_ever_made(cluster: Cluster, since: int = 0) -> None:
    """Read off the store's own history: nothing was put under `handoffs/`, not even for a moment."""
    end = (await cluster.store.put(cluster.group.handoffs + "end-of-history", b"")).revision
    async with cluster.store.watch(cluster.group.handoffs, start_revision=(since or cluster.began) + 1) as items:
        async for item in items:
            if isinstance(item, Batch):
                assert [e.entry.mod_revision for e in item.events if isinstance(e, PutEvent)] == [end]
                break
    await cluster.store.delete(cluster.group.handoffs + "end-of-history")


async def test_single_consumer_gets_all_partitions(any_cluster: Cluster) -> None:
    await any_cluster.add_topic(partitions=8)
    await any_cluster.start_instance()
    a = await any_cluster.join("a")
    state = await any_cluster.until_counts(a=8)
    assert set(state.assignments) == ALL
    await a.until("hears of all", lambda c: set(c.owned) == ALL)
    await no_handoff_was_ever_made(any_cluster)


async def test_two_consumers_split_partitions(any_cluster: Cluster) -> None:
    await any_cluster.add_topic(partitions=8)
    await any_cluster.put_consumer("a", lease_ttl=LONG)
    await any_cluster.put_consumer("b", lease_ttl=LONG)
    await any_cluster.start_instance()
    await any_cluster.until_counts(a=4, b=4)
    await no_handoff_was_ever_made(any_cluster)


async def test_scale_up_triggers_handoffs(any_cluster: Cluster) -> None:
    await any_cluster.add_topic(partitions=8)
    await any_cluster.start_instance()
    await any_cluster.join("a")
    before = await any_cluster.until_counts(a=8)
    b = await any_cluster.join("b", answers_warm=False)
    state = await any_cluster.until("four handoffs", lambda state: len(state.handoffs) == 4)
    assert {(h.record.old_owner, h.record.new_owner) for h in state.handoffs.values()} == {("a", "b")}
    assert len(state.owned["a"]) == 8
    await b.until("all four asked for", lambda c: set(c.to_warm) == set(state.handoffs))
    await b.ready(*b.to_warm)
    after = await any_cluster.until_counts(a=4, b=4)
    stayed = after.owned["a"]
    assert {p: after.assignments[p].mod_revision for p in stayed} == {
        p: before.assignments[p].mod_revision for p in stayed
    }


async def test_full_handoff_lifecycle(any_cluster: Cluster) -> None:
    await any_cluster.add_topic(partitions=8)
    await any_cluster.start_instance()
    a = await any_cluster.join("a", answers_release=False)
    await any_cluster.until_counts(a=8)
    b = await any_cluster.join("b", answers_warm=False)
    await b.until("asked to warm four", lambda c: len(c.to_warm) == 4)
    moving = set(b.to_warm)
    state = await any_cluster.state()
    assert in_phase(state, Phase.WARMING) == {tp.partition for tp in moving}
    assert len(state.owned["a"]) == 8

    await b.ready(*moving)
    state = await any_cluster.until("flipped", lambda state: len(in_phase(state, Phase.COMPLETE)) == 4)
    assert state.owned["b"] == moving
    await b.until("hears of its partitions", lambda c: set(c.owned) == moving)
    await a.until("asked to release", lambda c: set(c.to_release) == moving)
    assert len((await any_cluster.state()).handoffs) == 4

    await a.release(*moving)
    await any_cluster.until_counts(a=4, b=4)


async def test_multiple_topic_configs(any_cluster: Cluster) -> None:
    await any_cluster.add_topic("small", partitions=4)
    await any_cluster.add_topic("large", partitions=6)
    await any_cluster.start_instance()
    await any_cluster.join("a")
    state = await any_cluster.until_counts(a=10)
    assert sorted(tp.topic for tp in state.assignments) == ["large"] * 6 + ["small"] * 4


async def test_no_consumers_no_assignments(any_cluster: Cluster) -> None:
    await any_cluster.add_topic(partitions=8)
    instance = await any_cluster.start_instance()
    await any_cluster.until("a leader", lambda state: state.leader is not None)
    await instance.operations.rebalance("g")
    await any_cluster.until("the wish is stored", lambda state: state.options.rebalance_requests == 1)
    await no_handoff_was_ever_made(any_cluster)
    assert not (await any_cluster.state()).assignments
    # That it was not asleep: the first consumer gets everything.
    await any_cluster.join("a")
    await any_cluster.until_counts(a=8)


async def test_no_topic_configs_no_assignments(any_cluster: Cluster) -> None:
    await any_cluster.start_instance()
    a = await any_cluster.join("a")
    assert a.heard[0].full
    assert not a.owned
    assert not (await any_cluster.state()).assignments
    await any_cluster.add_topic(partitions=8)
    await any_cluster.until_counts(a=8)


async def test_assigner_starts_after_consumers(any_cluster: Cluster) -> None:
    await any_cluster.add_topic(partitions=8)
    for name in ("a", "b", "c", "d"):
        await any_cluster.put_consumer(name, lease_ttl=LONG)
    assert not (await any_cluster.state()).assignments
    await any_cluster.start_instance()
    await any_cluster.until_counts(a=2, b=2, c=2, d=2)


@pytest.mark.cluster(etcd_ttl=EXPIRES)
async def test_consumer_crash_reassigns_partitions(any_cluster: Cluster) -> None:
    await any_cluster.add_topic(partitions=8)
    await any_cluster.start_instance()
    await any_cluster.join("a")
    b = await any_cluster.join("b")
    before = await any_cluster.until_counts(a=4, b=4)
    b.crash()
    after = await any_cluster.until_counts(a=8, within=90)
    for p in before.owned["a"]:
        assert after.assignments[p].mod_revision == before.assignments[p].mod_revision
    for p in before.owned["b"]:
        assert after.assignments[p].record.epoch > before.assignments[p].record.epoch
    await no_handoff_was_ever_made(any_cluster, before.revision)


@pytest.mark.cluster(etcd_ttl=EXPIRES)
async def test_consumer_crash_during_warming_cleans_up(any_cluster: Cluster) -> None:
    await any_cluster.add_topic(partitions=8)
    await any_cluster.start_instance()
    a = await any_cluster.join("a")
    await any_cluster.until_counts(a=8)
    b = await any_cluster.join("b", answers_warm=False)
    await b.until("asked to warm four", lambda c: len(c.to_warm) == 4)
    b.crash()
    await any_cluster.until_counts(a=8, within=90)
    await a.until("owns everything", lambda c: set(c.owned) == ALL)
    assert not any(commands.unassigned or commands.releases for commands in a.heard)


@pytest.mark.cluster(etcd_ttl=EXPIRES)
async def test_dead_consumer_partitions_assigned_directly_without_handoffs(any_cluster: Cluster) -> None:
    await any_cluster.add_topic(partitions=8)
    await any_cluster.start_instance()
    a = await any_cluster.join("a")
    before = await any_cluster.until_counts(a=8)
    a.crash()
    await any_cluster.until("a is gone", lambda state: not state.consumers, within=90)
    b = await any_cluster.join("b")
    await any_cluster.until_counts(b=8)
    await b.until("owns everything", lambda c: set(c.owned) == ALL)
    await no_handoff_was_ever_made(any_cluster, before.revision)


@pytest.mark.cluster(etcd_ttl=EXPIRES)
async def test_mixed_dead_and_alive_owners_during_rebalance(any_cluster: Cluster) -> None:
    await any_cluster.add_topic(partitions=8)
    await any_cluster.start_instance()
    for name in ("a", "b", "c"):
        await any_cluster.join(name)
    before = await any_cluster.until(
        "three share", lambda s: sorted(len(s.owned[n]) for n in "abc") == [2, 3, 3] and not s.handoffs
    )
    any_cluster.consumers["c"].crash()
    after = await any_cluster.until_counts(a=4, b=4, within=90)
    for name in ("a", "b"):
        assert before.owned[name] <= after.owned[name]


async def test_rapid_scale_up_debounce(any_cluster: Cluster) -> None:
    await any_cluster.set_options(debounce=0.5)
    await any_cluster.add_topic(partitions=8)
    await any_cluster.start_instance()
    await any_cluster.join("a")
    first = await any_cluster.until("published", lambda s: s.plan.generation > 0 and len(s.owned["a"]) == 8)
    for name in ("b", "c", "d"):
        await any_cluster.join(name)
    settled = await any_cluster.until_counts(a=2, b=2, c=2, d=2)
    assert settled.plan.generation == first.plan.generation + 1
    # Stable: what comes next (another topic) finds everything where it was.
    await any_cluster.add_topic("u", partitions=4)
    after = await any_cluster.until_counts(a=3, b=3, c=3, d=3)
    assert {p: after.assignments[p].record for p in ALL} == {p: settled.assignments[p].record for p in ALL}


async def test_draining_consumer_partitions_are_handed_off(any_cluster: Cluster) -> None:
    await any_cluster.add_topic(partitions=8)
    await any_cluster.start_instance()
    a = await any_cluster.join("a")
    await any_cluster.until_counts(a=8)
    b = await any_cluster.join("b", answers_warm=False)
    await b.until("asked to warm four", lambda c: len(c.to_warm) == 4)
    await b.ready(*b.to_warm)
    await any_cluster.until_counts(a=4, b=4)

    assert await a.deregister() is True
    assert (await any_cluster.state()).consumers["a"].record.status is Status.DRAINING
    await b.until("asked to warm the rest", lambda c: len(c.to_warm) == 4)
    assert len((await any_cluster.state()).owned["a"]) == 4
    await b.ready(*b.to_warm)
    await any_cluster.until_counts(b=8)
    await a.until("closed after the drain", lambda c: c.ended == "drained")


async def test_draining_consumer_still_receives_handoffs_as_old_owner(any_cluster: Cluster) -> None:
    await any_cluster.add_topic(partitions=8)
    await any_cluster.start_instance()
    a = await any_cluster.join("a", answers_release=False)
    await any_cluster.until_counts(a=8)
    await any_cluster.join("b")
    await a.until("asked to let four go", lambda c: len(c.to_release) == 4)

    await a.deregister()
    await a.until("asked to let all go", lambda c: set(c.to_release) == ALL)
    state = await any_cluster.until("everything flipped", lambda state: len(state.owned["b"]) == 8)
    assert in_phase(state, Phase.COMPLETE) == set(range(8))
    assert a.ended is None
    await a.release(*ALL)
    await any_cluster.until_counts(b=8)
    await a.until("closed after the drain", lambda c: c.ended == "drained")
