"""Partitions of different weight: how they are dealt, and standbys of them."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assigner.strategies.sticky_balanced import strategy as sticky_balanced
from assigner.strategies.weighted import local_search
from assigner.strategies.weighted.placing import place_greedily
from assigner.strategy import NONE, FloatArray, Problem
from tests.support.strategies.problems import again, assert_valid, assign, group, problem, weigh, weighed, weights

many = settings(max_examples=120, deadline=None, derandomize=True)


# --- how it is done ----------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    members=st.integers(1, 150),
    units=st.integers(0, 900),
    scatter=st.sampled_from([0.0, 1.0, 50.0]),
    capped=st.booleans(),
    seed=st.integers(0, 9),
)
def test_dealing_in_runs_is_dealing_one_by_one(
    members: int, units: int, scatter: float, capped: bool, seed: int
) -> None:
    dice = np.random.default_rng(seed)
    level = np.round(dice.uniform(0, 1, members) * scatter, 1)
    room = dice.integers(0, 9, members).astype(np.float64) if capped else np.full(members, np.inf)
    weight = np.sort(np.round(dice.exponential(1, units) + 0.1, 1))[::-1]
    assert place_greedily(level, room, weight).tolist() == list(dealt_one_by_one(level, room, weight))


def dealt_one_by_one(level: FloatArray, room: FloatArray, weight: FloatArray) -> Iterator[int]:
    left = room.tolist()
    heap = [(float(each), member) for member, each in enumerate(level) if left[member] > 0]
    heapq.heapify(heap)
    for more in weight.tolist():
        if not heap:
            yield NONE
            continue
        now, member = heapq.heappop(heap)
        left[member] -= 1
        if left[member] > 0:
            heapq.heappush(heap, (now + more, member))
        yield member


@pytest.mark.parametrize(("limit", "value"), [("_MEMBERS", 1), ("_PARTNERS", 1), ("_PAIRS", 1), ("_FAILURES", 1)])
def test_with_fewer_swaps_tried_the_limits_still_hold(monkeypatch: pytest.MonkeyPatch, limit: str, value: int) -> None:
    monkeypatch.setattr(local_search, limit, value)
    for seed in range(5):
        given = group(12, 3, seed)
        scattered = again(given, np.random.default_rng(seed).integers(0, 12, 36).astype(np.int32))
        solution = assign(scattered, {"tolerance": 0})
        assert_valid(scattered, solution)
        assert weighed(given, solution.owner).max() <= weights(given).sum() / 12 + weights(given).max() + 1e-6
        assert assign(again(given, solution.owner), {"tolerance": 0}).explanation.moves == 0


# --- standbys ---


def after_a_death(given: Problem, dead: int) -> Problem:
    """The group without its member `dead`, whose partitions are nobody's."""
    stays = np.arange(given.members.count) != dead
    number = np.append(np.where(stays, np.cumsum(stays) - 1, NONE), NONE).astype(np.int32)
    members = given.members
    rest = replace(
        members,
        capacity=members.capacity[stays],
        rack=members.rack[stays],
        subscription=members.subscription[stays],
        hold=members.hold[stays],
        cap=members.cap[stays],
    )
    return replace(given, members=rest, owner=number[given.owner], standbys=number[given.standbys])


@pytest.mark.parametrize("dead", [0, 7, 15])
def test_what_a_dead_member_had_goes_to_holders_of_standbys(dead: int) -> None:
    """Copies are spread by count, so of some twenty one or two may be too heavy for their holder."""
    weight = np.random.default_rng(3).integers(1, 100, 320).astype(np.float64)
    given = replace(weigh(problem([320], 16), weight), standby_count=1)
    fresh = sticky_balanced.assign(given)
    given = after_a_death(replace(given, owner=fresh.owner, standbys=fresh.standbys), dead)
    solution = sticky_balanced.assign(given)
    assert int((given.owner == NONE).sum()) > 10
    assert solution.explanation.cold_actives <= 2
    assert solution.explanation.moves == 0
    load = weighed(given, solution.owner)
    assert load.max() <= load.mean() * 1.1


def test_a_holder_that_would_have_too_much_is_passed_over() -> None:
    """All copies are on one member: it takes what it has room for, and the others the rest."""
    given = weigh(problem([30], 3, [0] * 10 + [1] * 10 + [NONE] * 10), np.ones(30) + np.arange(30) / 100)
    given = replace(given, standbys=np.zeros((30, 1), np.int32), standby_count=1)
    load = weighed(given, assign(given).owner)
    assert load.max() <= load.mean() * 1.1 + 1.29


def test_equal_partitions_in_sets_of_different_sizes_are_counted_exactly() -> None:
    given = problem([6, 6, 5], 4, copartition=[0, 0, NONE])
    assert (sticky_balanced.assign(weigh(given, np.full(17, 2.5))).owner == sticky_balanced.assign(given).owner).all()
