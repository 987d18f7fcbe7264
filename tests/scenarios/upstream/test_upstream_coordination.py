"""What upstream's coordinator is tested for, scenario by scenario, on both stores: eight partitions, one group.

Consumers that are there before the service are records in the store, as upstream leaves them; all others connect to an
instance and answer for themselves, unless the scenario wants to see a handoff stand still.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from assigner.core.group import GroupState
from assigner.model.records import Phase, Status
from assigner.store import Batch, PutEvent
from tests.support.cluster import BOTH_STORES, Cluster, cluster_on, tp

pytestmark = pytest.mark.virtual_time
ALL = {tp(number) for number in range(8)}
LONG = 600.0
"""Seconds a registration without anybody behind it stays."""


@pytest.fixture(params=BOTH_STORES)
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    async with cluster_on(request.param, request) as cluster:
        yield cluster


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


async def test_single_consumer_gets_all_partitions(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=8)
    await cluster.start_instance()
    a = await cluster.join("a")
    state = await cluster.until_counts(a=8)
    assert set(state.assignments) == ALL
    await a.until("hears of all", lambda c: set(c.owned) == ALL)
    await no_handoff_was_ever_made(cluster)


async def test_two_consumers_split_partitions(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=8)
    await cluster.put_consumer("a", lease_ttl=LONG)
    await cluster.put_consumer("b", lease_ttl=LONG)
    await cluster.start_instance()
    await cluster.until_counts(a=4, b=4)
    await no_handoff_was_ever_made(cluster)


async def test_scale_up_triggers_handoffs(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=8)
    await cluster.start_instance()
    await cluster.join("a")
    before = await cluster.until_counts(a=8)
    b = await cluster.join("b", answers_warm=False)
    state = await cluster.until("four handoffs", lambda state: len(state.handoffs) == 4)
    assert {(h.record.old_owner, h.record.new_owner) for h in state.handoffs.values()} == {("a", "b")}
    assert len(state.owned["a"]) == 8
    await b.until("all four asked for", lambda c: set(c.to_warm) == set(state.handoffs))
    await b.ready(*b.to_warm)
    after = await cluster.until_counts(a=4, b=4)
    stayed = after.owned["a"]
    assert {p: after.assignments[p].mod_revision for p in stayed} == {
        p: before.assignments[p].mod_revision for p in stayed
    }


async def test_full_handoff_lifecycle(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=8)
    await cluster.start_instance()
    a = await cluster.join("a", answers_release=False)
    await cluster.until_counts(a=8)
    b = await cluster.join("b", answers_warm=False)
    await b.until("asked to warm four", lambda c: len(c.to_warm) == 4)
    moving = set(b.to_warm)
    state = await cluster.state()
    assert in_phase(state, Phase.WARMING) == {tp.partition for tp in moving}
    assert len(state.owned["a"]) == 8

    await b.ready(*moving)
    state = await cluster.until("flipped", lambda state: len(in_phase(state, Phase.COMPLETE)) == 4)
    assert state.owned["b"] == moving
    await b.until("hears of its partitions", lambda c: set(c.owned) == moving)
    await a.until("told to let go", lambda c: set(c.to_release) == moving)
    assert len((await cluster.state()).handoffs) == 4

    await a.release(*moving)
    await cluster.until_counts(a=4, b=4)


async def test_multiple_topic_configs(cluster: Cluster) -> None:
    await cluster.add_topic("small", partitions=4)
    await cluster.add_topic("large", partitions=6)
    await cluster.start_instance()
    await cluster.join("a")
    state = await cluster.until_counts(a=10)
    assert sorted(tp.topic for tp in state.assignments) == ["large"] * 6 + ["small"] * 4


async def test_no_consumers_no_assignments(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=8)
    instance = await cluster.start_instance()
    await cluster.until("a leader", lambda state: state.leader is not None)
    await instance.operations.rebalance("g")
    await cluster.until("the wish is stored", lambda state: state.options.rebalance_requests == 1)
    await no_handoff_was_ever_made(cluster)
    assert not (await cluster.state()).assignments
    # That it was not asleep: the first consumer gets everything.
    await cluster.join("a")
    await cluster.until_counts(a=8)


async def test_no_topic_configs_no_assignments(cluster: Cluster) -> None:
    await cluster.start_instance()
    a = await cluster.join("a")
    assert a.heard[0].full
    assert not a.owned
    assert not (await cluster.state()).assignments
    await cluster.add_topic(partitions=8)
    await cluster.until_counts(a=8)


async def test_assigner_starts_after_consumers(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=8)
    for name in ("a", "b", "c", "d"):
        await cluster.put_consumer(name, lease_ttl=LONG)
    assert not (await cluster.state()).assignments
    await cluster.start_instance()
    await cluster.until_counts(a=2, b=2, c=2, d=2)


async def test_consumer_crash_reassigns_partitions(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=8)
    await cluster.start_instance()
    await cluster.join("a")
    b = await cluster.join("b")
    before = await cluster.until_counts(a=4, b=4)
    b.crash()
    after = await cluster.until_counts(a=8, within=90)
    for p in before.owned["a"]:
        assert after.assignments[p].mod_revision == before.assignments[p].mod_revision
    for p in before.owned["b"]:
        assert after.assignments[p].record.epoch > before.assignments[p].record.epoch
    await no_handoff_was_ever_made(cluster, before.revision)


async def test_consumer_crash_during_warming_cleans_up(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=8)
    await cluster.start_instance()
    a = await cluster.join("a")
    await cluster.until_counts(a=8)
    b = await cluster.join("b", answers_warm=False)
    await b.until("asked to warm four", lambda c: len(c.to_warm) == 4)
    b.crash()
    await cluster.until_counts(a=8, within=90)
    assert set(a.owned) == ALL
    assert not any(commands.unassigned or commands.releases for commands in a.heard)


async def test_dead_consumer_partitions_assigned_directly_without_handoffs(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=8)
    await cluster.start_instance()
    a = await cluster.join("a")
    before = await cluster.until_counts(a=8)
    a.crash()
    await cluster.until("a is gone", lambda state: not state.consumers, within=90)
    b = await cluster.join("b")
    await cluster.until_counts(b=8)
    assert set(b.owned) == ALL
    await no_handoff_was_ever_made(cluster, before.revision)


async def test_mixed_dead_and_alive_owners_during_rebalance(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=8)
    await cluster.start_instance()
    for name in ("a", "b", "c"):
        await cluster.join(name)
    before = await cluster.until(
        "three share", lambda s: sorted(len(s.owned[n]) for n in "abc") == [2, 3, 3] and not s.handoffs
    )
    cluster.consumers["c"].crash()
    after = await cluster.until_counts(a=4, b=4, within=90)
    for name in ("a", "b"):
        assert before.owned[name] <= after.owned[name]


async def test_rapid_scale_up_debounce(cluster: Cluster) -> None:
    await cluster.set_options(debounce=0.5)
    await cluster.add_topic(partitions=8)
    await cluster.start_instance()
    await cluster.join("a")
    first = await cluster.until("published", lambda s: s.plan.generation > 0 and len(s.owned["a"]) == 8)
    for name in ("b", "c", "d"):
        await cluster.join(name)
    settled = await cluster.until_counts(a=2, b=2, c=2, d=2)
    assert settled.plan.generation == first.plan.generation + 1
    # Stable: what comes next (another topic) finds everything where it was.
    await cluster.add_topic("u", partitions=4)
    after = await cluster.until_counts(a=3, b=3, c=3, d=3)
    assert {p: after.assignments[p].record for p in ALL} == {p: settled.assignments[p].record for p in ALL}


async def test_draining_consumer_partitions_are_handed_off(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=8)
    await cluster.start_instance()
    a = await cluster.join("a")
    await cluster.until_counts(a=8)
    b = await cluster.join("b", answers_warm=False)
    await b.until("asked to warm four", lambda c: len(c.to_warm) == 4)
    await b.ready(*b.to_warm)
    await cluster.until_counts(a=4, b=4)

    assert await a.deregister() is True
    assert (await cluster.state()).consumers["a"].record.status is Status.DRAINING
    await b.until("asked to warm the rest", lambda c: len(c.to_warm) == 4)
    assert len((await cluster.state()).owned["a"]) == 4
    await b.ready(*b.to_warm)
    await cluster.until_counts(b=8)
    await a.until("closed in peace", lambda c: c.ended == "drained")


async def test_draining_consumer_still_receives_handoffs_as_old_owner(cluster: Cluster) -> None:
    await cluster.add_topic(partitions=8)
    await cluster.start_instance()
    a = await cluster.join("a", answers_release=False)
    await cluster.until_counts(a=8)
    await cluster.join("b")
    await a.until("asked to let four go", lambda c: len(c.to_release) == 4)

    await a.deregister()
    await a.until("asked to let all go", lambda c: set(c.to_release) == ALL)
    state = await cluster.until("everything flipped", lambda state: len(state.owned["b"]) == 8)
    assert in_phase(state, Phase.COMPLETE) == set(range(8))
    assert a.ended is None
    await a.release(*ALL)
    await cluster.until_counts(b=8)
    await a.until("closed in peace", lambda c: c.ended == "drained")
