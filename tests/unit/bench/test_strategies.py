"""The strategies' benchmark: its problems, its models of published algorithms, its bounds, its tables."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from itertools import product

import msgspec
import numpy as np
import pytest
from hypothesis import given as given_some
from hypothesis import settings
from hypothesis import strategies as st
from rich.console import Console

from assigner.strategies.problem.validation import check
from assigner.strategy import NONE, IntArray, Problem, Topics
from bench.sheets import Sheet, terminal
from bench.strategies.__main__ import shape_of
from bench.strategies.bounds import Balance, fewest_moves, imbalance
from bench.strategies.cells import Grid, Row
from bench.strategies.contestants import GLOBAL, STICKY, UNIFORM, Contestant, ours
from bench.strategies.grid import (
    QUICK,
    USUAL,
    Operation,
    Shape,
    Sizes,
    Subscriptions,
    changed,
    dealt,
    everything,
    fresh,
    topic_sizes,
)
from bench.strategies.memory import peaks
from bench.strategies.models import faust, faust_with_standbys, upstream
from bench.strategies.racks import fewest_mismatches
from bench.strategies.sheets import cells_sheet, grid_sheets
from bench.strategies.targets import Target
from bench.strategies.timed_calls import ONCE, Answer, Effort, Failed, timed
from tests.support.strategies.problems import loads, problem, problems, topic_of


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


# --- problems ------------------------------------------------------------------------------------------------------

SHAPES = [
    Shape(20, 30, 400),
    Shape(20, 30, 401, Sizes.SKEWED),
    Shape(20, 30, 400, subscriptions=Subscriptions.DISJOINT),
    Shape(20, 30, 400, subscriptions=Subscriptions.NESTED),
    Shape(20, 30, 400, racks=True),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("operation", Operation)
def test_every_problem_makes_sense_and_has_what_its_shape_says(shape: Shape, operation: Operation) -> None:
    given = changed(shape, operation, dealt(shape, operation))
    check(given)
    grown = operation is Operation.PARTITIONS_ADDED
    assert given.members.count == shape.members
    assert len(given.owner) == shape.partitions + (3 if grown else 0)
    left = operation in (Operation.LEAVE_ONE, Operation.LEAVE_MANY)
    assert bool((given.owner == NONE).any()) == (left or grown)
    joined = operation in (Operation.JOIN_ONE, Operation.JOIN_MANY)
    assert (loads(given.members.count, given.owner)[-1] == 0) == joined


def test_most_topics_of_a_skewed_group_have_one_partition() -> None:
    sizes = topic_sizes(Shape(5, 50, 5_000, Sizes.SKEWED))
    assert sizes.sum() == 5_000
    assert (sizes == 1).sum() == 33
    assert sizes[0] > 20 * np.median(sizes)


def test_nested_members_want_all_that_others_want_and_more() -> None:
    wanted = fresh(Shape(10, 10, 100, subscriptions=Subscriptions.NESTED)).members.subscription
    assert wanted[:5].sum(axis=1).tolist() == [2, 4, 6, 8, 10]


def test_groups_that_make_no_sense_say_why() -> None:
    assert [shape for shape in USUAL + QUICK if shape.nonsense()] == []
    assert Shape(5, 1_000, 500).nonsense() == "fewer partitions than topics"
    assert sum(shape.nonsense() is None for shape in everything()) > 500


# --- bounds --------------------------------------------------------------------------------------------------------


def fewest(given: Problem, balance: Balance) -> int:
    bound = fewest_moves(given, balance, closely=True)
    assert not bound.loose
    return bound.moves


@settings(max_examples=60, deadline=None)
@given_some(problems(mixed=True), st.sampled_from(Balance))
def test_a_quick_bound_is_never_above_the_one_of_a_close_look(given: Problem, balance: Balance) -> None:
    assert fewest_moves(given, balance).moves <= fewest(given, balance)


@settings(max_examples=25, deadline=None)
@given_some(problems(topics=3, members=3, most=3, mixed=True))
def test_a_close_look_finds_what_trying_everything_finds(given: Problem) -> None:
    assert fewest(given, Balance.BOTH) == fewest_by_trying(given)


def fewest_by_trying(given: Problem) -> int:
    """Moves of the best way to own everything: even over all, then per topic, then few moves."""
    topic = topic_of(given)
    wanted = given.members.subscription
    takers = [np.flatnonzero(wanted[:, number]).tolist() or [NONE] for number in topic]
    share = given.topics.partitions / np.maximum(wanted.sum(axis=0), 1)
    best = (0, 0, 0)
    for number, owner in enumerate(product(*takers)):
        who = np.array(owner, np.int32)
        cells = np.array([loads(given.members.count, who[topic == row]) for row in range(given.topics.count)])
        far = np.maximum(cells - np.ceil(share)[:, None], 0) + np.maximum(np.floor(share)[:, None] - cells, 0)
        uneven = int((loads(given.members.count, who) ** 2).sum())
        worth = (uneven, int((far[wanted.T] ** 2).sum()) if far.size else 0, moved(given, who))
        best = worth if number == 0 else min(best, worth)
    return best[2]


@pytest.mark.parametrize(
    ("partitions", "before", "moves"),
    [
        ([24, 24, 96], 2, 48),
        ([2, 5, 7], 3, 3),
        ([100] * 10, 40, 24),
        ([12] * 50, 8, 66),
        ([3] * 200, 16, 35),
        ([1] * 60 + [8] * 20 + [64] * 5, 20, 25),
    ],
)
def test_a_newcomer_costs_the_same_whether_topics_are_evened_too(
    partitions: list[int], before: int, moves: int
) -> None:
    given = problem(partitions, before + 1, (np.arange(sum(partitions)) % before).astype(np.int32))
    assert fewest(given, Balance.GLOBAL) == moves
    assert fewest(given, Balance.BOTH) == fewest_moves(given, Balance.BOTH).moves == moves


def test_repairing_topics_is_counted() -> None:
    """Two topics, each on one member: four of eight move to even both."""
    given = problem([4, 4], 2, [0] * 4 + [1] * 4)
    assert fewest(given, Balance.GLOBAL) == 0
    assert fewest(given, Balance.BOTH) == fewest_moves(given, Balance.BOTH).moves == 4


def test_what_a_flow_does_not_see_is_seen_by_the_close_look_and_said_to_be_missing_before() -> None:
    """The third member needs two of different topics, and only one topic has any left."""
    given = problem([2, 2, 2], 3, [NONE, NONE, 0, 1, 1, 0])
    quick = fewest_moves(given, Balance.BOTH)
    assert (quick.moves, quick.loose) == (0, True)
    assert fewest(given, Balance.BOTH) == 1


def test_overlapping_subscriptions_are_evened_along_paths() -> None:
    """A-{T1}-B-{T2}-C: 11, 10 and 9 become 10 each when A passes one on and B another."""
    wants = [[1, 0], [1, 1], [0, 1]]
    given = problem([15, 15], 3, [0] * 11 + [1] * 4 + [1] * 6 + [2] * 9, subscription=wants)
    assert imbalance(given, given.owner) == 2
    assert fewest(given, Balance.GLOBAL) == 2
    assert fewest_moves(given, Balance.GLOBAL).loose


def test_a_member_nobody_can_help_does_not_count_as_imbalance() -> None:
    given = problem([10, 2], 2, [0] * 10 + [1] * 2, subscription=[[1, 0], [0, 1]])
    assert imbalance(given, given.owner) == 0
    assert fewest(given, Balance.BOTH) == 0


def test_mismatches_that_racks_force_are_counted() -> None:
    """Three of four partitions are in the first rack only, where one of two members is."""
    plain = problem([4], 2)
    starts, racks = np.arange(5, dtype=np.int32), np.array([0, 0, 0, 1], np.int32)
    members = replace(plain.members, rack=np.array([0, 1], np.int32))
    given = replace(plain, members=members, topics=Topics(plain.topics.partitions, replica_racks=(starts, racks)))
    assert fewest_mismatches(given) == 1
    unknown = replace(given, members=replace(members, rack=np.array([0, NONE], np.int32)))
    assert fewest_mismatches(unknown) == 0


@pytest.mark.parametrize("balance", Balance)
def test_with_racks_what_must_change_places_is_counted(balance: Balance) -> None:
    """Each owns what is near the other: all four move, while without racks none would."""
    plain = problem([4], 2, [0, 0, 1, 1])
    starts, racks = np.arange(5, dtype=np.int32), np.array([1, 1, 0, 0], np.int32)
    members = replace(plain.members, rack=np.array([0, 1], np.int32))
    given = replace(plain, members=members, topics=Topics(plain.topics.partitions, replica_racks=(starts, racks)))
    assert fewest_mismatches(given) == 0
    assert fewest(given, balance) == 4
    assert fewest_moves(given, balance).moves == 0
    assert fewest_moves(given, balance).loose


# --- measuring -----------------------------------------------------------------------------------------------------


class Sluggard:
    """A contestant that gives everything to the first member, or fails."""

    name = "sluggard"
    own_start = False

    def __init__(self, failure: str = "", refusal: str | None = None) -> None:
        self._failure, self._refusal = failure, refusal

    def refuses(self, problem: Problem) -> str | None:
        return self._refusal

    def solve(self, problem: Problem, effort: Effort) -> Answer:
        if self._failure:
            raise Failed(self._failure)
        return timed(lambda: np.zeros(len(problem.owner), np.int32), effort)


def measured(*contestants: Contestant) -> list[Row]:
    grid = Grid([*ours()[:1], *contestants], ONCE)
    return list(grid.run([Shape(4, 3, 24)], [Operation.FULL, Operation.JOIN_ONE], lambda text: None))


def test_a_row_has_what_was_moved_and_what_had_to_be() -> None:
    rows = measured(Sluggard())
    ours_, theirs = rows[2:]
    assert (ours_.moves, ours_.bound, ours_.gap, ours_.imbalance, ours_.worst_topic) == (6, 6, 0, 0, 0)
    assert (theirs.moves, theirs.bound, theirs.imbalance, theirs.worst_topic) == (16, 6, 24, 8)


def test_a_contestant_that_fails_or_is_too_slow_is_said_to_be_missing() -> None:
    rows = measured(Sluggard(failure="took too long"), Sluggard(refusal="too large"))
    assert [row.not_run for row in rows[:3]] == [None, "took too long", "too large"]
    text = shown([*grid_sheets(rows), cells_sheet(rows)])
    assert "not run: took too long" in text


def shown(sheets: Sequence[Sheet]) -> str:
    console = Console(width=250, record=True, file=StringIO())
    for sheet in sheets:
        console.print(terminal(sheet))
    return console.export_text()


def test_tables_say_the_ratio_to_kafkas_uniform_assignor_and_the_gap_to_the_bound() -> None:
    row = measured()[1]
    kafka = msgspec.structs.replace(row, contestant=UNIFORM, ms=0.5, moves=7)
    mine = msgspec.structs.replace(row, ms=1.0)
    text = shown(grid_sheets([mine, kafka]))
    assert "1.00 (2.00x)" in text
    assert "6+0 / - / 7+1" in text


def test_a_target_is_met_or_not() -> None:
    ms, moves = {GLOBAL: 9.0, STICKY: 31.0, UNIFORM: 10.0}, {GLOBAL: 50, STICKY: 50, UNIFORM: 50}
    target = Target(10, "JOIN_ONE", "even both ways", ms, moves)
    assert [word for word in target.verdicts() if word in ("yes", "NO")] == ["yes", "yes", "NO"]
    without_kafka = Target(10, "FULL", "nothing owned", {GLOBAL: 9.0, STICKY: 9.0}, {GLOBAL: 0, STICKY: 0})
    assert [word for word in without_kafka.verdicts() if word in ("yes", "NO")] == []


def test_shapes_are_read_from_the_command_line() -> None:
    assert shape_of("500,50,20000,skewed,racks") == Shape(500, 50, 20_000, Sizes.SKEWED, racks=True)
    assert shape_of("9,10,200,nested").subscriptions is Subscriptions.NESTED
    with pytest.raises(ArgumentTypeError, match="neste"):
        shape_of("9,10,200,neste")


@pytest.mark.processes
def test_memory_is_measured_in_a_process_of_its_own() -> None:
    found = peaks([Shape(5, 5, 1_000)], lambda text: None)
    assert [peak.failure for peak in found] == [""] * 4
    assert all(10 < peak.imports_mb <= peak.peak_mb for peak in found)
