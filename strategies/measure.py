"""How good an ownership is, as one comparable value: smaller is better.

Used where a solution is not exact (caps): a new one replaces the present only if it is really better, so that the
search settles.
"""

from __future__ import annotations

import numpy as np

from assigner.strategy import NONE, IntArray, Members
from strategies.table import Potential
from strategies.units import Units

Measure = tuple[int, int, float, float]


def measure(units: Units, members: Members, potential: Potential, owner: IntArray) -> Measure:
    """(breaches of rules, units without an owner, unevenness per row, unevenness over all)."""
    row = np.repeat(np.arange(units.count), units.partitions)
    mine = owner != NONE
    loose = mine & ~units.pinned
    breaches = int((~units.wanted[row[loose], owner[loose]]).sum())
    size = units.size[row]
    load = np.bincount(owner[mine], size[mine], members.count).astype(np.float64)
    stuck = np.bincount(owner[mine & units.pinned], size[mine & units.pinned], members.count)
    limit = np.where(members.cap == NONE, np.inf, np.maximum(members.cap, stuck))
    breaches += int((load - limit).clip(min=0).sum())
    cells = np.bincount(row[mine] * members.count + owner[mine], minlength=units.count * members.count)
    spread = float((cells.reshape(units.wanted.shape).astype(np.float64) ** 2 / members.capacity).sum())
    return breaches, int((~mine & ~units.pinned).sum()), round(spread, 6), round(potential.of(load), 6)
