"""`sticky_balanced` where partitions weigh differently: even loads, few moves, and none for a small change.

Every member has a goal, its fair share of the weight (`assigner.strategies.weighted.goals`): where all members may take
the same topics that is capacity x mean, the mean being the whole weight per unit of capacity, or less where a partition
is heavier than a whole share. In this order:

1. **Valid**, as `sticky_balanced` says: subscriptions, holds, caps and pins are kept.
2. **Every unit has an owner**: units without one go, the heaviest first, to a holder of a standby that stays within
   the tolerance (`assigner.strategies.weighted.placing`), else to the member furthest below its goal.
3. **Even within the tolerance** t (option `tolerance`, 0.1 for 10 %). Nothing moves for balance while every member is
   within t x goal of its goal. One that is outside is brought to within half of that, so that it is not changed
   again soon; the others stay as they are. A move that improves two members by less than t / 2 of their goals is not
   made, however far outside they are: else few heavy partitions with fluctuating weights would move back and forth for
   ever.
4. **Few moves**: the fewest and heaviest units go.

Promised where all members may take the same topics, without caps (x is a member's load less its goal):

- *Placing: load <= goal + heaviest*, or goal + t goal for promoted holders. When a unit is to be placed, all owned
  units weigh less than all goals together, so some member is below its goal and takes it: x rises from below 0 to at
  most the unit's weight. (Units heavier than a whole share are left out of the goals with one largest member each;
  among members without such a unit the same count holds.) With equal capacities a fresh plan has
  max <= mean + heaviest.
- *Afterwards: load <= goal + max(t goal, lightest + t / 2 goal)*, lightest being the member's own lightest unit (with
  unequal capacities t / 4 of its goal and t / 4 of another's). For if a member is outside and no move is made, then
  even its lightest unit outweighs the gap to some member at or below its goal, less the margins. So with equal
  capacities max <= mean + heaviest + t / 2 mean, or mean + t mean if that is more. A limit of just mean + heaviest
  would not do: 401 equal partitions on 100 members are at the best plan already, and fluctuating weights would
  move some of them every time.

Where topics or caps differ: no move of one unit lowers the sum of x^2 by as much as (3) asks, nor does a swap within
the limits of `assigner.strategies.weighted.local_search`. It always ends: every step lowers that sum
(`assigner.strategies.weighted.local_search`), placing and shedding visit each unit a fixed number of times. It is
idempotent: given its own result it returns the same.

Measured, not promised: moves within 1.1 x the lower bound where members have some 10 units or more of weights from 1
to 100, within 1.3 x of it for exponential weights from 20 units on. With few or very unequal units they are up to
twice the bound, which is weak there (docs/decisions/2026-11-16-weights-with-hysteresis.md). Racks are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from assigner.errors import InvalidInput
from assigner.strategies.problem.current_owners import held
from assigner.strategies.problem.units import Units
from assigner.strategies.uniform.solver import SolverResult
from assigner.strategies.weighted.goals import WeightGoals, goals
from assigner.strategies.weighted.local_search import MoveLimits, Steps
from assigner.strategies.weighted.lower_bound import lower_bound
from assigner.strategies.weighted.parts import LIGHTEST, Part, split
from assigner.strategies.weighted.placing import place, promote
from assigner.strategies.weighted.shedding import enforce_caps, unload
from assigner.strategy import NONE, FloatArray, Members

TOLERANCE = 0.1
_ROUNDING = 1e-9
"""Differences smaller than this, in shares or heaviest units, are none."""


def solve(units: Units, members: Members, options: Mapping[str, Any]) -> SolverResult:
    """Solve a problem with weights. Raises `InvalidInput` for an invalid tolerance."""
    tolerance = _tolerance(options)
    now = held(units, members)
    owner = np.where(now.fixed, now.owner, np.int32(NONE))
    bound = 0
    if units.weight is not None and len(units.weight):
        weight = np.maximum(units.weight / units.weight.max(), LIGHTEST)
        for part in split(units, members, now, weight):
            bound += _solve_part(part, units, tolerance)
            mine = part.owner != NONE
            owner[part.units[mine]] = part.members[part.owner[mine]]
    return SolverResult(units.owner if np.array_equal(owner, units.owner) else owner, bound)


def _tolerance(options: Mapping[str, Any]) -> float:
    value = options.get("tolerance", TOLERANCE)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    # Written so that NaN fails too.
    if not number or not 0 <= value < np.inf:
        raise InvalidInput(f"tolerance is {value!r}; it must be a finite number of at least 0 (0.1 is 10 %)")
    return float(value)


def _solve_part(part: Part, units: Units, tolerance: float) -> int:
    """Decide the owners of a part. Returns a lower bound on the moves."""
    if not len(part.units):
        return 0
    fair = goals(part)
    wide, narrow = _limits(part, fair.load, tolerance)
    if part.capped:
        enforce_caps(part)
    promote(part, units, fair.load, wide.band)
    place(part, fair)
    while Steps(part, fair.load, wide, narrow).any():
        _rebalance(part, fair, wide, narrow)
        # Under caps a step may have made room for an unowned unit; their number falls with each round.
        if not place(part, fair):
            break
    return lower_bound(part, fair.load, wide.band)


def _limits(part: Part, goal: FloatArray, tolerance: float) -> tuple[MoveLimits, MoveLimits]:
    rounding = np.full(part.count, _ROUNDING * float(1.0 + goal.max()))
    slack = tolerance * goal
    wide = MoveLimits(slack + 2 * rounding, slack / 4 + 2 * rounding)
    return wide, MoveLimits(slack / 2 + rounding, slack / 8 + rounding)


def _rebalance(part: Part, fair: WeightGoals, wide: MoveLimits, narrow: MoveLimits) -> None:
    outside = np.abs(part.load - fair.load) > wide.band
    if len(part.takes) == 1:
        unload(part, fair.load, wide.band, narrow.band)
        place(part, fair)
        _undo_needless_moves(part, fair.load, narrow.band)
    Steps(part, fair.load, wide, narrow).run(outside)
    if _undo_needless_moves(part, fair.load, narrow.band):
        Steps(part, fair.load, wide, narrow).run(outside)


def _undo_needless_moves(part: Part, goal: FloatArray, band: FloatArray) -> bool:
    """Return units to their owners where that takes neither member out of its band; whether any was returned."""
    away = np.flatnonzero((part.initial != NONE) & (part.initial != part.owner) & (part.owner != NONE))
    excess, weight = part.load - goal, part.weight[away]
    low, high = -band, band
    initial, owner = part.initial[away], part.owner[away]
    away = away[(excess[initial] + weight <= high[initial]) & (excess[owner] - weight >= low[owner])]
    sent = False
    for unit in away[np.argsort(part.weight[away], kind="stable")].tolist():
        to, by, more = int(part.initial[unit]), int(part.owner[unit]), float(part.weight[unit])
        fits = part.load[to] + more <= goal[to] + high[to] and part.load[by] - more >= goal[by] + low[by]
        if fits and part.room[to] >= part.size[unit]:
            part.give_one(unit, to)
            sent = True
    return sent
