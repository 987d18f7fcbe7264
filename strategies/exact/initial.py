"""Finds a good initial assignment quickly, as counts [row, member]; `exact.improve` makes it optimal.

Several are tried and the best is used. `assign_remainders` makes every row even, which is a good start where totals
become even too: a row's remainders go to members that own such a unit today, then to those with the least load. Rows
with the fewest eligible members come first, because they leave the least choice; a member that can't reach its target
without this row comes before all others. Then `balance` evens out the loads and `save_moves` undoes needless moves.
`water_fill` is a good start where only totals matter. The present counts are used if nothing has to change.

With racks, `split_by_class` then splits each topic's counts by class.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from assigner.strategies.exact import caps
from assigner.strategies.exact.model import FlowProblem, costs_above_moves
from assigner.strategies.exact.network import UNLIMITED
from assigner.strategies.exact.table import Potential, Table
from assigner.strategies.exact.targets import NO_TARGET, CountTargets, Quotas
from assigner.strategies.problem.shares import EPSILON, Indices, fair_shares, lowest, relative
from assigner.strategy import BoolArray, FloatArray, IntArray, Members

# --- even per row -----------------------------------------------------------------------------------------------------


def assign_remainders(table: Table, potential: Potential, target: FloatArray) -> None:
    if _is_solved(table):
        table.remainder[:] = table.sticky
        table.load += table.size @ table.remainder
        return
    rows = np.flatnonzero(table.remainders)
    takers = table.taker[rows].sum(axis=1)
    ahead = (table.size[rows] @ table.open[rows]).astype(np.float64)
    # A member without a target may have more and never has to.
    ahead[target == NO_TARGET] = np.inf
    for row in rows[np.argsort(takers, kind="stable")].tolist():
        chosen = _choose(table, potential, row, target - table.load, ahead)
        ahead = ahead - table.size[row] * table.open[row]
        table.remainder[row, chosen] = True
        table.load[chosen] += table.size[row]


def _is_solved(table: Table) -> bool:
    """Whether the present ownership is even in every single row."""
    most = table.base + table.open
    fits = bool(((table.held >= table.base) & (table.held <= most)).all())
    return fits and bool((table.sticky.sum(axis=1) == table.remainders).all())


def _choose(
    table: Table,
    potential: Potential,
    row: int,
    missing: FloatArray,
    ahead: FloatArray,
) -> Indices:
    open_, sticky = table.open[row], table.sticky[row]
    short = missing > EPSILON
    urgent = open_ & short & (missing >= ahead - EPSILON)
    count = int(table.remainders[row])
    keepers = sticky & short
    if int(keepers.sum()) == count and not (urgent & ~sticky).any():
        return np.flatnonzero(keepers)
    score = potential.emptiness(table.load)
    chosen: list[Indices] = []
    left = open_.copy()
    for wanted in (urgent, keepers, short, sticky, open_):
        if count == 0:
            break
        some = lowest(score, left & wanted, count)
        chosen.append(some)
        left[some] = False
        count -= len(some)
    return np.concatenate(chosen)


# --- water-filling ----------------------------------------------------------------------------------------------------

_ROUNDS = 2
"""How often each row is filled: the second time takes into account what the first changed in other rows."""


def water_fill(table: Table, total: IntArray, weight: FloatArray, first: IntArray) -> IntArray:
    """Compute counts [row, member] by water-filling from `first` on: free units go where the load is lowest, then every
    row is filled again on top of its members' other rows. `total`: each row's units for eligible members; `weight`:
    each member's relative share of the total."""
    count = first.copy()
    load = (table.size @ count).astype(np.float64)
    rows = np.flatnonzero(table.taker.any(axis=1))
    rows = rows[np.argsort(table.taker[rows].sum(axis=1), kind="stable")]
    short = np.where(table.taker, count, 0).sum(axis=1) < total
    for row in rows[short[rows]].tolist():
        _water_fill(row, count, load, table, int(total[row]), weight, count[row])
    for _ in range(_ROUNDS):
        before = count.copy()
        for row in rows.tolist():
            _water_fill(row, count, load, table, int(total[row]), weight, table.fixed[row])
        if bool((before == count).all()):
            break
    return count


def _water_fill(
    row: int, count: IntArray, load: FloatArray, table: Table, total: int, weight: FloatArray, least: IntArray
) -> None:
    """Assign the row so that its eligible members' loads are level, with at least `least` units of it for each."""
    who, size = table.taker[row], float(table.size[row])
    other = load[who] - size * count[row, who]
    low = other + size * least[who]
    if total < int(least[who].sum()):
        return
    share = fair_shares(float(other.sum() + size * total), weight[who], low)
    assigned = _whole((share - other) / size, least[who], count[row, who], total)
    load[who] = other + size * assigned
    count[row, who] = assigned


