"""Even loads out by handing extras on, in bulk: per row, the fullest givers are paired with the emptiest takers.

Each step lowers the potential, so this ends. Not promised: the lowest potential, for a gift may have to pass through
members whose own load stays as it is. That is left to `strategies.improving`.
"""

from __future__ import annotations

import numpy as np

from assigner.strategy import FloatArray, IntArray
from strategies.shares import EPSILON
from strategies.table import Potential, Table

_TURNS = 6
"""Times all rows are looked at. Most is done in the first; what takes longer is quicker done by search."""


def balance(table: Table, potential: Potential, target: FloatArray) -> None:
    """`target`: what members should end with, where that is known; gifts between others come later then."""
    turns = _TURNS
    while turns and _pair_all(table, potential, target):
        turns -= 1
    while turns and _pair_all(table, potential, None):
        turns -= 1


def taking(table: Table, potential: Potential, size: float) -> FloatArray:
    """Rank as a taker; infinite for those that have no room."""
    rank = potential.taking(table.load, size)
    return np.where(table.load + size <= table.room + EPSILON, rank, np.inf)


def _pair_all(table: Table, potential: Potential, target: FloatArray | None) -> bool:
    changed = False
    for row in _hopeful(table, potential):
        size = float(table.size[row])
        gives, takes = table.extra[row], table.open[row] & ~table.extra[row]
        if target is not None:
            gives = gives & (table.load > target + EPSILON)
            takes = takes & (table.load < target - EPSILON)
        givers, takers = np.flatnonzero(gives), np.flatnonzero(takes)
        if not len(givers) or not len(takers):
            continue
        giving, rank = potential.giving(table.load, size), taking(table, potential, size)
        if giving[givers].max() <= rank[takers].min() + EPSILON:
            continue
        # Of equals, first those for which the gift costs no move, then the last giver and the first taker.
        givers = givers[np.lexsort((-givers, table.sticky[row, givers], -giving[givers]))]
        takers = takers[np.lexsort((takers, ~table.sticky[row, takers], rank[takers]))]
        pairs = min(len(givers), len(takers))
        count = int((giving[givers[:pairs]] > rank[takers[:pairs]] + EPSILON).sum())
        table.move(row, givers[:count], takers[:count])
        changed = changed or count > 0
    return changed


def _hopeful(table: Table, potential: Potential) -> IntArray:
    """Rows worth a look: none, if the fullest member could not even give to the emptiest."""
    dealt = np.flatnonzero(table.extras)
    hopeful = [np.zeros(0, np.int64)]
    for size in np.unique(table.size[dealt]):
        giving = potential.giving(table.load, float(size)).max()
        if giving > taking(table, potential, float(size)).min() + EPSILON:
            hopeful.append(dealt[table.size[dealt] == size])
    return np.sort(np.concatenate(hopeful)).astype(np.int32)
