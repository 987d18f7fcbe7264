"""What a move is put down to when several things happen at once. One by one: `test_group_options`, `test_rollouts`."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator

import anyio
import pytest

from assigner.leader.history import read_history
from assigner.model.records import Cause
from tests.support.cluster import World, world_on

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with world_on("memory") as world:
        await world.set_options(debounce=1.0)
        yield world


async def told(world: World) -> Counter[tuple[str, Cause]]:
    """(topic, cause) of the moves so far."""
    await anyio.sleep(3)
    return Counter((move.topic, move.cause) for move in await read_history(world.store, world.keys.history("g")))


async def test_a_topic_that_grows_while_somebody_joins(world: World) -> None:
    await world.add_topic(partitions=4)
    await world.start_instance()
    await world.join("a")
    await world.until_counts(a=4)
    await world.add_topic(partitions=6)
    await world.join("b")
    await world.until_counts(a=3, b=3)
    assert await told(world) == {("t", Cause.JOINED): 4 + 1, ("t", Cause.TOPIC_GREW): 2}


async def test_a_topic_that_nobody_wanted_until_somebody_joins(world: World) -> None:
    await world.add_topic(partitions=4)
    await world.add_topic("u", 2)
    await world.start_instance()
    await world.join("a", topics=("t",))
    await world.until_counts(a=4)
    await world.join("b", topics=("u",))
    await world.until_counts(a=4, b=2)
    assert await told(world) == {("t", Cause.JOINED): 4, ("u", Cause.JOINED): 2}


async def test_one_dies_and_another_one_drains(world: World) -> None:
    await world.add_topic(partitions=6)
    await world.start_instance()
    for name in ("a", "b", "c"):
        await world.join(name)
    await world.until_counts(a=2, b=2, c=2)
    world.consumers["b"].crash()
    await world.until("b is gone", lambda state: "b" not in state.consumers, within=90)
    await world.consumers["c"].deregister()
    await world.until_counts(a=6)
    causes = await told(world)
    assert causes["t", Cause.LEFT] == 2
    assert causes["t", Cause.DRAINING] in (2, 3)
