"""Computes how many copies each member is to have, so that copies and owned partitions together are even.

Where the same members may have all units, each gets the floor or the ceiling of its share, in proportion to capacity,
around what it owns. Where they differ, copies are assigned to the emptiest members and then transferred along paths of
members, until no path makes the loads more even. Every path lowers the sum over members of load^2 / capacity, so this
ends. Present copies are counted first, so that only uneven ones are dropped.

Not promised: the most even loads when copies of sets of different sizes mix in one group.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from assigner.strategies.problem.shares import EPSILON, fair_shares, lowest
from assigner.strategies.standbys.demand import Copies, Numbers
from assigner.strategy import NONE, BoolArray, FloatArray, IntArray

_MAX_PATHS = 20_000
"""Augmenting paths after which the search is abandoned; bounds the time."""


@dataclass(frozen=True)
class Pool:
    """Units of one size, by cohort: the same members may have copies of all units of a cohort."""

    copies: Copies
    size: int
    unit: IntArray
    """Units of the pool that want copies."""
    cohort: IntArray
    """[unit of the group], NONE outside the pool"""
    wanted: BoolArray
    """[cohort, member]"""
    most: IntArray
    """[cohort, member] the most copies that the member could have."""
    load: FloatArray
    """[member] partitions it has already: what it owns, and copies of other pools."""

    @property
    def demand(self) -> IntArray:
        """The number of copies wanted per cohort."""
        missing_units = np.bincount(self.cohort[self.unit], self.copies.demand[self.unit], len(self.wanted))
        return missing_units.astype(np.int32)


@dataclass(frozen=True)
class Room:
    """The shares of members as [cohort, member]: copies to have at least, and whether one more is possible."""

    least: IntArray
    open: BoolArray
    remainders: int
    """How many of the open ones are to be used; all or none where cohorts differ."""


def pool(copies: Copies, size: int, load: FloatArray) -> Pool:
    rows = np.flatnonzero(copies.units.size == size)
    of_row, wanted = _cohorts(copies.units.wanted, rows)
    unit = np.flatnonzero((of_row[copies.row] != NONE) & (copies.demand > 0)).astype(np.int32)
    cohort = np.full(len(copies.row), NONE, np.int32)
    cohort[unit] = of_row[copies.row[unit]]
    return Pool(copies, size, unit, cohort, wanted, _most(copies, unit, cohort, wanted), load)


def room(given: Pool, kept: IntArray) -> Room:
    """Compute the shares. `kept`: [cohort, member] copies that exist."""
    if len(given.wanted) == 1:
        return _even(given)
    table = _top_up(given, kept)
    _transfer_on(given, table)
    return Room(table, np.zeros(table.shape, np.bool_), 0)


def is_even(given: Pool, kept: IntArray) -> bool:
    """Whether these counts are as even as they can be."""
    shares = room(given, kept)
    return bool(((kept >= shares.least) & (kept <= shares.least + shares.open)).all())


def fair(given: Pool, kept: IntArray) -> FloatArray:
    """Compute each member's share of copies, to compare with before copies are dropped."""
    if len(given.wanted) == 1:
        return _shares(given)
    total = given.load + given.size * kept.sum(axis=0)
    capacity = given.copies.members.capacity
    return np.asarray((total.sum() * capacity / capacity.sum() - given.load) / given.size)


def least_copies(given: Pool) -> tuple[IntArray, IntArray]:
    """Compute the least copies of each member, and whether it may have one more (1) or not (0); 0 for both where that
    depends on other members."""
    if len(given.wanted) != 1:
        return np.zeros(len(given.load), np.int32), np.zeros(len(given.load), np.int32)
    shares = _even(given)
    return shares.least[0], shares.open[0].astype(np.int32)


def unevenness(given: Pool, copied: Numbers) -> float:
    """Compute how far copies per member are from their shares; less is better."""
    load = given.load + given.size * copied
    if len(given.wanted) != 1:
        return round(float((load**2 / given.copies.members.capacity).sum()), 6)
    share = _shares(given)
    above = np.maximum(copied - np.ceil(share - EPSILON), 0)
    return round(float(((above + np.maximum(np.floor(share + EPSILON) - copied, 0)) ** 2).sum()), 6)


def _cohorts(wanted: BoolArray, rows: Numbers) -> tuple[IntArray, BoolArray]:
    of_row = np.full(len(wanted), NONE, np.int32)
    if not len(rows):
        return of_row, np.zeros((0, wanted.shape[1]), np.bool_)
    if bool((wanted[rows] == wanted[rows[0]]).all()):
        of_row[rows] = 0
        return of_row, wanted[rows[:1]]
    packed = np.packbits(wanted[rows], axis=1)
    _, first, kind = np.unique(packed, axis=0, return_index=True, return_inverse=True)
    of_row[rows] = kind.reshape(-1)
    return of_row, wanted[rows[first]]


