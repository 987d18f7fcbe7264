"""What is wrong with a seating, as weights.

In this order: copies where they must not be (on the owner, twice on a member, where nobody asked for the topic, new on
a member on hold), copies in the rack of the owner or of another copy, copies that have to be built, and copies that
could not all be promoted (`strategies.standby_limits`). Each weighs more than any change of the later ones that one
exchange of two copies can bring.

Building comes before promoting, because a copy that could not be promoted costs something only if its owner is the one
that dies, and is no copy at all while it is being built elsewhere.
"""

from __future__ import annotations

import numpy as np

from assigner.strategy import NONE, BoolArray, FloatArray, IntArray
from strategies.standby_copies import Keys, Numbers, contains
from strategies.standby_limits import UNLIMITED, Counts, PairLimits, RowLimits
from strategies.standby_shares import Pool, least_copies
from strategies.standby_slots import Slots

COLD = 1
BUILD = 8
RACK = 32
WRONG = 256
"""Times the copies of a unit, since an exchange may bring that many copies into one rack."""


class Costs:
    """Of copies on members, whether they are there or might be. A ghost may be where one copy less may be, and two of
    them must not be on one member."""

    def __init__(self, given: Pool, slots: Slots) -> None:
        copies = self._copies = given.copies
        members = copies.members
        self._slots = slots
        self._limits, self._row_limits = PairLimits(given), RowLimits(given)
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
        self.by_row = self._row_limits.needed
        self._least, _ = least_copies(given)
        self.now = np.zeros(0, np.int64)
        """[slot]: what is wrong with its copy, pairs aside."""
        self.beyond = np.zeros(members.count + 1, np.int32)
        """[owner]: how many more members would have to be promoted to a remainder than there are remainders."""

    def count(self) -> None:
        """Take everything as it is seated now."""
        self.now = self.alone(self._slots.unit, self._slots.column, self._slots.member)
        self._count_pairs()

    def _count_pairs(self) -> None:
        unit, member = self._slots.unit, self._slots.member
        keys = self.pair(unit, member)
        self._pairs.take(keys)
        if self.by_row:
            self._row_pairs.take(self.row_pair(unit, member))
        count = self._pairs.of(keys)
        self._lucky = (count > self._limits.sure(self.owner[unit], member)) & self._divides(unit, member)
        self._in_pair = count
        # Each copy of a pair counts for its part of it.
        used = np.bincount(self.owner[unit], self._lucky / count, len(self.beyond))
        self.beyond = np.round(used).astype(np.int32) - self._limits.remainders

    def exchange(self, first: Numbers, second: Numbers) -> None:
        slots = self._slots
        units = slots.unit[np.concatenate((first, second))]
        slots.exchange(first, second)
        changed = slots.place[units].reshape(-1)
        changed = changed[changed != NONE]
        self.now[changed] = self.alone(slots.unit[changed], slots.column[changed], slots.member[changed])
        self._count_pairs()

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
        return self._limits.most(self.owner[unit], member) - self._pairs.of(self.pair(unit, member))

    def _divides(self, unit: Numbers, member: Numbers) -> BoolArray:
        """Whether the member's share after the owner's death has a remainder."""
        owner = self.owner[unit]
        return np.asarray(self._limits.most(owner, member) > self._limits.sure(owner, member))

    def leaning(self, unit: Numbers, here: Numbers, there: Numbers) -> IntArray:
        """By how much more the copies of what the unit's owner owns lean on remainders if this one goes there."""
        owner = self.owner[unit]
        starts = self._limits.sure(owner, there) == self._pairs.of(self.pair(unit, there))
        ends = self._limits.sure(owner, here) + 1 == self._pairs.of(self.pair(unit, here))
        lean = (starts & self._divides(unit, there)).astype(np.int32)
        return np.asarray(lean - (ends & self._divides(unit, here)))

    def moved(self, unit: Numbers, here: Numbers, there: Numbers) -> Keys:
        """What the pairs gain or lose if this copy goes there."""
        change = self.weight(unit) * ((self.spare(unit, there) <= 0).astype(np.int64) - (self.spare(unit, here) < 0))
        beyond = self.beyond[self.owner[unit]]
        after = np.maximum(beyond + self.leaning(unit, here, there), 0)
        return np.asarray(change + COLD * (after - np.maximum(beyond, 0)))

    def row_moved(self, unit: Numbers, here: Numbers, there: Numbers) -> Keys:
        change = (self.row_spare(unit, there) <= 0).astype(np.int64) - (self.row_spare(unit, here) < 0)
        return np.asarray(COLD * change)

    def row_spare(self, unit: Numbers, member: Numbers) -> IntArray:
        limit = self._row_limits.most(self.row[unit], self.owner[unit], member)
        return limit - self._row_pairs.of(self.row_pair(unit, member))

    def weight(self, unit: Numbers) -> Keys:
        """Of one copy too many in a pair. Two ghosts on a member, which then has too few copies, are better than a copy
        where it must not be, and worse than anything else."""
        return np.where(unit < self._slots.ghosts, COLD, self.wrong // 2)

    def avoidable(self) -> BoolArray:
        """[slot]: whether there are too many of the pair, and not just because the members' shares are so large."""
        member, owner = self._slots.member, self.owner[self._slots.unit]
        most, sure = self._limits.of_member()
        excess = self._excess()
        bound = np.maximum(self._least - most, 0)
        some = (excess > 0) & (np.bincount(member, excess, len(most)) > bound + 0.5)[member]
        there = self._limits.remainders[:-1]
        bound = np.maximum(self._least - sure, 0).sum() - there[there < UNLIMITED].sum()
        if np.maximum(self.beyond[:-1], 0).sum() > max(bound, 0):
            some |= self._lucky & (self.beyond[owner] > 0)
        if self.by_row:
            some |= self.row_spare(self._slots.unit, member) < 0
        return np.asarray(some)

    def built(self) -> BoolArray:
        """[slot]: whether its copy has to be built."""
        return np.asarray(self.now % RACK >= BUILD)

    def bad(self, slot: Numbers) -> BoolArray:
        """[slot]: whether anything is wrong with it that is worse than having to be built."""
        unit, member = self._slots.unit[slot], self._slots.member[slot]
        wrong = (self.now[slot] >= RACK) | (self.spare(unit, member) < 0)
        wrong |= self._lucky[slot] & (self.beyond[self.owner[unit]] > 0)
        return wrong | (self.row_spare(unit, member) < 0) if self.by_row else wrong

    def _excess(self) -> FloatArray:
        """[slot]: its part of what is too many in its pair."""
        spare = self._limits.most(self.owner[self._slots.unit], self._slots.member) - self._in_pair
        return np.asarray(np.maximum(-spare, 0) / self._in_pair)

    def in_one_rack(self) -> int:
        """Copies in the rack of the owner or of another copy, as they are seated now."""
        near, _ = self._beside(self._slots.unit, self._slots.column, self._slots.member)
        return int(near.sum())

    def total(self) -> int:
        """All that is wrong."""
        pairs = round(float((self._too_many() * self.weight(self._slots.unit)).sum()))
        return int(self.now.sum()) + pairs + COLD * self._over_remainders()

    def _over_remainders(self) -> int:
        return int(np.maximum(self.beyond, 0).sum())

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
        change += self.moved(unit, here, there)
        if self.by_row:
            change += self.row_moved(unit, here, there)
        return np.where(here == there, 0, change).reshape(count, count)
