"""How many standby copies a death or a join has built anew, and how many of the next death's orphans start cold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from assigner.strategies.sticky_balanced import strategy
from assigner.strategy import NONE, Problem, Solution
from tests.support.strategies.problems import problem
from tests.support.strategies.standby_life import built, with_standbys

GROUPS = [(10, 1, 120), (10, 6, 120), (20, 10, 1_000), (50, 1, 5_000), (50, 20, 5_000), (100, 20, 10_000)]
"""Members, topics, partitions."""

groups = pytest.mark.parametrize(("members", "topics", "partitions"), GROUPS)
counts = pytest.mark.parametrize("count", [1, 2])


def fresh(members: int, topics: int, partitions: int, count: int) -> tuple[Problem, Solution]:
    given = with_standbys(problem([partitions // topics] * topics, members), count)
    return given, strategy.assign(given)


def bereaved(given: Problem, solution: Solution, dead: int) -> Problem:
    """The group as the death leaves it."""
    members = given.members.count
    number = np.append(np.arange(members) - (np.arange(members) > dead), NONE).astype(np.int32)
    number[dead] = NONE
    rest = problem(given.topics.partitions.tolist(), members - 1, number[solution.owner])
    return with_standbys(rest, given.standby_count, number[solution.standbys])


def lost(given: Problem) -> int:
    """Copies the death took: those on the dead, and one for each orphan, whose holder becomes its owner."""
    return int((given.standbys == NONE).sum() + (given.owner == NONE).sum())


def cold(given: Problem, solution: Solution) -> int:
    """Orphans that go to a member without a copy though somebody has one."""
    orphan = (given.owner == NONE) & (given.standbys != NONE).any(axis=1)
    return int((orphan & ~(given.standbys == solution.owner[:, None]).any(axis=1)).sum())


@groups
@counts
def test_a_death_has_no_more_copies_built_than_it_took(members: int, topics: int, partitions: int, count: int) -> None:
    """But for one or two, where shares would be uneven otherwise."""
    given, solution = fresh(members, topics, partitions, count)
    for dead in (0, members // 2):
        left = bereaved(given, solution, dead)
        assert built(left, strategy.assign(left)) <= lost(left) + 2


@groups
@counts
def test_a_join_has_about_the_newcomers_share_built(members: int, topics: int, partitions: int, count: int) -> None:
    given, solution = fresh(members, topics, partitions, count)
    joined = problem(given.topics.partitions.tolist(), members + 1, solution.owner)
    joined = with_standbys(joined, count, solution.standbys)
    # Its own copies, and one for each that has to make room for an owner.
    share = (1 + count) * partitions // (members + 1)
    assert built(joined, strategy.assign(joined)) <= 2 * share


@groups
@counts
def test_few_of_the_next_deaths_orphans_start_cold(members: int, topics: int, partitions: int, count: int) -> None:
    given, solution = fresh(members, topics, partitions, count)
    left = bereaved(given, solution, members // 2)
    second = strategy.assign(left)
    orphans = starts = 0
    for dead in range(0, members - 1, max(1, members // 5)):
        after = bereaved(left, second, dead)
        orphans += int((after.owner == NONE).sum())
        starts += cold(after, strategy.assign(after))
    assert starts <= 0.35 * orphans


@pytest.mark.parametrize(("members", "topics", "partitions", "count"), [(10, 6, 120, 1), (12, 4, 240, 2)])
def test_through_a_life_of_deaths_and_joins_few_copies_are_built(
    members: int, topics: int, partitions: int, count: int
) -> None:
    given, solution = fresh(members, topics, partitions, count)
    chooser = np.random.default_rng(7)
    sums = np.zeros(4, np.int64)
    for turn in range(20):
        if turn % 2:
            joined = problem(given.topics.partitions.tolist(), members, solution.owner)
            given = with_standbys(joined, count, solution.standbys)
            least = (1 + count) * partitions // members
        else:
            given = bereaved(given, solution, int(chooser.integers(members)))
            least = lost(given)
        solution = strategy.assign(given)
        orphans = int((given.owner == NONE).sum())
        sums += (built(given, solution), least, cold(given, solution), orphans)
        again = replace(given, owner=solution.owner, standbys=solution.standbys)
        assert built(again, strategy.assign(again)) == 0
    done, least, starts, orphans = sums.tolist()
    assert done <= 1.5 * least
    assert starts <= 0.2 * orphans
