"""What every installed strategy owes, whatever it is for."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given as examples
from hypothesis import settings
from hypothesis import strategies as st

from assigner.core.whatif.group_spec import GroupSpec, MemberSpec, TopicSpec
from assigner.core.whatif.report import solve, spec_after
from assigner.errors import InvalidInput
from assigner.strategy import NONE, Problem, Strategy
from assigner.strategy.registry import installed, load
from tests.support.strategies.problems import assert_valid, problem, problems

NAMES = ("copartitioned", "jump_hash", "range", "rendezvous", "spread_first", "sticky_balanced")
ROOT = Path(__file__).parents[3]


@pytest.fixture(params=NAMES)
def strategy(request: pytest.FixtureRequest) -> Strategy:
    return load(request.param)


def test_these_are_installed() -> None:
    assert installed() == NAMES


# --- answers ---


@pytest.mark.parametrize("name", NAMES)
@examples(problems(mixed=True, restricted=True, capacities=True))
@settings(max_examples=60, deadline=None)
def test_solutions_are_valid_and_final(name: str, given: Problem) -> None:
    strategy = load(name)
    solution = strategy.assign(given)
    if name != "copartitioned":  # Its sets ask for more than a subscription to one topic.
        assert_valid(given, solution)
    again = strategy.assign(replace(given, owner=solution.owner))
    assert (again.owner == solution.owner).all()
    assert again.explanation.moves == 0


def shuffled(spec: GroupSpec, draw: np.random.Generator) -> GroupSpec:
    members = [spec.members[n] for n in draw.permutation(len(spec.members))]
    topics = [spec.topics[n] for n in draw.permutation(len(spec.topics))]
    return msgspec.structs.replace(spec, members=tuple(members), topics=tuple(topics))


def random_group(draw: np.random.Generator, **options: Any) -> GroupSpec:
    topics = tuple(TopicSpec(name=f"t{n}", partitions=int(draw.integers(1, 9))) for n in range(5))
    names = [f"m{n}" for n in range(6)]
    owner = {topic.name: draw.integers(0, 6, topic.partitions) for topic in topics}
    members = tuple(
        MemberSpec(
            name=name,
            capacity=float(draw.choice([1.0, 2.0])),
            rack=f"r{index % 3}",
            topics=tuple(t.name for t in topics if draw.random() < 0.7),
            owned={topic: tuple(np.flatnonzero(who == index).tolist()) for topic, who in owner.items()},
        )
        for index, name in enumerate(names)
    )
    return GroupSpec(members=members, topics=topics, **options)


@pytest.mark.parametrize("seed", range(12))
def test_the_order_of_the_input_does_not_matter(strategy: Strategy, seed: int) -> None:
    draw = np.random.default_rng(seed)
    spec = random_group(draw, standby_count=1)
    other = shuffled(spec, draw)
    one, two = spec_after(spec, solve(spec, strategy)), spec_after(other, solve(other, strategy))
    assert sorted(one.members, key=lambda m: m.name) == sorted(two.members, key=lambda m: m.name)


_DIGEST = """
import hashlib, sys
sys.path.insert(0, ".")
import msgspec, numpy as np
from assigner.core.whatif.report import spec_after, solve
from assigner.strategy.registry import installed, load
from tests.unit.strategies.test_every_strategy import random_group
digest = hashlib.sha256()
for name in installed():
    for seed in range(10):
        spec = random_group(np.random.default_rng(seed), standby_count=1)
        digest.update(msgspec.json.encode(spec_after(spec, solve(spec, load(name)))))
