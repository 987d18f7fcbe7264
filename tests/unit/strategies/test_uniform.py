"""Groups whose members all want the same: even, with the fewest moves, at any size."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given as tried_on
from hypothesis import settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from assigner.strategies.problem.units import fold
from assigner.strategies.uniform import balance as balancing
from assigner.strategies.uniform.solver import SolverResult, solve
from assigner.strategy import NONE, IntArray, Problem
from tests.support.strategies.problems import assert_even_per_topic, assert_rounded, loads, problem, problems, topic_of

many = settings(max_examples=150, deadline=None, derandomize=True)
BALANCES = ("both", "topic", "topic_only", "global")


def solved(given: Problem, balance: str = "both") -> SolverResult:
    given.owner.setflags(write=False)
    found = solve(fold(given), given.members, balance)
    assert found is not None
    assert found.owner.dtype == np.int32
    assert found.owner.shape == given.owner.shape
    return found


def moves(given: Problem, owner: IntArray) -> int:
    return int(((given.owner != NONE) & (given.owner != owner)).sum())


def moved_to(given: Problem, owner: IntArray) -> Problem:
    return replace(given, owner=owner)


def assert_even(given: Problem, owner: IntArray) -> None:
    assert (owner != NONE).all()
    assert np.ptp(loads(given.members.count, owner)) <= 1
    offsets = given.offsets
    for topic in range(given.topics.count):
        assert np.ptp(loads(given.members.count, owner[offsets[topic] : offsets[topic + 1]])) <= 1


# --- examples ----------------------------------------------------------------------------------------------------


def test_ten_partitions_on_three_are_ranges_and_two_take_over_from_the_third() -> None:
    first = solved(problem([10], 3)).owner
    assert first.tolist() == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]
    left = np.where(first == 2, NONE, first).astype(np.int32)
    assert solved(problem([10], 2, left)).owner.tolist() == [0, 0, 0, 0, 1, 1, 1, 0, 1, 1]


@pytest.mark.parametrize("balance", BALANCES)
def test_what_is_even_already_is_returned_as_it_is(balance: str) -> None:
    given = problem([7, 5, 2], 4, solved(problem([7, 5, 2], 4)).owner)
    found = solved(given, balance)
    assert found.owner is given.owner
    assert found.lower_bound == 0


@pytest.mark.parametrize(
    ("partitions", "members", "least"),
    [([24, 24, 96], 2, 48), ([2, 5, 7], 3, 3), ([100] * 10, 40, 24), ([12] * 50, 8, 66), ([3] * 200, 16, 35)],
)
@pytest.mark.parametrize("balance", ["both", "global"])
def test_a_newcomer_costs_what_it_must(partitions: list[int], members: int, least: int, balance: str) -> None:
    before = solved(problem(partitions, members)).owner
    given = problem(partitions, members + 1, before)
    found = solved(given, balance)
    assert moves(given, found.owner) == found.lower_bound == least


def test_members_that_share_the_same_topics_can_not_always_take_over_without_extra_moves() -> None:
    """Dealt in one unchanging order, half of the members share every second topic. When one of them goes, its
    topics are new only to the other half, and the loads have to be put right by moves."""
    order = np.concatenate([np.repeat(np.arange(8), 1 + np.isin(np.arange(8), lucky)) for lucky in _in_turn()])
    left = np.where(order == 7, NONE, order)
    given = problem([12] * 50, 7, left.astype(np.int32))
    found = solved(given)
    assert_even(given, found.owner)
    assert moves(given, found.owner) == found.lower_bound == 6


def _in_turn() -> list[list[int]]:
    return [[0, 1, 2, 3] if topic % 2 == 0 else [4, 5, 6, 7] for topic in range(50)]


def test_new_shares_are_assigned_so_that_any_member_can_leave_without_extra_moves() -> None:
    fresh = solved(problem([12] * 50, 8)).owner
    for member in range(8):
        names = np.array([m - (m > member) for m in range(8)])
        left = np.where(fresh == member, NONE, names[fresh]).astype(np.int32)
        given = problem([12] * 50, 7, left)
        assert moves(given, solved(given).owner) == 0


def test_topics_that_nobody_wants_have_no_owner() -> None:
    given = problem([4, 3], 2, [0, 1, 0, 1, 0, 0, 1], subscription=[[1, 0], [1, 0]])
    found = solved(given)
    assert found.owner.tolist() == [0, 1, 0, 1, NONE, NONE, NONE]
    assert found.lower_bound == 0
    assert solved(moved_to(given, found.owner)).owner is found.owner


@pytest.mark.parametrize(
    "given",
    [
        problem([4], 2, hold=[1]),
        problem([4], 2, cap=[1, NONE]),
        problem([4, 4], 2, subscription=[[1, 1], [1, 0]]),
        problem([4, 4], 2, copartition=[0, 0]),
        problem([4], 2, capacity=[1.0, 2.0]),
        problem([4], 0),
    ],
    ids=["hold", "cap", "subscriptions", "set", "capacities", "nobody"],
)
def test_other_kinds_of_problems_are_left_to_others(given: Problem) -> None:
    assert solve(fold(given), given.members, "both") is None


def test_weights_are_left_to_others() -> None:
    given = problem([4], 2)
    weighted = replace(given, topics=replace(given.topics, weight=np.arange(1.0, 5.0)))
    assert solve(fold(weighted), weighted.members, "both") is None


def test_pins_that_no_even_shares_can_be_built_around_are_left_to_others() -> None:
    given = problem([4], 2, [0, 0, 0, 0], pinned=[0, 1, 2])
    for balance in BALANCES:
        assert solve(fold(given), given.members, balance) is None


def test_groups_too_large_for_short_numbers_are_solved_too() -> None:
    members = 70_000
    given = problem([members + 5, 9], members, np.arange(members + 14, dtype=np.int32) // 2)
    found = solved(given)
    assert_even(given, found.owner)
    assert moves(given, found.owner) == found.lower_bound


# --- what holds for every problem --------------------------------------------------------------------------------


@many
@tried_on(given=problems(topics=4, members=5, most=7))
def test_both_is_even_in_both_ways_with_the_fewest_moves(given: Problem) -> None:
    found = solved(given)
    assert_even_per_topic(given, found.owner)
    assert_rounded(loads(given.members.count, found.owner), _shares(given))
    assert moves(given, found.owner) == found.lower_bound == fewest_moves(given)
    assert solved(given, "topic").owner.tolist() == found.owner.tolist()


@many
@tried_on(given=problems(topics=4, members=6, most=9, capacities=True))
def test_global_is_even_over_all_with_the_fewest_moves(given: Problem) -> None:
    found = solved(given, "global")
    count, share = given.members.count, _shares(given)
    assert_rounded(loads(count, found.owner), share)
    have, floor = loads(count, given.owner), np.floor(share + 1e-9)
    may_have_more = (share - floor > 1e-9) & (have > floor)
    kept = np.minimum(have, floor).sum() + min(len(given.owner) - floor.sum(), may_have_more.sum())
    assert moves(given, found.owner) == found.lower_bound == have.sum() - kept


@many
@tried_on(given=problems(topics=4, members=6, most=9))
def test_topic_only_is_even_per_topic_with_the_fewest_moves(given: Problem) -> None:
    found = solved(given, "topic_only")
    assert_even_per_topic(given, found.owner)
    least = sum(fewest_moves(only) for only in _one_by_one(given))
    assert moves(given, found.owner) == found.lower_bound == least


@many
@tried_on(data=st.data(), balance=st.sampled_from(BALANCES))
def test_its_own_result_is_returned_as_it_is(data: st.DataObject, balance: str) -> None:
    given = _with_pins(data, data.draw(problems(topics=4, members=5, most=8)))
    found = solve(fold(given), given.members, balance)
    if found is not None:
        again = moved_to(given, found.owner)
        assert solved(again, balance).owner is found.owner


@many
@tried_on(data=st.data())
def test_pins_stay_and_the_rest_is_as_even_with_the_fewest_moves(data: st.DataObject) -> None:
    given = _with_pins(data, data.draw(problems(topics=3, members=4, most=6)))
    found = solve(fold(given), given.members, "both")
    if found is None:
        assert given.pinned.any()
        return
    assert (found.owner[given.pinned] == given.owner[given.pinned]).all()
    assert (found.owner[~given.pinned] != NONE).all()
    assert moves(given, found.owner) == found.lower_bound == fewest_moves(given)


@many
@tried_on(given=problems(topics=4, members=5, most=7), data=st.data(), balance=st.sampled_from(BALANCES))
def test_members_in_another_order_move_as_much(given: Problem, data: st.DataObject, balance: str) -> None:
    names = np.array([*data.draw(st.permutations(range(given.members.count))), NONE], np.int32)
    renamed = moved_to(given, names[given.owner])
    assert moves(renamed, solved(renamed, balance).owner) == moves(given, solved(given, balance).owner)


@pytest.mark.parametrize("seed", range(12))
def test_mid_sized_groups_move_as_little_as_a_linear_program_says(seed: int) -> None:
    """Starts by chance, from lopsided to nearly even ones."""
    chooser = np.random.default_rng(seed)
    members, topics = int(chooser.integers(6, 16)), int(chooser.integers(4, 14))
    partitions = chooser.integers(1, 3 * members, topics)
    liked = chooser.random(members) ** (seed % 3)
    owner = chooser.choice(members, int(partitions.sum()), p=liked / liked.sum())
    owner[chooser.random(len(owner)) < 0.2] = NONE
    given = problem(partitions.tolist(), members, owner.astype(np.int32))
    found = solved(given)
    assert_even(given, found.owner)
    assert moves(given, found.owner) == found.lower_bound == _fewest_by_program(given)


@pytest.mark.parametrize("seed", range(4))
def test_a_group_stays_even_at_the_least_cost_through_a_long_life(seed: int) -> None:
    """Members come and go, several at a time, and topics grow; no single move is more than the program's minimum."""
    chooser = np.random.default_rng(seed)
    partitions, members = chooser.integers(1, 30, 8), 7
    owner = solved(problem(partitions.tolist(), members)).owner
    for _ in range(12):
        match int(chooser.integers(3)):
            case 0:
                members += int(chooser.integers(1, 4))
            case 1:
                gone = chooser.random(members) < 0.25
                gone[0] = False
                names = np.append(np.where(gone, NONE, np.cumsum(~gone) - 1), NONE)
                owner, members = names[owner].astype(np.int32), int((~gone).sum())
            case _:
                parts = np.split(owner, np.cumsum(partitions)[:-1])
                partitions = partitions + chooser.integers(0, 4, 8)
                owner = np.concatenate([_longer(*part) for part in zip(parts, partitions.tolist(), strict=True)])
        given = problem(partitions.tolist(), members, owner)
        found = solved(given)
        assert_even(given, found.owner)
        assert moves(given, found.owner) == found.lower_bound == _fewest_by_program(given)
        owner = found.owner


