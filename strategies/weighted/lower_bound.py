"""Computes how many partitions any plan must move that is as valid and as balanced as this one.

As balanced means: no member with more than one unit is further above its goal, in proportion, than the fullest such
member is now, and no member is further below than the emptiest. Then a member that is too full must give the fewest
heaviest units that cover its excess. What members lack, others must give, each no more than keeps it above the lower
limit itself, so that a heavy unit counts only up to what its owner can spare. Units without an owner fill
members without being moved.
"""

from __future__ import annotations

import numpy as np

from assigner.strategies.weighted.parts import Part, by_number, running
from assigner.strategy import NONE, BoolArray, FloatArray

_SLACK = 1e-9


def lower_bound(part: Part, goal: FloatArray, wide: FloatArray) -> int:
    """Compute a lower bound on moves, without units whose owner may not keep them."""
    owned = np.flatnonzero(part.initial != NONE)
    if bool((part.initial[owned] == part.owner[owned]).all()):
        return 0
    before = part.immovable + np.bincount(part.initial[owned], part.weight[owned], part.count)
    most, least = _as_balanced(part, goal, np.abs(before - goal) > wide)
    slack = _SLACK * (1.0 + before)
    above, spare = before - most - slack, np.maximum(before - least + slack, 0.0)
    lacking = float(np.maximum(least - before - slack, 0.0).sum() - part.weight[part.initial == NONE].sum())
    forced, gain = _gains(part, (part.initial != NONE) & (above > 0)[part.initial], above, spare)
    more = 0
    if lacking > gain[forced].sum():
        forced, gain = _gains(part, part.initial != NONE, above, spare)
        more = _fewest(gain[~forced], lacking - float(gain[forced].sum()))
    return max(int(forced.sum()) + more, _alone(part, float(most.max()))) * int(part.size.min())


def _gains(part: Part, which: BoolArray, above: FloatArray, spare: FloatArray) -> tuple[BoolArray, FloatArray]:
    """Compute for each unit whether it must leave its owner, and the most that others gain if it does."""
    units = part.sort(which)
    units = units[by_number(part.initial[units], part.count)]
    initial = part.initial[units]
    first = np.flatnonzero(np.diff(initial, prepend=-1))
    covered = running(part.weight[units], first)
    gain = np.diff(np.minimum(covered, spare[initial]), prepend=0.0)
    gain[first] = np.minimum(covered, spare[initial])[first]
    # The heaviest that cover the excess, or all but one.
    another = np.diff(initial, append=-1) == 0
    return (covered - part.weight[units] < above[initial]) & another, gain


def _as_balanced(part: Part, goal: FloatArray, outside: BoolArray) -> tuple[FloatArray, FloatArray]:
    """Compute the most and the least that members may have in a plan as balanced as this one."""
    most, least = np.full(part.count, part.load.max()), np.zeros(part.count)
    count = np.bincount(part.owner[part.owner != NONE], minlength=part.count)
    for which in (goal > 0, (goal > 0) & outside):
        ratio = part.load[which] / goal[which]
        several = ratio[count[which] > 1]
        if len(several):
            most[which] = goal[which] * several.max()
        if len(ratio):
            least[which] = goal[which] * ratio.min()
    return most, least


def _alone(part: Part, most: float) -> int:
    """Count the units that must leave members for units so heavy that each needs a member of its own."""
    giant = part.weight > most * (1.0 + _SLACK)
    if not giant.any() or bool((part.owner == NONE).any()):
        return 0
    owned = part.initial != NONE
    cost = np.bincount(part.initial[owned], minlength=part.count)
    has_one = np.zeros(part.count, np.bool_)
    has_one[part.initial[owned & giant]] = True
    cost = np.sort(cost - has_one)
    return int(cost[: int(giant.sum())].sum())


def _fewest(gain: FloatArray, amount: float) -> int:
    if amount <= 0:
        return 0
    covered = np.cumsum(np.sort(gain)[::-1])
    return min(int(np.searchsorted(covered, amount)) + 1, len(gain))
