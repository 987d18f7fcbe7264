"""`sticky_balanced`: even over all topics and per topic, with as few moves as possible.

In this order:

1. **Valid.** Only subscribed members, nothing new for members on hold (they keep what they have), no more than a
   member's cap, pinned partitions stay. A partition has no owner only where no member may own it.
2. **Even over all.** Where members may take the same topics, each has the floor or the ceiling of its share of the
   total, in proportion to capacity; else no sequence of transfers makes the loads more even. Groups of members without
   a common topic are independent.
3. **Even per topic.** Each member has the floor or the ceiling of its share of every topic; where (2) prevents
   that, as near to it as possible (the sum of squared distances is minimal).
4. **Near.** As few partitions as possible on members in racks where they have no replica.
5. **Few moves.** The minimum among all results that are as good by the above.

The option `balance` changes this: `both` is the above, `topic` puts (3) before (2), `topic_only` leaves (2) out,
`global` comes without (3), which then only decides between results with equally few moves. The option `racks` puts (4)
before (5) (`before_moves`), after it (`after_moves`) or leaves it out (`ignore`).

All of this is exact and proved, and `Explanation.lower_bound` is the number of moves, as long as topics (or, with
racks, kinds of partitions) x members is at most four million, and the proof takes no more than some seconds of work.
Beyond that `Explanation.unproved` is set: owners stay, units without an owner are placed, and single transfers improve
the result as long as one does (`assigner.strategies.exact.keep_owners`); racks may be ignored, and the lower bound may
be too low. Also not proved: co-partition sets of different sizes in one group (a large one is
not exchanged for two small ones), and partitions of unequal weights, which `assigner.strategies.weighted.solver`
assigns.

It ends because every step lowers the cost of one objective and keeps those of the objectives above
(`assigner.strategies.exact.improve`). It is idempotent: given its own result it returns the same. The reported load of
nodes only decides between otherwise equal members.

Unequal weights are solved by `weighted`, equal subscriptions by `uniform`, everything else by `exact`. The result of
the uniform solver stands where it meets its own lower bound; else the exact solver starts from it. Members without a
common topic are separate problems.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from assigner.strategies.exact import solver as exact
from assigner.strategies.problem.components import components
from assigner.strategies.problem.member_order import original, renumbered, serving_order
from assigner.strategies.problem.options import ObjectiveOrder, must_move, objective_order
from assigner.strategies.problem.rack_classes import Classes, rack_classes
from assigner.strategies.problem.units import Units, fold, split_slots, unfold
from assigner.strategies.problem.validation import check
from assigner.strategies.standbys.placement import place_standbys
from assigner.strategies.standbys.promotion import prefer_standby_holders
from assigner.strategies.uniform import solver as uniform
from assigner.strategies.uniform.solver import SolverResult
from assigner.strategies.weighted import solver as weighted
from assigner.strategy import NONE, IntArray, Members, Problem, Solution
from assigner.strategy.explanation import Explanation

FEW_CELLS = 20_000
"""Rows x members up to which a few milliseconds more don't matter."""

_ATTEMPTS = 3
"""How often a result is searched again. Once is enough but for sets of different sizes."""


class StickyBalanced:
    name = "sticky_balanced"

    def assign(self, problem: Problem) -> Solution:
        check(problem)
        explained = self._owners(problem)
        return Solution(explained.owner, place_standbys(problem, explained.owner), explained)

    def place_standbys(self, problem: Problem, owner: IntArray) -> IntArray:
        return place_standbys(problem, owner)

    def _owners(self, problem: Problem) -> Explanation:
        """Compute new owners, a lower bound on the moves, and whether the result is proved optimal."""
        chosen = objective_order(self.name, problem.options)
        if problem.members.count == 0:
            return Explanation(problem, np.full(len(problem.owner), NONE, np.int32), 0)
        order = serving_order(problem.members.load)
        given = problem if order is None else renumbered(problem, order)
        units = fold(given)
        classes = None if chosen.racks == "ignore" else rack_classes(units, given)
        found = solve(units, given.members, chosen, classes, problem.options)
        kind = _kind(units, given, classes, found.unproved)
        owner = prefer_standby_holders(units, given.members, found.owner, kind)
        owner = unfold(units, given, owner)
        if order is not None:
            owner = original(owner, order)
        bound = _bound(given, units, found.lower_bound)
        return Explanation(problem, _unless_same(owner, problem), bound, unproved=found.unproved)


