"""Where standbys go, and who is promoted. What that comes to in a life of a group: `test_standby_lives.py`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given as examples
from hypothesis import settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp

from assigner.strategies.problem.units import fold
from assigner.strategies.standbys.placement import place_standbys
from assigner.strategies.standbys.promotion import prefer_standby_holders
from assigner.strategies.sticky_balanced import strategy
from assigner.strategy import NONE, IntArray, Problem
from tests.support.strategies.problems import assert_rounded, loads, problem, topic_of
from tests.support.strategies.standby_life import built, cold_pairs, copies, most_promoted, promotable, with_standbys

many = settings(max_examples=70, deadline=None, derandomize=True)
some = settings(max_examples=30, deadline=None, derandomize=True)


def again(given: Problem, owner: IntArray, standbys: IntArray) -> Problem:
    return replace(given, owner=owner, standbys=standbys)


def near(given: Problem, owner: IntArray, standbys: IntArray) -> int:
    """Copies in the rack of the owner or of an earlier copy."""
    rack = np.append(given.members.rack, np.int32(NONE))
    holders = np.concatenate((owner[:, None], standbys), axis=1)
    count = 0
    for row in rack[holders].tolist():
        known = [r for r in row if r != NONE]
        count += len(known) - len(set(known))
    return count


@st.composite
def situations(draw: st.DrawFn) -> tuple[Problem, IntArray]:
    """A problem with standbys, racks, holds, sets and unequal members, and new owners, good or bad."""
    members = draw(st.integers(1, 7))
    partitions = draw(st.lists(st.integers(0, 9), min_size=1, max_size=3))
    sets = None
    if draw(st.booleans()):
        partitions.append(partitions[0])
        sets = [0, *[NONE] * (len(partitions) - 2), 0]
    total = sum(partitions)
    someone = st.lists(st.integers(NONE, members - 1), min_size=total, max_size=total)
    width = draw(st.integers(0, 3))
    rows = st.lists(st.lists(st.integers(0, members - 1), max_size=width, unique=True), min_size=total, max_size=total)
    standbys = [[*row, *[NONE] * (width - len(row))] for row in draw(rows)]
    wants = st.lists(st.booleans(), min_size=len(partitions), max_size=len(partitions))
    given = problem(
        partitions,
        members,
        draw(someone),
        subscription=draw(st.one_of(st.none(), st.lists(wants, min_size=members, max_size=members))),
        capacity=draw(
            st.one_of(st.none(), st.lists(st.sampled_from([0.5, 1, 2, 3]), min_size=members, max_size=members))
        ),
        hold=draw(st.lists(st.integers(0, members - 1), max_size=1)),
        copartition=sets,
    )
    owner = np.asarray(draw(someone), np.int32)
    standbys_ = np.asarray(standbys, np.int32).reshape(total, width)
    standbys_ = np.where(standbys_ == given.owner[:, None], np.int32(NONE), standbys_)
    rack = draw(st.lists(st.integers(NONE, 2), min_size=members, max_size=members))
    return with_standbys(given, draw(st.integers(0, 4)), standbys_, rack), owner


@st.composite
def even_situations(draw: st.DrawFn, *, count: int = 1, racks: bool = False) -> tuple[Problem, IntArray]:
    """One topic, members alike, new owners that are even; copies anywhere."""
    members, total = draw(st.integers(2, 6)), draw(st.integers(1, 16))
    owner = np.asarray(draw(st.permutations([n % members for n in range(total)])), np.int32)
    moved = draw(st.lists(st.integers(0, total - 1), max_size=4))
    before = owner.copy()
    before[moved] = (before[moved] + 1) % members
    start = draw(st.lists(st.integers(1, members - 1), min_size=total, max_size=total))
    width = min(count, members - 1)
    step = np.asarray(start)[:, None] - 1 + np.arange(width)
    standbys = ((before[:, None] + 1 + step % (members - 1)) % members).astype(np.int32)
    if draw(st.booleans()):
        standbys[:] = NONE
    rack = draw(st.lists(st.integers(0, 2), min_size=members, max_size=members)) if racks else None
    return with_standbys(problem([total], members, before), count, standbys, rack), owner


# --- rules -------------------------------------------------------------------------------------------------------


@many
@examples(situations())
def test_every_copy_is_where_it_may_be(situation: tuple[Problem, IntArray]) -> None:
    given, owner = situation
    standbys = place_standbys(given, owner)
    members, topic = given.members, topic_of(given)
    assert standbys.dtype == np.int32
    assert standbys.shape == (len(owner), max(0, min(given.standby_count, members.count - 1)))
    for partition, row in enumerate(standbys.tolist()):
        holders = [member for member in row if member != NONE]
        assert row[: len(holders)] == holders
        assert len(set(holders)) == len(holders)
        assert owner[partition] not in holders
        assert members.subscription[holders, topic[partition]].all()
        had = {*given.standbys[partition].tolist(), int(given.owner[partition])}
        assert not any(members.hold[member] for member in holders if member not in had)


@many
@examples(situations())
def test_there_are_as_many_copies_as_there_are_members_for(situation: tuple[Problem, IntArray]) -> None:
    given, owner = situation
    if given.topics.copartition is not None:
        given = replace(given, topics=replace(given.topics, copartition=None))
    standbys = place_standbys(given, owner)
    topic = topic_of(given)
    for partition in np.flatnonzero(owner != NONE).tolist():
        may = given.members.subscription[:, topic[partition]].copy()
        had = [m for m in (*given.standbys[partition].tolist(), int(given.owner[partition])) if m != NONE]
        on_hold = given.members.hold.copy()
        on_hold[had] = False
        may &= ~on_hold
        may[owner[partition]] = False
        assert (standbys[partition] != NONE).sum() == min(standbys.shape[1], may.sum())


@many
@examples(situations())
def test_given_its_own_result_it_builds_nothing(situation: tuple[Problem, IntArray]) -> None:
    given, owner = situation
    standbys = place_standbys(given, owner)
    assert place_standbys(again(given, owner, standbys), owner).tolist() == standbys.tolist()


@many
@examples(situations(), st.randoms(use_true_random=False))
def test_the_order_of_copies_does_not_matter(situation: tuple[Problem, IntArray], chooser: object) -> None:
    given, owner = situation
    turned = np.ascontiguousarray(given.standbys[:, ::-1])
    first = place_standbys(given, owner)
    assert place_standbys(replace(given, standbys=turned), owner).tolist() == first.tolist()


@many
@examples(situations())
def test_the_topics_of_a_set_have_the_same_standbys(situation: tuple[Problem, IntArray]) -> None:
    given, owner = situation
    if given.topics.copartition is None:
        return
    first, last = given.offsets[:2], given.offsets[-2:]
    owner[last[0] : last[1]] = owner[first[0] : first[1]]
    standbys = place_standbys(given, owner)
    assert standbys[last[0] : last[1]].tolist() == standbys[first[0] : first[1]].tolist()


def test_no_standbys_cost_nothing() -> None:
    given = problem([5], 3)
    assert place_standbys(given, np.zeros(5, np.int32)).shape == (5, 0)


@pytest.mark.parametrize("members", [0, 1])
def test_without_others_there_are_no_standbys(members: int) -> None:
    given = with_standbys(problem([3], members), 2)
    assert place_standbys(given, np.full(3, members - 1, np.int32)).shape == (3, 0)


def test_more_standbys_than_others_are_cut_to_all_others() -> None:
    standbys = place_standbys(with_standbys(problem([4], 3), 9), np.array([0, 1, 2, 0], np.int32))
    assert standbys.tolist() == [[1, 2], [0, 2], [0, 1], [1, 2]]


def test_copies_of_what_nobody_owns_are_left_alone() -> None:
    given = with_standbys(problem([2], 3), 1, [[2], [NONE]])
    assert place_standbys(given, np.array([NONE, NONE], np.int32)).tolist() == [[2], [NONE]]


def test_a_member_on_hold_keeps_its_copies_and_gets_none() -> None:
    given = with_standbys(problem([6], 3, hold=[2]), 1, [[2], [2], [NONE], [NONE], [NONE], [NONE]])
    standbys = place_standbys(given, np.array([0, 1, 0, 1, 0, 1], np.int32))
    assert standbys.ravel().tolist() == [2, 2, 1, 0, 1, 0]


def test_a_former_owner_is_the_standby_of_what_its_standby_took_over() -> None:
    """Two members swap roles: nothing has to be copied."""
    given = with_standbys(problem([4], 2, [0, 0, 0, 0]), 1, [[1]] * 4)
    owner = np.array([0, 0, 1, 1], np.int32)
    assert place_standbys(given, owner).ravel().tolist() == [1, 1, 0, 0]


def test_a_slot_torn_by_a_pin_has_no_standby_on_either_owner() -> None:
    given = with_standbys(problem([1, 1], 4, [0, 1], pinned=[1], copartition=[0, 0]), 2)
    standbys = place_standbys(given, np.array([0, 1], np.int32))
    assert standbys.tolist() == [[2, 3], [2, 3]]


# --- even --------------------------------------------------------------------------------------------------------


@many
@examples(even_situations(count=2, racks=True))
def test_copies_and_actives_are_one_apart_at_most(situation: tuple[Problem, IntArray]) -> None:
    given, owner = situation
    count = copies(given.members.count, owner, place_standbys(given, owner))
    assert count.max() - count.min() <= 1


@many
@examples(
    partitions=st.lists(st.integers(0, 30), min_size=1, max_size=4),
    capacity=st.lists(st.sampled_from([1.0, 1.5, 2.0]), min_size=4, max_size=8),
)
def test_copies_are_in_proportion_to_capacity(partitions: list[int], capacity: list[float]) -> None:
    given = with_standbys(problem(partitions, len(capacity), capacity=capacity), 1)
    solution = strategy.assign(given)
    total = 2 * len(solution.owner)
    share = total * given.members.capacity / given.members.capacity.sum()
    assert_rounded(copies(len(capacity), solution.owner, solution.standbys), share)


def test_chained_subscriptions_are_evened_out_through_the_middle() -> None:
    """A wants the first topic, C the second, B both. B has all copies of the first, since only B can, and so none of
    the second more than it must."""
    given = problem([10, 10], 3, [0] * 10 + [2] * 10, subscription=[[1, 0], [1, 1], [0, 1]])
    standbys = place_standbys(with_standbys(given, 1), given.owner)
    assert standbys.ravel().tolist() == [1] * 20
    wide = problem([10, 10], 4, [0] * 10 + [2] * 10, subscription=[[1, 0], [1, 1], [0, 1], [0, 1]])
    standbys = place_standbys(with_standbys(wide, 1), wide.owner)
    assert copies(4, wide.owner, standbys).tolist() == [10, 10, 10, 10]


def test_what_a_hash_left_uneven_standbys_even_out() -> None:
    given = with_standbys(problem([60], 6), 1)
    owner = np.array([0] * 18 + [1] * 14 + [2] * 10 + [3] * 8 + [4] * 6 + [5] * 4, np.int32)
    assert copies(6, owner, place_standbys(given, owner)).tolist() == [20] * 6


# --- racks, pairs, copies to build: against the best there is ----------------------------------------------------


def best_placement(given: Problem, owner: IntArray) -> tuple[int, int, int]:
    """(copies in the owner's rack, copies to build, copies that could not be promoted), the first weighing most, over
    all even placements. One topic, members alike."""
    members, total = given.members.count, len(owner)
    width = min(given.standby_count, members - 1)
    own, rack = loads(members, owner), given.members.rack
    sure, most, remainders = promotable(members, owner, width)
    close = (rack != NONE) & (rack == rack[owner][:, None])
    new = np.ones((total, members))
    new[np.arange(total), given.owner] = 0
    for column in given.standbys.T:
        there = np.flatnonzero(column != NONE)
        new[there, column[there]] = 0
    # Seats, then per pair: one on a remainder, and those too many; then per owner: remainders too many.
    places, pair = np.eye(total * members), np.eye(members**2)
    nothing = np.zeros((total * members, members**2))
    one = np.concatenate((places, nothing, nothing, np.zeros((total * members, members))), axis=1)
    each = one.reshape(total, members, -1).sum(axis=1)
    every = one.reshape(total, members, -1).sum(axis=0)
    by_owner = np.eye(members)[owner]
    of_pair = np.einsum("ua,ubx->abx", by_owner, one.reshape(total, members, -1)).reshape(members**2, -1)
    begin = total * members
    of_pair[:, begin : begin + 2 * members**2] -= np.concatenate((width * pair, pair), axis=1)
    lucky = np.zeros((members, one.shape[1]))
    lucky[:, begin : begin + members**2] = np.kron(np.eye(members), np.ones(members))
    lucky[:, -members:] = -np.eye(members)
    upper = np.full(one.shape[1], float(total * members))
    upper[:begin] = 1
    upper[np.arange(total) * members + owner] = 0
    upper[begin : begin + members**2] = (most > sure).ravel()
    weights = np.ones(one.shape[1])
    weights[:begin] = (1e4 * close + 1e2 * new).ravel()
    weights[begin : begin + members**2] = 0
    copied = total * (1 + width)
    found = milp(
        weights,
        constraints=[
            LinearConstraint(each, width, width),
            LinearConstraint(every, copied // members - own, -(-copied // members) - own),
            LinearConstraint(of_pair, -np.inf, sure.ravel()),
            LinearConstraint(lucky, -np.inf, remainders),
        ],
        integrality=np.ones(len(upper)),
        bounds=Bounds(0, upper),
    )
    assert found.success, found.message
    chosen = found.x.round()
    cold = int(chosen[begin + members**2 :].sum())
    return round(close.ravel() @ chosen[:begin]), round(new.ravel() @ chosen[:begin]), cold


@some
@examples(even_situations(racks=True))
def test_one_copy_each_is_in_other_racks_and_apart_as_far_as_possible(situation: tuple[Problem, IntArray]) -> None:
    given, owner = situation
    standbys = place_standbys(given, owner)
    close, least, cold = best_placement(given, owner)
    mine = given.members.rack[standbys.ravel()] == given.members.rack[owner]
    if len(np.unique(given.members.rack)) > 1:
        assert mine.sum() == close
        new = (standbys.ravel() != given.standbys.ravel()) & (standbys.ravel() != given.owner)
        assert least <= new.sum() <= least + 2
        assert new.sum() > least or cold <= cold_pairs(given.members.count, owner, standbys) <= cold + 2


@some
@examples(even_situations(count=2))
def test_two_copies_each_are_apart_and_few_are_built(situation: tuple[Problem, IntArray]) -> None:
    given, owner = situation
    standbys = place_standbys(given, owner)
    _, least, cold = best_placement(given, owner)
    had = [{*row, who} for row, who in zip(given.standbys.tolist(), given.owner.tolist(), strict=True)]
    new = sum(member not in there for row, there in zip(standbys.tolist(), had, strict=True) for member in row)
    assert least <= new <= least + 2
    assert new > least or cold <= cold_pairs(given.members.count, owner, standbys) <= cold + 2


@pytest.mark.parametrize("count", [1, 2])
def test_three_racks_give_every_copy_a_rack_of_its_own(count: int) -> None:
    given = with_standbys(problem([90], 9), count, rack=[n % 3 for n in range(9)])
    solution = strategy.assign(given)
    assert near(given, solution.owner, solution.standbys) == 0
    assert np.ptp(copies(9, solution.owner, solution.standbys)) == 0


def test_when_racks_become_known_only_copies_in_the_wrong_one_are_built_anew() -> None:
    given = with_standbys(problem([90], 9), 1)
    first = strategy.assign(given)
    rack = np.arange(9, dtype=np.int32) % 3
    told = with_standbys(replace(given, owner=first.owner), 1, first.standbys, rack)
    wrong = near(told, first.owner, first.standbys)
    solution = strategy.assign(told)
    assert near(told, solution.owner, solution.standbys) == 0
    assert built(told, solution) <= wrong + 2
    assert solution.explanation.moves == 0


def test_a_rack_too_large_to_be_avoided_is_used_and_settles() -> None:
    given = with_standbys(problem([80], 8), 1, rack=[0, 0, 0, 0, 0, 0, 1, 1])
    solution = strategy.assign(given)
    # The six have sixty actives and sixty copies, of which the other rack's twenty are the only ones not of their own.
    assert near(given, solution.owner, solution.standbys) == 40
    second = strategy.assign(again(given, solution.owner, solution.standbys))
    assert second.standbys.tolist() == solution.standbys.tolist()


# --- promotion ---------------------------------------------------------------------------------------------------


@st.composite
def handovers(draw: st.DrawFn) -> Problem:
    members, total = draw(st.integers(1, 6)), draw(st.integers(1, 16))
    owner = draw(st.lists(st.integers(NONE, members - 1), min_size=total, max_size=total))
    width = draw(st.integers(1, 2))
    standbys = draw(
        st.lists(
            st.lists(st.integers(NONE, members - 1), min_size=width, max_size=width), min_size=total, max_size=total
        )
    )
    given = with_standbys(problem([total], members, owner), 0, standbys)
    return replace(given, standbys=np.where(given.standbys == given.owner[:, None], np.int32(NONE), given.standbys))


def promoted(given: Problem, owner: IntArray) -> int:
    changed = owner != given.owner
    return int((given.standbys[changed] == owner[changed, None]).any(axis=1).sum())


@many
@examples(handovers())
def test_as_many_as_possible_go_to_a_standby_holder(given: Problem) -> None:
    planned = strategy.assign(replace(given, standbys=np.empty((0, 0), np.int32))).owner
    owner = prefer_standby_holders(fold(given), given.members, planned)
    assert (owner[planned == given.owner] == planned[planned == given.owner]).all()
    assert np.ptp(loads(given.members.count, owner)) <= 1
    assert promoted(given, owner) == most_promoted(given, planned)


@many
@examples(st.lists(st.integers(1, 6), min_size=2, max_size=4), st.integers(2, 5), st.data())
def test_promotion_over_several_topics_keeps_both_balances(
    counts: list[int], members: int, data: st.DataObject
) -> None:
    total = sum(counts)
    owner = data.draw(st.lists(st.integers(NONE, members - 1), min_size=total, max_size=total))
    holder = data.draw(st.lists(st.integers(NONE, members - 1), min_size=total, max_size=total))
    plain = problem(counts, members, owner)
    planned = strategy.assign(plain).owner
    given = with_standbys(plain, 0, [[NONE if a == b else a] for a, b in zip(holder, owner, strict=True)])
    result = prefer_standby_holders(fold(given), given.members, planned)
    assert (result[planned == given.owner] == planned[planned == given.owner]).all()
    assert promoted(given, result) >= promoted(given, planned)
    assert np.ptp(loads(members, result)) <= 1
    for number in range(len(counts)):
        part = topic_of(given) == number
        assert np.ptp(loads(members, result[part])) <= 1


def test_units_of_different_weight_do_not_trade_places() -> None:
    given = with_standbys(problem([2], 2), 0, [[1], [0]])
    units = fold(given)
    planned = np.array([0, 1], np.int32)
    assert prefer_standby_holders(units, given.members, planned).tolist() == [1, 0]
    weighed = replace(units, weight=np.array([1.0, 2.0]))
    assert prefer_standby_holders(weighed, given.members, planned).tolist() == [0, 1]


def test_units_of_different_kind_do_not_trade_places() -> None:
    given = with_standbys(problem([2], 2), 0, [[1], [0]])
    kind = np.array([0, 1], np.int32)
    assert prefer_standby_holders(fold(given), given.members, np.array([0, 1], np.int32), kind).tolist() == [0, 1]


def test_nothing_to_gain_gives_the_plan_back() -> None:
    given = with_standbys(problem([4], 2, [0, 0, NONE, NONE]), 0, [[NONE], [NONE], [1], [1]])
    planned = np.array([0, 0, 1, 1], np.int32)
    assert prefer_standby_holders(fold(given), given.members, planned) is planned


def test_pins_holds_and_subscriptions_bind_promotion() -> None:
    given = problem([4], 3, [NONE] * 4, hold=[2], pinned=[0], subscription=[[1], [1], [1]])
    given = with_standbys(replace(given, owner=np.array([0, NONE, NONE, NONE], np.int32)), 0, [[1], [2], [2], [0]])
    owner = prefer_standby_holders(fold(given), given.members, np.array([0, 0, 1, 1], np.int32))
    assert owner[0] == 0
    assert 2 not in owner
    assert owner[3] == 0
