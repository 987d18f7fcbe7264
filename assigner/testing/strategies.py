"""The tests of the contract of a Strategy; each is named by the guarantee it checks.

The author of a strategy runs them from pytest:

    class TestFirstCome(StrategyConformance):
        strategy = FirstCome()

Problems come from seeds, so that a failure can be repeated: it names the seed, and `random_problem(seed)` gives the
problem. Not covered, because only the author knows it: how even the shares are, and how little is moved for it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest

from assigner.errors import AssignerError
from assigner.strategy import NONE, IntArray, Members, Problem, Solution, Strategy, Topics

SEEDS = range(100)
"""Seeds of the problems that each test tries."""
CAPACITIES = (0.5, 1.0, 1.0, 2.0, 3.0)
CAPS = (NONE, NONE, NONE, 0, 1, 5)


def random_problem(seed: int, *, topics: int = 5, members: int = 6, most: int = 9) -> Problem:
    """A small group in which everything differs: subscriptions, capacities, caps, pins, members on hold."""
    dice = np.random.default_rng(seed)
    partitions = dice.integers(0, most + 1, int(dice.integers(1, topics + 1))).astype(np.int32)
    count, total = int(dice.integers(1, members + 1)), int(partitions.sum())
    return Problem(
        Members(
            capacity=dice.choice(CAPACITIES, count),
            rack=np.full(count, NONE, np.int32),
            subscription=dice.random((count, len(partitions))) < 0.8,
            hold=dice.random(count) < 0.1,
            cap=dice.choice(CAPS, count).astype(np.int32),
        ),
        Topics(partitions),
        owner=dice.integers(NONE, count, total).astype(np.int32),
        pinned=dice.random(total) < 0.1,
    )


def loads(members: int, owner: IntArray) -> IntArray:
    """How many partitions each member has."""
    return np.bincount(owner[owner != NONE], minlength=members).astype(np.int32)


def topic_of(given: Problem) -> IntArray:
    """The topic of each flat partition."""
    return np.repeat(np.arange(given.topics.count, dtype=np.int32), given.topics.partitions)


def assert_valid(given: Problem, solution: Solution) -> None:
    """Check that subscriptions, holds, caps and pins are respected, and that no partition is unowned which a member
    could own."""
    members, owner, topic = given.members, solution.owner, topic_of(given)
    assert owner.dtype == np.int32, "owners are 32-bit integers"
    assert owner.shape == given.owner.shape, "there is one owner per partition"
    assert (owner[given.pinned] == given.owner[given.pinned]).all(), "a pinned partition moved"
    loose = ~given.pinned & (owner != NONE)
    assert members.subscription[owner[loose], topic[loose]].all(), "a member has a topic it did not ask for"
    new = loose & (owner != given.owner)
    assert not members.hold[owner[new]].any(), "a member on hold got something"
    load, stuck = loads(members.count, owner), loads(members.count, owner[given.pinned])
    capped = members.cap != NONE
    assert (load[capped] <= np.maximum(members.cap, stuck)[capped]).all(), "a member has more than its cap"
    for partition in np.flatnonzero((owner == NONE) & ~given.pinned):
        could = members.subscription[:, topic[partition]] & ~members.hold & (~capped | (load < members.cap))
        assert not could.any(), f"partition {partition} has no owner, and somebody could have it"


class StrategyConformance:
    """The guarantees of every strategy."""

    strategy: ClassVar[Strategy]
    refuses_unknown_options: ClassVar[bool] = True
    """Set it to False for a strategy that accepts any options."""

    def test_every_rule_of_a_solution_is_kept(self) -> None:
        for seed in SEEDS:
            given = random_problem(seed)
            try:
                assert_valid(given, self.strategy.assign(given))
            except AssertionError as error:
                raise AssertionError(f"random_problem({seed}): {error}") from None

    def test_the_same_problem_has_the_same_answer(self) -> None:
        for seed in SEEDS:
            first, second = (self.strategy.assign(random_problem(seed)) for _ in range(2))
            assert (first.owner == second.owner).all(), f"random_problem({seed})"
            assert (first.standbys == second.standbys).all(), f"random_problem({seed})"

    def test_its_answer_is_final(self) -> None:
        for seed in SEEDS:
            given = random_problem(seed)
            owner = self.strategy.assign(given).owner
            again = self.strategy.assign(replace(given, owner=owner))
            assert (again.owner == owner).all(), f"random_problem({seed})"
            assert again.explanation.moves == 0, f"random_problem({seed})"

    def test_the_problem_is_left_as_it_was(self) -> None:
        for seed in SEEDS:
            given, untouched = random_problem(seed), random_problem(seed)
            self.strategy.assign(given)
            for name in ("owner", "pinned"):
                changed = getattr(given, name) != getattr(untouched, name)
                assert not changed.any(), f"random_problem({seed}): {name} was changed"
            for name in ("capacity", "subscription", "hold", "cap"):
                changed = getattr(given.members, name) != getattr(untouched.members, name)
                assert not changed.any(), f"random_problem({seed}): members.{name} was changed"

    def test_its_moves_are_counted_as_they_are(self) -> None:
        for seed in SEEDS:
            given = random_problem(seed)
            solution = self.strategy.assign(given)
            moved = (given.owner != NONE) & (given.owner != solution.owner)
            assert solution.explanation.moves == int(moved.sum()), f"random_problem({seed})"

    def test_without_members_nothing_is_owned(self) -> None:
        no_members = Members(
            capacity=np.ones(0),
            rack=np.empty(0, np.int32),
            subscription=np.ones((0, 1), np.bool_),
            hold=np.empty(0, np.bool_),
            cap=np.empty(0, np.int32),
        )
        none = np.full(4, NONE, np.int32)
        given = Problem(no_members, Topics(np.array([4], np.int32)), owner=none, pinned=np.zeros(4, np.bool_))
        assert (self.strategy.assign(given).owner == NONE).all()

    def test_an_option_that_it_does_not_know_is_refused(self) -> None:
        if not self.refuses_unknown_options:
            pytest.skip("the strategy accepts unknown options")
        options: dict[str, Any] = {"no_such_option": 1}
        with pytest.raises(AssignerError, match="no_such_option"):
            self.strategy.assign(replace(random_problem(1), options=options))