def _kind(units: Units, problem: Problem, classes: Classes | None, unproved: bool) -> IntArray | None:
    """Find which units may be exchanged when standbys are promoted, by kind. Where pins, holds or caps change shares,
    or the next plan might prefer other counts, counts must not change: then all units are of one kind."""
    if classes is not None:
        return classes.of_units
    counts_move = free(units, problem.members) and not unproved
    return None if counts_move else np.zeros(len(units.owner), np.int32)


def _unless_same(owner: IntArray, problem: Problem) -> IntArray:
    """Return the problem's own array if nothing changes, which saves callers the comparison."""
    return problem.owner if bool((owner == problem.owner).all()) else owner


def _bound(problem: Problem, units: Units, bound: int) -> int:
    # Of a slot whose topics have different owners, only some partitions may move.
    return must_move(problem) + (0 if split_slots(units, problem) else bound)


# --- the choice of a solver -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Solved:
    owner: IntArray
    """New owner per unit."""
    lower_bound: int
    """Moves, in partitions, among units whose owner may keep them."""
    unproved: bool = False
    """The search for the optimum ran out of budget."""


def solve(
    units: Units, members: Members, order: ObjectiveOrder, classes: Classes | None, options: Mapping[str, Any]
) -> Solved:
    if _weights_differ(units):
        heavy = weighted.solve(units, members, options)
        return Solved(heavy.owner, heavy.lower_bound)
    units = replace(units, weight=None)
    if classes is None and units.wanted_by_all is None and free(units, members):
        return _by_component(units, members, order)
    return _solve(units, members, order, classes)


def _weights_differ(units: Units) -> bool:
    """Whether partitions have different weights; the slots of larger sets weigh more even if all partitions are
    equal."""
    if units.weight is None:
        return False
    each = units.weight / np.repeat(units.size, units.partitions)
    return bool((each != each[:1]).any())


def free(units: Units, members: Members) -> bool:
    """Whether only subscriptions restrict who may own what."""
    return not (members.hold.any() or (members.cap != NONE).any() or units.pinned.any())


def _by_component(units: Units, members: Members, order: ObjectiveOrder) -> Solved:
    parts = components(units, members)
    if len(parts) == 1 and len(parts[0].which_units) == len(units.owner):
        return _solve(units, members, order, None)
    owner, bound, unproved = np.full(len(units.owner), NONE, np.int32), 0, False
    for part in parts:
        found = _solve(part.units, part.members, order, None)
        mine = np.append(part.which_members, np.int32(NONE))
        owner[part.which_units] = mine[found.owner]
        bound += found.lower_bound
        unproved |= found.unproved
    return Solved(owner, bound, unproved)


def _solve(units: Units, members: Members, order: ObjectiveOrder, classes: Classes | None) -> Solved:
    """Solve the problem, and solve it again from an unproved result until that stays the same, so that the next plan,
    which begins there, changes nothing."""
    found = _search(units, members, order, classes)
    for _ in range(_ATTEMPTS):
        if not found.unproved or found.owner is units.owner:
            break
        again = _search(replace(units, owner=found.owner), members, order, classes)
        if bool((again.owner == found.owner).all()):
            break
        bound = exact.fewest_moves(units, members, again.owner)
        found = Solved(again.owner, bound, again.unproved or bound < _moves(units, again.owner))
        if not again.unproved:
            break
    return found


def _search(units: Units, members: Members, order: ObjectiveOrder, classes: Classes | None) -> Solved:
    start = None
    if classes is None:
        quick = uniform.solve(units, replace(members, load=None), order.balance)
        if quick is not None:
            if _good_enough(units, quick, order):
                return Solved(quick.owner, quick.lower_bound, _moves(units, quick.owner) > quick.lower_bound)
            start = quick.owner
    found = exact.solve(units, members, order.objectives, classes, start)
    bound = _moves(units, found.owner) if found.proved else found.lower_bound
    return Solved(found.owner, bound, not found.proved)


def _good_enough(units: Units, quick: SolverResult, order: ObjectiveOrder) -> bool:
    cells = units.wanted.size
    # With `global`, topics are spread as long as that costs neither a move nor much time.
    spread = order.balance != "global" or cells > FEW_CELLS
    return cells > exact.MOST_CELLS or (spread and _moves(units, quick.owner) == quick.lower_bound)


def _moves(units: Units, owner: IntArray) -> int:
    """Count the moves, in partitions, of units whose owner may keep them."""
    moved = np.flatnonzero((units.owner != NONE) & (owner != units.owner))
    row = np.searchsorted(units.offsets, moved, side="right") - 1
    may = units.wanted[row, units.owner[moved]]
    return int(units.size[row[may]].sum())


strategy = StickyBalanced()
