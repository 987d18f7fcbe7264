"""Our strategies, and the one of the page on writing one, keep what the public kit asks of every strategy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from assigner.strategy import Solution
from assigner.strategy.registry import load
from assigner.testing.strategies import SEEDS, StrategyConformance, assert_valid, random_problem
from tests.unit.project.test_docs import ROOT, blocks


def _of_the_page() -> Any:
    """The strategy that the page shows, run as it is written."""
    page: Path = ROOT / "docs" / "how-to" / "write-a-strategy.md"
    program = next(text for text in blocks(page, "python") if "class FirstCome" in text)
    names: dict[str, Any] = {}
    exec(compile(program, str(page), "exec"), names)
    return names["strategy"]


class TestStickyBalanced(StrategyConformance):
    strategy = load("sticky_balanced")


class TestSpreadFirst(StrategyConformance):
    strategy = load("spread_first")


class TestRendezvous(StrategyConformance):
    strategy = load("rendezvous")


class TestJumpHash(StrategyConformance):
    strategy = load("jump_hash")


class TestRange(StrategyConformance):
    strategy = load("range")


class TestCopartitioned(StrategyConformance):
    strategy = load("copartitioned")

    def test_every_rule_of_a_solution_is_kept(self) -> None:
        """Topics of a set move as one, so what binds one partition binds others; a topic alone is like any."""
        for seed in SEEDS:
            given = random_problem(seed, topics=1)
            assert_valid(given, self.strategy.assign(given))


class TestOfThePage(StrategyConformance):
    strategy = _of_the_page()


class Lazy:
    """Breaks the first rule: what is unowned stays so."""

    name = "lazy"

    def assign(self, problem: Any) -> Solution:
        solution = load("sticky_balanced").assign(problem)
        return Solution(problem.owner.copy(), solution.standbys, solution.explanation)


def test_the_kit_notices_a_strategy_that_breaks_a_rule_and_names_the_problem() -> None:
    class Kit(StrategyConformance):
        strategy = Lazy()

    with pytest.raises(AssertionError, match=r"random_problem\(\d+\): "):
        Kit().test_every_rule_of_a_solution_is_kept()
    with pytest.raises(AssertionError, match=r"random_problem\(\d+\)"):
        Kit().test_its_moves_are_counted_as_they_are()
