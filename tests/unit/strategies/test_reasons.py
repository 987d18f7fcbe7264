"""Every move has a reason that can be checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from hypothesis import given as examples
from hypothesis import settings

from assigner.strategies.jump_hash import strategy as jump_hash
from assigner.strategies.sticky_balanced import strategy as sticky_balanced
from assigner.strategy import NONE, Problem
from assigner.strategy.explanation import Explanation
from assigner.strategy.reasons import MoveReason
from tests.support.strategies.problems import problem, problems


def why(given: Problem, owner: Sequence[int], *, by_rule: bool = False) -> list[MoveReason]:
    explanation = Explanation(given, np.array(owner, np.int32), 0, by_rule)
    return [MoveReason(number) for number in explanation.reasons.tolist()]


STAYS = MoveReason.STAYS


def test_what_stays_needs_no_reason() -> None:
    assert why(problem([2], 2, [0, 1]), [0, 1]) == [STAYS, STAYS]


def test_a_partition_without_an_owner_has_to_go_somewhere() -> None:
    assert why(problem([2], 1, [0, NONE]), [0, 0]) == [STAYS, MoveReason.UNOWNED]
    assert why(problem([2], 1, [0, NONE]), [0, NONE]) == [STAYS, STAYS]


def test_an_owner_that_no_longer_subscribes_can_not_keep_it() -> None:
    assert why(problem([1], 2, [0], subscription=[[0], [1]]), [1]) == [MoveReason.NOT_WANTED]


def test_an_owner_over_its_cap_loses_partitions() -> None:
    given = problem([3], 2, [0, 0, 0], cap=[2, NONE])
    assert why(given, [0, 0, 1]) == [STAYS, STAYS, MoveReason.OVER_CAP]
    assert why(problem([2], 1, [0, 0], cap=[1]), [0, NONE]) == [STAYS, MoveReason.OVER_CAP]


def test_more_of_the_topic_than_the_taker_ends_with() -> None:
    assert why(problem([4], 2, [0, 0, 0, 1]), [0, 0, 1, 1]) == [STAYS, STAYS, MoveReason.TOPIC_SHARE, STAYS]


def test_more_in_all_than_the_taker_ends_with() -> None:
    assert why(problem([1, 1, 1], 2, [0, 0, 0]), [0, 0, 1]) == [STAYS, STAYS, MoveReason.TOTAL_SHARE]


def test_capacity_counts() -> None:
    """Three on a member of capacity three are no more than one on a member of capacity one."""
    assert why(problem([4], 2, [0, 0, 0, 1], capacity=[3.0, 1.0]), [0, 0, 1, 1])[2] is MoveReason.EXCHANGE


def test_nearer_to_a_replica() -> None:
    given = problem([2], 2, [0, 1])
    given = replace(
        given,
        members=replace(given.members, rack=np.array([0, 1], np.int32)),
        topics=replace(given.topics, replica_racks=(np.array([0, 1, 2], np.int32), np.array([1, 0], np.int32))),
    )
    assert why(given, [1, 0]) == [MoveReason.RACK, MoveReason.RACK]
    assert why(replace(given, owner=np.array([1, 0], np.int32)), [0, 1]) == [MoveReason.EXCHANGE, MoveReason.EXCHANGE]


def test_a_set_that_was_torn_comes_together() -> None:
    given = problem([2, 2], 2, [0, 1, 0, 0], copartition=[0, 0])
    assert why(given, [0, 1, 0, 1])[3] is MoveReason.SET


def test_more_weight_than_the_taker_ends_with() -> None:
    given = problem([3], 2, [0, 0, 1])
    given = replace(given, topics=replace(given.topics, weight=np.array([9.0, 8.0, 1.0])))
    assert why(given, [0, 1, 1]) == [STAYS, MoveReason.LOAD, STAYS]


def test_a_rule_is_its_own_reason() -> None:
    given = problem([20], 3, [0] * 20)
    solution = jump_hash.assign(given)
    moved = solution.owner != 0
    assert set(solution.explanation.reasons[moved].tolist()) == {MoveReason.RULE}
    assert (solution.explanation.reasons[~moved] == MoveReason.STAYS).all()


@examples(problems(mixed=True, restricted=True, capacities=True))
@settings(max_examples=100, deadline=None)
def test_exactly_what_changes_owner_has_a_reason(given: Problem) -> None:
    solution = sticky_balanced.assign(given)
    assert ((solution.explanation.reasons != MoveReason.STAYS) == (solution.owner != given.owner)).all()
