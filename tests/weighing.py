"""Problems whose partitions have weights, and what members carry in a solution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from assigner.strategies.problem.units import fold, unfold
from assigner.strategies.weighted.solver import solve
from assigner.strategy import NONE, FloatArray, IntArray, Problem, Solution
from assigner.strategy.explanation import Explanation
from tests.problems import problem, problems, topic_of

WEIGHTS = [0.01, 0.5, 1.0, 1.0, 1.1, 2.0, 3.0, 7.5, 40.0]


def weigh(given: Problem, weight: Sequence[float] | FloatArray) -> Problem:
    return replace(given, topics=replace(given.topics, weight=np.asarray(weight, np.float64)))


@st.composite
def weighted(draw: st.DrawFn, /, **kinds: Any) -> Problem:
    raw = draw(problems(**kinds))
    total = len(raw.owner)
    return weigh(raw, draw(st.lists(st.sampled_from(WEIGHTS), min_size=total, max_size=total)))


def assign(given: Problem, options: Mapping[str, Any] | None = None) -> Solution:
    units = fold(given)
    quick = solve(units, given.members, options or {})
    owner = unfold(units, given, quick.owner)
    return Solution(owner, np.empty((0, 0), np.int32), Explanation(given, owner, quick.lower_bound))


def again(given: Problem, owner: IntArray, weight: FloatArray | None = None) -> Problem:
    after = replace(given, owner=owner)
    return after if weight is None else weigh(after, weight)


def weights(given: Problem) -> FloatArray:
    assert given.topics.weight is not None
    return given.topics.weight


def weighed(given: Problem, owner: IntArray) -> FloatArray:
    """[member] what each has, by weight."""
    some = owner != NONE
    return np.bincount(owner[some], weights(given)[some], given.members.count).astype(np.float64)


def moves(given: Problem, owner: IntArray) -> int:
    """Of partitions that could have stayed."""
    live = given.owner != NONE
    live[live] = given.members.subscription[given.owner[live], topic_of(given)[live]]
    return int((live & (given.owner != owner)).sum())


def group(count: int, each: int, seed: int = 1) -> Problem:
    """A group of `count` members with `each` partitions per member, weights from 1 to 100."""
    dice = np.random.default_rng(seed)
    total = count * each
    return weigh(problem([total // 2, total - total // 2], count), dice.uniform(1, 100, total))


def joined(given: Problem, owner: IntArray, newcomers: int = 1) -> Problem:
    count = given.members.count + newcomers
    return weigh(problem(given.topics.partitions.tolist(), count, owner), weights(given))
