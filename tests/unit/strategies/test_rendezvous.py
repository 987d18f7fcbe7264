"""`rendezvous` moves only what has to, and shares in proportion to capacity."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given as examples
from hypothesis import settings

from assigner.errors import InvalidInput
from assigner.strategies.hashing import splitmix64
from assigner.strategies.rendezvous import strategy
from assigner.strategy import NONE, Problem, name_keys
from tests.support.strategies.problems import assert_valid, loads, problem, problems

# The first outputs that the algorithm's author and others publish for the seed 1234567.
SPLITMIX_1234567 = [
    6457827717110365317,
    3203168211198807973,
    9817491932198370423,
    4593380528125082431,
    16408922859458223821,
]
GOLDEN_GAMMA = 0x9E3779B97F4A7C15


def named(names: list[str], partitions: int, capacity: list[float] | None = None) -> Problem:
    given = problem([partitions], len(names), capacity=capacity)
    return replace(given, members=replace(given.members, key=name_keys(names)))


def owners(names: list[str], partitions: int, capacity: list[float] | None = None) -> list[str]:
    return [names[m] for m in strategy.assign(named(names, partitions, capacity)).owner.tolist()]


def test_the_hash_has_the_published_values() -> None:
    states = np.array([(1234567 + n * GOLDEN_GAMMA) % 2**64 for n in range(5)], np.uint64)
    assert splitmix64(states).tolist() == SPLITMIX_1234567


@pytest.mark.parametrize("gone", ["m0", "m5", "m9"])
def test_when_a_member_leaves_only_its_own_partitions_move(gone: str) -> None:
    names = [f"m{n}" for n in range(10)]
    before, after = owners(names, 1000), owners([n for n in names if n != gone], 1000)
    assert [a for a, b in zip(after, before, strict=True) if b != gone] == [b for b in before if b != gone]


def test_when_a_member_joins_all_that_moves_goes_to_it() -> None:
    names = [f"m{n}" for n in range(10)]
    before, after = owners(names, 1000), owners(sorted([*names, "m44"]), 1000)
    moved = [a for a, b in zip(after, before, strict=True) if a != b]
    assert set(moved) == {"m44"}
    assert 50 < len(moved) < 140


def test_shares_are_in_proportion_to_capacity() -> None:
    given = named(["a", "b", "c", "d"], 100_000, [1.0, 2.0, 3.0, 4.0])
    share = loads(4, strategy.assign(given).owner) / 100_000
    assert np.abs(share - [0.1, 0.2, 0.3, 0.4]).max() < 0.01


def test_a_capacity_that_grows_only_draws_partitions() -> None:
    before = owners(["a", "b", "c"], 1000, [1.0, 1.0, 2.0])
    after = owners(["a", "b", "c"], 1000, [1.0, 3.0, 2.0])
    assert {a for a, b in zip(after, before, strict=True) if a != b} == {"b"}


def test_equal_capacities_give_what_weighted_scores_give() -> None:
    assert owners(["a", "b", "c"], 500) == owners(["a", "b", "c"], 500, [2.5, 2.5, 2.5])


def test_an_option_it_does_not_have_is_refused() -> None:
    with pytest.raises(InvalidInput, match="rendezvous does not know the option 'balance'; it has no options"):
        strategy.assign(replace(problem([4], 2), options={"balance": "both"}))


@examples(problems(mixed=True, restricted=True, capacities=True))
@settings(max_examples=150, deadline=None)
def test_every_solution_is_valid_and_stays(given: Problem) -> None:
    solution = strategy.assign(given)
    assert_valid(given, solution)
    if (given.members.cap == NONE).all():
        again = strategy.assign(replace(given, owner=solution.owner))
        assert (again.owner == solution.owner).all()
