"""The whole way from units to owners: a good first deal, made exact, and the units found that fit the counts.

The first deal is even per row and nearly so over all, and keeps most of what members have; making it exact
(`strategies.improving`) is then mostly a proof that it is. Above `MOST_CELLS` rows x members the first deal is all
there is, and the lower bound is an estimate from below.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from assigner.strategy import NONE, IntArray, Members
from strategies import caps
from strategies.balancing import balance
from strategies.bounding import lower_bound
from strategies.case import Case, settle, with_nobody
from strategies.dealing import deal
from strategies.placement import place
from strategies.pouring import pour
from strategies.quotas import Held, Quotas, held, quotas
from strategies.rack_classes import Classes
from strategies.residual import Budget
from strategies.saving import save_moves
from strategies.units import Units

MOST_CELLS = 4_000_000
"""Above this many rows x members, working memory would be in the way of everything else."""

BUDGET = 2_000_000_000
"""Places looked at before giving up on exactness: some seconds of work."""


@dataclass(frozen=True)
class Exact:
    owner: IntArray
    """New owner per unit."""
    proved: bool
    """Whether nothing is better by any of the levels."""
    lower_bound: int
    """Where it is not proved: moves, in partitions, that nothing as even as this can do without."""


def solve(
    units: Units,
    members: Members,
    levels: Sequence[str],
    classes: Classes | None,
    start: IntArray | None = None,
) -> Exact:
    """`start`: owners to begin with, if somebody knows good ones."""
    now = held(units, members)
    plan = quotas(units, members, now)
    case = _case(plan, units)
    count = _start(plan, levels, members) if start is None else _count(now.row, start, case.held.shape)
    bound = lower_bound(case, count)
    if classes is not None and classes.units.count * members.count <= MOST_CELLS:
        return _by_class(case, classes, now, place(now, count, case.held), levels, bound)
    proved = False
    if case.held.size <= MOST_CELLS:
        count, proved = _settled(case, count, units.partitions, now, levels)
    return Exact(place(now, count, case.held), proved and classes is None, bound)


def _case(plan: Quotas, units: Units) -> Case:
    table = plan.table
    # A copy, because caps change the table.
    floor, ceil = table.base.copy(), table.base + table.open
    return Case(table.held, table.fixed, table.taker, units.size, None, floor, ceil, None, plan.potential, table.room)


def _start(plan: Quotas, levels: Sequence[str], members: Members) -> IntArray:
    table = plan.table
    capped = bool(np.isfinite(table.room).any())
    if not capped and levels.index("moves") < levels.index("spread"):
        total = (table.base * table.taker).sum(axis=1) + table.extras
        return pour(table, total, members.capacity / members.capacity.max())
    deal(table, plan.potential, plan.target)
    over = bool((table.load > table.room).any())
    if over:
        caps.enforce(table, plan.potential)
    if "balance" in levels:
        balance(table, plan.potential, plan.target)
    if over:
        caps.place(table, plan.potential)
    save_moves(table, plan.potential)
    return np.asarray(table.base + table.extra)


def _count(row: IntArray, owner: IntArray, shape: tuple[int, ...]) -> IntArray:
    mine = owner != NONE
    cell = row[mine].astype(np.int64) * shape[1] + owner[mine]
    return np.bincount(cell, minlength=shape[0] * shape[1]).astype(np.int32).reshape(shape)


def _settled(case: Case, count: IntArray, units: IntArray, now: Held, levels: Sequence[str]) -> tuple[IntArray, bool]:
    budget = Budget(BUDGET)
    if not np.isfinite(case.room).any():
        return settle(case, count, levels, budget)
    # Under caps somebody may have to go without: what is not fixed and not dealt is nobody's.
    stuck = np.bincount(now.row[now.fixed & (now.owner == NONE)], minlength=len(units))
    nobodys = np.where(case.taker.any(axis=1), units - stuck - count.sum(axis=1), 0)
    count = np.concatenate((count, nobodys[:, None].astype(np.int32)), axis=1)
    count, proved = settle(with_nobody(case), count, levels, budget)
    return count[:, :-1], proved


def _by_class(case: Case, classes: Classes, now: Held, start: IntArray, levels: Sequence[str], bound: int) -> Exact:
    row = np.repeat(np.arange(classes.units.count, dtype=np.int32), classes.units.partitions)
    mine = Held(now.owner[classes.order], now.fixed[classes.order], row)
    shape = (classes.units.count, case.held.shape[1])
    topics, parent = np.unique(classes.row, return_inverse=True)
    split = Case(
        _count(row, mine.owner, shape),
        _count(row, np.where(mine.fixed, mine.owner, np.int32(NONE)), shape),
        case.taker[classes.row],
        classes.units.size,
        parent.astype(np.int32) if len(topics) < len(parent) else None,
        case.floor[topics],
        case.ceil[topics],
        classes.miss,
        case.potential,
        case.room,
    )
    count, proved = _settled(split, _count(row, start[classes.order], shape), classes.units.partitions, mine, levels)
    owner = np.empty_like(now.owner)
    owner[classes.order] = place(mine, count, split.held)
    return Exact(owner, proved, bound)
