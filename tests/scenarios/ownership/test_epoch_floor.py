"""The epoch floor follows the epochs, so that nothing others delete or rewrite can make one go back."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import msgspec
import pytest

from assigner.core.coordination.epoch_floor import LAG
from assigner.model.keys import AssignmentKey, PlanKey, TopicPartition
from assigner.model.records import Assignment, Plan, decode
from assigner.store import PutEvent
from tests.support.cluster import BOTH_STORES, World, world_on
from tests.support.faulty_stores import key_of

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with world_on("memory") as world:
        yield world


@pytest.fixture(params=BOTH_STORES)
async def any_world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    async with world_on(request.param, request) as world:
        yield world


async def granted(world: World) -> dict[TopicPartition, list[int]]:
    """Every epoch that was ever on record, in order; a record without one grants none."""
    found: dict[TopicPartition, list[int]] = {}
    for event in await world.history():
        if isinstance(event, PutEvent) and isinstance(key := world.group.parse(event.entry.key), AssignmentKey):
            epoch = decode(Assignment, event.entry.value)[0].epoch
            if epoch:
                found.setdefault(key.tp, []).append(epoch)
    return found


async def only_went_up(world: World) -> None:
    for partition, epochs in (await granted(world)).items():
        assert epochs == sorted(set(epochs)), f"{partition}: {epochs}"


async def plans(world: World) -> list[Plan]:
    return [
        decode(Plan, event.entry.value)[0]
        for event in await world.history()
        if isinstance(event, PutEvent) and isinstance(world.group.parse(key_of(event)), PlanKey)
    ]


async def some_life(world: World) -> None:
    """Moves, a takeover, somebody who leaves: epochs rise, by plans and between them."""
    await world.add_topic(partitions=6)
    await world.start_instance("i1")
    await world.join("a")
    await world.until_counts(a=6)
    await world.join("b")
    await world.until_counts(a=3, b=3)
    for number in range(3):
        heir = await world.join("b", session=f"b-{number}")
        await heir.until("took over", lambda c: len(c.owned) == 3)
    await world.join("c")
    await world.until_counts(a=2, b=2, c=2)


async def replaced_by_a_service_without_epochs(world: World, *, deletes: bool) -> None:
    """It rewrites assignments as it knows them, or deletes them when nobody is registered; `plan` it leaves alone."""
    for consumer in world.consumers.values():
        consumer.crash()
    await world.stop_instance("i1")
    for partition, held in (await world.state()).assignments.items():
        if deletes:
            await world.store.delete(held.key)
        else:
            theirs = {"topic": partition.topic, "partition": partition.partition, "owner": "a", "status": "Active"}
            await world.store.put(held.key, msgspec.json.encode(theirs))


@pytest.mark.parametrize("deletes", [False, True], ids=["rewritten", "deleted"])
async def test_rule_18_epochs_only_rise_although_a_service_without_epochs_was_here_meanwhile(
    any_world: World, deletes: bool
) -> None:
    world = any_world
    await some_life(world)
    await anyio.sleep(2 * LAG)
    before = await granted(world)
    assert max(max(epochs) for epochs in before.values()) > 4
    await replaced_by_a_service_without_epochs(world, deletes=deletes)
    instance = await world.start_instance("i2")
    await world.join("d", instance)
    await world.until_counts(d=6, within=6 * world.ttl)
    await only_went_up(world)
    after = await granted(world)
    assert all(after[partition][-1] > max(epochs) for partition, epochs in before.items())


async def test_the_floor_follows_takeovers_in_one_write_for_all_of_a_moment(world: World) -> None:
    await world.add_topic(partitions=20)
    await world.start_instance("i1")
    await world.join("a")
    await world.until_counts(a=20)
    await anyio.sleep(2 * LAG)
    published = len(await plans(world))
    heir = await world.join("a", session="another")
    await heir.until("took over", lambda c: set(c.owned.values()) == {2})
    await anyio.sleep(2 * LAG)
    assert [plan.epoch_floor for plan in (await plans(world))[published:]] == [2]


async def test_a_plan_takes_the_floor_along_without_another_write(world: World) -> None:
    await world.add_topic(partitions=20)
    await world.start_instance("i1")
    await world.join("a")
    await world.until_counts(a=20)
    await anyio.sleep(5 * LAG)
    assert [(plan.generation, plan.epoch_floor) for plan in await plans(world)] == [(1, 1)]


async def test_a_new_leader_raises_a_floor_that_was_left_behind(world: World) -> None:
    await world.add_topic(partitions=4)
    await world.start_faulty("i1")
    await world.join("a")
    await world.until_counts(a=4)
    heir = await world.join("a", session="another")
    await heir.until("took over", lambda c: set(c.owned.values()) == {2})
    assert (await world.plan()).epoch_floor == 1, "the leader died before it could follow"
    world.crash_instance("i1")
    heir.crash()
    await world.start_instance("i2")
    await world.until("the floor is raised", lambda s: s.plan.epoch_floor == 2, within=3 * world.ttl)