print(digest.hexdigest())
"""


def test_the_hash_seed_does_not_matter() -> None:
    def started(seed: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        return subprocess.Popen([sys.executable, "-c", _DIGEST], cwd=ROOT, env=environment, stdout=PIPE, text=True)

    with started("1") as one, started("4242") as other:
        digests = one.communicate()[0], other.communicate()[0]
    assert one.returncode == other.returncode == 0
    assert digests[0] == digests[1]


# --- little and nothing ---


def test_nobody_owns_nothing(strategy: Strategy) -> None:
    assert strategy.assign(problem([], 0)).owner.tolist() == []
    assert strategy.assign(problem([], 3)).owner.tolist() == []


def test_without_members_nothing_is_owned(strategy: Strategy) -> None:
    solution = strategy.assign(problem([3, 2], 0))
    assert solution.owner.tolist() == [NONE] * 5
    assert (solution.explanation.moves, solution.explanation.imbalance) == (0, 0)


def test_an_empty_topic_is_no_trouble(strategy: Strategy) -> None:
    assert (strategy.assign(problem([0, 2, 0], 2)).owner != NONE).all()


def test_more_members_than_partitions_leave_some_idle(strategy: Strategy) -> None:
    given = problem([3], 10)
    assert_valid(given, strategy.assign(given))


def test_who_subscribes_to_nothing_gets_nothing(strategy: Strategy) -> None:
    given = problem([4, 4], 3, subscription=[[0, 0], [1, 1], [1, 1]])
    solution = strategy.assign(given)
    assert_valid(given, solution)
    assert not (solution.owner == 0).any()


def test_a_topic_nobody_wants_stays_unowned(strategy: Strategy) -> None:
    owner = strategy.assign(problem([2, 3], 2, [0] * 5, subscription=[[0, 1], [0, 1]])).owner
    assert owner.tolist()[:2] == [NONE, NONE]
    assert (owner[2:] != NONE).all()


def test_more_standbys_than_members_are_as_many_as_there_can_be(strategy: Strategy) -> None:
    given = replace(problem([6], 3), standby_count=9)
    solution = strategy.assign(given)
    for owner, copies in zip(solution.owner.tolist(), solution.standbys.tolist(), strict=True):
        assert sorted(copy for copy in copies if copy != NONE) == sorted({0, 1, 2} - {owner})


# --- nonsense ---


def member_change(**changes: Any) -> Callable[[], Problem]:
    given = problem([4], 2)
    arrays = {name: np.asarray(value) for name, value in changes.items()}
    return lambda: replace(given, members=replace(given.members, **arrays))


def topic_change(**changes: Any) -> Callable[[], Problem]:
    given = problem([4], 2)
    return lambda: replace(given, topics=replace(given.topics, **changes))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (member_change(capacity=[1.0, 0.0]), "capacity of member 1 is 0.0; it must be finite and more than 0"),
        (member_change(capacity=[1.0, -2.0]), "capacity of member 1 is -2.0"),
        (member_change(capacity=[np.nan, 1.0]), "capacity of member 0 is nan"),
        (member_change(capacity=[np.inf, 1.0]), "capacity of member 0 is inf"),
        (member_change(cap=np.array([-2, 0], np.int32)), "cap of member 0 is -2"),
        (member_change(load=[-0.5, 0.0]), "load of member 0 is -0.5"),
        (member_change(load=[np.inf, 0.0]), "load of member 0 is inf"),
        (member_change(load=[0.5]), "member loads have shape"),
        (member_change(key=np.zeros(3, np.uint64)), "member keys have shape"),
        (topic_change(weight=np.array([1.0, 1.0, 0.0, 1.0])), "weight of partition 2 is 0.0"),
        (topic_change(weight=np.array([1.0, 1.0, -1.0, 1.0])), "weight of partition 2 is -1.0"),
        (topic_change(weight=np.array([1.0, np.nan, 1.0, 1.0])), "weight of partition 1 is nan"),
        (topic_change(weight=np.array([1.0])), "weights have shape"),
        (topic_change(partitions=np.array([-4], np.int32)), "partition count of topic 0 is -4"),
        (lambda: problem([4], 2, [0, 1, 2, 0]), "owner of partition 2 is 2; it must be a member"),
        (lambda: replace(problem([4], 2), owner=np.zeros(3, np.int32)), "owners have shape"),
        (lambda: replace(problem([4], 2), standby_count=-1), "standby count -1 is negative"),
        (
            lambda: replace(problem([2], 2), standbys=np.array([[0], [7]], np.int32), standby_count=1),
            "standby of partition 1 is 7",
        ),
        (lambda: problem([4, 3], 2, copartition=[0, 0]), "co-partitioned topics .* have .* partitions"),
        (lambda: replace(problem([4], 2), options={"nonsense": 1}), "does not know the option 'nonsense'"),
    ],
)
def test_nonsense_is_refused(strategy: Strategy, given: Callable[[], Problem], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        strategy.assign(given())


@examples(st.data())
@settings(max_examples=60, deadline=None)
def test_a_busy_node_causes_no_move(data: st.DataObject) -> None:
    given = data.draw(problems(mixed=True, capacities=True))
    strategy = load("sticky_balanced")
    settled = replace(given, owner=strategy.assign(given).owner)
    busy = data.draw(
        st.lists(st.sampled_from([0.0, 0.3, 5.0, np.nan]), min_size=given.members.count, max_size=given.members.count)
    )
    loaded = replace(settled, members=replace(settled.members, load=np.array(busy, np.float64)))
    assert strategy.assign(loaded).explanation.moves == 0


def test_of_equals_the_less_busy_one_is_served_first() -> None:
    given = problem([1], 3)
    given = replace(given, members=replace(given.members, load=np.array([0.9, 0.8, 0.1])))
    assert load("sticky_balanced").assign(given).owner.tolist() == [2]
