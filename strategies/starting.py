"""Counts to begin with: good ones, found quickly. What they lack is left to `strategies.improving`.

Several are tried, and the best is taken: dealt evenly per topic, which is a good start where that is even over all as
well; poured by level from what everyone has, which is a good start where it is not; and what is, if nothing has to
change.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from assigner.strategy import FloatArray, IntArray, Members
from strategies import caps
from strategies.balancing import balance
from strategies.case import Case, worth
from strategies.dealing import deal
from strategies.goals import NO_TARGET, Goals
from strategies.pouring import pour
from strategies.quotas import Quotas
from strategies.saving import save_moves
from strategies.shares import EPSILON, relative


def first_counts(plan: Quotas, case: Case, members: Members, levels: Sequence[str]) -> IntArray:
    """[row, member]. Changes the plan's table."""
    table = plan.table
    total = (table.base * table.taker).sum(axis=1) + table.extras
    if bool(np.isfinite(table.room).any()):
        return _deal(plan, levels)
    present = np.where(table.taker, table.held, table.fixed).astype(np.int32)
    weight = relative(members.capacity)
    if levels.index("moves") < levels.index("spread"):
        return pour(table, total, weight, present)
    dealt = _deal(plan, levels)
    whole = bool((np.where(table.taker, present, 0).sum(axis=1) == total).all())
    if whole and worth(case, present, levels) <= worth(case, dealt, levels):
        return present
    if levels[:2] == ("unowned", "spread") or _nearly_even(plan.goals, (case.size @ dealt).astype(np.float64)):
        return dealt
    # Where topics and totals are at odds, the start that is less uneven per topic once totals are even.
    poured = pour(table, total, weight, present)
    level = pour(table, total, weight, dealt)
    spread = ("spread", "moves")
    return poured if worth(case, poured, spread) <= worth(case, level, spread) else dealt


def _nearly_even(goals: Goals, load: FloatArray) -> bool:
    """Whether loads are about as even as they could be if everybody could take everything."""
    ideal, free = goals.potential.goal.copy(), goals.target == NO_TARGET
    scale = goals.potential.scale[free]
    ideal[free] = load[free].sum() * scale / scale.sum()
    return bool((np.abs(load - ideal) <= 1 + EPSILON).all())


def _deal(plan: Quotas, levels: Sequence[str]) -> IntArray:
    table, potential = plan.table, plan.goals.potential
    deal(table, potential, plan.goals.target)
    over = bool((table.load > table.room).any())
    if over:
        caps.enforce(table, potential)
    if "balance" in levels:
        balance(table, potential, plan.goals.target)
    if over:
        caps.place(table, potential)
    save_moves(table, potential)
    return np.asarray(table.base + table.extra)
