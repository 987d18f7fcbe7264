"""Even loads out by handing extras on, until no chain of such gifts helps any more.

First in bulk: per row, the fullest givers are paired with the emptiest takers. Then by search: a gift may have to pass
through members whose own load stays as it is (A gives B one topic, B gives C another). Each step lowers the potential,
so the whole ends; and when no chain lowers it, no deal of the extras has a lower one
(rows of unequal unit size aside, which chains don't mix).
"""

from __future__ import annotations

import numpy as np

from assigner.strategy import FloatArray, IntArray
from strategies.shares import EPSILON
from strategies.table import Potential, Table


def balance(table: Table, potential: Potential, target: FloatArray | None) -> None:
    """`target`: what members should end with, where that is known; gifts between others come later then."""
    if target is not None:
        while _pair_all(table, potential, target):
            pass
    while True:
        while _pair_all(table, potential, None):
            pass
        if not _hand_through(table, potential):
            return


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


# --- chains ------------------------------------------------------------------------------------------------------


def _hand_through(table: Table, potential: Potential) -> bool:
    """Make the first chain of gifts that lowers the potential; False if there is none."""
    rows = _hopeful(table, potential)
    for size in np.unique(table.size[rows]):
        search = _Search(table, potential, rows[table.size[rows] == size], float(size))
        if search.run():
            return True
    return False


class _Search:
    """Breadth first from the fullest member on. What a fuller member could not reach anybody emptier through, a
    less full one can't either, so nothing is visited twice."""

    def __init__(self, table: Table, potential: Potential, rows: IntArray, size: float) -> None:
        self._table = table
        self._giving = potential.giving(table.load, size)
        self._taking = taking(table, potential, size)
        members = len(table.load)
        self._came_by = np.full(members, -1)
        self._came_from = np.full(members, -1)
        self._seen = np.zeros(members, np.bool_)
        self._rows = set(rows.tolist())

    def run(self) -> bool:
        least = self._taking.min()
        for start in np.lexsort((np.arange(len(self._giving)), -self._giving)).tolist():
            if self._giving[start] <= least + EPSILON:
                return False
            if not self._seen[start]:
                end = self._explore(start)
                if end is not None:
                    self._hand_along(start, end)
                    return True
        return False

    def _explore(self, start: int) -> int | None:
        self._seen[start] = True
        frontier = [start]
        while frontier:
            reached: list[int] = []
            for giver in frontier:
                reached += self._reach(giver)
            helped = [m for m in reached if self._taking[m] < self._giving[start] - EPSILON]
            if helped:
                return min(helped, key=lambda m: (self._taking[m], m))
            frontier = reached
        return None

    def _reach(self, giver: int) -> list[int]:
        extra, open_ = self._table.extra, self._table.open
        reached: list[int] = []
        for row in np.flatnonzero(extra[:, giver]).tolist():
            if row not in self._rows:
                continue
            self._rows.remove(row)
            new = np.flatnonzero(open_[row] & ~extra[row] & ~self._seen)
            self._seen[new] = True
            self._came_by[new] = row
            self._came_from[new] = giver
            reached += new.tolist()
        return reached

    def _hand_along(self, start: int, end: int) -> None:
        while end != start:
            giver = int(self._came_from[end])
            self._table.move(int(self._came_by[end]), np.array([giver]), np.array([end]))
            end = giver
