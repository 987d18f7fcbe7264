"""Splits a weighted problem into independent parts.

Members that share no topic, not even through others, are in different parts, each of which is balanced on its own, so
that a new member in one moves nothing in another. Within a part, rows with the same eligible members are one kind.
Units that can't move (pins, members on hold) are in no part, and count as load only.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from assigner.strategies.problem.current_owners import CurrentOwners
from assigner.strategies.problem.shares import Indices
from assigner.strategies.problem.units import Units
from assigner.strategy import NONE, BoolArray, FloatArray, IntArray, Members

LIGHTEST = 1e-9
"""The lower limit of weights, in units of the heaviest one: smaller ones would be lost in rounding."""


@dataclass
class Part:
    """A part of a problem, with units and members renumbered; of otherwise equal members the less busy come first."""

    units: Indices
    """[unit] its number in the whole problem."""
    members: Indices
    """[member] its number in the whole problem."""
    weight: FloatArray
    """[unit] in units of the heaviest one of the whole problem."""
    size: IntArray
    """[unit] partitions."""
    kind: IntArray
    """[unit]"""
    takes: BoolArray
    """[kind, member]"""
    initial: IntArray
    """[unit] the owner at the start, or NONE."""
    owner: IntArray
    """[unit] the owner now, or NONE. Changes."""
    capacity: FloatArray
    immovable: FloatArray
    """[member] weight that can't move."""
    load: FloatArray
    """[member] total weight. Changes."""
    room: FloatArray
    """[member] partitions it may still get; infinite without a cap. Changes."""
    capped: bool

    @property
    def count(self) -> int:
        return len(self.members)

    @cached_property
    def heaviest_first(self) -> Indices:
        """All units by weight."""
        # The stable sort is several times as slow, and only ties need it.
        order = np.argsort(-self.weight)
        ordered = self.weight[order]
        ties = bool((ordered[1:] == ordered[:-1]).any())
        return np.argsort(-self.weight, kind="stable") if ties else order

    def sort(self, units: BoolArray) -> Indices:
        """Select the units for which this is true, the heaviest first."""
        return np.asarray(self.heaviest_first[units[self.heaviest_first]])

    def give_one(self, unit: int, taker: int) -> None:
        """Make `taker` the owner of a single unit that has an owner."""
        owner, weight = self.owner[unit], self.weight[unit]
        self.owner[unit] = taker
        self.load[owner] -= weight
        self.load[taker] += weight
        if self.capped:
            self.room[owner] += self.size[unit]
            self.room[taker] -= self.size[unit]

    def give(self, units: Indices, takers: IntArray | int) -> None:
        """Make `takers` the owners of units; NONE frees them."""
        weight, size = self.weight[units], self.size[units]
        before, after = self.owner[units], np.broadcast_to(np.asarray(takers, np.int32), units.shape)
        self.owner[units] = after
        for who, sign in ((before, -1.0), (after, 1.0)):
            some = who != NONE
            np.add.at(self.load, who[some], sign * weight[some])
            if self.capped:
                np.subtract.at(self.room, who[some], sign * size[some])


def by_number(numbers: IntArray, count: int) -> Indices:
    """Compute a stable order by member."""
    # Sorting 16-bit numbers is ten times as fast.
    return np.argsort(numbers.astype(np.int16) if count < 2**15 else numbers, kind="stable")


def running(weight: FloatArray, first: Indices) -> FloatArray:
    """Compute running sums within each segment, given the segments' first indices."""
    total = np.cumsum(weight)
    before = total[first] - weight[first]
    return np.asarray(total - np.repeat(before, np.diff(first, append=len(weight))))