def _whole(share: FloatArray, least: IntArray, have: IntArray, total: int) -> IntArray:
    """Round to whole units; the remainder goes to members that own such a unit today, then to the largest fractions."""
    base = np.maximum(np.floor(share + EPSILON), least)
    rest = total - int(base.sum())
    open_: BoolArray = np.ones(len(base), np.bool_)
    if rest > 0:
        base[lowest(-2.0 * (have > base) - np.round(share - base, 9), open_, rest)] += 1
    return base.astype(np.int32)


# --- even loads -------------------------------------------------------------------------------------------------------

_BALANCING_ROUNDS = 6
"""How often all rows are visited. The first visit does most; after the last, the search is faster."""


def balance(table: Table, potential: Potential, target: FloatArray) -> None:
    """Transfer remainders from the fullest givers of a row to its emptiest takers. Each step lowers the potential, so
    it ends; the lowest potential may need paths through other members, which is left to `exact.improve`. `target`: the
    load to reach, where it is known; then transfers between other members come later."""
    turns = _BALANCING_ROUNDS
    while turns and _pair_all(table, potential, target):
        turns -= 1
    while turns and _pair_all(table, potential, None):
        turns -= 1


def taking(table: Table, potential: Potential, size: float) -> FloatArray:
    """Rank members as takers; infinite for those that have no room."""
    rank = potential.taking(table.load, size)
    return np.where(table.load + size <= table.room + EPSILON, rank, np.inf)


def _pair_all(table: Table, potential: Potential, target: FloatArray | None) -> bool:
    changed = False
    for row in _candidates(table, potential):
        size = float(table.size[row])
        gives, takes = table.remainder[row], table.open[row] & ~table.remainder[row]
        if target is not None:
            gives = gives & (table.load > target + EPSILON)
            takes = takes & (table.load < target - EPSILON)
        givers, takers = np.flatnonzero(gives), np.flatnonzero(takes)
        if not len(givers) or not len(takers):
            continue
        giving, rank = potential.giving(table.load, size), taking(table, potential, size)
        if giving[givers].max() <= rank[takers].min() + EPSILON:
            continue
        # Of equals, first those for which the transfer costs no move, then the last giver and the first taker.
        givers = givers[np.lexsort((-givers, table.sticky[row, givers], -giving[givers]))]
        takers = takers[np.lexsort((takers, ~table.sticky[row, takers], rank[takers]))]
        pairs = min(len(givers), len(takers))
        count = int((giving[givers[:pairs]] > rank[takers[:pairs]] + EPSILON).sum())
        table.move(row, givers[:count], takers[:count])
        changed = changed or count > 0
    return changed


def _candidates(table: Table, potential: Potential) -> IntArray:
    """Select the rows that may be improved: none, if not even a transfer from the fullest to the emptiest helps."""
    assigned = np.flatnonzero(table.remainders)
    candidates = [np.zeros(0, np.int64)]
    for size in np.unique(table.size[assigned]):
        giving = potential.giving(table.load, float(size)).max()
        if giving > taking(table, potential, float(size)).min() + EPSILON:
            candidates.append(assigned[table.size[assigned] == size])
    return np.sort(np.concatenate(candidates)).astype(np.int32)


# --- few moves --------------------------------------------------------------------------------------------------------

_SAVING_ROUNDS = 2
"""How often all rows are visited: there is little left after that."""


def save_moves(table: Table, potential: Potential) -> None:
    """Give remainders back to members that have them today, from takers that are at least as full. Every step saves a
    move and does not raise the potential, so this ends; the minimum is left to `exact.improve`."""
    for _ in range(_SAVING_ROUNDS):
        if not _take_back(table, potential):
            return


def _take_back(table: Table, potential: Potential) -> int:
    """Give remainders back directly, each from a member that is at least as full. Returns how many partitions."""
    saved = 0
    lost = table.sticky & ~table.remainder
    for row in np.flatnonzero(lost.any(axis=1)).tolist():
        size = float(table.size[row])
        givers = np.flatnonzero(table.remainder[row] & ~table.sticky[row])
        takers = np.flatnonzero(lost[row])
        giving, rank = potential.giving(table.load, size), taking(table, potential, size)
        givers = givers[np.lexsort((-givers, -giving[givers]))]
        takers = takers[np.lexsort((takers, rank[takers]))]
        pairs = min(len(givers), len(takers))
        count = int((giving[givers[:pairs]] >= rank[takers[:pairs]] - EPSILON).sum())
        table.move(row, givers[:count], takers[:count])
        saved += count * int(size)
    return saved


