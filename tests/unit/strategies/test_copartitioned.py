"""`copartitioned`: which topics move as one, and that they do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given as examples
from hypothesis import settings
from hypothesis import strategies as st

from assigner.strategies.copartitioned import sets, strategy
from assigner.strategy import NONE, IntArray, Problem
from tests.support.strategies.problems import loads, problem, topic_of

many = settings(max_examples=60, deadline=None, derandomize=True)


def by_topic(given: Problem, values: IntArray) -> list[list[object]]:
    topic = topic_of(given)
    return [values[topic == number].tolist() for number in range(given.topics.count)]


def test_topics_with_equal_counts_and_subscribers_are_one_set() -> None:
    given = problem([4, 6, 4, 6, 5], 2)
    first, second, third, fourth, fifth = sets(given).tolist()
    assert first == third
    assert second == fourth
    assert len({first, second, fifth}) == 3


def test_other_subscribers_are_another_set() -> None:
    given = problem([4, 4, 4], 2, subscription=[[1, 1, 1], [1, 0, 1]])
    first, second, third = sets(given).tolist()
    assert first == third != second


def test_sets_that_are_given_are_taken_as_they_are() -> None:
    given = problem([4, 4, 4, 4, 4], 2, copartition=[NONE, 7, 7, NONE, 3])
    first, second, third, fourth, fifth = sets(given).tolist()
    assert (second, third, fifth) == (7, 7, 3)
    assert first == fourth
    assert first not in (3, 7)


def test_no_topics_and_no_members_have_a_plan() -> None:
    assert strategy.assign(problem([], 2)).owner.tolist() == []
    assert strategy.assign(problem([3, 3], 0)).owner.tolist() == [NONE] * 6


def test_slots_go_together_and_are_even() -> None:
    """As in a join of three streams: partition n of each is with the same member."""
    given = replace(problem([8, 8, 8], 4), standby_count=1)
    solution = strategy.assign(given)
    assert loads(4, solution.owner).tolist() == [6] * 4
    first, second, third = by_topic(given, solution.owner)
    assert first == second == third
    first, second, third = by_topic(given, solution.standbys)
    assert first == second == third


def test_of_256_slots_on_16_every_death_is_warm() -> None:
    given = replace(problem([256, 256], 16), standby_count=1)
    first = strategy.assign(given)
    for dead in range(16):
        moved = np.arange(17, dtype=np.int32) - (np.arange(17) > dead)
        moved[[dead, 16]] = NONE
        left = replace(
            problem([256, 256], 15, moved[first.owner]),
            standbys=moved[first.standbys].astype(np.int32),
            standby_count=1,
        )
        solution = strategy.assign(left)
        assert solution.explanation.cold_actives == 0
        assert solution.explanation.moves == 0
        one, other = by_topic(left, solution.owner)
        assert one == other


def test_a_topic_that_joins_a_set_goes_where_the_set_is() -> None:
    alone = strategy.assign(problem([6], 3)).owner
    given = problem([6, 6], 3, np.concatenate((alone, np.full(6, NONE, np.int32))))
    solution = strategy.assign(given)
    assert solution.owner.tolist() == [*alone.tolist(), *alone.tolist()]
    assert solution.explanation.moves == 0


@many
@examples(
    counts=st.lists(st.integers(0, 6), min_size=1, max_size=5),
    members=st.integers(1, 6),
    standbys=st.integers(0, 2),
    data=st.data(),
)
def test_whatever_happened_equal_topics_come_together_and_stay(
    counts: list[int], members: int, standbys: int, data: st.DataObject
) -> None:
    total = sum(counts)
    owner = data.draw(st.lists(st.integers(NONE, members - 1), min_size=total, max_size=total))
    given = replace(problem(counts, members, owner), standby_count=standbys)
    solution = strategy.assign(given)
    owners, copies = by_topic(given, solution.owner), by_topic(given, solution.standbys)
    for number, count in enumerate(counts):
        first = counts.index(count)
        assert owners[number] == owners[first]
        assert copies[number] == copies[first]
    again = strategy.assign(replace(given, owner=solution.owner, standbys=solution.standbys))
    assert again.owner.tolist() == solution.owner.tolist()
    assert again.standbys.tolist() == solution.standbys.tolist()
