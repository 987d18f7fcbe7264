"""A first deal where only the total matters: everyone keeps what it has, and rows are poured one by one.

Free units run to where the level is lowest. Then every row is poured anew over what its members have of other rows,
which takes from the full and gives to the empty. What is left to even out is a chain or two.
"""

from __future__ import annotations

import numpy as np

from assigner.strategy import BoolArray, FloatArray, IntArray
from strategies.shares import EPSILON, fair_shares, lowest
from strategies.table import Table

_ROUNDS = 2
"""Times each row is poured anew: the second hands on what the first brought to members with other rows."""


def pour(table: Table, total: IntArray, weight: FloatArray, first: IntArray) -> IntArray:
    """[row, member] counts, from `first` on. `total` is what each row has for its takers, `weight` what each member
    should have of the whole, relatively."""
    count = first.copy()
    load = (table.size @ count).astype(np.float64)
    rows = np.flatnonzero(table.taker.any(axis=1))
    rows = rows[np.argsort(table.taker[rows].sum(axis=1), kind="stable")]
    short = np.where(table.taker, count, 0).sum(axis=1) < total
    for row in rows[short[rows]].tolist():
        _pour(row, count, load, table, int(total[row]), weight, count[row])
    for _ in range(_ROUNDS):
        before = count.copy()
        for row in rows.tolist():
            _pour(row, count, load, table, int(total[row]), weight, table.fixed[row])
        if bool((before == count).all()):
            break
    return count


def _pour(
    row: int, count: IntArray, load: FloatArray, table: Table, total: int, weight: FloatArray, least: IntArray
) -> None:
    """Deal the row so that its takers' loads are level, but nobody has less than `least` of it."""
    who, size = table.taker[row], float(table.size[row])
    other = load[who] - size * count[row, who]
    low = other + size * least[who]
    if total < int(least[who].sum()):
        return
    share = fair_shares(float(other.sum() + size * total), weight[who], low)
    dealt = _whole((share - other) / size, least[who], count[row, who], total)
    load[who] = other + size * dealt
    count[row, who] = dealt


def _whole(share: FloatArray, least: IntArray, have: IntArray, total: int) -> IntArray:
    """In whole units; the remainder goes to those that have such a unit, then to the largest fractions."""
    base = np.maximum(np.floor(share + EPSILON), least)
    rest = total - int(base.sum())
    open_: BoolArray = np.ones(len(base), np.bool_)
    if rest > 0:
        base[lowest(-2.0 * (have > base) - np.round(share - base, 9), open_, rest)] += 1
    return base.astype(np.int32)