def first_counts(plan: Quotas, problem: FlowProblem, members: Members, objectives: Sequence[str]) -> IntArray:
    """Choose the initial counts [row, member]. Changes the plan's table."""
    table = plan.table
    total = (table.base * table.taker).sum(axis=1) + table.remainders
    if bool(np.isfinite(table.room).any()):
        return _assign(plan, objectives)
    present = np.where(table.taker, table.held, table.fixed).astype(np.int32)
    weight = relative(members.capacity)
    if objectives.index("moves") < objectives.index("spread"):
        return water_fill(table, total, weight, present)
    assigned = _assign(plan, objectives)
    whole = bool((np.where(table.taker, present, 0).sum(axis=1) == total).all())
    if whole and costs_above_moves(problem, present, objectives) <= costs_above_moves(problem, assigned, objectives):
        return present
    if objectives[:2] == ("unowned", "spread") or _nearly_even(
        plan.targets, (problem.size @ assigned).astype(np.float64)
    ):
        return assigned
    # Where even topics and even totals conflict, use the start that is less uneven per topic once totals are even.
    filled = water_fill(table, total, weight, present)
    refilled = water_fill(table, total, weight, assigned)
    spread = ("spread", "moves")
    return (
        filled
        if costs_above_moves(problem, filled, spread) <= costs_above_moves(problem, refilled, spread)
        else assigned
    )


def _nearly_even(targets: CountTargets, load: FloatArray) -> bool:
    """Whether loads are about as even as they could be if every member could own every unit."""
    ideal, free = targets.potential.goal.copy(), targets.target == NO_TARGET
    scale = targets.potential.scale[free]
    ideal[free] = load[free].sum() * scale / scale.sum()
    return bool((np.abs(load - ideal) <= 1 + EPSILON).all())


def _assign(plan: Quotas, objectives: Sequence[str]) -> IntArray:
    table, potential = plan.table, plan.targets.potential
    assign_remainders(table, potential, plan.targets.target)
    over = bool((table.load > table.room).any())
    if over:
        caps.enforce(table, potential)
    if "balance" in objectives:
        balance(table, potential, plan.targets.target)
    if over:
        caps.place(table, potential)
    save_moves(table, potential)
    return np.asarray(table.base + table.remainder)


# --- racks ------------------------------------------------------------------------------------------------------------


def split_by_class(problem: FlowProblem, total: IntArray, supply: IntArray, moves_first: bool) -> IntArray:
    """Split each topic's counts by rack class, as initial counts [class, member]. `total` is [topic, member]; `supply`:
    the units of each class, fixed ones included.

    Per topic: units that can't move stay, then members keep units near them, then they get others near them, then the
    rest. Where moves come before racks, members keep all their units first. Classes with the fewest places near them
    choose first. Not optimal, because topics are split one by one; `exact.improve` optimises it."""
    assert problem.miss is not None
    parent = np.arange(len(supply)) if problem.parent is None else problem.parent
    first = np.flatnonzero(np.diff(parent, prepend=-1)).tolist()
    count = problem.fixed.astype(np.int32)
    for topic, (low, high) in enumerate(zip(first, [*first[1:], len(parent)], strict=True)):
        rows = slice(low, high)
        split = _ClassSplit(count[rows], total[topic] - count[rows].sum(axis=0), supply[rows] - count[rows].sum(axis=1))
        near = problem.miss[rows] == 0
        order = np.argsort((near * split.open).sum(axis=1), kind="stable").tolist()
        held, anything = problem.held[rows], np.full_like(problem.held[rows], UNLIMITED)
        if moves_first:
            split.give(order, held - count[rows])
        split.give(order, np.where(near, held - count[rows], 0))
        split.give(order, np.where(near, anything, 0))
        split.give(order, held - count[rows])
        split.give(order, anything)
    return count


class _ClassSplit:
    """Splits the counts of one topic; changes `count` in place."""

    def __init__(self, count: IntArray, open_: IntArray, left: IntArray) -> None:
        self._count, self.open, self._left = count, open_.copy(), left.copy()

    def give(self, order: list[int], more: IntArray) -> None:
        """Assign up to `more` units [class, member] of the classes in this order, as long as there are any."""
        for number in order:
            if self._left[number] > 0:
                reached = np.minimum(np.cumsum(np.minimum(more[number].clip(min=0), self.open)), self._left[number])
                given = np.diff(reached, prepend=0).astype(np.int32)
                self._count[number] += given
                self.open -= given
                self._left[number] -= int(reached[-1])
