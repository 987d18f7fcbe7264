"""Chooses the solver of a problem in units: `uniform` where all members subscribe to the same, else `exact`.

Problems with unequal weights go to `weighted`. The result of the uniform solver stands where it meets its own lower
bound; else the exact solver starts from it. Members without a common topic are separate problems.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from assigner.strategies.exact import solver
from assigner.strategies.problem.components import components
from assigner.strategies.problem.options import ObjectiveOrder
from assigner.strategies.problem.rack_classes import Classes
from assigner.strategies.problem.units import Units
from assigner.strategies.uniform import solver as uniform
from assigner.strategies.uniform.solver import SolverResult
from assigner.strategies.weighted import solver as weighted
from assigner.strategy import NONE, IntArray, Members

FEW_CELLS = 20_000
"""Rows x members up to which a few milliseconds more don't matter."""

_TURNS = 3
"""How often a result is searched again. Once is enough but for sets of different sizes."""


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
    """Of partitions: a slot of a large set weighs more than one of a small set even if all partitions are alike."""
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
    """Search again from an unproved result until it stays the same, so that the next plan, which begins there, changes
    nothing."""
    found = _search(units, members, order, classes)
    for _ in range(_TURNS):
        if not found.unproved or found.owner is units.owner:
            break
        again = _search(replace(units, owner=found.owner), members, order, classes)
        if bool((again.owner == found.owner).all()):
            break
        bound = solver.fewest_moves(units, members, again.owner)
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
    found = solver.solve(units, members, order.objectives, classes, start)
    bound = _moves(units, found.owner) if found.proved else found.lower_bound
    return Solved(found.owner, bound, not found.proved)


def _good_enough(units: Units, quick: SolverResult, order: ObjectiveOrder) -> bool:
    cells = units.wanted.size
    # By `global`, topics are spread as long as that costs nothing: no move, and no time either.
    spread = order.balance != "global" or cells > FEW_CELLS
    return cells > solver.MOST_CELLS or (spread and _moves(units, quick.owner) == quick.lower_bound)


def _moves(units: Units, owner: IntArray) -> int:
    """In partitions, of units whose owner may keep them."""
    moved = np.flatnonzero((units.owner != NONE) & (owner != units.owner))
    row = np.searchsorted(units.offsets, moved, side="right") - 1
    may = units.wanted[row, units.owner[moved]]
    return int(units.size[row[may]].sum())
