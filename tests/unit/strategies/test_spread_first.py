"""`spread_first` uses every member and every rack once before it uses one twice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given as examples
from hypothesis import settings
from hypothesis import strategies as st

from assigner.strategies.spread_first import strategy
from assigner.strategy import NONE, IntArray, Problem
from tests.support.strategies.problems import assert_valid, loads, problem, problems, topic_of


def in_racks(given: Problem, racks: list[int]) -> Problem:
    return replace(given, members=replace(given.members, rack=np.array(racks, np.int32)))


def by_rack(given: Problem, owner: IntArray, topic: int) -> list[int]:
    mine = owner[topic_of(given) == topic]
    counts: list[int] = np.bincount(given.members.rack[mine], minlength=int(given.members.rack.max()) + 1).tolist()
    return counts


def test_three_partitions_go_to_three_racks() -> None:
    given = in_racks(problem([3] * 10, 9), [0, 0, 0, 0, 0, 0, 0, 1, 2])
    owner = strategy.assign(given).owner
    assert [by_rack(given, owner, t) for t in range(10)] == [[1, 1, 1]] * 10


def test_members_come_before_racks() -> None:
    """Four partitions on five members: nobody gets two, though the second rack has one member only."""
    given = in_racks(problem([4], 5), [0, 0, 0, 0, 1])
    owner = strategy.assign(given).owner
    assert loads(5, owner).max() == 1
    assert by_rack(given, owner, 0) == [3, 1]


def test_many_small_topics_are_even_in_total_too() -> None:
    given = in_racks(problem([1] * 100, 10), [0] * 5 + [1] * 5)
    assert loads(10, strategy.assign(given).owner).tolist() == [10] * 10


def test_a_newcomer_gets_its_share_though_its_rack_is_well_served() -> None:
    before = strategy.assign(in_racks(problem([1] * 30, 2), [0, 1])).owner
    given = in_racks(problem([1] * 30, 3, before), [0, 1, 0])
    solution = strategy.assign(given)
    assert loads(3, solution.owner).tolist() == [10, 10, 10]
    assert solution.explanation.moves == 10


def test_without_racks_only_members_are_spread_over() -> None:
    owner = strategy.assign(problem([5, 5], 5)).owner
    assert sorted(owner[:5].tolist()) == sorted(owner[5:].tolist()) == [0, 1, 2, 3, 4]


def test_capacity_does_not_bring_two_partitions_to_one_member() -> None:
    assert loads(3, strategy.assign(problem([3], 3, capacity=[10.0, 1.0, 1.0])).owner).tolist() == [1, 1, 1]


def test_a_part_that_shrinks_takes_from_its_fullest_member() -> None:
    given = in_racks(problem([6], 3, [0, 0, 0, 1, 1, 1]), [0, 0, 1])
    solution = strategy.assign(given)
    assert loads(3, solution.owner).tolist() == [2, 2, 2]
    assert solution.explanation.moves == 2


def test_a_set_moves_as_one() -> None:
    given = in_racks(problem([4, 4, 3], 4, copartition=[0, 0, NONE]), [0, 0, 1, 1])
    owner = strategy.assign(given).owner
    assert (owner[:4] == owner[4:8]).all()


@examples(st.data())
@settings(max_examples=200, deadline=None)
def test_topics_are_even_over_members_and_over_racks(data: st.DataObject) -> None:
    given = data.draw(problems())
    racks = data.draw(st.lists(st.integers(0, 2), min_size=given.members.count, max_size=given.members.count))
    given = in_racks(given, racks)
    solution = strategy.assign(given)
    assert_valid(given, solution)
    sizes = np.bincount(np.array(racks), minlength=3)
    for topic, count in enumerate(given.topics.partitions.tolist()):
        have = loads(given.members.count, solution.owner[topic_of(given) == topic])
        assert have.max() - have.min() <= 1
        floor = count // given.members.count
        spread = [int(have[np.array(racks) == rack].sum()) for rack in range(3)]
        for more in range(3):
            for less in range(3):
                could_give = spread[more] > floor * sizes[more]
                could_take = spread[less] < (floor + 1) * sizes[less]
                assert not (could_give and could_take and spread[more] - spread[less] > 1)


@examples(st.data())
@settings(max_examples=200, deadline=None)
def test_every_solution_is_valid_and_stays(data: st.DataObject) -> None:
    given = data.draw(problems(mixed=True, restricted=True))
    racks = data.draw(st.lists(st.integers(NONE, 2), min_size=given.members.count, max_size=given.members.count))
    given = in_racks(given, racks)
    solution = strategy.assign(given)
    assert_valid(given, solution)
    again = strategy.assign(replace(given, owner=np.where(given.pinned, given.owner, solution.owner)))
    assert (again.owner == solution.owner).all()
