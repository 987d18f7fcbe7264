"""Save moves without making the loads less even.

A member that lost an extra it has now takes it back from one to which it would be new. The loads are put right again
by passing on extras that are new to their holders anyway, over as many members as it takes. Every step saves a move
and does not raise the potential, so this ends.

Not promised: the minimum. Passing on an extra that its holder has now, to save two elsewhere, is not tried.
"""

from __future__ import annotations

import numpy as np

from assigner.strategy import BoolArray
from strategies.balancing import taking
from strategies.shares import EPSILON, Indices
from strategies.table import Potential, Table

_BUDGET = 20_000_000
"""Cells looked at before giving up: bounds the time spent on saving moves to a fraction of a second."""


def save_moves(table: Table, potential: Potential, avoidable: int) -> None:
    """Save up to `avoidable` moves, the distance to a known lower bound."""
    while avoidable > 0:
        saved = _take_back(table, potential)
        avoidable -= saved
        if not saved:
            break
    if avoidable > 0:
        _Exchange(table, potential, avoidable).run()


def moving(table: Table) -> int:
    """Partitions that the table takes from members."""
    surplus = table.held - table.base
    surplus -= table.extra
    return int(table.size @ np.maximum(surplus, 0, out=surplus).sum(axis=1))


def _take_back(table: Table, potential: Potential) -> int:
    """Directly, from a giver that is at least as full."""
    saved = 0
    lost = table.sticky & ~table.extra
    for row in np.flatnonzero(lost.any(axis=1)).tolist():
        size = float(table.size[row])
        givers = np.flatnonzero(table.extra[row] & ~table.sticky[row])
        takers = np.flatnonzero(lost[row])
        giving, rank = potential.giving(table.load, size), taking(table, potential, size)
        givers = givers[np.lexsort((-givers, -giving[givers]))]
        takers = takers[np.lexsort((takers, rank[takers]))]
        pairs = min(len(givers), len(takers))
        count = int((giving[givers[:pairs]] >= rank[takers[:pairs]] - EPSILON).sum())
        table.move(row, givers[:count], takers[:count])
        saved += count * int(size)
    return saved


class _Exchange:
    """Takes back one extra at a time, by a search from the member that lost it."""

    def __init__(self, table: Table, potential: Potential, avoidable: int) -> None:
        self._table = table
        self._potential = potential
        self._avoidable = avoidable
        self._budget = _BUDGET

    def run(self) -> None:
        table = self._table
        lost = np.argwhere(table.sticky & ~table.extra)
        for row, member in lost.tolist():
            if self._avoidable <= 0 or self._budget <= 0:
                return
            if table.extra[row, member]:
                continue  # An earlier exchange brought it back.
            givers = np.flatnonzero(table.extra[row] & ~table.sticky[row])
            if len(givers) and self._regain(row, member, givers):
                self._avoidable -= int(table.size[row])

    def _regain(self, row: int, member: int, givers: Indices) -> bool:
        table, size = self._table, float(self._table.size[row])
        giving = self._potential.giving(table.load, size)[givers]
        fullest = int(givers[giving.argmax()])
        rank = taking(table, self._potential, size)
        # The chain may end at a giver, or at anyone at most as full as the fullest giver will be.
        ends = rank <= giving.max() + EPSILON
        ends[givers] = True
        path = self._chain(row, member, ends)
        if path is None:
            return False
        for step, giver, taker in path:
            table.move(step, np.array([giver]), np.array([taker]))
        last = path[-1][2]
        giver = last if last in givers else fullest
        table.move(row, np.array([giver]), np.array([member]))
        return True

    def _chain(self, row: int, start: int, ends: BoolArray) -> list[tuple[int, int, int]] | None:
        """Gifts (row, giver, taker) of new extras, the first by `start`, the last to one of `ends`."""
        table = self._table
        unused = (table.size == table.size[row]) & (table.extras > 0)
        unused[row] = False
        seen = np.zeros(len(table.load), np.bool_)
        seen[start] = True
        came: dict[int, tuple[int, int]] = {}
        frontier = [start]
        while frontier and self._budget > 0:
            reached: list[int] = []
            for giver in frontier:
                self._budget -= len(unused)
                own = unused & table.extra[:, giver] & ~table.sticky[:, giver]
                for step in np.flatnonzero(own).tolist():
                    self._budget -= len(seen)
                    unused[step] = False
                    new = np.flatnonzero(table.open[step] & ~table.extra[step] & ~seen)
                    seen[new] = True
                    for member in new.tolist():
                        came[member] = (step, giver)
                    good = new[ends[new]]
                    if len(good):
                        return _path(came, start, int(good[0]))
                    reached += new.tolist()
            frontier = reached
        return None


def _path(came: dict[int, tuple[int, int]], start: int, end: int) -> list[tuple[int, int, int]]:
    path: list[tuple[int, int, int]] = []
    while end != start:
        row, giver = came[end]
        path.append((row, giver, end))
        end = giver
    return path[::-1]
