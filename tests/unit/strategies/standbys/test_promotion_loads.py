"""Promotion changes who gets what, never how much: loads after it are as even as without any standby."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given as examples
from hypothesis import settings
from hypothesis import strategies as st

from assigner.strategies.sticky_balanced import strategy
from assigner.strategy import NONE, IntArray, Problem
from tests.support.strategies.problems import loads, problem, topic_of
from tests.support.strategies.standby_life import with_standbys

pytestmark = pytest.mark.slow

many = settings(max_examples=150, deadline=None, derandomize=True)

HOLDERS = [*combinations((0, 1, 2), 2), *((NONE, member) for member in (NONE, 0, 1, 2))]
"""Two copies, one or none, of a partition on three members."""


def without_standbys(given: Problem) -> Problem:
    return replace(given, standbys=np.empty((0, 0), np.int32), standby_count=0)


def distances(given: Problem, owner: IntArray) -> list[int]:
    """How far the members that may take something are apart: over all, then per topic."""
    who, topic = ~given.members.hold, topic_of(given)
    parts = [owner, *(owner[topic == number] for number in range(given.topics.count))]
    return [int(np.ptp(loads(given.members.count, part)[who])) for part in parts]


@pytest.mark.parametrize(
    ("hold", "standbys", "counts"),
    [((), [[0, 1], [0, 2], [1, 2]], [1, 1, 1]), ((2,), [[NONE, 0], [NONE, 1], [0, 1]], [1, 2, 0])],
    ids=["all take", "one on hold"],
)
def test_a_partition_that_is_handed_round_to_where_it_was_stays_handed_on(
    hold: tuple[int, ...], standbys: list[list[int]], counts: list[int]
) -> None:
    given = with_standbys(problem([3], 3, hold=hold), 2, standbys)
    assert sorted(loads(3, strategy.assign(given).owner).tolist()) == sorted(counts)


@pytest.mark.parametrize("hold", [(), (2,)], ids=["all take", "one on hold"])
def test_three_partitions_on_three_members_are_even_wherever_copies_are(hold: tuple[int, ...]) -> None:
    plain = problem([3], 3, hold=hold)
    even = distances(plain, strategy.assign(plain).owner)
    for table in product(HOLDERS, repeat=3):
        given = with_standbys(plain, 2, [list(row) for row in table])
        assert distances(given, strategy.assign(given).owner) == even, table


@st.composite
def bereaved(draw: st.DrawFn) -> Problem:
    """Some topics, most of it unowned, two or three copies of each partition; maybe a hold, a pin, racks or a cap."""
    members = draw(st.integers(2, 7))
    partitions = draw(st.lists(st.integers(0, 12), min_size=1, max_size=4))
    total = sum(partitions)
    anyone = st.one_of(st.just(NONE), st.just(NONE), st.integers(0, members - 1))
    owner = draw(st.lists(anyone, min_size=total, max_size=total))
    width = draw(st.integers(2, 3))
    turned = [draw(st.permutations(range(members))) for _ in range(total)]
    rows = [[m for m in row if m != own][:width] for row, own in zip(turned, owner, strict=True)]
    given = problem(
        partitions,
        members,
        owner,
        hold=draw(st.lists(st.integers(0, members - 1), max_size=1)),
        pinned=draw(st.lists(st.integers(0, total - 1), max_size=2)) if total else (),
        cap=draw(st.one_of(st.none(), st.lists(st.sampled_from([NONE, 3, 6]), min_size=members, max_size=members))),
    )
    table = np.asarray([row + [NONE] * (width - len(row)) for row in rows], np.int32).reshape(total, width)
    rack = draw(st.one_of(st.none(), st.lists(st.integers(0, 2), min_size=members, max_size=members)))
    given = with_standbys(given, width, table, rack)
    if rack is None:
        return given
    near = np.asarray(draw(st.lists(st.integers(0, 2), min_size=total, max_size=total)), np.int32)
    starts = np.arange(total + 1, dtype=np.int32)
    return replace(given, topics=replace(given.topics, replica_racks=(starts, near)))


@many
@examples(bereaved())
def test_with_two_or_three_standbys_loads_are_as_even_as_without(given: Problem) -> None:
    plain = strategy.assign(without_standbys(given))
    with_copies = strategy.assign(given)
    count = given.members.count
    assert sorted(loads(count, with_copies.owner)) == sorted(loads(count, plain.owner))
    assert distances(given, with_copies.owner) == distances(given, plain.owner)
    assert with_copies.explanation.moves == plain.explanation.moves
    assert with_copies.explanation.rack_mismatches == plain.explanation.rack_mismatches


@many
@examples(bereaved())
def test_with_two_or_three_standbys_its_own_result_is_final(given: Problem) -> None:
    first = strategy.assign(given)
    second = strategy.assign(replace(given, owner=first.owner, standbys=first.standbys))
    assert second.owner.tolist() == first.owner.tolist()
    assert second.standbys.tolist() == first.standbys.tolist()
