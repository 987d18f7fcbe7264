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
from tests.support.cluster import BOTH_STORES, World, tp, world_on

pytestmark = pytest.mark.virtual_time
ALL = {tp(number) for number in range(8)}
LONG = 600.0
"""Seconds a registration without anybody behind it stays."""


@pytest.fixture(params=BOTH_STORES)
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    async with world_on(request.param, request) as world:
        yield world


def in_phase(state: GroupState, phase: Phase) -> set[int]:
    return {tp.partition for tp, handoff in state.handoffs.items() if handoff.record.phase is phase}


async def no_handoff_was_ever_made(world: World, since: int = 0) -> None:
    """Read off the store's own history: nothing was put under `handoffs/`, not even for a moment."""
    end = (await world.store.put(world.group.handoffs + "end-of-history", b"")).revision
    async with world.store.watch(world.group.handoffs, start_revision=(since or world.began) + 1) as items:
        async for item in items:
            if isinstance(item, Batch):
                assert [e.entry.mod_revision for e in item.events if isinstance(e, PutEvent)] == [end]
                break
    await world.store.delete(world.group.handoffs + "end-of-history")


async def test_single_consumer_gets_all_partitions(world: World) -> None:
    await world.add_topic(partitions=8)
    await world.start_instance()
    a = await world.join("a")
    state = await world.until_counts(a=8)
    assert set(state.assignments) == ALL
    await a.until("hears of all", lambda c: set(c.owned) == ALL)
    await no_handoff_was_ever_made(world)


async def test_two_consumers_split_partitions(world: World) -> None:
    await world.add_topic(partitions=8)
    await world.put_consumer("a", lease_ttl=LONG)
    await world.put_consumer("b", lease_ttl=LONG)
    await world.start_instance()
    await world.until_counts(a=4, b=4)
    await no_handoff_was_ever_made(world)


async def test_scale_up_triggers_handoffs(world: World) -> None:
    await world.add_topic(partitions=8)
    await world.start_instance()
    await world.join("a")
    before = await world.until_counts(a=8)
    b = await world.join("b", answers_warm=False)
    state = await world.until("four handoffs", lambda state: len(state.handoffs) == 4)
    assert {(h.record.old_owner, h.record.new_owner) for h in state.handoffs.values()} == {("a", "b")}
    assert len(state.owned["a"]) == 8
    await b.until("all four asked for", lambda c: set(c.to_warm) == set(state.handoffs))
    await b.ready(*b.to_warm)
    after = await world.until_counts(a=4, b=4)
    stayed = after.owned["a"]
    assert {p: after.assignments[p].mod_revision for p in stayed} == {
        p: before.assignments[p].mod_revision for p in stayed
    }


async def test_full_handoff_lifecycle(world: World) -> None:
    await world.add_topic(partitions=8)
    await world.start_instance()
    a = await world.join("a", answers_release=False)
    await world.until_counts(a=8)
    b = await world.join("b", answers_warm=False)
    await b.until("asked to warm four", lambda c: len(c.to_warm) == 4)
    moving = set(b.to_warm)
    state = await world.state()
    assert in_phase(state, Phase.WARMING) == {tp.partition for tp in moving}
    assert len(state.owned["a"]) == 8

    await b.ready(*moving)
    state = await world.until("flipped", lambda state: len(in_phase(state, Phase.COMPLETE)) == 4)
    assert state.owned["b"] == moving
    await b.until("hears of its partitions", lambda c: set(c.owned) == moving)
    await a.until("told to let go", lambda c: set(c.to_release) == moving)
    assert len((await world.state()).handoffs) == 4

    await a.release(*moving)
    await world.until_counts(a=4, b=4)


async def test_multiple_topic_configs(world: World) -> None:
    await world.add_topic("small", partitions=4)
    await world.add_topic("large", partitions=6)
    await world.start_instance()
    await world.join("a")
    state = await world.until_counts(a=10)
    assert sorted(tp.topic for tp in state.assignments) == ["large"] * 6 + ["small"] * 4


async def test_no_consumers_no_assignments(world: World) -> None:
    await world.add_topic(partitions=8)
    instance = await world.start_instance()
    await world.until("a leader", lambda state: state.leader is not None)
    await instance.operations.rebalance("g")
    await world.until("the wish is stored", lambda state: state.options.rebalance_requests == 1)
    await no_handoff_was_ever_made(world)
    assert not (await world.state()).assignments
    # That it was not asleep: the first consumer gets everything.
    await world.join("a")
    await world.until_counts(a=8)


async def test_no_topic_configs_no_assignments(world: World) -> None:
    await world.start_instance()
    a = await world.join("a")
    assert a.heard[0].full
    assert not a.owned
    assert not (await world.state()).assignments
    await world.add_topic(partitions=8)
    await world.until_counts(a=8)


