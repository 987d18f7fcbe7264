"""Simulations of one group: what counts as a move, as a pause, as uneven. No Spark is needed for it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assigner.errors import InvalidInput
from assigner.spark.jobs.chart import answer, draw
from assigner.spark.jobs.simulate import Model, SimulationOutcome, TraceEvent, simulate_group
from assigner.spark.jobs.traces import CRASH, JOIN, LEAVE, TOPIC, day_trace, days
from assigner.strategy import NONE, Problem, Solution
from assigner.strategy.explanation import Explanation
from assigner.strategy.registry import installed, load

MINUTE = 60 * 1_000_000
MODEL = Model(warm=20, handover=0.5, ttl=30, debounce=1)


def trace(*happenings: tuple[int, str, str] | tuple[int, str, str, float]) -> list[TraceEvent]:
    """Minutes, what, name and value."""
    return [TraceEvent(one[0] * MINUTE, one[1], one[2], one[3] if len(one) > 3 else 1.0) for one in happenings]


def sticky(*happenings: Any) -> SimulationOutcome:
    return simulate_group(trace(*happenings), load("sticky_balanced"), MODEL)


def test_a_join_takes_the_newcomers_share_from_those_that_stay() -> None:
    found = sticky((0, TOPIC, "t", 12), (0, JOIN, "a"), (0, JOIN, "b"), (1, JOIN, "c"))
    assert (found.changes, found.moves, found.forced) == (2, 4, 0)
    assert (found.partitions, found.members, found.imbalance_max) == (12, 3, 0)
    assert found.pause_s == 4 * 0.5
    assert found.warming_s == 4 * 20


def test_what_a_leaving_member_had_is_no_move_but_a_handover() -> None:
    found = sticky((0, TOPIC, "t", 12), (0, JOIN, "a"), (0, JOIN, "b"), (1, LEAVE, "b"))
    assert (found.moves, found.forced) == (0, 6)
    assert found.pause_s == 6 * 0.5


def test_a_crashed_members_partitions_wait_for_its_lease_the_plan_and_their_warming() -> None:
    found = sticky((0, TOPIC, "t", 12), (0, JOIN, "a"), (0, JOIN, "b"), (1, CRASH, "b"))
    assert (found.moves, found.forced) == (0, 6)
    assert found.pause_s == 6 * (30 + 1 + 20)


def test_changes_within_the_debounce_window_make_one_plan() -> None:
    joins = [TraceEvent(number * 100_000, JOIN, f"m{number}", 1.0) for number in range(5)]
    found = simulate_group([TraceEvent(0, TOPIC, "t", 10.0), *joins], load("sticky_balanced"), MODEL)
    assert (found.changes, found.moves) == (1, 0)


def test_a_topic_that_grows_gets_owners_for_its_new_partitions_and_moves_none() -> None:
    found = sticky((0, TOPIC, "t", 4), (0, JOIN, "a"), (0, JOIN, "b"), (1, TOPIC, "t", 8))
    assert (found.partitions, found.moves, found.imbalance_max) == (8, 0, 0)


def test_imbalance_is_weighed_by_how_long_it_lasted() -> None:
    found = sticky((0, TOPIC, "t", 3), (0, JOIN, "a"), (0, JOIN, "b"), (3, TOPIC, "t", 4), (4, LEAVE, "nobody"))
    assert found.imbalance_mean == pytest.approx(3 / 4)
    assert found.hours == pytest.approx(4 / 60)


def test_capacity_is_the_value_of_a_join() -> None:
    seen: list[Problem] = []

    class Watching:
        name = "watching"

        def assign(self, problem: Problem) -> Solution:
            seen.append(problem)
            owner = np.zeros(len(problem.owner), np.int32)
            return Solution(owner, problem.standbys, Explanation(problem, owner, 0))

    simulate_group(trace((0, TOPIC, "t", 2), (0, JOIN, "b", 3.0), (0, JOIN, "a", 0.0)), Watching(), MODEL)
    assert seen[0].members.capacity.tolist() == [1.0, 3.0], "in name order; nothing means an ordinary one"
    assert (seen[0].owner == NONE).all()


def test_without_members_or_topics_nothing_is_planned() -> None:
    assert sticky((0, TOPIC, "t", 2), (1, JOIN, "a"), (2, LEAVE, "a")).changes == 3
    assert sticky((0, JOIN, "a")).moves == 0


def test_a_topic_without_partitions_is_refused() -> None:
    with pytest.raises(InvalidInput, match="topic t has 0 partitions; give it 1 to"):
        sticky((0, TOPIC, "t", 0))


@pytest.mark.parametrize("name", installed())
def test_every_strategy_lives_through_a_day(name: str) -> None:
    happenings = sorted(
        TraceEvent(at, what, who, value) for at, _, what, who, value in day_trace("g", random.Random(3))
    )
    found = simulate_group(happenings, load(name), MODEL)
    assert found.changes > 20
    assert found.pause_s > 0


def test_the_same_seed_gives_the_same_days_and_another_one_others() -> None:
    assert days(3, seed=5) == days(3, seed=5)
    assert days(3, seed=5) != days(3, seed=6)


def test_nobody_joins_twice_or_leaves_before_it_came() -> None:
    for seed in range(20):
        there: set[str] = set()
        for _, _, what, name, _ in day_trace("g", random.Random(seed)):
            if what == JOIN:
                assert name not in there
                there.add(name)
            elif what in (LEAVE, CRASH):
                there.remove(name)
        assert there


def a_row(strategy: str, moves: float, imbalance: float) -> dict[str, Any]:
    return {
        "strategy": strategy,
        "moves_per_change": moves,
        "moves_p05": moves / 2,
        "moves_p95": moves * 2,
        "imbalance": imbalance,
        "even": imbalance < 5,
        "imbalance_p05": 0.0,
        "imbalance_p95": imbalance + 1,
        "pause_min_per_day": 3.0,
    }


@pytest.mark.parametrize(("ending", "magic"), [("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_the_picture_is_drawn_in_the_format_its_name_says(tmp_path: Path, ending: str, magic: bytes) -> None:
    file = tmp_path / "new" / f"strategies.{ending}"
    draw([a_row("one", 3.0, 0.5), a_row("other", 1.0, 9.0)], file)
    assert file.read_bytes().startswith(magic)
    if ending == "svg":
        again = tmp_path / "again.svg"
        draw([a_row("one", 3.0, 0.5), a_row("other", 1.0, 9.0)], again)
        assert again.read_bytes() == file.read_bytes()


def test_the_answer_names_the_choice_and_what_a_calmer_one_costs() -> None:
    said = answer([a_row("one", 3.0, 0.5), a_row("other", 1.0, 9.0)])
    assert said == (
        "one moves least of those that stay even: 3.0 a change; other moves 1.0 with members 9.0 partitions apart"
    )
    assert answer([a_row("one", 3.0, 0.5)]) == "one moves least of those that stay even: 3.0 a change"


def test_the_answer_names_all_that_move_least() -> None:
    said = answer([a_row("one", 3.41, 0.8), a_row("other", 3.42, 0.8), a_row("third", 5.0, 0.2)])
    assert said == "one and other move least of those that stay even: 3.4 a change"
    uneven = {**a_row("other", 3.41, 9.0), "even": False}
    assert answer([a_row("one", 3.41, 0.8), uneven]) == "one moves least of those that stay even: 3.4 a change"
