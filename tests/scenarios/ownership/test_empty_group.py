"""A group without consumers: what is forgotten, when, and what never is."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest

from assigner.model.records import Plan, decode
from assigner.store import DeleteEvent, Found, PutEvent
from tests.support.cluster import BOTH_STORES, World, tp, world_on

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with world_on("memory") as world:
        yield world


@pytest.fixture(params=BOTH_STORES)
async def any_world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    async with world_on(request.param, request) as world:
        yield world


async def test_after_two_ttls_without_anybody_assignments_are_forgotten_and_offsets_kept(any_world: World) -> None:
    world = any_world
    await world.add_topic(partitions=3)
    await world.start_instance()
    a = await world.join("a")
    await world.until_counts(a=3)
    offset = world.keys.offset("g", tp(0))
    await world.store.put(offset, b"{}")
    await a.deregister(gates_closed=True)
    left = world.clock.now()
    state = await world.until("forgotten", lambda s: not s.assignments, within=4 * world.ttl)
    assert world.clock.now() - left == pytest.approx(2 * world.ttl, abs=1.5)
    assert state.plan.epoch_floor == 1
    assert isinstance(await world.store.get(offset), Found)
    b = await world.join("b")
    await b.until("owns all, with higher epochs", lambda c: set(c.owned.values()) == {2} and len(c.owned) == 3)


async def test_the_floor_is_raised_before_anything_is_deleted(world: World) -> None:
    await world.add_topic(partitions=3)
    await world.start_instance()
    a = await world.join("a")
    await world.until_counts(a=3)
    await a.deregister(gates_closed=True)
    await world.until("forgotten", lambda s: not s.assignments, within=4 * world.ttl)
    events = await world.history()
    raised = next(
        e.entry.mod_revision
        for e in events
        if isinstance(e, PutEvent) and e.entry.key == world.group.plan and decode(Plan, e.entry.value)[0].epoch_floor
    )
    assert raised < min(e.mod_revision for e in events if isinstance(e, DeleteEvent) and "/assignments/" in e.key)


async def test_a_consumer_that_returns_in_time_finds_everything_as_it_was(world: World) -> None:
    await world.add_topic(partitions=3)
    instance = await world.start_instance()
    a = await world.join("a")
    before = await world.until_counts(a=3)
    a.crash()
    await world.until("a is gone", lambda s: not s.consumers, within=2 * world.ttl)
    await anyio.sleep(1.9 * world.ttl)
    await a.connect(instance)
    await a.until("owns what it owned", lambda c: len(c.owned) == 3)
    await anyio.sleep(5 * world.ttl)
    assert {p: h.record for p, h in (await world.state()).assignments.items()} == {
        p: h.record for p, h in before.assignments.items()
    }


async def test_another_consumer_that_comes_in_time_gets_it_all_at_once(world: World) -> None:
    await world.add_topic(partitions=3)
    await world.start_instance()
    a = await world.join("a")
    await world.until_counts(a=3)
    await a.deregister(gates_closed=True)
    await anyio.sleep(world.ttl)
    await world.join("b")
    state = await world.until_counts(b=3)
    assert {h.record.epoch for h in state.assignments.values()} == {2}, "none was forgotten and begun anew"
    history = await world.history()
    assert not [e for e in history if isinstance(e, DeleteEvent) and "/assignments/" in e.key]


async def test_the_last_consumer_to_drain_lets_everything_go(world: World) -> None:
    await world.add_topic(partitions=3)
    await world.start_instance()
    a = await world.join("a")
    before = await world.until_counts(a=3)
    assert await a.deregister() is False, "there is nobody to wait for"
    await a.until("closed in peace", lambda c: c.ended == "drained")
    await world.until("nobody owns anything", lambda s: not s.assignments and not s.handoffs)
    await world.join("b")
    after = await world.until_counts(b=3)
    assert all(after.assignments[p].record.epoch > h.record.epoch for p, h in before.assignments.items())


async def test_an_unreadable_registration_keeps_the_group_from_being_empty(world: World) -> None:
    await world.add_topic(partitions=3)
    await world.start_instance()
    a = await world.join("a")
    before = await world.until_counts(a=3)
    await world.store.put(world.group.consumer("a"), b"?", lease=(await world.store.grant(3600)).lease)
    a.crash()
    await anyio.sleep(10 * world.ttl)
    assert set((await world.state()).assignments) == set(before.assignments)


async def test_a_new_leader_gives_an_empty_group_its_two_ttls_again(world: World) -> None:
    await world.add_topic(partitions=3)
    await world.start_instance("i1")
    a = await world.join("a")
    await world.until_counts(a=3)
    await a.deregister(gates_closed=True)
    await anyio.sleep(1.5 * world.ttl)
    await world.stop_instance("i1")
    await world.start_instance("i2")
    await anyio.sleep(1.5 * world.ttl)
    assert len((await world.state()).assignments) == 3
    await world.until("forgotten", lambda s: not s.assignments, within=world.ttl)


async def test_a_handoff_left_behind_is_forgotten_with_the_rest(world: World) -> None:
    await world.add_topic(partitions=2)
    await world.start_instance()
    a = await world.join("a")
    await world.until_counts(a=2)
    b = await world.join("b", answers_warm=False)
    await b.until("asked to warm", lambda c: bool(c.to_warm))
    for consumer in (a, b):
        consumer.crash()
    state = await world.until("forgotten", lambda s: not s.assignments, within=5 * world.ttl)
    assert not state.handoffs
    await world.join("c")
    await world.until_counts(c=2)