async def test_assigner_starts_after_consumers(world: World) -> None:
    await world.add_topic(partitions=8)
    for name in ("a", "b", "c", "d"):
        await world.put_consumer(name, lease_ttl=LONG)
    assert not (await world.state()).assignments
    await world.start_instance()
    await world.until_counts(a=2, b=2, c=2, d=2)


async def test_consumer_crash_reassigns_partitions(world: World) -> None:
    await world.add_topic(partitions=8)
    await world.start_instance()
    await world.join("a")
    b = await world.join("b")
    before = await world.until_counts(a=4, b=4)
    b.crash()
    after = await world.until_counts(a=8, within=90)
    for p in before.owned["a"]:
        assert after.assignments[p].mod_revision == before.assignments[p].mod_revision
    for p in before.owned["b"]:
        assert after.assignments[p].record.epoch > before.assignments[p].record.epoch
    await no_handoff_was_ever_made(world, before.revision)


async def test_consumer_crash_during_warming_cleans_up(world: World) -> None:
    await world.add_topic(partitions=8)
    await world.start_instance()
    a = await world.join("a")
    await world.until_counts(a=8)
    b = await world.join("b", answers_warm=False)
    await b.until("asked to warm four", lambda c: len(c.to_warm) == 4)
    b.crash()
    await world.until_counts(a=8, within=90)
    assert set(a.owned) == ALL
    assert not any(commands.unassigned or commands.releases for commands in a.heard)


async def test_dead_consumer_partitions_assigned_directly_without_handoffs(world: World) -> None:
    await world.add_topic(partitions=8)
    await world.start_instance()
    a = await world.join("a")
    before = await world.until_counts(a=8)
    a.crash()
    await world.until("a is gone", lambda state: not state.consumers, within=90)
    b = await world.join("b")
    await world.until_counts(b=8)
    assert set(b.owned) == ALL
    await no_handoff_was_ever_made(world, before.revision)


async def test_mixed_dead_and_alive_owners_during_rebalance(world: World) -> None:
    await world.add_topic(partitions=8)
    await world.start_instance()
    for name in ("a", "b", "c"):
        await world.join(name)
    before = await world.until(
        "three share", lambda s: sorted(len(s.owned[n]) for n in "abc") == [2, 3, 3] and not s.handoffs
    )
    world.consumers["c"].crash()
    after = await world.until_counts(a=4, b=4, within=90)
    for name in ("a", "b"):
        assert before.owned[name] <= after.owned[name]


async def test_rapid_scale_up_debounce(world: World) -> None:
    await world.set_options(debounce=0.5)
    await world.add_topic(partitions=8)
    await world.start_instance()
    await world.join("a")
    first = await world.until("published", lambda s: s.plan.generation > 0 and len(s.owned["a"]) == 8)
    for name in ("b", "c", "d"):
        await world.join(name)
    settled = await world.until_counts(a=2, b=2, c=2, d=2)
    assert settled.plan.generation == first.plan.generation + 1
    # Stable: what comes next (another topic) finds everything where it was.
    await world.add_topic("u", partitions=4)
    after = await world.until_counts(a=3, b=3, c=3, d=3)
    assert {p: after.assignments[p].record for p in ALL} == {p: settled.assignments[p].record for p in ALL}


async def test_draining_consumer_partitions_are_handed_off(world: World) -> None:
    await world.add_topic(partitions=8)
    await world.start_instance()
    a = await world.join("a")
    await world.until_counts(a=8)
    b = await world.join("b", answers_warm=False)
    await b.until("asked to warm four", lambda c: len(c.to_warm) == 4)
    await b.ready(*b.to_warm)
    await world.until_counts(a=4, b=4)

    assert await a.deregister() is True
    assert (await world.state()).consumers["a"].record.status is Status.DRAINING
    await b.until("asked to warm the rest", lambda c: len(c.to_warm) == 4)
    assert len((await world.state()).owned["a"]) == 4
    await b.ready(*b.to_warm)
    await world.until_counts(b=8)
    await a.until("closed in peace", lambda c: c.ended == "drained")


async def test_draining_consumer_still_receives_handoffs_as_old_owner(world: World) -> None:
    await world.add_topic(partitions=8)
    await world.start_instance()
    a = await world.join("a", answers_release=False)
    await world.until_counts(a=8)
    await world.join("b")
    await a.until("asked to let four go", lambda c: len(c.to_release) == 4)

    await a.deregister()
    await a.until("asked to let all go", lambda c: set(c.to_release) == ALL)
    state = await world.until("everything flipped", lambda state: len(state.owned["b"]) == 8)
    assert in_phase(state, Phase.COMPLETE) == set(range(8))
    assert a.ended is None
    await a.release(*ALL)
    await world.until_counts(b=8)
    await a.until("closed in peace", lambda c: c.ended == "drained")
