"""The partitions of a table: all that have an owner, in order, listed once for many who ask at the same time."""

from __future__ import annotations

import anyio
import anyio.lowlevel

from assigner.core.group import GroupState
from assigner.model.keys import Keys, TopicPartition
from assigner.model.records import Assignment, Stored
from assigner.routers.table_listing import TableListing, parts


def state_with(**partitions: range) -> GroupState:
    state = GroupState(Keys("/").group("g"))
    for topic, numbers in partitions.items():
        # In no order at all, as an etcd prefix lists numbers.
        for number in sorted(numbers, key=str):
            own(state, topic, number)
    return state


def own(state: GroupState, topic: str, number: int) -> None:
    tp = TopicPartition(topic, number)
    record = Assignment(topic=topic, partition=number, owner="a", session="s", epoch=1)
    state.assignments[tp] = Stored(record, state.keys.assignment(tp), 1, 1)


async def test_partitions_are_listed_by_topic_and_number_in_runs() -> None:
    state = state_with(b=range(2_500), a=range(0, 10, 2))
    state.assignments.pop(TopicPartition("b", 1_200))
    runs = await TableListing(state).runs()
    assert runs == [
        *(("a", range(number, number + 1)) for number in range(0, 10, 2)),
        ("b", range(1_200)),
        ("b", range(1_201, 2_500)),
    ]
    assert [tp for part in parts(runs, 700) for tp in part] == sorted(state.assignments)
    assert [len(part) for part in parts(runs, 700)] == [700, 700, 700, 404]


async def test_a_group_that_owns_nothing_has_no_runs() -> None:
    assert list(await TableListing(state_with()).runs()) == []


async def test_those_who_ask_at_once_share_a_listing_that_began_after_they_asked() -> None:
    state = state_with(a=range(5_000))
    listing = TableListing(state)
    found: list[object] = []

    async def ask() -> None:
        found.append(await listing.runs())

    async with anyio.create_task_group() as tasks:
        for _ in range(100):
            tasks.start_soon(ask)
        while not listing._begun:
            await anyio.lowlevel.checkpoint()
        # Too late for that listing, perhaps; not for those who ask now.
        own(state, "a", 5_000)
        for _ in range(100):
            tasks.start_soon(ask)
    assert found[-1] == [("a", range(5_001))]
    assert len({id(one) for one in found[:100]}) == len({id(one) for one in found[100:]}) == 1


async def test_whoever_gives_up_while_it_lists_leaves_the_turn_to_the_next() -> None:
    listing = TableListing(state_with(a=range(5_000)))
    found: list[object] = []

    async def ask() -> None:
        found.append(await listing.runs())

    async with anyio.create_task_group() as others, anyio.create_task_group() as first:
        first.start_soon(listing.runs)
        await anyio.lowlevel.checkpoint()
        others.start_soon(ask)
        await anyio.lowlevel.checkpoint()
        first.cancel_scope.cancel()
    assert found == [[("a", range(5_000))]]
