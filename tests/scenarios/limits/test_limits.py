"""How much of a plan is under way at a time: so many handoffs in a group, so many warms at a consumer, so much news."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator

import pytest

from assigner.core.group import GroupState
from assigner.errors import InvalidInput
from assigner.members import streams
from assigner.model.keys import HandoffKey
from assigner.model.records import Handoff, Step, decode
from assigner.store import DeleteEvent, PutEvent
from tests.support.cluster import BOTH_STORES, World, world_on

pytestmark = pytest.mark.virtual_time


@pytest.fixture(params=BOTH_STORES)
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    async with world_on(request.param, request) as world:
        yield world


@pytest.fixture
async def memory_world() -> AsyncIterator[World]:
    async with world_on("memory") as world:
        yield world


async def most_at_a_time(world: World) -> tuple[int, int]:
    """The most handoffs there were in the group, and the most a single consumer was warming."""
    under_way: dict[object, Handoff] = {}
    most = most_warms = 0
    for event in await world.history():
        key = world.group.parse(event.entry.key if isinstance(event, PutEvent) else event.key)
        if not isinstance(key, HandoffKey):
            continue
        if isinstance(event, DeleteEvent):
            under_way.pop(key.tp, None)
        else:
            under_way[key.tp] = decode(Handoff, event.entry.value)[0]
        warms = Counter(handoff.new_owner for handoff in under_way.values() if handoff.at is Step.WARMING)
        most, most_warms = max(most, len(under_way)), max([most_warms, *warms.values()])
    return most, most_warms


async def test_no_more_handoffs_are_under_way_than_the_group_allows(world: World) -> None:
    await world.set_options(max_concurrent_handoffs=3)
    await world.add_topic(partitions=24)
    await world.start_instance()
    await world.join("a")
    await world.until_counts(a=24)
    await world.join("b")
    await world.until_counts(a=12, b=12)
    assert (await most_at_a_time(world))[0] == 3


async def test_no_consumer_warms_more_than_the_group_allows(world: World) -> None:
    await world.set_options(warm_concurrency=2)
    await world.add_topic(partitions=24)
    await world.start_instance()
    await world.join("a")
    await world.until_counts(a=24)
    b = await world.join("b", answers_warm=False)
    await world.join("c")
    await world.until("c has its share", lambda state: len(state.owned["c"]) == 8)
    assert len(b.to_warm) == 2
    assert (await most_at_a_time(world))[1] == 2


async def test_a_change_of_many_partitions_is_told_in_parts(
    memory_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "MOST_AT_ONCE", 5)
    world = memory_world
    await world.start_instance()
    a = await world.join("a")
    await world.add_topic(partitions=24)

    def told(state: GroupState) -> bool:
        return len(a.owned) == 24

    await world.until("everything is told", told)
    assert max(len(said.assigned) for said in a.heard) == 5


@pytest.mark.parametrize(
    "change", [{"max_concurrent_handoffs": 0}, {"warm_concurrency": 1_000_001}, {"release_timeout": 604_801.0}]
)
async def test_an_option_out_of_range_is_refused(memory_world: World, change: dict[str, float]) -> None:
    instance = await memory_world.start_instance()
    with pytest.raises(InvalidInput, match="must be"):
        await instance.operations.set_options("g", change, create=True)
