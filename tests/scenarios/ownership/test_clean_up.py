"""Records of an empty group are removed only from under owners that are still away when the removal takes effect."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import anyio
import pytest

from assigner.model.keys import AssignmentKey, TopicPartition
from assigner.model.records import Assignment, HandoffMode
from assigner.store import Delete, DeleteEvent, Operation
from assigner.testing.faults import Delay, Injected
from tests.support.cluster import BOTH_STORES, SteppedConsumer, World, tp, world_on
from tests.support.faulty_stores import key_of

pytestmark = pytest.mark.virtual_time
MODES = pytest.mark.parametrize("mode", list(HandoffMode), ids=[mode.value for mode in HandoffMode])


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with world_on("memory") as world:
        yield world


@pytest.fixture(params=BOTH_STORES)
async def any_world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    async with world_on(request.param, request) as world:
        yield world


async def removals_on_their_way(world: World, *consumers: SteppedConsumer) -> Injected:
    """Everybody is gone for good, as far as the leader `i1` can tell, and what it removes takes a while to arrive."""

    def removes(_kind: str, _compares: object, operations: Sequence[Operation]) -> bool:
        removed = (world.group.parse(op.key) for op in operations if isinstance(op, Delete))
        return any(isinstance(key, AssignmentKey) for key in removed)

    late = world.faults["i1"].inject(Delay(1.0), kinds={"transact"}, times=None, where=removes)
    for consumer in consumers:
        consumer.crash()
    await world.until("removals are on their way", lambda _: late.hits > 0, within=6 * world.ttl)
    return late


async def removed(world: World) -> list[str]:
    """Assignments that were ever deleted."""
    keys = [key_of(event) for event in await world.history() if isinstance(event, DeleteEvent)]
    return [key for key in keys if isinstance(world.group.parse(key), AssignmentKey)]


async def records(world: World) -> dict[TopicPartition, Assignment]:
    return {one: held.record for one, held in (await world.state()).assignments.items()}


@MODES
async def test_rule_5_an_owner_that_is_back_before_the_removal_keeps_its_partitions(
    world: World, mode: HandoffMode
) -> None:
    await world.set_options(handoff_mode=mode)
    await world.add_topic(partitions=2)
    await world.start_faulty("i1")
    other = await world.start_instance("i2", leads=False)
    z = await world.join("z")
    await world.until_counts(z=2)
    before = await records(world)
    late = await removals_on_their_way(world, z)
    await z.connect(other)
    assert set(z.owned) == {tp(0), tp(1)}, "it was told that it owns them, and its gates are open"
    await anyio.sleep(2.0)
    late.remove()
    await anyio.sleep(world.ttl)
    assert await records(world) == before
    assert not await removed(world)


async def test_nobody_gets_what_an_owner_that_is_back_holds_exclusively(any_world: World) -> None:
    """It renews and its gates are open; that its stream says nothing any more must not matter."""
    world = any_world
    await world.set_options(handoff_mode=HandoffMode.EXCLUSIVE)
    await world.add_topic(partitions=2)
    await world.start_faulty("i1")
    other = await world.start_instance("i2", leads=False)
    z = await world.join("z")
    await world.until_counts(z=2)
    late = await removals_on_their_way(world, z)
    await z.connect(other)
    gates = dict(z.owned)
    assert set(gates) == {tp(0), tp(1)}
    z.hears = False
    a = await world.join("a", world.instances["i1"])
    await anyio.sleep(2.0)
    late.remove()
    await anyio.sleep(world.ttl)
    assert not a.owned, f"two gates are open: {a.owned} and {gates}"
    z.crash()
    await world.until_counts(a=2, within=4 * world.ttl)


@MODES
async def test_an_end_of_a_handoff_that_is_back_before_the_removal_keeps_its_partition(
    world: World, mode: HandoffMode
) -> None:
    await world.set_options(handoff_mode=mode)
    await world.add_topic(partitions=1)
    await world.start_faulty("i1")
    other = await world.start_instance("i2", leads=False)
    a = await world.join("a")
    await world.until_counts(a=1)
    b = await world.join("b", answers_warm=False)
    await a.deregister()
    await b.until("asked to warm", lambda c: bool(c.to_warm))
    late = await removals_on_their_way(world, a, b)
    b.answers_warm = True
    await b.connect(other)
    assert set(b.to_warm) | set(b.owned) or b.heard[-1].warms, "it was told to go on"
    await anyio.sleep(2.0)
    late.remove()
    await b.until("owns it", lambda c: tp(0) in c.owned, within=4 * world.ttl)
    assert not await removed(world)
    assert (await records(world))[tp(0)].owner == "b"
    assert not (await world.state()).handoffs


async def test_partitions_that_exist_no_more_go_whoever_is_there(world: World) -> None:
    await world.add_topic(partitions=4)
    await world.start_instance("i1")
    a = await world.join("a")
    await world.until_counts(a=4)
    await world.add_topic(partitions=2)
    await world.until_counts(a=2)
    await a.until("was told", lambda c: set(c.owned) == {tp(0), tp(1)})


async def test_an_empty_group_is_forgotten_although_the_leader_sees_nothing_for_a_while(world: World) -> None:
    """A removal that is refused is tried again, and no faster than the mirror can follow."""
    await world.add_topic(partitions=2)
    await world.start_faulty("i1")
    z = await world.join("z")
    await world.until_counts(z=2)
    late = await removals_on_their_way(world, z)
    # Somebody comes and goes while the removals are under way.
    lease = await world.put_consumer("z")
    await anyio.sleep(1.5)
    await world.store.revoke(lease)
    tried = late.hits
    late.remove()
    await world.until("forgotten", lambda s: not s.assignments, within=6 * world.ttl)
    assert tried < 20
