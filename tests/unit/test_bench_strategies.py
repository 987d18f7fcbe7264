"""The strategies' benchmark: its problems, its models of published algorithms, its bounds, its tables."""

from __future__ import annotations

import numpy as np
import pytest

from assigner.strategy import NONE, IntArray, Problem
from bench.strategy_models import faust, faust_with_standbys, upstream
from tests.problems import loads, problem


def moved(given: Problem, owner: IntArray) -> int:
    return int(((given.owner != NONE) & (given.owner != owner)).sum())


def joined(partitions: list[int], owner: IntArray, members: int) -> Problem:
    return problem(partitions, members, owner)


def without(partitions: list[int], owner: IntArray, gone: int, members: int) -> Problem:
    """The members after the one that is gone are renumbered."""
    left = np.where(owner == gone, NONE, np.where(owner > gone, owner - 1, owner))
    return problem(partitions, members - 1, left.astype(np.int32))


# --- the models do what was measured of the originals --------------------------------------------------------------


@pytest.mark.parametrize(
    ("topics", "size", "members", "fewest", "most"),
    [(100, 1, 10, 0, 100), (200, 3, 16, 0, 200), (50, 10, 8, 50, 100), (10, 100, 40, 20, 30)],
)
def test_upstreams_remainders_pile_up_on_the_first_members(
    topics: int, size: int, members: int, fewest: int, most: int
) -> None:
    sizes = loads(members, upstream(problem([size] * topics, members)))
    assert (sizes.min(), sizes.max()) == (fewest, most)


@pytest.mark.parametrize(
    ("partitions", "before", "after", "moves", "sizes"),
    [
        (12, [], 3, 0, [4, 4, 4]),
        (10, [], 3, 0, [4, 3, 3]),
        (16, [0] * 8 + [1] * 8, 2, 0, [8, 8]),
        (12, [0] * 6 + [1] * 6, 3, 4, [4, 4, 4]),
        (12, [0] * 4 + [1] * 4 + [NONE] * 4, 2, 0, [6, 6]),
    ],
)
def test_upstream_moves_the_fewest_of_one_topic(
    partitions: int, before: list[int], after: int, moves: int, sizes: list[int]
) -> None:
    given = problem([partitions], after, before or None)
    owner = upstream(given)
    assert moved(given, owner) == moves
    assert loads(after, owner).tolist() == sizes


@pytest.mark.parametrize(("partitions", "members", "moves"), [(64, 8, 8), (1_000, 100, 100), (10_000, 1_000, 1_000)])
def test_faust_moves_far_too_much_for_a_newcomer_that_ends_with_one(partitions: int, members: int, moves: int) -> None:
    """Measured of the original: 7, 100 and 999; the minimum is 7, 9 and 9."""
    given = joined([partitions], faust(problem([partitions], members)), members + 1)
    owner = faust(given)
    assert moved(given, owner) == moves
    assert loads(members + 1, owner)[members] == 1
    assert loads(members + 1, owner).max() == partitions // members


def test_faust_moves_some_when_one_leaves_though_none_had_to() -> None:
    """Measured of the original: 54, and 2 to 3 partitions each."""
    given = without([256], faust(problem([256], 100)), 99, 100)
    owner = faust(given)
    assert moved(given, owner) == pytest.approx(54, abs=2)
    assert (loads(99, owner).min(), loads(99, owner).max()) == (2, 3)


def test_faust_leaves_a_rejoiner_short() -> None:
    """Measured of the original: 22 moved (the minimum is 2), 1 to 3 partitions each."""
    alone = faust(without([100], faust(problem([100], 40)), 39, 40))
    given = joined([100], alone, 40)
    owner = faust(given)
    assert moved(given, owner) == 22
    assert (loads(40, owner).min(), loads(40, owner).max()) == (1, 3)


@pytest.mark.parametrize(("partitions", "members"), [(1_000, 100), (100, 40)])
def test_faust_with_standbys_leaves_a_newcomer_with_nothing(partitions: int, members: int) -> None:
    given = joined([partitions], faust_with_standbys(problem([partitions], members)), members + 1)
    owner = faust_with_standbys(given)
    assert moved(given, owner) == 0
    assert loads(members + 1, owner)[members] == 0


def test_faust_keeps_topics_of_equal_size_together() -> None:
    owner = faust(problem([8, 8, 5], 3))
    assert owner[:8].tolist() == owner[8:16].tolist()
