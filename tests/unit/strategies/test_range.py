"""`range` gives the ranges that Kafka's assignor of that name gives."""

from __future__ import annotations

import pytest
from hypothesis import given as examples
from hypothesis import settings

from assigner.strategies.range import strategy
from assigner.strategy import NONE, Problem
from tests.support.strategies.problems import assert_valid, assign_by_name, problem, problems

EVERYTHING: list[str] = []


@pytest.mark.parametrize(
    ("topics", "members", "expected"),
    [
        pytest.param(
            {"t1": 3, "t3": 2},
            {"A": EVERYTHING, "B": EVERYTHING},
            {"A": ["t1/0", "t1/1", "t3/0"], "B": ["t1/2", "t3/1"]},
            id="two members, two topics",
        ),
        pytest.param(
            {"t1": 3, "t2": 3, "t3": 2},
            {"A": ["t1", "t2"], "B": ["t3"], "C": ["t2", "t3"]},
            {"A": ["t1/0", "t1/1", "t1/2", "t2/0", "t2/1"], "B": ["t3/0"], "C": ["t2/2", "t3/1"]},
            id="mixed subscriptions",
        ),
        pytest.param(
            {"t1": 3, "t3": 2},
            {"A": EVERYTHING, "B": EVERYTHING, "C": EVERYTHING},
            {"A": ["t1/0", "t3/0"], "B": ["t1/1", "t3/1"], "C": ["t1/2"]},
            id="more members than partitions",
        ),
        pytest.param(
            {"t1": 4, "t2": 4},
            {"A": EVERYTHING, "B": EVERYTHING},
            {"A": ["t1/0", "t1/1", "t2/0", "t2/1"], "B": ["t1/2", "t1/3", "t2/2", "t2/3"]},
            id="grown from three to four",
        ),
        pytest.param(
            {"t1": 3, "t2": 3},
            {"A": EVERYTHING, "B": EVERYTHING},
            {"A": ["t1/0", "t1/1", "t2/0", "t2/1"], "B": ["t1/2", "t2/2"]},
            id="four and two: the extras of every topic go to the first",
        ),
    ],
)
def test_ranges_are_kafkas(
    topics: dict[str, int], members: dict[str, list[str]], expected: dict[str, list[str]]
) -> None:
    assert assign_by_name(strategy, topics, members) == expected


def test_a_member_that_rejoins_by_its_name_gets_the_same_ranges() -> None:
    before = strategy.assign(problem([5], 3))
    assert (strategy.assign(problem([5], 3, [NONE] * 5)).owner == before.owner).all()


def test_equal_topics_get_equal_ranges() -> None:
    owner = strategy.assign(problem([7, 7, 7], 3)).owner.reshape(3, 7)
    assert (owner == owner[0]).all()


def test_where_a_cap_is_reached_the_run_goes_on_at_the_next_with_room() -> None:
    given = problem([9], 3, cap=[1, NONE, 2])
    solution = strategy.assign(given)
    assert_valid(given, solution)
    assert solution.owner.tolist() == [0, 1, 1, 1, 1, 1, 2, 2, 1]


@examples(problems(mixed=True, restricted=True))
@settings(max_examples=150, deadline=None)
def test_every_solution_is_valid_and_stays(given: Problem) -> None:
    solution = strategy.assign(given)
    assert_valid(given, solution)
