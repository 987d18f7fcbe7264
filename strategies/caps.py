"""Caps: what a member has above its cap goes to others that have room, or to nobody.

Caps are a rule, not a wish, so they come before balance. Not exact where members differ in what they subscribe to: a
chain of members that could make room for each other is not looked for, so a unit may stay unowned although one exists.
"""

from __future__ import annotations

import numpy as np

from strategies.shares import EPSILON
from strategies.table import Potential, Table


def enforce(table: Table, potential: Potential) -> None:
    for member in np.flatnonzero(table.load > table.room + EPSILON).tolist():
        _shed(table, member)
    for row in np.flatnonzero(table.unplaced).tolist():
        _place(table, potential, row)
    table.sticky = (table.held > table.base) & table.open


def _shed(table: Table, member: int) -> None:
    """Give up units that would be new first, then of the row with the most."""
    while table.load[member] > table.room[member] + EPSILON:
        count = table.base[:, member] + table.extra[:, member]
        loose = np.flatnonzero(count > table.fixed[:, member])
        if not len(loose):
            return
        new = count[loose] - table.held[loose, member]
        row = int(loose[np.lexsort((loose, -count[loose], -new))[0]])
        if table.extra[row, member]:
            table.extra[row, member] = False
        else:
            table.base[row, member] -= 1
        table.open[row, member] = False
        table.load[member] -= table.size[row]
        table.unplaced[row] += 1


def _place(table: Table, potential: Potential, row: int) -> None:
    size = float(table.size[row])
    while table.unplaced[row]:
        fits = table.taker[row] & (table.load + size <= table.room + EPSILON)
        takers = np.flatnonzero(fits)
        if not len(takers):
            return
        count = table.base[row] + table.extra[row]
        holds = table.held[row] > count
        rank = potential.taking(table.load, size)
        keys = (takers, rank[takers], count[takers], ~holds[takers])
        taker = int(takers[np.lexsort(keys)[0]])
        if table.open[row, taker] and not table.extra[row, taker]:
            table.extra[row, taker] = True
        else:
            table.base[row, taker] += 1
        table.load[taker] += size
        table.unplaced[row] -= 1
