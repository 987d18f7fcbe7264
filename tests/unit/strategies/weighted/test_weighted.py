"""Partitions of different weight: what is promised, tried on examples, at random and against every other plan."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assigner.errors import InvalidInput
from assigner.strategies.problem.current_owners import held
from assigner.strategies.problem.units import fold
from assigner.strategies.weighted.goals import goals
from assigner.strategies.weighted.parts import split
from assigner.strategy import NONE, BoolArray, FloatArray, IntArray, Problem
from tests.support.strategies.problems import (
    WEIGHTS,
    again,
    assert_rounded,
    assert_valid,
    assign,
    group,
    joined,
    loads,
    moves,
    problem,
    problems,
    topic_of,
    weigh,
    weighed,
    weighted,
    weights,
)

many = settings(max_examples=120, deadline=None, derandomize=True)


# --- always ------------------------------------------------------------------------------------------------------


@many
@given(given=weighted(mixed=True, capacities=True, restricted=True), tolerance=st.sampled_from([0.0, 0.1, 1.0]))
def test_every_solution_is_valid_and_moves_no_less_than_it_says(given: Problem, tolerance: float) -> None:
    solution = assign(given, {"tolerance": tolerance})
    assert_valid(given, solution)
    assert moves(given, solution.owner) >= solution.explanation.lower_bound


@many
@given(given=weighted(mixed=True, capacities=True, restricted=True), tolerance=st.sampled_from([0.0, 0.1, 1.0]))
def test_its_own_result_is_left_as_it_is(given: Problem, tolerance: float) -> None:
    options = {"tolerance": tolerance}
    first = assign(given, options).owner
    second = assign(again(given, first), options)
    assert second.owner.tolist() == first.tolist()
    assert second.explanation.lower_bound == 0


@many
@given(
    given=problems(topics=4, members=5, most=4, mixed=True, restricted=True),
    data=st.data(),
)
def test_co_partitioned_topics_stay_together(given: Problem, data: st.DataObject) -> None:
    count = given.topics.count
    if count < 2:
        return
    # The first two topics are a set.
    partitions = given.topics.partitions.copy()
    partitions[1] = partitions[0]
    total = int(partitions.sum())
    numbers = [0, 0, *([NONE] * (count - 2))]
    pair = problem(
        partitions.tolist(), given.members.count, subscription=given.members.subscription, copartition=numbers
    )
    weight = data.draw(st.lists(st.sampled_from(WEIGHTS), min_size=total, max_size=total))
    owner = assign(weigh(pair, weight)).owner
    each = int(partitions[0])
    assert owner[:each].tolist() == owner[each : 2 * each].tolist()


# --- the limits of loads -----------------------------------------------------------------------------------------


@many
@given(given=weighted(capacities=True))
def test_a_fresh_plan_gives_nobody_more_than_its_share_and_the_heaviest(given: Problem) -> None:
    if not len(given.owner):
        return
    fresh = again(given, np.full_like(given.owner, NONE))
    capacity, weight = given.members.capacity, weights(given)
    load = weighed(given, assign(fresh).owner)
    assert (load <= capacity * weight.sum() / capacity.sum() + weight.max() + 1e-6).all()


@many
@given(given=weighted(), tolerance=st.sampled_from([0.0, 0.05, 0.1, 0.5]))
def test_a_kept_plan_stays_within_the_share_the_heaviest_and_the_tolerance(given: Problem, tolerance: float) -> None:
    if not len(given.owner):
        return
    weight = weights(given)
    mean = weight.sum() / given.members.count
    load = weighed(given, assign(given, {"tolerance": tolerance}).owner)
    limit = mean + max(tolerance * mean, weight.max() + tolerance / 2 * mean)
    assert load.max() <= limit + 1e-6


@many
@given(given=weighted(topics=2, members=4, most=6))
def test_a_fresh_plan_is_at_most_a_third_worse_than_the_best(given: Problem) -> None:
    if len(given.owner) > 7 or not len(given.owner):
        return
    fresh = again(given, np.full_like(given.owner, NONE))
    best = min(weighed(given, owner).max() for owner in every_plan(given))
    assert weighed(given, assign(fresh).owner).max() <= 4 / 3 * best + 1e-9


@many
@given(given=problems(capacities=True), weight=st.sampled_from([0.3, 1.0, 17.0]))
def test_equal_weights_give_each_member_the_floor_or_the_ceiling_of_its_share(given: Problem, weight: float) -> None:
    fresh = weigh(again(given, np.full_like(given.owner, NONE)), np.full(len(given.owner), weight))
    capacity = given.members.capacity
    share = len(given.owner) * capacity / capacity.sum()
    if not (share >= 1).all():
        return
    assert_rounded(loads(given.members.count, assign(fresh).owner), share)


def test_large_members_get_more() -> None:
    given = weigh(problem([300], 3, capacity=[1, 2, 3]), np.random.default_rng(1).uniform(1, 5, 300))
    load = weighed(given, assign(given).owner)
    assert load / load.sum() == pytest.approx([1 / 6, 2 / 6, 3 / 6], abs=0.01)


def test_who_has_a_hot_partition_has_nothing_else_and_the_others_share_the_rest() -> None:
    given = weigh(problem([41], 5), [1000.0] + [1.0] * 40)
    owner = assign(given).owner
    assert sorted(loads(5, owner).tolist()) == [1, 10, 10, 10, 10]


def test_a_partition_that_becomes_hot_sends_its_neighbours_away_and_stays() -> None:
    before = weigh(problem([40], 5), np.ones(40))
    owner = assign(before).owner
    hot = weights(before).copy()
    hot[0] = 1000.0
    after = assign(again(before, owner, hot)).owner
    assert after[0] == owner[0]
    assert loads(5, after)[owner[0]] == 1
    assert moves(again(before, owner), after) == 7


# --- moves -------------------------------------------------------------------------------------------------------


def every_plan(given: Problem) -> Iterator[IntArray]:
    for owner in itertools.product(range(given.members.count), repeat=len(given.owner)):
        yield np.array(owner, np.int32)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(given=weighted(topics=2, members=3, most=4), tolerance=st.sampled_from([0.0, 0.1]))
def test_no_plan_as_balanced_moves_less_than_the_bound(given: Problem, tolerance: float) -> None:
    if len(given.owner) > 7:
        return
    solution = assign(given, {"tolerance": tolerance})
    outside = np.abs(weighed(given, given.owner) - fair_shares_of(given)) > tolerance * fair_shares_of(given) + 1e-6
    limits = [extremes(given, solution.owner, which) for which in (outside | True, outside)]
    for owner in every_plan(given):
        others = [extremes(given, owner, which) for which in (outside | True, outside)]
        if all(as_balanced(*each) for each in zip(others, limits, strict=True)):
            assert moves(given, owner) >= solution.explanation.lower_bound


def extremes(given: Problem, owner: IntArray, which: BoolArray) -> tuple[float, float]:
    """Of these members: the most that one with several partitions has, and the least that any has."""
    load, count = weighed(given, owner), loads(given.members.count, owner)
    return float(load[which & (count > 1)].max(initial=0.0)), float(load[which].min(initial=np.inf))


def as_balanced(one: tuple[float, float], other: tuple[float, float]) -> bool:
    # A plan in which nobody has several partitions sets no limit to those that do.
    return (other[0] == 0 or one[0] <= other[0] + 1e-9) and one[1] >= other[1] - 1e-9


@pytest.mark.parametrize("each", [20, 60])
def test_moves_are_few_when_members_join_leave_and_weights_change(each: int) -> None:
    made = needed = 0
    for seed in range(6):
        dice = np.random.default_rng(seed)
        given = group(12, each, seed)
        owner = assign(given).owner
        for event in (
            joined(given, owner),
            joined(given, owner, 5),
            again(given, np.where(owner == 0, np.int32(NONE), owner)),
            again(given, owner, weights(given) * dice.lognormal(0, 0.5, len(owner))),
            again(given, dice.integers(0, 12, len(owner)).astype(np.int32)),
        ):
            explanation = assign(event).explanation
            made += explanation.moves
            needed += explanation.lower_bound
    assert made <= 1.1 * needed


def test_a_newcomer_gets_its_share_from_those_that_have_it() -> None:
    given = group(10, 40)
    owner = assign(given).owner
    event = joined(given, owner)
    after = assign(event).owner
    load = weighed(event, after)
    assert load[10] >= 0.94 * load.mean()
    assert set(after[after != owner].tolist()) == {10}


def test_what_a_leaver_had_is_placed_and_nothing_else_moves() -> None:
    given = group(10, 40)
    owner = assign(given).owner
    left = np.where(owner == 3, np.int32(NONE), owner)
    members = replace(given.members, hold=np.arange(10) == 3)
    after = assign(replace(again(given, left), members=members)).owner
    assert (after != NONE).all()
    assert (after[owner != 3] == owner[owner != 3]).all()


# --- hysteresis --------------------------------------------------------------------------------------------------


@many
@given(given=weighted(topics=3, members=4), tolerance=st.sampled_from([0.1, 0.3, 1.0]))
def test_nothing_moves_while_all_are_within_the_tolerance(given: Problem, tolerance: float) -> None:
    weight = weights(given)
    if not len(weight) or (given.owner == NONE).any():
        return
    goal, load = weight.sum() / given.members.count, weighed(given, given.owner)
    within = weight.max() <= goal and (np.abs(load - goal) <= tolerance * goal).all()
    after = assign(given, {"tolerance": tolerance}).owner
    assert not within or after.tolist() == given.owner.tolist()


@pytest.mark.parametrize("each", [3, 8, 40])
def test_fluctuating_weights_move_nothing(each: int) -> None:
    given = group(20, each)
    dice = np.random.default_rng(2)
    owner = assign(given).owner
    for _ in range(100):
        trembling = weights(given) * dice.uniform(0.97, 1.03, len(owner))
        assert assign(again(given, owner, trembling)).owner.tolist() == owner.tolist()


def test_who_was_outside_is_brought_well_inside_and_is_left_alone_then() -> None:
    given = group(20, 40)
    dice = np.random.default_rng(3)
    scattered = dice.integers(0, 20, len(given.owner)).astype(np.int32)
    before, mean = weighed(given, scattered), weights(given).sum() / 20
    owner = assign(again(given, scattered)).owner
    after = weighed(given, owner)
    outside = np.abs(before - mean) > 0.1 * mean
    assert outside.any()
    assert (np.abs(after[outside] - mean) <= 0.05 * mean + 1e-9).all()
    for _ in range(50):
        trembling = weights(given) * dice.uniform(0.98, 1.02, len(owner))
        after_all = assign(again(given, owner, trembling)).owner
        assert (after_all[outside[owner]] == owner[outside[owner]]).all()
        owner = after_all


def test_one_remainder_for_many_members_does_not_move_back_and_forth() -> None:
    given = weigh(problem([401], 100), np.ones(401))
    dice = np.random.default_rng(4)
    owner = assign(given).owner
    for _ in range(50):
        trembling = dice.uniform(0.97, 1.03, 401)
        assert assign(again(given, owner, trembling)).owner.tolist() == owner.tolist()


def test_without_tolerance_a_small_difference_is_made_up_for() -> None:
    given = weigh(problem([6], 2, [0, 0, 0, 1, 1, 1]), [3.0, 2.0, 2.0, 2.0, 2.0, 2.0])
    assert assign(given).explanation.moves == 0
    uneven = weigh(problem([6], 2, [0, 0, 0, 1, 1, 1]), [4.0, 3.0, 2.0, 2.0, 2.0, 3.0])
    assert weighed(uneven, assign(uneven, {"tolerance": 0}).owner).tolist() == [8.0, 8.0]


# --- members with other topics -----------------------------------------------------------------------------------


@many
@given(given=weighted(topics=4, members=4, most=4, mixed=True, capacities=True))
def test_without_tolerance_no_move_and_no_swap_brings_loads_nearer_to_the_goals(given: Problem) -> None:
    owner = assign(given, {"tolerance": 0}).owner
    goal = fair_shares_of(given)
    excess, weight, topic = weighed(given, owner) - goal, weights(given), topic_of(given)
    takes = given.members.subscription
    owned = np.flatnonzero(owner != NONE).tolist()
    for unit in owned:
        for taker in np.flatnonzero(takes[:, topic[unit]]).tolist():
            if taker != owner[unit]:
                assert excess[owner[unit]] - excess[taker] <= weight[unit] + 1e-5
    for one, other in itertools.combinations(owned, 2):
        giver, taker = owner[one], owner[other]
        if giver != taker and takes[taker, topic[one]] and takes[giver, topic[other]]:
            shift, gap = weight[one] - weight[other], excess[giver] - excess[taker]
            assert shift * (gap - shift) <= 1e-4


def fair_shares_of(given: Problem) -> FloatArray:
    units = fold(given)
    goal, heaviest = np.zeros(given.members.count), weights(given).max(initial=1.0)
    for part in split(units, given.members, held(units, given.members), weights(given) / heaviest):
        goal[part.members] = goals(part).load * heaviest
    return goal


def test_members_with_overlapping_topics_even_out() -> None:
    # A takes the first topic, B both, C the second: B passes on what it is relieved of.
    wants = [[1, 0], [1, 1], [0, 1]]
    weight = np.random.default_rng(5).uniform(1, 2, 600)
    given = weigh(problem([330, 270], 3, subscription=wants), weight)
    fresh = weighed(given, assign(given).owner)
    assert fresh / fresh.mean() == pytest.approx([1, 1, 1], abs=0.01)
    # All of the first topic with A, all of the second with B: nothing for C.
    lopsided = again(given, np.repeat(np.array([0, 1], np.int32), [330, 270]))
    load = weighed(given, assign(lopsided).owner)
    assert load / load.mean() == pytest.approx([1, 1, 1], abs=0.05)


def test_a_newcomer_for_one_topic_moves_nothing_of_another() -> None:
    dice = np.random.default_rng(6)
    wants = [[1, 0]] * 4 + [[0, 1]] * 4
    given = weigh(problem([100, 100], 8, subscription=wants), dice.uniform(1, 3, 200))
    # The second topic is not well balanced, but nobody is outside the tolerance.
    owner = assign(given).owner
    more = weigh(problem([100, 100], 9, owner, subscription=[*wants, [1, 0]]), weights(given))
    after = assign(more).owner
    assert (after[100:] == owner[100:]).all()
    assert (after[:100] != owner[:100]).any()


# --- ties, options, odd input ------------------------------------------------------------------------------------


def test_of_equal_members_the_less_busy_is_served_first() -> None:
    given = weigh(problem([1], 3), [1.0])
    busy = replace(given, members=replace(given.members, load=np.array([0.9, np.nan, 0.1])))
    assert assign(busy).owner.tolist() == [2]
    silent = replace(given, members=replace(given.members, load=np.full(3, np.nan)))
    assert assign(silent).owner.tolist() == [0]


def test_a_busy_node_moves_nothing() -> None:
    given = group(6, 20)
    owner = assign(given).owner
    busy = replace(again(given, owner), members=replace(given.members, load=np.arange(6) / 6))
    assert assign(busy).owner.tolist() == owner.tolist()


def test_the_result_does_not_depend_on_the_order_of_names() -> None:
    by_name = {f"m{number}": weight for number, weight in enumerate([1.0, 2.0, 1.0])}
    topics = {f"t{number}": 7 for number in range(4)}
    dice = np.random.default_rng(7)
    weight = {(topic, number): float(dice.uniform(1, 9)) for topic in topics for number in range(7)}
    results = set()
    for _ in range(5):
        members = {name: by_name[name] for name in dice.permutation(list(by_name)).tolist()}
        names, topic_names = sorted(members), sorted(dice.permutation(list(topics)).tolist())
        flat = [weight[topic, number] for topic in topic_names for number in range(7)]
        raw = weigh(problem([7] * 4, 3, capacity=[members[name] for name in names]), flat)
        results.add(tuple(assign(raw).owner.tolist()))
    assert len(results) == 1


@pytest.mark.parametrize("tolerance", [-0.1, float("nan"), float("inf"), "0.1", True, None])
def test_a_tolerance_that_is_none_is_refused(tolerance: object) -> None:
    with pytest.raises(InvalidInput, match="tolerance is"):
        assign(group(2, 2), {"tolerance": tolerance})


def test_nothing_to_own_and_nobody_to_own_it_are_fine() -> None:
    assert assign(weigh(problem([], 3), [])).owner.tolist() == []
    assert assign(weigh(problem([2], 2, subscription=[[0], [0]]), [1.0, 2.0])).owner.tolist() == [NONE, NONE]
    assert assign(weigh(problem([3], 1), [1.0, 2.0, 3.0])).owner.tolist() == [0, 0, 0]


@pytest.mark.parametrize("tolerance", [0.0, 0.1])
def test_weights_of_every_magnitude_come_to_an_end(tolerance: float) -> None:
    dice = np.random.default_rng(8)
    weight = 10.0 ** dice.uniform(-300, 300, 60)
    given = weigh(problem([60], 4, dice.integers(0, 4, 60).astype(np.int32)), weight)
    first = assign(given, {"tolerance": tolerance}).owner
    assert assign(again(given, first), {"tolerance": tolerance}).owner.tolist() == first.tolist()


def test_a_cap_is_kept_with_the_heaviest_that_fit() -> None:
    given = weigh(problem([6], 2, [0] * 6, cap=[2, NONE]), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    owner = assign(given, {"tolerance": 5}).owner
    assert owner.tolist() == [1, 1, 1, 1, 0, 0]


def test_pins_above_a_cap_stay() -> None:
    given = weigh(problem([4], 2, [0, 0, 0, 1], cap=[1, 2], pinned=[0, 1]), [1.0, 2.0, 3.0, 4.0])
    assert assign(given).owner.tolist() == [0, 0, 1, 1]


def test_members_make_room_for_what_nobody_else_may_have() -> None:
    # Only A may have the second topic, and it is full of the first, which B may have as well.
    given = weigh(
        problem([2, 2], 2, [0, 0, NONE, NONE], subscription=[[1, 1], [1, 0]], cap=[2, 2]), [1.0, 1.0, 5.0, 5.0]
    )
    assert assign(given).owner.tolist() == [1, 1, 0, 0]
