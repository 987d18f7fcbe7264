"""A consumer that has nothing to warm: it holds no copies, and no strategy plans with one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from assigner.core.standbys import placement_problem, targets
from assigner.core.writes import Purpose
from assigner.strategy import NONE, PlacesStandbys, Solution
from assigner.strategy.explanation import Explanation
from assigner.strategy.registry import load
from tests.support.core.coordination_scene import Scene as LedGroup
from tests.support.core.plan_scene import Scene

PLACE_STANDBYS = ("copartitioned", "jump_hash", "range", "rendezvous", "spread_first", "sticky_balanced")


@pytest.mark.parametrize("name", PLACE_STANDBYS)
@pytest.mark.parametrize("members", [2, 3, 5])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("owned", [False, True])
def test_a_cold_consumer_holds_no_copy_and_the_others_hold_as_many_as_are_wanted(
    name: str, members: int, count: int, owned: bool
) -> None:
    scene = Scene(standby_count=count, strategy=name)
    scene.topic("t", 12)
    scene.topic("u", 5)
    for member in "abcde"[:members]:
        scene.consumer(member, cold=member == "a")
    if owned:
        # A former owner costs nothing as a holder, so it is the first to be chosen.
        scene.owned("a", *range(12))
    request = scene.request()
    strategy = load(name)
    assert isinstance(strategy, PlacesStandbys)
    owner = strategy.assign(replace(request.problem, standby_count=0)).owner
    placed = strategy.place_standbys(placement_problem(request), owner)
    (cold,) = request.cold
    for mine, row in zip(owner.tolist(), placed.tolist(), strict=True):
        holders = [holder for holder in row if holder != NONE]
        assert not {mine, cold} & {*holders}
        assert len(holders) == min(count, members - 1 - (mine != cold))


def test_a_copy_that_a_strategy_gives_to_a_cold_consumer_all_the_same_is_left_out() -> None:
    scene = Scene(standby_count=1)
    scene.topic("t", 1)
    scene.consumer("a")
    scene.consumer("b", cold=True)
    request = scene.request()
    owner, copies = np.asarray([0], np.int32), np.asarray([[1]], np.int32)
    solution = Solution(owner, copies, Explanation(request.problem, owner, 0))
    assert targets(request, solution, scene.state) == []
    scene.copies(0, "b")
    assert [target.holders for target in targets(request, solution, scene.state)] == [()]


@pytest.mark.parametrize(("cold", "begun"), [(False, 1), (True, 4)])
def test_how_much_is_warmed_at_a_time_does_not_limit_a_consumer_that_warms_nothing(cold: bool, begun: int) -> None:
    group = LedGroup(names="a", warm_concurrency=1)
    group.join("b", cold=cold)
    for number in range(4):
        group.own(number, "a")
    group.plan({}, dict.fromkeys(range(4), "b"))
    handoffs = [write for write in group.decide().writes if write.purpose is Purpose.HANDOFF]
    assert len(handoffs) == begun