def _most(copies: Copies, unit: IntArray, cohort: IntArray, wanted: BoolArray) -> IntArray:
    hold = copies.members.hold
    shape, count = wanted.shape, wanted.shape[1]
    cell = cohort[unit].astype(np.int64) * count + copies.owner[unit]
    own = np.bincount(cell, minlength=wanted.size).reshape(shape)
    total = np.bincount(cohort[unit], minlength=shape[0])
    most = np.where(wanted & ~hold, total[:, None] - own, 0)
    if hold.any():
        who, where = copies.split(copies.held)
        mine = (cohort[who] != NONE) & hold[where]
        cell = cohort[who[mine]].astype(np.int64) * count + where[mine]
        most = most + np.bincount(cell, minlength=wanted.size).reshape(shape)
    return most.astype(np.int32)


# --- members that may all have the same -------------------------------------------------------------------------


def _shares(given: Pool) -> FloatArray:
    most, load = given.most[0], given.load
    who = most > 0
    share = np.zeros(len(load))
    total = float(load[who].sum() + given.size * given.demand[0])
    top = load[who] + given.size * most[who]
    share[who] = fair_shares(total, given.copies.members.capacity[who], load[who], top) - load[who]
    return share / given.size


def _even(given: Pool) -> Room:
    share = _shares(given)
    least = np.floor(share + EPSILON).astype(np.int32)
    rest = int(given.demand[0]) - int(least.sum())
    open_ = (share - least > EPSILON) & (least < given.most[0])
    if rest > int(open_.sum()):
        # Sizes above one do not always divide.
        open_ = least < given.most[0]
    return Room(least[None, :], open_[None, :], max(rest, 0))


# --- members that differ ------------------------------------------------------------------------------------------


def _top_up(given: Pool, kept: IntArray) -> IntArray:
    """Assign missing copies to the emptiest members, cohorts with the fewest members first."""
    table = np.minimum(kept, given.most).astype(np.int32)
    load = given.load + given.size * table.sum(axis=0)
    demand, capacity = given.demand, given.copies.members.capacity
    for kind in np.argsort(given.wanted.sum(axis=1), kind="stable").tolist():
        missing = int(demand[kind] - table[kind].sum())
        free = given.most[kind] - table[kind]
        who = free > 0
        if missing <= 0 or not who.any():
            continue
        total = float(load[who].sum() + given.size * missing)
        top = load[who] + given.size * free[who]
        share = np.zeros(len(load))
        share[who] = (fair_shares(total, capacity[who], load[who], top) - load[who]) / given.size
        more = np.floor(share + EPSILON).astype(np.int32)
        more[lowest(-(share - more), who & (more < free), missing - int(more.sum()))] += 1
        table[kind] += more
        load += given.size * more
    return table


def _transfer_on(given: Pool, table: IntArray) -> None:
    for _ in range(_MAX_PATHS):
        load = given.load + given.size * table.sum(axis=0)
        path = _PathSearch(given, table, load).find()
        if not path:
            return
        giver, taker = path[0][1], path[-1][2]
        capacity = given.copies.members.capacity
        # As many as even out the two ends; at least one, since a path is found only where one helps.
        apart = load[giver] / capacity[giver] - load[taker] / capacity[taker]
        even = apart / (1 / capacity[giver] + 1 / capacity[taker]) / given.size
        count = max(1, int(even + EPSILON))
        for kind, source, target in path:
            count = min(count, int(table[kind, source]), int(given.most[kind, target] - table[kind, target]))
        for kind, source, target in path:
            table[kind, source] -= count
            table[kind, target] += count


class _PathSearch:
    """Searches breadth first from the fullest members; a member that leads to no emptier one is visited once only."""

    def __init__(self, given: Pool, table: IntArray, load: FloatArray) -> None:
        capacity, size = given.copies.members.capacity, float(given.size)
        self._gives = table > 0
        self._takes = table < given.most
        self._giving = (2 * load - size) / capacity
        self._taking = (2 * load + size) / capacity
        self._seen = np.zeros(len(load), np.bool_)
        self._came: dict[int, tuple[int, int]] = {}
        self._kinds = set(range(len(table)))

    def find(self) -> list[tuple[int, int, int]]:
        """Find a path as transfers (cohort, giver, taker); empty: there is none."""
        least = self._taking.min(initial=np.inf)
        for start in np.argsort(-self._giving, kind="stable").tolist():
            if self._giving[start] <= least + EPSILON:
                return []
            if not self._seen[start]:
                end = self._explore(start)
                if end is not None:
                    return self._path(start, end)
        return []

    def _explore(self, start: int) -> int | None:
        self._seen[start] = True
        frontier = [start]
        while frontier:
            giver = frontier.pop(0)
            for kind in np.flatnonzero(self._gives[:, giver]).tolist():
                if kind not in self._kinds:
                    continue
                self._kinds.remove(kind)
                new = np.flatnonzero(self._takes[kind] & ~self._seen)
                self._seen[new] = True
                self._came |= dict.fromkeys(new.tolist(), (kind, giver))
                if len(new):
                    best = int(new[self._taking[new].argmin()])
                    if self._taking[best] < self._giving[start] - EPSILON:
                        return best
                frontier += new.tolist()
        return None

    def _path(self, start: int, end: int) -> list[tuple[int, int, int]]:
        path: list[tuple[int, int, int]] = []
        while end != start:
            kind, giver = self._came[end]
            path.append((kind, giver, end))
            end = giver
        return path[::-1]
