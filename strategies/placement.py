"""From counts to owners: everyone keeps its units with the lowest numbers, and free ones fill what is missing.

Free units are handed out in order, to members in order, so that fresh shares are ranges.
"""

from __future__ import annotations

import numpy as np

from assigner.strategy import NONE, BoolArray, IntArray
from strategies.quotas import Held
from strategies.table import Table
from strategies.units import Units


def place(units: Units, now: Held, table: Table) -> IntArray:
    """The new owner of every unit."""
    owner = now.owner.copy()
    offsets = units.offsets.tolist()
    members = np.arange(table.held.shape[1], dtype=np.int32)
    for row in range(units.count):
        part = slice(offsets[row], offsets[row + 1])
        count, have = table.count(row), table.held[row]
        surplus = have > count
        if surplus.any():
            _shed(owner[part], now.fixed[part], surplus, count - table.fixed[row])
            have = np.minimum(have, count)
        free = np.flatnonzero((owner[part] == NONE) & ~now.fixed[part])
        if len(free):
            new = np.repeat(members, count - have)
            owner[part][free[: len(new)]] = new
    return owner


def _shed(owner: IntArray, fixed: BoolArray, surplus: BoolArray, keep: IntArray) -> None:
    """Free what members with a surplus have beyond `keep` loose units, the highest numbers first."""
    loose = np.flatnonzero((owner != NONE) & ~fixed)
    loose = loose[surplus[owner[loose]]]
    holder = owner[loose]
    # Sorting 16-bit numbers is ten times as fast.
    narrow = holder.astype(np.int16) if len(keep) < 2**15 else holder
    order = np.argsort(narrow, kind="stable")
    ordered = holder[order]
    first = np.searchsorted(ordered, ordered, side="left")
    rank = np.arange(len(ordered)) - first
    owner[loose[order[rank >= keep[ordered]]]] = NONE
