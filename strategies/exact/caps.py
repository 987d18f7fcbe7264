"""Enforces caps: units above a member's cap go to members that have room, or stay unowned.

Caps are constraints and come before balance. Where all eligible members of a unit are full, one of them makes room by
passing a unit of another row on, along a path of members; only if there is no such path does the unit stay unowned.
(Units of different sizes are not exchanged for each other.)
"""

from __future__ import annotations

import numpy as np

from assigner.strategies.exact.table import Potential, Table
from assigner.strategies.problem.shares import EPSILON, Indices


def enforce(table: Table, potential: Potential) -> None:
    for member in np.flatnonzero(table.load > table.room + EPSILON).tolist():
        _take_surplus(table, member)
    place(table, potential)
    table.sticky = (table.held > table.base) & table.open


def place(table: Table, potential: Potential) -> None:
    """Assign the units without an owner, as far as members have room."""
    for row in np.flatnonzero((table.unplaced > 0) & table.taker.any(axis=1)).tolist():
        while table.unplaced[row]:
            taker = _taker(table, potential, row)
            if taker is None and _make_room(table, row):
                taker = _taker(table, potential, row)
            if taker is None:
                break
            _take(table, row, taker)
            table.unplaced[row] -= 1


def _take_surplus(table: Table, member: int) -> None:
    """Take units from the member down to its cap: first those it does not own today, then of rows of which it has
    most."""
    while table.load[member] > table.room[member] + EPSILON:
        loose = _movable(table, member)
        if not len(loose):
            return
        count = table.base[loose, member] + table.remainder[loose, member]
        new = count - table.held[loose, member]
        row = int(loose[np.lexsort((loose, -count, -new))[0]])
        _drop(table, row, member)
        table.open[row, member] = False
        table.unplaced[row] += 1


def _movable(table: Table, member: int) -> Indices:
    """Find the rows of which the member has a unit that can move."""
    return np.flatnonzero(table.base[:, member] + table.remainder[:, member] > table.fixed[:, member])


def _drop(table: Table, row: int, member: int) -> None:
    if table.remainder[row, member]:
        table.remainder[row, member] = False
    else:
        table.base[row, member] -= 1
    table.load[member] -= table.size[row]


def _take(table: Table, row: int, member: int) -> None:
    if table.open[row, member] and not table.remainder[row, member]:
        table.remainder[row, member] = True
    else:
        table.base[row, member] += 1
    table.load[member] += table.size[row]


def _taker(table: Table, potential: Potential, row: int) -> int | None:
    """Choose the member that gets one more: one that owns such a unit today, else one with the fewest of the row."""
    size = float(table.size[row])
    takers = np.flatnonzero(table.taker[row] & (table.load + size <= table.room + EPSILON))
    if not len(takers):
        return None
    count = table.count(row)[takers]
    holds = table.held[row, takers] > count
    rank = potential.taking(table.load, size)[takers]
    return int(takers[np.lexsort((takers, rank, count, ~holds))[0]])


def _make_room(table: Table, row: int) -> bool:
    """Make room for a unit of the row at an eligible member, by transfers of other rows' units; False if none do."""
    size = table.size[row]
    room = table.load + size <= table.room + EPSILON
    came: dict[int, tuple[int, int] | None] = dict.fromkeys(np.flatnonzero(table.taker[row]).tolist())
    unused = set(np.flatnonzero(table.size == size).tolist()) - {row}
    frontier = list(came)
    while frontier:
        giver = frontier.pop(0)
        for other in _movable(table, giver).tolist():
            if other not in unused:
                continue
            unused.remove(other)
            for member in np.flatnonzero(table.taker[other]).tolist():
                if member in came:
                    continue
                came[member] = (other, giver)
                if room[member]:
                    _augment(table, came, member)
                    return True
                frontier.append(member)
    return False


def _augment(table: Table, came: dict[int, tuple[int, int] | None], end: int) -> None:
    step = came[end]
    while step is not None:
        row, giver = step
        _take(table, row, end)
        _drop(table, row, giver)
        end, step = giver, came[giver]
