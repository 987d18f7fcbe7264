"""Standbys through joins, deaths and returns: who is promoted, and what has to be built.

Taken from other assignors' tests: faust's properties of its co-partitioned assignor, and of Kafka Streams' table those
rows that speak of counts and owners. Left out of the latter:

- lags, acceptable lags and warm-ups (9/9/2 copies, probing rebalances, rounds until it converges): readiness belongs to
  the handoff, a plan is final at once;
- no standby for stateless tasks: partitions are not told apart by whether they have state;
- skew per sub-topology up to 4: that is a looser rule than ours for actives, and copies have no rule per topic.

Of faust's, left out: after a join old clients hold no copy that is new to them. Ours may build one there to keep pairs
apart; what they own is checked.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given as examples
from hypothesis import settings
from hypothesis import strategies as st

from assigner.strategies.sticky_balanced import strategy
from assigner.strategy import NONE
from tests.support.strategies.problems import loads, problem
from tests.support.strategies.standby_life import Life, built, cold_pairs, copies, most_promoted, pairs, with_standbys

many = settings(max_examples=70, deadline=None, derandomize=True)
some = settings(max_examples=30, deadline=None, derandomize=True)


# --- faust's numbers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dead", range(16))
def test_of_256_on_16_every_death_is_warm(dead: int) -> None:
    """Round-robin standbys leave 2.9 of 16 partitions cold on average."""
    life = Life(strategy, 256, 16, 1)
    life.die(dead)
    event = life.plan()
    assert (event.orphans, event.cold) == (16, 0)
    # A copy of each orphan, since its standby is now the owner, and of each the dead one had a copy of.
    assert event.built == 32


def test_of_256_on_16_no_two_share_more_than_two() -> None:
    life = Life(strategy, 256, 16, 1)
    assert pairs(16, life.owner, life.standbys).max() == 2


def test_twelve_on_five_are_even() -> None:
    life = Life(strategy, 12, 5, 1)
    assert np.ptp(copies(5, life.owner, life.standbys)) <= 1


@pytest.mark.parametrize("count", [0, 1])
def test_a_bounce_among_forty_gives_the_returner_its_share(count: int) -> None:
    life = Life(strategy, 100, 40, count)
    life.die(7)
    life.plan()
    event = life.join()
    assert event.moves == 2
    assert loads(40, life.owner).min() == 2
    assert np.ptp(copies(40, life.owner, life.standbys)) <= 1


@some
@examples(
    partitions=st.integers(0, 64),
    clients=st.integers(1, 24),
    replicas=st.integers(0, 5),
    joining=st.integers(1, 6),
    leaving=st.integers(1, 3),
)
def test_joins_and_leaves_keep_what_faust_promises(
    partitions: int, clients: int, replicas: int, joining: int, leaving: int
) -> None:
    life = Life(strategy, partitions, clients, replicas)
    for _ in range(2):
        assert (life.owner != NONE).all()
        assert life.standbys.shape == (partitions, min(replicas, life.members - 1))
        assert (life.standbys != NONE).all()
        before = life.owner
        life.join(joining)
        changed = life.owner != before
        assert (life.owner[changed] >= life.members - joining).all()
        assert len(np.unique(life.owner)) == min(partitions, life.members)
        for _ in range(min(leaving, life.members - 1)):
            life.die(0)
        kept = life.owner
        life.plan()
        assert (life.owner[kept != NONE] == kept[kept != NONE]).all()


# --- Kafka Streams' rows -----------------------------------------------------------------------------------------


def test_nine_tasks_on_three_with_a_standby_are_six_copies_each() -> None:
    given = with_standbys(problem([9], 3, [0] * 9), 1, [[1]] * 9)
    solution = strategy.assign(given)
    assert copies(3, solution.owner, solution.standbys).tolist() == [6, 6, 6]


@pytest.mark.parametrize(
    ("capacity", "tasks", "owned"), [([1, 2, 3], 6, [1, 2, 3]), ([6, 3], 9, [6, 3]), ([1, 2], 12, [4, 8])]
)
def test_threads_are_capacity(capacity: list[float], tasks: int, owned: list[int]) -> None:
    solution = strategy.assign(with_standbys(problem([tasks], len(capacity), capacity=capacity), 1))
    assert loads(len(capacity), solution.owner).tolist() == owned
    assert (solution.standbys != NONE).all()


def test_only_one_owner_gives_one_to_a_newcomer() -> None:
    solution = strategy.assign(with_standbys(problem([4], 3, [0, 1, 0, 1]), 1))
    assert solution.explanation.moves == 1
    assert loads(3, solution.owner)[2] == 1


def test_new_tasks_move_no_old_ones() -> None:
    first = Life(strategy, 8, 4, 1)
    owner = np.concatenate((first.owner, np.full(4, NONE))).astype(np.int32)
    standbys = np.concatenate((first.standbys, np.full((4, 1), NONE))).astype(np.int32)
    given = with_standbys(problem([12], 4, owner), 1, standbys)
    solution = strategy.assign(given)
    assert solution.explanation.moves == 0
    assert built(given, solution) == 4


def test_the_only_standby_holders_become_owners() -> None:
    given = with_standbys(problem([4], 2, [NONE] * 4), 1, [[0], [1], [1], [0]])
    assert strategy.assign(given).owner.tolist() == [0, 1, 1, 0]


def test_four_tasks_on_four_leave_no_two_with_the_same_copies() -> None:
    life = Life(strategy, 4, 4, 1)
    sets = {frozenset((*np.flatnonzero(life.owner == m), *np.flatnonzero(life.standbys[:, 0] == m))) for m in range(4)}
    assert len(sets) == 4


@pytest.mark.parametrize("standbys", range(6))
def test_copies_are_as_many_as_clients_or_one_more_than_standbys(standbys: int) -> None:
    life = Life(strategy, 10, 4, standbys)
    assert (life.standbys != NONE).sum() == 10 * min(3, standbys)


# --- a life ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("partitions", "members", "count"), [(64, 8, 1), (60, 9, 1), (48, 6, 2), (30, 7, 1)])
def test_through_joins_and_deaths_each_death_is_as_warm_as_it_can_be(partitions: int, members: int, count: int) -> None:
    life = Life(strategy, partitions, members, count)
    chooser = np.random.default_rng(partitions)
    for turn in range(12):
        if life.members <= 3 or (turn % 2 and life.members < members + 3):
            event = life.join()
            assert event.cold == event.moves
        else:
            life.die(int(chooser.integers(life.members)))
            given = life.problem
            event = life.plan()
            assert event.cold == event.orphans - most_promoted(given, life.owner)
            missing = int((given.standbys == NONE).sum()) + event.orphans
            assert event.built >= min(missing, partitions) - event.cold
        assert np.ptp(copies(life.members, life.owner, life.standbys)) <= 1


@pytest.mark.parametrize(("partitions", "members", "count"), [(64, 8, 1), (240, 16, 1), (48, 6, 2), (90, 10, 2)])
def test_where_there_is_room_no_death_is_cold(partitions: int, members: int, count: int) -> None:
    """Deaths one after the other, half of the group in all, each planned before the next."""
    life = Life(strategy, partitions, members, count)
    for _ in range(members // 2):
        warm = cold_pairs(life.members, life.owner, life.standbys) == 0
        life.die(life.members // 2)
        event = life.plan()
        assert event.orphans > 0
        assert event.cold == 0 or not warm
