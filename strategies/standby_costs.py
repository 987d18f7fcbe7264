"""What is wrong with a seating, as weights.

In this order: copies where they must not be (on the owner, twice on a member, where nobody asked for the topic, new on
a member on hold), copies in the rack of the owner or of another copy, copies that could not all be promoted
(`strategies.standby_limits`), and copies that have to be built. Each weighs more than any change of the later ones
that one exchange of two copies can bring.
"""

from __future__ import annotations

import numpy as np

from assigner.strategy import NONE, BoolArray, FloatArray, IntArray
from strategies.standby_copies import Keys, Numbers, contains
from strategies.standby_limits import Counts, Limits
from strategies.standby_shares import Pool, least_copies
from strategies.standby_slots import Slots

BUILD = 1
COLD = 4
RACK = 32
WRONG = 256
"""Times the copies of a unit, since an exchange may bring that many copies into one rack."""


class Costs:
    """Of copies on members, whether they are there or might be. Units that are ghosts may be anywhere, but two of
    them must not be on one member."""

    def __init__(self, given: Pool, slots: Slots) -> None:
        copies = self._copies = given.copies
        members = copies.members
        self._slots = slots
        self._limits = Limits(given)
        self.wrong = WRONG * copies.width
        ghosts = slots.count - slots.ghosts
        self.owner = np.append(copies.owner, np.full(ghosts, members.count, np.int32))
        self.row = np.append(copies.row, np.full(ghosts, copies.units.count, np.int32))
        self._wanted = np.concatenate((copies.units.wanted, np.ones((1, members.count), np.bool_)))
        racks = members.rack[given.wanted.any(axis=0)]
        self._racks = len(np.unique(racks[racks != NONE])) > 1
        self._owner_rack = np.append(members.rack, np.int32(NONE))[self.owner]
        self._pairs = Counts((members.count + 1) * members.count)
        self._row_pairs = Counts((copies.units.count + 1) * (members.count + 1) * members.count)
        self.by_row = self._limits.by_row
        self._least = least_copies(given)
        self.now = np.zeros(0, np.int64)
        """[slot]: what is wrong with its copy, pairs aside."""

    def count(self) -> None:
        """Take everything as it is seated now."""
        unit, member = self._slots.unit, self._slots.member
        self.now = self.alone(unit, self._slots.column, member)
        self._pairs.take(self.pair(unit, member))
        if self.by_row:
            self._row_pairs.take(self.row_pair(unit, member))

    def exchange(self, first: Numbers, second: Numbers) -> None:
        slots = self._slots
        units = slots.unit[np.concatenate((first, second))]
        slots.exchange(first, second)
        changed = slots.place[units].reshape(-1)
        changed = changed[changed != NONE]
        self.now[changed] = self.alone(slots.unit[changed], slots.column[changed], slots.member[changed])
        self._pairs.take(self.pair(slots.unit, slots.member))
        if self.by_row:
            self._row_pairs.take(self.row_pair(slots.unit, slots.member))

    def alone(self, unit: Numbers, column: Numbers, member: Numbers) -> Keys:
        """What is wrong with this copy of the unit if it is on the member, pairs aside."""
        slots, copies = self._slots, self._copies
        keys = copies.key(unit, member)
        new = ~contains(copies.held, keys) & (unit < slots.ghosts)
        wrong = self.owner[unit] == member
        if copies.members.hold.any():
            wrong |= copies.members.hold[member] & new
        if len(copies.barred):
            wrong |= contains(copies.barred, keys)
        near, twice = self._beside(unit, column, member)
        # The first seating has only topics that members want. Once that is lost, two alone can't mend it.
        strange = ~self._wanted[self.row[unit], member]
        return np.asarray(BUILD * new + RACK * near + self.wrong * ((wrong | twice) + 4 * strange))

    def _beside(self, unit: Numbers, column: Numbers, member: Numbers) -> tuple[Keys, BoolArray]:
        """How many of owner and other copies are in the member's rack, and whether one is on the member itself."""
        slots, rack = self._slots, self._copies.members.rack
        here = rack[member]
        near = (self._owner_rack[unit] == here).astype(np.int64)
        twice = np.zeros(len(unit), np.bool_)
        for other in range(slots.place.shape[1] if slots.place.shape[1] > 1 else 0):
            slot = slots.place[unit, other]
            there = (slot != NONE) & (column != other)
            where = slots.member[slot]
            twice |= there & (where == member)
            near += there & (rack[where] == here)
        return near * (self._racks & (here != NONE)), twice

    # Keys begin with the member, since slots are in the order of members: looking them up in that order is fast.

    def pair(self, unit: Numbers, member: Numbers) -> Keys:
        return np.asarray(member.astype(np.int64) * (self._copies.members.count + 1) + self.owner[unit])

    def row_pair(self, unit: Numbers, member: Numbers) -> Keys:
        return np.asarray(self.pair(unit, member) * (self._copies.units.count + 1) + self.row[unit])

    def spare(self, unit: Numbers, member: Numbers) -> IntArray:
        """How many more copies of what the unit's owner owns may be on the member; below 0: too many are there."""
        return self._limits.of_pair(self.owner[unit], member) - self._pairs.of(self.pair(unit, member))

    def row_spare(self, unit: Numbers, member: Numbers) -> IntArray:
        limit = self._limits.of_row(self.row[unit], self.owner[unit], member)
        return limit - self._row_pairs.of(self.row_pair(unit, member))

    def weight(self, unit: Numbers) -> Keys:
        """Of one copy too many in a pair. Two ghosts on a member, which then has too few copies, are better than a copy
        where it must not be, and worse than anything else."""
        return np.where(unit < self._slots.ghosts, COLD, self.wrong // 2)

    def avoidable(self) -> BoolArray:
        """[slot]: whether there are too many of the pair, and not just because the member's share is so large."""
        slots = self._slots
        most = self._limits.of_member()
        bound = np.maximum(self._least - most, 0)
        excess = self._excess()
        some = (excess > 0) & (np.bincount(slots.member, excess, len(most)) > bound + 0.5)[slots.member]
        if self.by_row:
            some |= self.row_spare(slots.unit, slots.member) < 0
        return np.asarray(some)

    def bad(self, slot: Numbers) -> BoolArray:
        """[slot]: whether anything is wrong with it that is worse than having to be built."""
        unit, member = self._slots.unit[slot], self._slots.member[slot]
        wrong = (self.now[slot] >= RACK) | (self.spare(unit, member) < 0)
        return wrong | (self.row_spare(unit, member) < 0) if self.by_row else wrong

    def _excess(self) -> FloatArray:
        """[slot]: its part of what is too many in its pair."""
        unit, member = self._slots.unit, self._slots.member
        return np.maximum(-self.spare(unit, member), 0) / self._pairs.of(self.pair(unit, member))

    def worth(self) -> tuple[int, int]:
        """(copies in one rack, copies that could not be promoted) as they are seated now."""
        near, _ = self._beside(self._slots.unit, self._slots.column, self._slots.member)
        return int(near.sum()), round(float(self._too_many().sum()))

    def total(self) -> int:
        """All that is wrong."""
        return int(self.now.sum()) + round(float((self._too_many() * self.weight(self._slots.unit)).sum()))

    def _too_many(self) -> FloatArray:
        unit, member = self._slots.unit, self._slots.member
        excess = self._excess()
        if self.by_row:
            rows = np.maximum(-self.row_spare(unit, member), 0)
            excess = excess + rows / self._row_pairs.of(self.row_pair(unit, member))
        return excess

    def gifts(self) -> Keys:
        """[slot, slot]: what changes if the copy of the first goes to the place of the second, whose own goes away."""
        slots, count = self._slots, len(self._slots.unit)
        giver, taker = np.repeat(np.arange(count), count), np.tile(np.arange(count), count)
        unit, here, there = slots.unit[giver], slots.member[giver], slots.member[taker]
        change = self.alone(unit, slots.column[giver], there) - self.now[giver]
        pairs = (self.spare(unit, there) <= 0).astype(np.int64) - (self.spare(unit, here) < 0)
        if self.by_row:
            pairs += (self.row_spare(unit, there) <= 0).astype(np.int64) - (self.row_spare(unit, here) < 0)
        change += self.weight(unit) * pairs
        return np.where(here == there, 0, change).reshape(count, count)