def split(units: Units, members: Members, now: CurrentOwners, weight: FloatArray) -> list[Part]:
    takes, capped = units.wanted, bool((members.cap != NONE).any())
    if capped or members.hold.any():
        takes = takes & ~members.hold & (members.cap != 0)
    kind_of_row, kinds = _kinds(takes, units.size if capped else None)
    part_of_kind, count = _join(kinds)
    loose = np.flatnonzero(~now.fixed)
    kind = kind_of_row[now.row[loose]]
    parts = []
    for number in range(count):
        mine = np.flatnonzero(part_of_kind == number)
        who = _less_busy_first(np.flatnonzero(kinds[mine].any(axis=0)), members)
        renumbered = np.full(len(kinds), NONE, np.int32)
        renumbered[mine] = np.arange(len(mine), dtype=np.int32)
        which, of_unit = loose, renumbered[kind]
        if len(mine) < len(kinds):
            some = np.flatnonzero(of_unit != NONE)
            which, of_unit = loose[some], of_unit[some]
        part_kinds = np.ascontiguousarray(kinds[np.ix_(mine, who)])
        parts.append(_part(units, members, now, weight, which, who, of_unit, part_kinds, capped))
    return parts


def _kinds(takes: BoolArray, size: IntArray | None) -> tuple[IntArray, BoolArray]:
    """Find the kind of each row, and the eligible members as [kind, member]. With caps, rows of a kind have one
    size."""
    uniform_problem = len(takes) == 0 or bool((takes == takes[0]).all())
    if uniform_problem and (size is None or len(np.unique(size)) <= 1):
        return np.zeros(len(takes), np.int32), takes[:1]
    key = np.packbits(takes, axis=1)
    if size is not None:
        key = np.concatenate((size.astype("<i4")[:, None].view(np.uint8), key), axis=1)
    _, first, inverse = np.unique(key, axis=0, return_index=True, return_inverse=True)
    return inverse.reshape(-1).astype(np.int32), takes[first]


def _join(kinds: BoolArray) -> tuple[IntArray, int]:
    """Find the part of each kind, NONE for kinds without eligible members, and the number of parts."""
    part = np.full(len(kinds), NONE, np.int32)
    of_member = np.full(kinds.shape[1] if len(kinds) else 0, NONE, np.int32)
    for kind in np.flatnonzero(kinds.any(axis=1)).tolist():
        who = kinds[kind]
        joined = np.unique(of_member[who])
        part[kind] = kind
        part[np.isin(part, joined[joined != NONE])] = kind
        of_member[np.isin(of_member, joined[joined != NONE]) | who] = kind
    names = np.unique(part[part != NONE])
    taken = part != NONE
    part[taken] = np.searchsorted(names, part[taken])
    return part, len(names)


def _less_busy_first(who: Indices, members: Members) -> Indices:
    if members.load is None:
        return who
    busy = members.load[who]
    known = np.isfinite(busy)
    # A node that reports no load counts as average.
    busy = np.where(known, busy, busy[known].mean() if known.any() else 0.0)
    return np.asarray(who[np.argsort(busy, kind="stable")])


def _part(
    units: Units,
    members: Members,
    now: CurrentOwners,
    weight: FloatArray,
    which: Indices,
    who: Indices,
    kind: IntArray,
    takes: BoolArray,
    capped: bool,
) -> Part:
    local = np.full(members.count + 1, NONE, np.int32)
    local[who] = np.arange(len(who), dtype=np.int32)
    # The last entry of `local` is that of NONE, which as an index means the last.
    owner = local[now.owner[which]]
    kept = owner != NONE
    kept[kept] = takes[kind[kept], owner[kept]]
    owner = np.where(kept, owner, np.int32(NONE))
    mine, size = weight[which], units.size[now.row[which]]
    stuck_units = np.flatnonzero(now.fixed & (local[now.owner] != NONE))
    holder = local[now.owner[stuck_units]]
    immovable = np.bincount(holder, weight[stuck_units], len(who)).astype(np.float64)
    load = immovable + np.bincount(owner[kept], mine[kept], len(who))
    room = np.full(len(who), np.inf)
    if capped:
        cap = members.cap[who]
        taken = np.bincount(holder, units.size[now.row[stuck_units]], len(who))
        taken = taken + np.bincount(owner[kept], size[kept], len(who))
        room = np.where(cap == NONE, np.inf, cap - taken)
    capacity = members.capacity[who]
    return Part(which, who, mine, size, kind, takes, owner, owner.copy(), capacity, immovable, load, room, capped)
