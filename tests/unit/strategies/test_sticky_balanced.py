"""What `sticky_balanced` promises, by examples a person can follow."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from assigner.errors import InvalidInput
from assigner.strategies.sticky_balanced import strategy
from assigner.strategy import NONE, IntArray, Members, Problem, Topics
from tests.support.measurement import counted_calls
from tests.support.strategies.problems import assert_even_per_topic, assert_valid, assign_by_name, loads, problem


def numbers(partitions: Sequence[str]) -> list[int]:
    return [int(partition.split("/")[1]) for partition in partitions]


def after_join(partitions: Sequence[int], members: int) -> tuple[Problem, IntArray]:
    before = strategy.assign(problem(partitions, members)).owner
    return problem(partitions, members + 1, before), before


def after_leave(partitions: Sequence[int], members: int) -> Problem:
    """The last member has gone."""
    before = strategy.assign(problem(partitions, members)).owner
    return problem(partitions, members - 1, np.where(before == members - 1, NONE, before))


def test_the_worked_example_comes_out_to_the_letter() -> None:
    first = assign_by_name(strategy, {"t": 10}, {"A": (), "B": (), "C": ()})
    assert {name: numbers(mine) for name, mine in first.items()} == {
        "A": [0, 1, 2, 3],
        "B": [4, 5, 6],
        "C": [7, 8, 9],
    }
    survivors = {"A": first["A"], "B": first["B"]}
    second = assign_by_name(strategy, {"t": 10}, {"A": (), "B": ()}, survivors)
    assert {name: numbers(mine) for name, mine in second.items()} == {
        "A": [0, 1, 2, 3, 7],
        "B": [4, 5, 6, 8, 9],
    }


def test_many_small_topics_do_not_pile_up_on_the_first_names() -> None:
    for partitions, members in (([1] * 100, 10), ([3] * 200, 16), ([10] * 50, 8), ([100] * 10, 40)):
        solution = strategy.assign(problem(partitions, members))
        load = loads(members, solution.owner)
        assert load.max() - load.min() <= 1
        assert solution.explanation.imbalance_by_topic.max() <= 1


def test_three_topics_are_assigned_so_that_both_balances_hold() -> None:
    shares = assign_by_name(strategy, {"t1": 2, "t2": 5, "t3": 7}, {"A": (), "B": (), "C": ()})
    assert shares == {
        "A": ["t1/0", "t2/0", "t2/1", "t3/0", "t3/1"],
        "B": ["t1/1", "t2/2", "t3/2", "t3/3", "t3/4"],
        "C": ["t2/3", "t2/4", "t3/5", "t3/6"],
    }


@pytest.mark.parametrize(
    ("partitions", "members", "moves"),
    [
        ([64], 8, 7),
        ([24, 24, 96], 2, 48),
        ([2, 5, 7], 3, 3),
        ([100] * 10, 40, 24),
        ([12] * 50, 8, 66),
        ([3] * 200, 16, 35),
        ([1] * 60 + [8] * 20 + [64] * 5, 20, 25),
        ([6] * 3, 2, 6),
    ],
)
def test_a_newcomer_gets_its_share_and_nothing_else_moves(partitions: list[int], members: int, moves: int) -> None:
    given, _ = after_join(partitions, members)
    solution = strategy.assign(given)
    assert solution.explanation.moves == moves
    assert solution.explanation.lower_bound == moves
    changed = solution.owner != given.owner
    assert (solution.owner[changed] == members).all()
    load = loads(members + 1, solution.owner)
    assert load.max() - load.min() <= 1


@pytest.mark.parametrize(
    ("partitions", "members"), [([64], 9), ([2, 5, 7], 3), ([100] * 10, 40), ([3] * 200, 16), ([256], 100)]
)
def test_when_a_member_leaves_the_survivors_keep_all_they_have(partitions: list[int], members: int) -> None:
    solution = strategy.assign(after_leave(partitions, members))
    assert solution.explanation.moves == 0
    load = loads(members - 1, solution.owner)
    assert load.max() - load.min() <= 1


def test_one_topic_split_by_owner_is_spread_out() -> None:
    # Two topics of four, each held by one member: even over all, but not per topic.
    solution = strategy.assign(problem([4, 4], 2, [0, 0, 0, 0, 1, 1, 1, 1]))
    assert solution.explanation.moves == 4
    assert solution.explanation.imbalance_by_topic.tolist() == [0, 0]


def test_shares_follow_capacity() -> None:
    solution = strategy.assign(problem([12], 2, capacity=[1, 2]))
    assert loads(2, solution.owner).tolist() == [4, 8]
    solution = strategy.assign(problem([10], 3, capacity=[4, 1, 1]))
    assert loads(3, solution.owner).tolist() == [7, 2, 1]


def test_a_share_between_two_whole_numbers_moves_nothing() -> None:
    # Shares of 3.33 and 6.67: 4 and 6 are as good as 3 and 7.
    solution = strategy.assign(problem([10], 2, [0] * 4 + [1] * 6, capacity=[1, 2]))
    assert solution.explanation.moves == 0


def test_many_topics_with_capacities_are_even_in_both_ways() -> None:
    chooser = random.Random(7)
    for _ in range(100):
        members = chooser.randint(2, 8)
        capacity = [chooser.choice([0.5, 1, 1.5, 2, 4]) for _ in range(members)]
        partitions = [chooser.randint(1, 12) for _ in range(chooser.randint(1, 12))]
        given = problem(partitions, members, capacity=capacity)
        owner = strategy.assign(given).owner
        assert_even_per_topic(given, owner)
        share = sum(partitions) * given.members.capacity / given.members.capacity.sum()
        load = loads(members, owner)
        assert ((load >= np.floor(share + 1e-9)) & (load <= np.ceil(share - 1e-9))).all()


# --- different subscriptions ---


def test_only_subscribers_get_a_topic() -> None:
    shares = assign_by_name(strategy, {"t1": 3, "t2": 2}, {"c1": ["t1"], "c2": ["t1", "t2"], "c3": ["t1"]})
    assert {name: len(mine) for name, mine in shares.items()} == {"c1": 2, "c2": 2, "c3": 1}
    assert shares["c2"] == ["t2/0", "t2/1"]


def test_the_total_comes_before_the_topic_unless_asked_otherwise() -> None:
    # A alone has t1: 4. Of t2's three, B gets all, or the larger half.
    given = problem([4, 3], 2, subscription=[[1, 1], [0, 1]])
    for balance, expected in (("both", [4, 3]), ("global", [4, 3]), ("topic", [5, 2]), ("topic_only", None)):
        owner = strategy.assign(replace(given, options={"balance": balance})).owner
        if expected is not None:
            assert loads(2, owner).tolist() == expected
        if balance.startswith("topic"):
            assert_even_per_topic(given, owner)


def test_nine_ten_and_eleven_become_ten_each() -> None:
    # A and B share t1, B and C share t2; A has too few, C too many, and only B stands between them.
    owner = [0] * 9 + [1] * 5 + [1] * 5 + [2] * 11
    solution = strategy.assign(problem([14, 16], 3, owner, subscription=[[1, 0], [1, 1], [0, 1]]))
    assert loads(3, solution.owner).tolist() == [10, 10, 10]
    assert solution.explanation.moves == solution.explanation.lower_bound == 2


def test_a_transfer_may_pass_through_a_third_member() -> None:
    # A has 2 too many, C could take them, but only B shares a topic with each of them.
    topics = {f"x{n}": 1 for n in range(4)} | {f"y{n}": 1 for n in range(4)}
    wants = {"A": [f"x{n}" for n in range(4)], "B": sorted(topics), "C": [f"y{n}" for n in range(4)]}
    held = {"A": ["x0/0", "x1/0", "x2/0", "x3/0"], "B": ["y0/0", "y1/0", "y2/0"], "C": ["y3/0"]}
    shares = assign_by_name(strategy, topics, wants, held)
    assert sorted(len(mine) for mine in shares.values()) == [2, 3, 3]


def test_a_dropped_subscription_moves_only_that_topic() -> None:
    owner = [0, 0, 1, 1, 0, 0, 1, 1]
    given = problem([4, 4], 2, owner, subscription=[[1, 0], [1, 1]])
    solution = strategy.assign(replace(given, options={"balance": "topic"}))
    assert solution.owner.tolist() == [0, 0, 1, 1, 1, 1, 1, 1]
    assert (solution.explanation.moves, solution.explanation.lower_bound) == (2, 2)


def test_members_without_a_topic_in_common_get_only_their_own() -> None:
    given = problem([3, 5], 3, subscription=[[1, 0], [0, 1], [0, 0]])
    solution = strategy.assign(given)
    assert loads(3, solution.owner).tolist() == [3, 5, 0]


# --- pins, holds, caps ---


def test_pinned_partitions_stay_and_count_as_load() -> None:
    # Three of six are pinned to the first member; the rest goes to the others.
    solution = strategy.assign(problem([6], 3, [0, 0, 0, NONE, NONE, NONE], pinned=[0, 1, 2]))
    assert solution.owner[:3].tolist() == [0, 0, 0]
    assert sorted(solution.owner[3:].tolist()) == [1, 1, 2]


def test_a_partition_pinned_to_nobody_stays_unowned() -> None:
    solution = strategy.assign(problem([4], 2, pinned=[1]))
    assert solution.owner[1] == NONE
    assert sorted(loads(2, solution.owner).tolist()) == [1, 2]


def test_pins_of_a_plan_in_progress_change_nothing_else() -> None:
    given, before = after_join([10, 10, 10], 4)
    target = strategy.assign(given).owner
    moving = np.flatnonzero(target != before)
    half_way = before.copy()
    half_way[moving[::2]] = target[moving[::2]]
    again = strategy.assign(problem([10, 10, 10], 5, half_way, pinned=moving[::2].tolist()))
    assert again.explanation.moves == len(moving) - len(moving[::2])


def test_a_member_on_hold_keeps_what_it_has_and_gets_nothing_new() -> None:
    owner = [0] * 4 + [1] * 4 + [NONE] * 4
    solution = strategy.assign(problem([12], 3, owner, hold=[0]))
    assert np.flatnonzero(solution.owner == 0).tolist() == [0, 1, 2, 3]
    assert loads(3, solution.owner).tolist() == [4, 4, 4]
    assert solution.explanation.moves == 0


def test_a_topic_that_only_members_on_hold_want_gets_no_new_owner() -> None:
    solution = strategy.assign(problem([3], 1, [0, NONE, NONE], hold=[0]))
    assert solution.owner.tolist() == [0, NONE, NONE]


def test_a_cap_is_never_exceeded_and_others_take_the_rest() -> None:
    solution = strategy.assign(problem([12], 3, cap=[2, NONE, NONE]))
    assert loads(3, solution.owner).tolist() == [2, 5, 5]
    solution = strategy.assign(problem([4] * 6, 3, cap=[2, NONE, NONE]))
    assert loads(3, solution.owner).tolist() == [2, 11, 11]


def test_partitions_beyond_all_caps_have_no_owner_and_present_owners_come_first() -> None:
    solution = strategy.assign(problem([8], 2, [NONE] * 4 + [0, 0, 1, 1], cap=[2, 2]))
    assert solution.owner.tolist() == [NONE] * 4 + [0, 0, 1, 1]


# --- co-partition sets ---


def test_topics_of_a_set_move_as_one() -> None:
    given = problem([6, 6, 4], 2, copartition=[0, 0, NONE])
    first = strategy.assign(given).owner
    assert first[:6].tolist() == first[6:12].tolist()
    grown = strategy.assign(problem([6, 6, 4], 3, first, copartition=[0, 0, NONE]))
    assert grown.owner[:6].tolist() == grown.owner[6:12].tolist()
    assert grown.explanation.moves == grown.explanation.lower_bound == 2 * 2 + 1


def test_only_members_that_want_the_whole_set_get_its_slots() -> None:
    given = problem([2, 2], 2, subscription=[[1, 1], [1, 0]], copartition=[3, 3])
    assert strategy.assign(given).owner.tolist() == [0, 0, 0, 0]


def test_a_pinned_partition_draws_its_slot_along() -> None:
    given = problem([3, 3], 2, [0, 0, 0, 1, 0, 0], pinned=[3], copartition=[0, 0])
    owner = strategy.assign(given).owner
    assert owner[3] == 1
    assert owner[:3].tolist() == owner[3:].tolist()


def test_unequal_counts_in_a_set_are_refused_by_name_of_the_rule() -> None:
    with pytest.raises(InvalidInput, match=r"co-partitioned topics \[0, 1\] have \[2, 3\] partitions"):
        strategy.assign(problem([2, 3], 2, copartition=[0, 0]))


# --- the explanation ---


def test_the_explanation_counts_racks_and_cold_starts() -> None:
    given = problem([3], 2, [0, 0, NONE])
    members = Members(
        given.members.capacity,
        np.array([0, 1], np.int32),
        given.members.subscription,
        given.members.hold,
        given.members.cap,
    )
    # Replicas: partition 0 in racks 0 and 1, partition 1 in rack 1, partition 2 in rack 2.
    racks = (np.array([0, 2, 3, 4], np.int32), np.array([0, 1, 1, 2], np.int32))
    standbys = np.array([[1], [NONE], [0]], np.int32)
    told = Problem(
        members, Topics(given.topics.partitions, replica_racks=racks), given.owner, given.pinned, standbys, 1
    )
    solution = strategy.assign(replace(told, options={"racks": "ignore"}))
    assert solution.owner.tolist() == [0, 0, 1]
    assert solution.explanation.rack_mismatches == 2
    assert solution.explanation.cold_actives == 1
    assert solution.explanation.moves == 0


def test_a_standby_that_became_the_owner_is_dropped() -> None:
    given = problem([2], 2, [NONE, NONE])
    standbys = np.array([[0, 1], [1, NONE]], np.int32)
    told = Problem(given.members, given.topics, given.owner, given.pinned, standbys, 1)
    solution = strategy.assign(told)
    assert solution.owner.tolist() == [0, 1]
    assert solution.standbys.tolist() == [[1], [0]]


# --- bad and degenerate input ---


def test_nobody_and_nothing_are_answered() -> None:
    assert strategy.assign(problem([3, 2], 0)).owner.tolist() == [NONE] * 5
    assert strategy.assign(problem([], 3)).owner.tolist() == []
    assert strategy.assign(problem([0, 0], 2)).owner.tolist() == []
    assert strategy.assign(problem([], 0)).explanation.imbalance == 0


def test_more_members_than_partitions_give_each_at_most_one() -> None:
    solution = strategy.assign(problem([3], 7))
    assert sorted(loads(7, solution.owner).tolist()) == [0, 0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("capacity", [0.0, -1.0, float("nan"), float("inf")])
def test_a_capacity_that_is_no_share_is_refused(capacity: float) -> None:
    with pytest.raises(InvalidInput, match=r"capacity of member 1 is .*; it must be finite and more than 0"):
        strategy.assign(problem([3], 2, capacity=[1.0, capacity]))


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan")])
def test_a_weight_that_is_none_is_refused(weight: float) -> None:
    given = problem([2], 1)
    topics = Topics(given.topics.partitions, weight=np.array([1.0, weight]))
    with pytest.raises(InvalidInput, match="weight of partition 1"):
        strategy.assign(Problem(given.members, topics, given.owner, given.pinned))


@pytest.mark.parametrize("owner", [2, -2, 99])
def test_an_owner_that_is_nobody_is_refused(owner: int) -> None:
    with pytest.raises(InvalidInput, match="owner of partition 1 is"):
        strategy.assign(problem([3], 2, [0, owner, 1]))


def test_a_negative_count_and_a_wrong_shape_are_refused() -> None:
    with pytest.raises(InvalidInput, match="partition count of topic 0 is -1"):
        strategy.assign(problem([-1, 4], 1, [NONE] * 3))
    with pytest.raises(InvalidInput, match="owners have shape"):
        strategy.assign(problem([3], 1, [NONE] * 2))
    with pytest.raises(InvalidInput, match="subscriptions have shape"):
        strategy.assign(problem([3], 1, subscription=[[1, 1]]))


def test_extreme_capacities_still_give_a_whole_plan() -> None:
    given = problem([7, 5], 3, capacity=[1e-300, 1.0, 1e300])
    solution = strategy.assign(given)
    assert_valid(given, solution)
    assert loads(3, solution.owner).tolist() == [0, 0, 12]


# --- scale ---


def test_fifty_times_the_partitions_take_no_more_steps() -> None:
    """All are placed in passes over arrays; how long a pass takes is for `bench.strategies`."""
    small, large = _calls([1000] * 10, 100), _calls([50_000] * 10, 10_000)
    assert large < 2 * small


def _calls(counts: list[int], members: int) -> int:
    given, _ = after_join(counts, members)
    with counted_calls() as calls:
        strategy.assign(given)
    return calls.lap()


def test_the_order_in_which_names_come_does_not_matter() -> None:
    topics = {"a": 3, "b": 5, "c": 1}
    wants = {"m1": ["a", "b"], "m2": [], "m3": ["b", "c"]}
    results = [
        assign_by_name(strategy, dict(t), dict(m))
        for t in itertools.permutations(topics.items())
        for m in itertools.permutations(wants.items())
    ]
    assert all(result == results[0] for result in results)