# --- large ones --------------------------------------------------------------------------------------------------

MEMBERS = 10_000


def _equal(topics: int) -> list[int]:
    return [500_000 // topics] * topics


def _skewed(topics: int) -> list[int]:
    """Two thirds of the topics have one partition; the others are of eight sizes."""
    large = topics - topics * 2 // 3
    return [1] * (topics - large) + [max(1, 1_500_000 // large >> number % 8) for number in range(large)]


@pytest.mark.parametrize("balance", ["both", "global"])
@pytest.mark.parametrize("partitions", [_equal(5), _equal(10), _equal(100), _equal(1000)], ids=len)
def test_half_a_million_partitions_move_no_more_than_they_must(partitions: list[int], balance: str) -> None:
    fresh = solved(problem(partitions, MEMBERS), balance)
    assert_even(problem(partitions, MEMBERS), fresh.owner)
    for given, least in (
        (problem(partitions, MEMBERS, fresh.owner), 0),
        (problem(partitions, MEMBERS + 1, fresh.owner), 49),
        (_without(partitions, fresh.owner, [MEMBERS // 3]), 0),
    ):
        found = solved(given, balance)
        assert np.ptp(loads(given.members.count, found.owner)) <= 1
        if balance == "both":
            assert_even(given, found.owner)
        assert moves(given, found.owner) == found.lower_bound == least


@pytest.mark.parametrize("partitions", [_equal(100), _skewed(1000)], ids=["equal", "skewed"])
def test_many_come_and_many_go_at_the_least_cost(partitions: list[int]) -> None:
    fresh = solved(problem(partitions, MEMBERS)).owner
    for given in (
        problem(partitions, MEMBERS + 1000, fresh),
        _without(partitions, fresh, range(0, MEMBERS, 10)),
        _without(partitions, fresh, range(MEMBERS - 1000, MEMBERS)),
    ):
        found = solved(given)
        assert_even(given, found.owner)
        assert moves(given, found.owner) == found.lower_bound


@pytest.mark.parametrize("balance", ["both", "global"])
@pytest.mark.parametrize("topics", [10, 1000])
def test_pins_in_a_large_group_cost_nothing(topics: int, balance: str) -> None:
    fresh = solved(problem(_equal(topics), MEMBERS)).owner
    given = problem(_equal(topics), MEMBERS + 1, fresh, pinned=range(0, len(fresh), 101))
    found = solved(given, balance)
    assert (found.owner[given.pinned] == fresh[given.pinned]).all()
    assert moves(given, found.owner) == found.lower_bound == 49


def test_an_abandoned_search_claims_no_more_than_it_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balancing, "_EFFORT", 0)
    chooser = np.random.default_rng(5)
    partitions = chooser.integers(1, 40, 30).tolist()
    given = problem(partitions, 25, chooser.integers(NONE, 25, sum(partitions)).astype(np.int32))
    found = solved(given)
    assert_even(given, found.owner)
    assert found.lower_bound <= _fewest_by_program(given) <= moves(given, found.owner)


@pytest.mark.parametrize("topics", [10, 100])
def test_a_large_group_that_was_even_only_over_all_is_put_right(topics: int) -> None:
    """Whole topics on few members each, as assignors leave it that look at totals alone."""
    given = problem(_equal(topics), MEMBERS, np.repeat(np.arange(MEMBERS, dtype=np.int32), 50))
    found = solved(given)
    assert_even(given, found.owner)
    assert moves(given, found.owner) == found.lower_bound
    assert solved(moved_to(given, found.owner)).owner is found.owner


_PLAN = """
import sys
from dataclasses import replace
from pathlib import Path
from assigner.strategies.sticky_balanced import strategy
from tests.support.strategies.problems import problem

members, topics, balance = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
def plan(members, owner):
    given = problem([1_000_000 // topics] * topics, members, owner)
    return strategy.assign(replace(given, options={"balance": balance}))
first = plan(members, None)
second = plan(members + 1, first.owner)
assert second.explanation.moves == second.explanation.lower_bound, second.explanation
assert second.explanation.imbalance <= 1
assert balance == "global" or second.explanation.imbalance_by_topic.max() <= 1
# Of this program alone: `getrusage` also knows the copy of its parent that the process was before.
(peak,) = (line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
print(int(peak) // 1024)
"""


@pytest.mark.parametrize(
    ("members", "topics", "balance"),
    [(2_000, 100, "both"), (10_000, 100, "both"), (10_000, 1_000, "both"), (10_000, 1_000, "global")],
)
def test_a_million_partitions_are_planned_within_500_megabytes(members: int, topics: int, balance: str) -> None:
    """A fresh process plans a new group and then a newcomer, and has its figures explained."""
    ran = subprocess.run(
        [sys.executable, "-c", _PLAN, str(members), str(topics), balance],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) < 500


# --- oracles and starts ------------------------------------------------------------------------------------------


def fewest_moves(given: Problem) -> int:
    """By trying every deal of the remainders; pins are kept."""
    members = given.members.count
    best = {(0,) * members: 0}
    for only in _one_by_one(given):
        have, stuck = loads(members, only.owner), loads(members, only.owner[only.pinned])
        floor, extras = divmod(len(only.owner) - int((only.pinned & (only.owner == NONE)).sum()), members)
        following: dict[tuple[int, ...], int] = {}
        for lucky in itertools.combinations(range(members), extras):
            quota = [floor + (m in lucky) for m in range(members)]
            if (stuck > quota).any():
                continue
            lost = int(np.maximum(have - quota, 0).sum())
            for load, so_far in best.items():
                key = tuple(a + b for a, b in zip(load, quota, strict=True))
                following[key] = min(so_far + lost, following.get(key, so_far + lost))
        best = following
    return min(so_far for load, so_far in best.items() if max(load) - min(load) <= 1)


def _fewest_by_program(given: Problem) -> int:
    """A transportation problem: who gets an extra of what, so that the most stay where they are."""
    members, topics = given.members.count, given.topics.count
    cells = topic_of(given)[given.owner != NONE] * members + given.owner[given.owner != NONE]
    have = np.bincount(cells, minlength=topics * members).reshape(topics, members)
    floor, extras = np.divmod(given.topics.partitions[:, None], members)
    base, rest = divmod(int(extras.sum()), members)
    by_topic = np.kron(np.eye(topics), np.ones(members))
    by_member = np.kron(np.ones(topics), np.eye(members))
    answer = linprog(
        -(have > floor).astype(float).reshape(-1),
        A_eq=by_topic,
        b_eq=extras.reshape(-1),
        A_ub=np.concatenate((by_member, -by_member)),
        b_ub=np.concatenate((np.full(members, base + (rest > 0)), np.full(members, -base))),
        bounds=(0, 1),
    )
    assert answer.success
    return int(np.maximum(have - floor, 0).sum()) + round(float(answer.fun))


def _one_by_one(given: Problem) -> Iterable[Problem]:
    offsets = given.offsets.tolist()
    for start, end in itertools.pairwise(offsets):
        pins = np.flatnonzero(given.pinned[start:end]).tolist()
        yield problem([end - start], given.members.count, given.owner[start:end], pinned=pins)


def _shares(given: Problem) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.asarray(len(given.owner) * given.members.capacity / given.members.capacity.sum())


def _with_pins(data: st.DataObject, given: Problem) -> Problem:
    total = len(given.owner)
    pins = data.draw(st.lists(st.integers(0, total - 1), max_size=4)) if total else []
    pinned = np.zeros(total, np.bool_)
    pinned[pins] = True
    return replace(given, pinned=pinned)


def _without(partitions: Sequence[int], owner: IntArray, gone: Iterable[int]) -> Problem:
    count = int(owner.max()) + 1
    stays = np.ones(count, np.bool_)
    stays[list(gone)] = False
    names = np.where(stays, np.cumsum(stays) - 1, NONE).astype(np.int32)
    return problem(partitions, int(stays.sum()), names[owner])


def _longer(owner: IntArray, count: int) -> IntArray:
    return np.concatenate((owner, np.full(count - len(owner), NONE, np.int32)))
