"""What holds for every problem, tried on many at random."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assigner.strategies.jump_hash import strategy as jump_hash
from assigner.strategies.sticky_balanced import strategy as sticky_balanced
from assigner.strategy import NONE, IntArray, Problem, Strategy
from tests.support.strategies.problems import (
    Named,
    assert_even_per_topic,
    assert_no_better_gift,
    assert_rounded,
    assert_valid,
    assign_by_name,
    loads,
    problem,
    problems,
)

both = pytest.mark.parametrize("strategy", [sticky_balanced, jump_hash], ids=lambda s: s.name)
many = settings(max_examples=150, deadline=None, derandomize=True)


def again(given: Problem, owner: IntArray) -> Problem:
    return replace(given, owner=owner)


@both
@many
@given(given=problems(mixed=True, capacities=True, restricted=True))
def test_every_solution_is_valid(strategy: Strategy, given: Problem) -> None:
    solution = strategy.assign(given)
    assert_valid(given, solution)
    assert solution.explanation.moves >= solution.explanation.lower_bound


@both
@many
@given(given=problems(mixed=True, capacities=True, restricted=True))
def test_its_own_result_is_left_as_it_is(strategy: Strategy, given: Problem) -> None:
    first = strategy.assign(given).owner
    second = strategy.assign(again(given, first))
    assert second.owner.tolist() == first.tolist()
    assert second.explanation.moves == 0


@many
@given(given=problems(capacities=True))
def test_equal_members_are_even_per_topic_and_over_all(given: Problem) -> None:
    owner = sticky_balanced.assign(given).owner
    assert_even_per_topic(given, owner)
    share = len(owner) * given.members.capacity / given.members.capacity.sum()
    assert_rounded(loads(given.members.count, owner), share)


@many
@given(given=problems(mixed=True))
def test_with_topics_first_all_are_even_per_topic_and_no_transfer_helps(given: Problem) -> None:
    owner = sticky_balanced.assign(replace(given, options={"balance": "topic"})).owner
    assert_even_per_topic(given, owner)
    assert_no_better_gift(given, owner)


@many
@given(given=problems(topics=1, members=8, most=24))
def test_one_topic_moves_no_more_than_it_must(given: Problem) -> None:
    solution = sticky_balanced.assign(given)
    assert solution.explanation.moves == solution.explanation.lower_bound == fewest_moves(given)


@many
@given(given=problems(topics=4, members=4, most=5))
def test_several_topics_move_no_more_than_they_must(given: Problem) -> None:
    solution = sticky_balanced.assign(given)
    assert solution.explanation.lower_bound == solution.explanation.moves == fewest_moves(given)


@many
@given(given=problems(topics=3, members=4, most=4, mixed=True, capacities=True))
def test_loads_are_as_even_as_any_assignment_of_the_remainders_makes_them(given: Problem) -> None:
    owner = sticky_balanced.assign(replace(given, options={"balance": "topic"})).owner
    if (given.members.capacity == given.members.capacity[0]).all():
        load = loads(given.members.count, owner)
        assert int((load.astype(int) ** 2).sum()) == min(sum(n * n for n in deal) for deal in every_deal(given))


@many
@given(
    topics=st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 6), max_size=5),
    members=st.dictionaries(st.sampled_from("uvwxyz"), st.lists(st.sampled_from("abcdef"), max_size=3), min_size=1),
    seed=st.integers(0, 1000),
)
@both
def test_the_order_of_names_does_not_matter(
    strategy: Strategy, topics: dict[str, int], members: dict[str, list[str]], seed: int
) -> None:
    chooser = random.Random(seed)
    flat = [f"{topic}/{number}" for topic, count in sorted(topics.items()) for number in range(count)]
    owned: Named = {name: [] for name in members}
    for partition in flat:
        owned[chooser.choice(sorted(members))].append(partition)
    first = assign_by_name(strategy, topics, members, owned)
    shuffled = [list(mapping.items()) for mapping in (topics, members, owned)]
    for items in shuffled:
        chooser.shuffle(items)
    assert first == assign_by_name(strategy, *map(dict, shuffled))  # type: ignore[arg-type]


@many
@given(
    counts=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    members=st.integers(1, 5),
    data=st.data(),
)
@both
def test_sets_stay_together_whatever_happens(
    strategy: Strategy, counts: list[int], members: int, data: st.DataObject
) -> None:
    """Each count is a set of two topics; a third topic stands alone."""
    partitions = [count for count in counts for _ in range(2)] + [5]
    sets = [number for number in range(len(counts)) for _ in range(2)] + [NONE]
    total = sum(partitions)
    owner = data.draw(st.lists(st.integers(NONE, members - 1), min_size=total, max_size=total))
    given = problem(partitions, members, owner, copartition=sets)
    solution = strategy.assign(given)
    assert_valid(given, solution)
    offsets = given.offsets
    for number in range(len(counts)):
        first, second, end = offsets[2 * number : 2 * number + 3]
        assert solution.owner[first:second].tolist() == solution.owner[second:end].tolist()
    assert strategy.assign(problem(partitions, members, solution.owner, copartition=sets)).explanation.moves == 0


@pytest.mark.parametrize("seed", range(6))
@both
def test_large_tangled_groups_are_valid_even_and_settled(strategy: Strategy, seed: int) -> None:
    """Many topics, members that want half of them each, partitions owned by chance."""
    chooser = np.random.default_rng(seed)
    members, topics, count = 30, 60, int(chooser.integers(3, 12))
    wants = chooser.random((members, topics)) < 0.5
    owner = chooser.integers(NONE, members, topics * count)
    given = problem([count] * topics, members, owner.astype(np.int32), subscription=wants)
    if strategy is sticky_balanced:
        given = replace(given, options={"balance": "topic"})
    solution = strategy.assign(given)
    assert_valid(given, solution)
    assert strategy.assign(again(given, solution.owner)).explanation.moves == 0
    if strategy is sticky_balanced:
        assert_even_per_topic(given, solution.owner)
        assert_no_better_gift(given, solution.owner)


# --- oracles, by trying everything -------------------------------------------------------------------------------


def fewest_moves(given: Problem) -> int:
    """Over all plans that are even per topic and over all; members alike, equal capacities."""
    members, total = given.members.count, len(given.owner)
    best = {(0,) * members: 0}
    for number, count in enumerate(given.topics.partitions.tolist()):
        have = loads(members, given.owner[given.offsets[number] : given.offsets[number + 1]])
        floor, extras = divmod(count, members)
        following: dict[tuple[int, ...], int] = {}
        for lucky in itertools.combinations(range(members), extras):
            quota = [floor + (m in lucky) for m in range(members)]
            lost = sum(max(0, int(have[m]) - quota[m]) for m in range(members))
            for load, moves in best.items():
                key = tuple(a + b for a, b in zip(load, quota, strict=True))
                following[key] = min(moves + lost, following.get(key, total))
        best = following
    return min(moves for load, moves in best.items() if max(load) - min(load) <= 1)


def every_deal(given: Problem) -> set[tuple[int, ...]]:
    """All vectors of loads that are even per topic; equal capacities."""
    members = given.members.count
    found = {(0,) * members}
    for number, count in enumerate(given.topics.partitions.tolist()):
        who = np.flatnonzero(given.members.subscription[:, number]).tolist()
        if not who:
            continue
        floor, extras = divmod(count, len(who))
        deals = [
            [0 if m not in who else floor + (m in lucky) for m in range(members)]
            for lucky in itertools.combinations(who, extras)
        ]
        found = {tuple(a + b for a, b in zip(load, deal, strict=True)) for load in found for deal in deals}
    return found
