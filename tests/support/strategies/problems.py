"""Problems for strategies, written with names, and rules that every solution must keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from assigner.strategies.problem.units import fold, unfold
from assigner.strategies.weighted.solver import solve
from assigner.strategy import (
    NONE,
    BoolArray,
    FloatArray,
    IntArray,
    Members,
    Problem,
    Solution,
    Strategy,
    Topics,
    name_keys,
)
from assigner.strategy.explanation import Explanation
from assigner.testing.strategies import assert_valid, loads, topic_of

__all__ = [
    "assert_even_per_topic",
    "assert_no_better_gift",
    "assert_rounded",
    "assert_valid",
    "assign_by_name",
    "loads",
    "problem",
    "problems",
    "topic_of",
]


def problem(
    partitions: Sequence[int],
    members: int,
    owner: Sequence[int] | IntArray | None = None,
    *,
    capacity: Sequence[float] | None = None,
    subscription: Sequence[Sequence[int]] | BoolArray | None = None,
    hold: Sequence[int] = (),
    cap: Sequence[int] | None = None,
    pinned: Sequence[int] = (),
    copartition: Sequence[int] | None = None,
) -> Problem:
    """`hold` and `pinned` list members and flat partitions; the rest is as in `Problem`, with ordinary defaults."""
    topics, total = len(partitions), sum(partitions)
    holds, pins = np.zeros(members, np.bool_), np.zeros(total, np.bool_)
    holds[list(hold)] = True
    pins[list(pinned)] = True
    everything = np.ones((members, topics), np.bool_)
    return Problem(
        Members(
            capacity=np.ones(members) if capacity is None else np.asarray(capacity, np.float64),
            rack=np.full(members, NONE, np.int32),
            subscription=everything if subscription is None else np.asarray(subscription, np.bool_),
            hold=holds,
            cap=np.full(members, NONE, np.int32) if cap is None else np.asarray(cap, np.int32),
        ),
        Topics(
            np.asarray(partitions, np.int32),
            copartition=None if copartition is None else np.asarray(copartition, np.int32),
        ),
        owner=np.full(total, NONE, np.int32) if owner is None else np.asarray(owner, np.int32),
        pinned=pins,
    )


Named = dict[str, list[str]]
"""Partitions as `topic/number`, by owner."""


def assign_by_name(
    strategy: Strategy,
    topics: Mapping[str, int],
    members: Mapping[str, Sequence[str]],
    owned: Mapping[str, Sequence[str]] | None = None,
) -> Named:
    """Solve a problem given in names, in whatever order they come. Members without topics want all."""
    names, topic_names = sorted(members), sorted(topics)
    flat = [f"{topic}/{number}" for topic in topic_names for number in range(topics[topic])]
    wants = [[not members[m] or t in members[m] for t in topic_names] for m in names]
    owner = [NONE] * len(flat)
    for name, mine in (owned or {}).items():
        for partition in mine:
            owner[flat.index(partition)] = names.index(name)
    raw = problem([topics[t] for t in topic_names], len(names), owner, subscription=wants)
    keyed = Topics(raw.topics.partitions, key=name_keys(topic_names))
    solution = strategy.assign(Problem(raw.members, keyed, raw.owner, raw.pinned))
    result: Named = {name: [] for name in names}
    for partition, who in zip(flat, solution.owner.tolist(), strict=True):
        if who != NONE:
            result[names[who]].append(partition)
    return result


# --- what every solution must keep -------------------------------------------------------------------------------


def assert_even_per_topic(given: Problem, owner: IntArray) -> None:
    """Each member has the floor or the ceiling of its share; for problems without pins, holds and caps."""
    topic = topic_of(given)
    for number, count in enumerate(given.topics.partitions.tolist()):
        who = given.members.subscription[:, number]
        if who.any():
            capacity = given.members.capacity[who]
            share = count * capacity / capacity.sum()
            assert_rounded(loads(given.members.count, owner[topic == number])[who], share)


def assert_rounded(counts: IntArray, share: np.ndarray[tuple[int], np.dtype[np.float64]]) -> None:
    assert (counts >= np.floor(share + 1e-9)).all()
    assert (counts <= np.ceil(share - 1e-9)).all()


def assert_no_better_gift(given: Problem, owner: IntArray) -> None:
    """No topic can go from a member to one with at least two partitions less without unbalancing that topic."""
    load, topic = loads(given.members.count, owner), topic_of(given)
    for number in range(given.topics.count):
        have = loads(given.members.count, owner[topic == number])
        who = np.flatnonzero(given.members.subscription[:, number])
        for giver in who:
            for taker in who:
                if have[giver] > have[taker]:
                    assert load[giver] - load[taker] <= 1


# --- problems at random ------------------------------------------------------------------------------------------


@st.composite
def problems(
    draw: st.DrawFn,
    *,
    topics: int = 5,
    members: int = 6,
    most: int = 9,
    mixed: bool = False,
    capacities: bool = False,
    restricted: bool = False,
) -> Problem:
    """`mixed`: subscriptions differ; `capacities`: so do capacities; `restricted`: pins, holds and caps too."""
    partitions = draw(st.lists(st.integers(0, most), min_size=0, max_size=topics))
    count, total = draw(st.integers(1, members)), sum(partitions)
    owner = draw(st.lists(st.integers(NONE, count - 1), min_size=total, max_size=total))
    row = st.lists(st.booleans(), min_size=len(partitions), max_size=len(partitions))
    wants = draw(st.lists(row, min_size=count, max_size=count)) if mixed else None
    capacity = draw(st.lists(st.sampled_from([0.1, 0.5, 1.0, 1.5, 2.0, 3.0]), min_size=count, max_size=count))
    subscription = None if wants is None else np.asarray(wants, np.bool_).reshape(count, len(partitions))
    if not restricted:
        return problem(partitions, count, owner, subscription=subscription, capacity=capacity if capacities else None)
    return problem(
        partitions,
        count,
        owner,
        subscription=subscription,
        capacity=capacity if capacities else None,
        hold=draw(st.lists(st.integers(0, count - 1), max_size=2)),
        cap=draw(st.lists(st.sampled_from([NONE, NONE, 0, 1, 2, 5]), min_size=count, max_size=count)),
        pinned=draw(st.lists(st.integers(0, total - 1), max_size=4)) if total else (),
    )


# Problems whose partitions have weights, and what members carry in a solution.


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
