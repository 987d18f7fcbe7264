"""What `jump_hash` promises, and the published values of the hash it stands on."""

from __future__ import annotations

import numpy as np
import pytest

from assigner.strategies.jump_hash import jump, strategy
from assigner.strategy import NONE, name_keys
from tests.support.strategies.problems import assert_valid, assign_by_name, loads, problem

# Values that other implementations of the algorithm publish in their tests.
GOLDEN_100 = [0, 55, 62, 8, 45, 59, 86, 97, 82, 59, 73, 37, 17, 56, 86, 21, 90, 37, 38, 83]
GOLDEN = [
    (1, 1, 0),
    (42, 57, 43),
    (0xDEAD10CC, 1, 0),
    (0xDEAD10CC, 666, 361),
    (256, 1024, 520),
    (10863919174838991, 11, 6),
    (2016238256797177309, 11, 3),
    (1673758223894951030, 11, 5),
    (2, 100001, 80343),
    (2201, 100001, 22152),
    (2202, 100001, 15018),
]
GOLDEN_GROWTH = {
    0: [0] * 19,
    1: [0, 0, 0, 0, 0, 0, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 17, 17],
    0xDEADBEEF: [0, 1, 2, 3, 3, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 16, 16, 16],
    0x0DDC0FFEEBADF00D: [0, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 15, 15, 15, 15],
}


def keys(*numbers: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.array(numbers, dtype=np.uint64)


def test_the_hash_has_the_published_values() -> None:
    assert jump(keys(*range(20)), 100).tolist() == GOLDEN_100
    assert [int(jump(keys(key), buckets)[0]) for key, buckets, _ in GOLDEN] == [bucket for _, _, bucket in GOLDEN]


@pytest.mark.parametrize("key", GOLDEN_GROWTH)
def test_the_hash_grows_as_published(key: int) -> None:
    assert [int(jump(keys(key), buckets)[0]) for buckets in range(1, 20)] == GOLDEN_GROWTH[key]


def test_a_member_added_at_the_end_gets_all_that_moves() -> None:
    before = strategy.assign(problem([500] * 4, 20)).owner
    solution = strategy.assign(problem([500] * 4, 21, before))
    assert (solution.owner[solution.owner != before] == 20).all()
    assert 50 < solution.explanation.moves < 150


def test_the_result_does_not_depend_on_present_owners() -> None:
    assert (strategy.assign(problem([90], 7)).owner == strategy.assign(problem([90], 7, [3] * 90)).owner).all()


def test_a_new_topic_moves_no_partition_of_the_others() -> None:
    members: dict[str, list[str]] = {"m1": [], "m2": [], "m3": []}
    before = assign_by_name(strategy, {"b": 20, "d": 20}, members)
    after = assign_by_name(strategy, {"a": 20, "b": 20, "c": 20, "d": 20}, members)
    for name, mine in before.items():
        assert [p for p in after[name] if p[0] in "bd"] == mine


def test_neighbouring_partitions_and_topics_are_spread() -> None:
    load = loads(10, strategy.assign(problem([1] * 1000, 10)).owner)
    assert load.min() > 60
    assert load.max() < 140


def test_subscriptions_pins_and_holds_are_kept() -> None:
    given = problem(
        [20, 20], 4, [3] * 10 + [NONE] * 30, subscription=[[1, 1], [1, 0], [0, 1], [1, 1]], hold=[3], pinned=[0, 39]
    )
    solution = strategy.assign(given)
    assert_valid(given, solution)
    assert solution.owner[:10].tolist() == [3] * 10
    assert solution.owner[39] == NONE


def test_what_passes_a_cap_is_hashed_again() -> None:
    given = problem([100], 5, cap=[5, NONE, 30, 30, 30])
    solution = strategy.assign(given)
    assert_valid(given, solution)
    assert loads(5, solution.owner)[0] == 5


def test_nobody_and_nothing_are_answered() -> None:
    assert strategy.assign(problem([2], 0)).owner.tolist() == [NONE, NONE]
    assert strategy.assign(problem([], 2)).owner.tolist() == []


def test_name_keys_are_the_names_own() -> None:
    assert name_keys(["a", "b"])[1] == name_keys(["b"])[0]
    assert len(set(name_keys([f"t{n}" for n in range(1000)]).tolist())) == 1000
    assert name_keys([]).tolist() == []
