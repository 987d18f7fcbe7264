"""`sticky_balanced`: even per topic and over all topics, and as little as possible moves.

In this order:

1. **Valid.** Only subscribed members, nothing new for members on hold (they keep what they have), no more than a
   member's cap, pinned partitions stay. A partition has no owner only where no member may have it.
2. **Even per topic.** Each member has the floor or the ceiling of its share of the topic, in proportion to capacity.
3. **Even over all.** Where every member may take the same topics, each has the floor or the ceiling of its share of
   the whole; else no chain of gifts within (2) makes the loads more even.
4. **Few moves.** Members keep what they have up to their share, and remainders go to those that have them already.

It ends because every step of balancing lowers the sum over members of (load - goal)^2 / scale, or keeps it and lowers
the moves; both are bounded below. Given its own result it returns the same again.

Exact today: (1), (2), (3) and, for one topic that all members take, the moves. Not yet exact: the moves over several
topics (now and then one above the minimum for a small group, see `Explanation.lower_bound`); (2) and (3) under caps;
co-partition sets of different sizes in one group (a set counts by its topics, but a large one is not traded for two
small ones). Not looked at yet: partition weights, racks and new standbys; present standbys are kept.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from assigner.explanation import Explanation
from assigner.strategy import NONE, IntArray, Members, Problem, Solution
from strategies import caps
from strategies.balancing import balance
from strategies.dealing import deal
from strategies.explain import keep_standbys, must_move
from strategies.measure import measure
from strategies.placement import place
from strategies.quotas import Quotas, held, quotas
from strategies.saving import moving, save_moves
from strategies.table import Table
from strategies.units import Units, fold, unfold
from strategies.validity import check


class StickyBalanced:
    name = "sticky_balanced"

    def assign(self, problem: Problem) -> Solution:
        check(problem)
        if problem.members.count == 0:
            return _nobody(problem)
        units = fold(problem)
        unavoidable = must_move(problem)
        if (problem.members.cap != NONE).any():
            owner, bound = _settle(units, problem.members), 0
        else:
            owner, bound = _solve(units, problem.members)
        owner = unfold(units, problem, owner)
        return Solution(owner, keep_standbys(problem, owner), Explanation(problem, owner, unavoidable + bound))


def _solve(units: Units, members: Members) -> tuple[IntArray, int]:
    """New owners of units, and a lower bound on the moves among those that may stay."""
    now = held(units, members)
    plan = quotas(units, members, now)
    table, bound = plan.table, _lower_bound(plan)
    deal(table, plan.potential, plan.target)
    capped = bool((table.load > table.room).any())
    if capped:
        caps.enforce(table, plan.potential)
    balance(table, plan.potential, plan.target)
    if capped:
        caps.place(table, plan.potential)
    save_moves(table, plan.potential, moving(table) - bound)
    return place(units, now, table), bound


def _settle(units: Units, members: Members) -> IntArray:
    """With caps one pass is not always the last word: go on while the result gets better, by a measure that can't
    fall for ever."""
    present = units.owner
    potential = quotas(units, members, held(units, members)).potential
    worth = measure(units, members, potential, present)
    while True:
        owner, _ = _solve(replace(units, owner=present), members)
        value = measure(units, members, potential, owner)
        if value >= worth:
            return present
        present, worth = owner, value


def _nobody(problem: Problem) -> Solution:
    owner = np.full(len(problem.owner), NONE, np.int32)
    return Solution(owner, keep_standbys(problem, owner), Explanation(problem, owner, 0))


def _lower_bound(plan: Quotas) -> int:
    """What members have above their shares, per topic or over all, whichever says more."""
    table = plan.table
    by_row = _excess_by_row(table)
    if plan.target is None or bool((table.size > 1).any()) or bool(table.fixed.any()):
        return by_row
    over = (table.held.sum(axis=0) - plan.target).clip(min=0)
    return max(by_row, round(float(over[table.taker.any(axis=0)].sum())))


def _excess_by_row(table: Table) -> int:
    over = np.maximum(table.held - table.base, 0)
    kept = np.minimum(table.sticky.sum(axis=1), table.extras)
    return int(table.size @ (over.sum(axis=1) - kept))


strategy = StickyBalanced()
