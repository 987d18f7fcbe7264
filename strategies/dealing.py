"""Who gets the extras, at first: those that have such a unit already, then those that have the least.

Rows with the fewest takers are dealt first, because they leave the least choice. Where members have a target, one
that could no longer reach it by skipping a row is served before all others. What this leaves unbalanced is left to
`strategies.balancing`.
"""

from __future__ import annotations

import numpy as np

from assigner.strategy import FloatArray
from strategies.goals import NO_TARGET
from strategies.shares import EPSILON, Indices, lowest
from strategies.table import Potential, Table


def deal(table: Table, potential: Potential, target: FloatArray) -> None:
    if _settled(table):
        table.extra[:] = table.sticky
        table.load += table.size @ table.extra
        return
    rows = np.flatnonzero(table.extras)
    takers = table.taker[rows].sum(axis=1)
    ahead = (table.size[rows] @ table.open[rows]).astype(np.float64)
    # Without a target everybody may have more, and nobody has to.
    ahead[target == NO_TARGET] = np.inf
    for row in rows[np.argsort(takers, kind="stable")].tolist():
        chosen = _choose(table, potential, row, target - table.load, ahead)
        ahead = ahead - table.size[row] * table.open[row]
        table.extra[row, chosen] = True
        table.load[chosen] += table.size[row]


def _settled(table: Table) -> bool:
    """Whether the present ownership is an answer already, so far as single rows are concerned."""
    most = table.base + table.open
    fits = bool(((table.held >= table.base) & (table.held <= most)).all())
    return fits and bool((table.sticky.sum(axis=1) == table.extras).all())


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
    count = int(table.extras[row])
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
