"""Units that every member may have: the kind of problem that is solved without looking at each member and topic.

Members that are alike are interchangeable, so all that counts is how many units of each topic each of them has. What
is not of this kind (holds, caps, sets of topics, weights, subscriptions that differ) is recognised and left to others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from assigner.strategy import NONE, BoolArray, FloatArray, IntArray, Members
from strategies.shares import Indices
from strategies.units import Units

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Alike:
    partitions: Counts
    """[topic]"""
    owner: IntArray
    """[unit]"""
    pinned: BoolArray | None
    """[unit]; None: nothing is pinned."""
    capacity: FloatArray
    """[member]"""

    @property
    def members(self) -> int:
        return len(self.capacity)

    @property
    def even(self) -> bool:
        """Whether all members are to have the same."""
        return bool((self.capacity == self.capacity[0]).all())

    def to_deal(self) -> Counts:
        """[topic]: units that some member is to have; those pinned to nobody are not."""
        if self.pinned is None:
            return self.partitions
        nobodys = np.flatnonzero(self.pinned & (self.owner == NONE))
        return self.partitions - np.bincount(self.topics_of(nobodys), minlength=len(self.partitions))

    def topics_of(self, units: Indices) -> Indices:
        return np.searchsorted(np.cumsum(self.partitions), units, side="right")


def alike(units: Units, members: Members) -> Alike | None:
    """The units as such a problem, without those of topics that nobody wants; None: it is not of this kind."""
    plain = units.rows is None and units.weight is None and members.count > 0
    if not plain or units.wanted_alike is None or members.hold.any() or (members.cap != NONE).any():
        return None
    wanted = units.wanted_alike
    partitions, owner, pinned = units.partitions.astype(np.int64), units.owner, units.pinned
    if not wanted.all():
        theirs = np.repeat(wanted, partitions)
        if bool((pinned & ~theirs & (owner != NONE)).any()):
            return None
        partitions, owner, pinned = partitions[wanted], owner[theirs], pinned[theirs]
    return Alike(partitions, owner, pinned if pinned.any() else None, members.capacity)


def first_of_each(holder: IntArray, cell: Counts, keep: Counts) -> BoolArray:
    """Of units in flat order, whether each is among the first `keep` of its cell.

    A cell is a member and a topic. As flat order is by topic, sorting by member alone brings each cell together."""
    order = np.argsort(narrow(holder), kind="stable")
    ordered = cell[order]
    start = np.flatnonzero(np.concatenate((np.ones(1, np.bool_), ordered[1:] != ordered[:-1])))
    lengths = np.diff(start, append=len(ordered))
    rank = np.arange(len(ordered)) - np.repeat(start, lengths)
    among = np.empty(len(ordered), np.bool_)
    among[order] = rank < keep[order]
    return among


def narrow(numbers: NDArray[np.signedinteger]) -> NDArray[np.integer]:
    """The same numbers, none negative, in 16 bits if they fit: numpy sorts those ten times as fast."""
    return numbers.astype(np.uint16) if len(numbers) and int(numbers.max()) < 2**16 else numbers


def part(values: BoolArray, units: Indices | None) -> BoolArray:
    """The values of these units; None: of all."""
    return values if units is None else np.asarray(values[units])
