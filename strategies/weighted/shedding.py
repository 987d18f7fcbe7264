"""Unloads overloaded members in bulk, by as few partitions as possible.

Members above the upper limit release their heaviest units until they are below it; the last one is the lightest that is
enough. If that is less than the members below the lower limit lack, the heaviest units of others are added, as long as
their owners stay above the lower limit themselves. The result is not exact: `assigner.strategies.weighted.local_search`
finishes one by one.
"""

from __future__ import annotations

import numpy as np

from assigner.strategies.problem.shares import Indices
from assigner.strategies.weighted.parts import Part, by_number, running
from assigner.strategy import NONE, BoolArray, FloatArray

_SPARE = 4
"""The factor by which more heavy units are examined than are likely to be needed."""


def enforce_caps(part: Part) -> None:
    """Free the units of members above their cap, the lightest first."""
    for member in np.flatnonzero(part.room < 0).tolist():
        mine = np.flatnonzero(part.owner == member)
        mine = mine[np.argsort(part.weight[mine] / part.size[mine], kind="stable")]
        before = np.cumsum(part.size[mine]) - part.size[mine]
        part.give(mine[before < -part.room[member]], NONE)


def unload(part: Part, goal: FloatArray, wide: FloatArray, narrow: FloatArray) -> None:
    """Free units so that members further than `wide` from their goals come as near as `narrow`."""
    excess = part.load - goal
    leaving = _above(part, excess, wide, narrow)
    lacking = float(np.where(excess < -wide, -narrow - excess, 0.0).sum() - part.weight[leaving].sum())
    part.give(leaving, NONE)
    if lacking > 0:
        part.give(_heavy_ones(part, part.load - goal, narrow, lacking), NONE)


def _above(part: Part, excess: FloatArray, wide: FloatArray, narrow: FloatArray) -> Indices:
    """Choose, for each member above its limit, the fewest heaviest units that cover the excess."""
    units = _fitting(part, part.sort(_of(part, excess > wide)), excess + narrow)
    if not len(units):
        return units
    owner, weight = part.owner[units], part.weight[units]
    need = (excess - narrow)[owner]
    first = np.flatnonzero(np.diff(owner, prepend=-1))
    before = running(weight, first) - weight
    leaves = before < need
    # The last of them is replaced by the lightest unit that covers the rest.
    last = np.add.reduceat(leaves, first) + first - 1
    rest = np.zeros(part.count)
    rest[owner[last]] = (need - before)[last]
    covering = np.add.reduceat(weight >= rest[owner], first)
    leaves[last] = False
    better = np.where(covering > 0, first + covering - 1, last)
    # Without it the owner must not be below its lower limit.
    leaves[better[before[last] + weight[better] <= (excess + narrow)[owner[last]]]] = True
    return np.asarray(units[leaves])


def _heavy_ones(part: Part, excess: FloatArray, band: FloatArray, lacking: float) -> Indices:
    """Choose the heaviest units that members can spare, as many as cover what is lacking."""
    spare = excess + band
    candidates = part.sort(_of(part, excess > -band))
    candidates = candidates[part.weight[candidates] <= spare[part.owner[candidates]]]
    if not len(candidates):
        return candidates
    count = int(_SPARE * lacking / float(part.weight[candidates].mean())) + 64
    units = _fitting(part, candidates[:count], spare)
    first = np.flatnonzero(np.diff(part.owner[units], prepend=-1))
    spared = np.zeros(len(part.units), np.bool_)
    spared[units] = running(part.weight[units], first) <= spare[part.owner[units]]
    units = candidates[spared[candidates]]
    covered = np.cumsum(part.weight[units]) - part.weight[units]
    return np.asarray(units[covered < lacking])


def _of(part: Part, members: BoolArray) -> BoolArray:
    """Whether the owner of each unit is one of these members."""
    return np.asarray((part.owner != NONE) & members[part.owner])


def _fitting(part: Part, units: Indices, most: FloatArray) -> Indices:
    """Select units that are no heavier than their owner can give, by owner, else in the given order."""
    units = units[part.weight[units] <= most[part.owner[units]]]
    return np.asarray(units[by_number(part.owner[units], part.count)])
