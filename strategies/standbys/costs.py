"""Computes the weighted cost of a placement of copies, and the limits within which copies can be promoted.

The cost counts, in this order: copies where they must not be (on the owner, twice on a member, without a subscription,
new on a member on hold), copies in the rack of the owner or of another copy, copies that have to be built, and copies
that could not all be promoted. Each weighs more than any change of the later ones that one exchange of two copies can
bring. Building comes before promoting, because a copy that can't be promoted costs something only if its owner dies,
while one that has to be built elsewhere is missing until then.

`PairLimits`, `RowLimits`: after the death of `a`, each other member `b` is to own the floor or the ceiling of its new
share. So `b` can be promoted up to that floor, less what it owns already; and of all members together, as many as there
are remainders to one more. The same holds for each row by itself, where only the ceiling counts. With r copies of each
unit it is enough if `b` has no more than r times that: each orphaned unit can be divided among its r holders, and where
fractional shares fit, whole units do too. Copies above the limit would end in a cold start. Nothing is promised beyond
the ceiling of each row where subscriptions differ, and beyond the ceilings where sets of different sizes mix.
"""

from __future__ import annotations

import numpy as np

from assigner.strategies.problem.shares import EPSILON
from assigner.strategies.standbys.demand import Keys, Numbers, contains
from assigner.strategies.standbys.shares import Pool, least_copies
from assigner.strategies.standbys.slots import Slots
from assigner.strategy import NONE, BoolArray, FloatArray, IntArray

_DENSE = 2**22
"""Pairs of members up to which each pair has a counter of its own."""

UNLIMITED = 2**30


class CopyCounts:
    """Counts how often each key occurs."""

    def __init__(self, kinds: int) -> None:
        self._kinds = kinds
        self._dense: IntArray | None = None
        self._sorted: Keys = np.zeros(0, np.int64)

    def take(self, keys: Keys) -> None:
        if self._kinds <= _DENSE:
            self._dense = np.bincount(keys, minlength=self._kinds).astype(np.int32)
        else:
            self._sorted = np.sort(keys)

    def of(self, keys: Keys) -> IntArray:
        if self._dense is not None:
            return self._dense[keys]
        begin = np.searchsorted(self._sorted, keys, side="left")
        return np.asarray(np.searchsorted(self._sorted, keys, side="right") - begin).astype(np.int32)


class PairLimits:
    """Limits of copies per pair of an owner and a member, over all rows. The owner of a dummy is `no_owner`, the number
    of members; it may have one with each member that may have one copy less."""

    def __init__(self, given: Pool) -> None:
        copies = self._copies = given.copies
        members = copies.members
        self.no_owner = members.count
        self._whole = len(given.wanted) == 1
        self._exact = self._whole and bool((copies.units.size == given.size).all())
        self._scale = float(given.size) if self._exact else 1.0
        self._size = 1 if self._exact else given.size
        self._capacity = np.append(members.capacity, 0.0)
        self._own = copies.active / self._scale
        _, self._open = least_copies(given)
        self._room = np.floor((np.where(members.cap == NONE, np.inf, members.cap) - copies.active) / self._scale)
        self._who = given.wanted[0] if self._whole else np.zeros(members.count, np.bool_)
        self._all = float(members.capacity[self._who].sum()), float(self._own[self._who].sum())
        kinds, first, kind = np.unique(self._capacity, return_index=True, return_inverse=True)
        self._kind, self._first = kind.astype(np.int32), first.astype(np.int32)
        self._tables: tuple[IntArray, IntArray] | None = None
        self.remainders = np.full(self.no_owner + 1, UNLIMITED, np.int32)
        """[owner]: how many others can be promoted to one more than `sure`."""
        if len(kinds) * self.no_owner <= _DENSE:
            self._tabulate()

    def _tabulate(self) -> None:
        """Compute tables by the capacity of the owner, where there are few different ones: a lookup is faster."""
        everyone = np.arange(self.no_owner, dtype=np.int32)
        owner, member = np.meshgrid(self._first, everyone, indexing="ij")
        self._tables = self._most(owner, member), self._sure(owner, member)
        if self._exact:
            taken = np.maximum(np.floor(self._after(owner, member) + EPSILON), self._own)
            left = self._all[1] - np.where(self._who, taken, 0).sum(axis=1)[self._kind]
            left[:-1] += np.where(self._who, taken[self._kind[:-1], everyone], 0)
            self.remainders = (np.maximum(left, 0) * self._copies.width).astype(np.int32)
            self.remainders[-1] = UNLIMITED

    def most(self, owner: Numbers, member: Numbers) -> IntArray:
        """The most copies of the owner's units that the member should have."""
        return self._most(owner, member) if self._tables is None else self._tables[0][self._kind[owner], member]

    def sure(self, owner: Numbers, member: Numbers) -> IntArray:
        """The number of these that can be promoted independently of other members' copies."""
        return self._sure(owner, member) if self._tables is None else self._tables[1][self._kind[owner], member]

    def of_member(self) -> tuple[Keys, Keys]:
        """The number of copies each member could have, at most and for sure, without too many of any one owner's."""
        if self._tables is None or not self._whole:
            return np.full(self.no_owner, UNLIMITED, np.int64), np.full(self.no_owner, UNLIMITED, np.int64)
        owners = np.bincount(self._kind[:-1][self._who], minlength=len(self._first))
        everyone = np.arange(self.no_owner)
        own = np.where(self._who, 1, 0)
        most, sure = (owners @ table - own * table[self._kind[:-1], everyone] for table in self._tables)
        return most.astype(np.int64), sure.astype(np.int64)

    def _after(self, owner: Numbers, member: Numbers) -> FloatArray:
        """The member's share once the owner's capacity is gone."""
        capacity, total = self._all
        left = np.maximum(capacity - self._capacity[owner], self._capacity[member])
        return np.asarray(total * self._capacity[member] / left)

    def _most(self, owner: Numbers, member: Numbers) -> IntArray:
        if not self._whole:
            return np.full(np.broadcast_shapes(owner.shape, member.shape), UNLIMITED, np.int32)
        more = np.ceil(self._after(owner, member) - EPSILON) - self._own[member]
        return self._times(np.floor(np.minimum(more, self._room[member]) / self._size), owner, member)

    def _sure(self, owner: Numbers, member: Numbers) -> IntArray:
        if not self._exact:
            return self._most(owner, member)
        more = np.floor(self._after(owner, member) + EPSILON) - self._own[member]
        return self._times(np.minimum(more, self._room[member]), owner, member)

    def _times(self, more: FloatArray, owner: Numbers, member: Numbers) -> IntArray:
        limit = np.minimum(np.maximum(more, 0) * self._copies.width, UNLIMITED)
        return np.where(owner == self.no_owner, self._open[member], limit).astype(np.int32)


class RowLimits:
    """Limits of copies per pair of an owner and a member, within one row."""

    def __init__(self, given: Pool) -> None:
        copies = self._copies = given.copies
        self._no_owner = copies.members.count
        rows = np.unique(copies.row[given.unit])
        self.needed = len(rows) > 1 or len(given.wanted) != 1
        self._cells = CopyCounts(copies.units.count * self._no_owner)
        self._row_capacity = copies.units.wanted @ copies.members.capacity if self.needed else np.zeros(0)
        self._capacity = np.append(copies.members.capacity, 0.0)
        if self.needed:
            owned = np.flatnonzero(copies.owner != NONE)
            self._cells.take(copies.row[owned].astype(np.int64) * self._no_owner + copies.owner[owned])

    def most(self, row: Numbers, owner: Numbers, member: Numbers) -> IntArray:
        inside = np.minimum(row, self._copies.units.count - 1)
        capacity = self._capacity[member]
        left = np.maximum(self._row_capacity[inside] - self._capacity[owner], capacity)
        share = np.ceil(self._copies.units.partitions[inside] * capacity / left - EPSILON)
        more = share - self._cells.of(inside.astype(np.int64) * self._no_owner + member)
        limit = np.maximum(more, 0) * self._copies.width
        return np.where(owner == self._no_owner, UNLIMITED, limit).astype(np.int32)


COLD = 1
BUILD = 8
RACK = 32
FORBIDDEN = 256
"""Multiplied by the copies of a unit, since an exchange may bring that many copies into one rack."""


class Costs:
    """The costs of present and possible placements of copies. A dummy may be where one copy less may be, and two of
    them must not be on one member."""

    def __init__(self, given: Pool, slots: Slots) -> None:
        copies = self._copies = given.copies
        members = copies.members
        self._slots = slots
        self._limits, self._row_limits = PairLimits(given), RowLimits(given)
        self.wrong = FORBIDDEN * copies.width
        dummies = slots.count - slots.first_dummy
        self.owner = np.append(copies.owner, np.full(dummies, members.count, np.int32))
        self.row = np.append(copies.row, np.full(dummies, copies.units.count, np.int32))
        self._wanted = np.concatenate((copies.units.wanted, np.ones((1, members.count), np.bool_)))
        racks = members.rack[given.wanted.any(axis=0)]
        self._racks = len(np.unique(racks[racks != NONE])) > 1
        self._owner_rack = np.append(members.rack, np.int32(NONE))[self.owner]
        self._pairs = CopyCounts((members.count + 1) * members.count)
        self._row_pairs = CopyCounts((copies.units.count + 1) * (members.count + 1) * members.count)
        self.by_row = self._row_limits.needed
        self._least, _ = least_copies(given)
        self.now = np.zeros(0, np.int64)
        """[slot]: the cost of its copy, without that of pairs."""
        self.beyond = np.zeros(members.count + 1, np.int32)
        """[owner]: how many more members would have to be promoted to a remainder than there are remainders."""

    def count(self) -> None:
        """Compute the costs of the present placement."""
        self.now = self.alone(self._slots.unit, self._slots.column, self._slots.member)
        self._count_pairs()

    def _count_pairs(self) -> None:
        unit, member = self._slots.unit, self._slots.member
        keys = self.pair(unit, member)
        self._pairs.take(keys)
        if self.by_row:
            self._row_pairs.take(self.row_pair(unit, member))
        count = self._pairs.of(keys)
        beyond_floor = count > self._limits.sure(self.owner[unit], member)
        self._needs_remainder = beyond_floor & self._has_remainder(unit, member)
        self._in_pair = count
        # Each copy of a pair has an equal part of the pair's cost.
        used = np.bincount(self.owner[unit], self._needs_remainder / count, len(self.beyond))
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
        """The cost of this copy of the unit if it is on the member, without that of pairs."""
        slots, copies = self._slots, self._copies
        keys = copies.key(unit, member)
        new = ~contains(copies.held, keys) & (unit < slots.first_dummy)
        wrong = self.owner[unit] == member
        if copies.members.hold.any():
            wrong |= copies.members.hold[member] & new
        if len(copies.barred):
            wrong |= contains(copies.barred, keys)
        near, twice = self._beside(unit, column, member)
        # The initial placement respects subscriptions. Once that is lost, an exchange of two can't restore it.
        unsubscribed = ~self._wanted[self.row[unit], member]
        return np.asarray(BUILD * new + RACK * near + self.wrong * ((wrong | twice) + 4 * unsubscribed))

    def _beside(self, unit: Numbers, column: Numbers, member: Numbers) -> tuple[Keys, BoolArray]:
        """Count the owner and other copies in the member's rack, and whether a copy is on the member itself."""
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

    # Keys begin with the member, since slots are in the order of members: a lookup in that order is fast.

    def pair(self, unit: Numbers, member: Numbers) -> Keys:
        return np.asarray(member.astype(np.int64) * (self._copies.members.count + 1) + self.owner[unit])

    def row_pair(self, unit: Numbers, member: Numbers) -> Keys:
        return np.asarray(self.pair(unit, member) * (self._copies.units.count + 1) + self.row[unit])

    def spare(self, unit: Numbers, member: Numbers) -> IntArray:
        """How many more copies of the units of this unit's owner may be on the member; below 0: there are too many."""
        return self._limits.most(self.owner[unit], member) - self._pairs.of(self.pair(unit, member))

    def _has_remainder(self, unit: Numbers, member: Numbers) -> BoolArray:
        """Whether the member's share after the owner's death has a remainder."""
        owner = self.owner[unit]
        return np.asarray(self._limits.most(owner, member) > self._limits.sure(owner, member))

    def remainders_needed(self, unit: Numbers, here: Numbers, there: Numbers) -> IntArray:
        """The change in how many copies of the owner's units need a remainder to be promoted, if this one moves."""
        owner = self.owner[unit]
        starts = self._limits.sure(owner, there) == self._pairs.of(self.pair(unit, there))
        ends = self._limits.sure(owner, here) + 1 == self._pairs.of(self.pair(unit, here))
        needed_more = (starts & self._has_remainder(unit, there)).astype(np.int32)
        return np.asarray(needed_more - (ends & self._has_remainder(unit, here)))

    def moved(self, unit: Numbers, here: Numbers, there: Numbers) -> Keys:
        """The change in the cost of pairs if this copy moves from `here` to `there`."""
        change = self.weight(unit) * ((self.spare(unit, there) <= 0).astype(np.int64) - (self.spare(unit, here) < 0))
        beyond = self.beyond[self.owner[unit]]
        after = np.maximum(beyond + self.remainders_needed(unit, here, there), 0)
        return np.asarray(change + COLD * (after - np.maximum(beyond, 0)))

    def row_moved(self, unit: Numbers, here: Numbers, there: Numbers) -> Keys:
        change = (self.row_spare(unit, there) <= 0).astype(np.int64) - (self.row_spare(unit, here) < 0)
        return np.asarray(COLD * change)

    def row_spare(self, unit: Numbers, member: Numbers) -> IntArray:
        limit = self._row_limits.most(self.row[unit], self.owner[unit], member)
        return limit - self._row_pairs.of(self.row_pair(unit, member))

    def weight(self, unit: Numbers) -> Keys:
        """The cost of one copy too many in a pair. Two dummies on a member, which then has too few copies, cost less
        than a copy where it must not be, and more than anything else."""
        return np.where(unit < self._slots.first_dummy, COLD, self.wrong // 2)

    def avoidable(self) -> BoolArray:
        """Whether the pair of each slot has too many copies, and not only because members' shares are so large."""
        member, owner = self._slots.member, self.owner[self._slots.unit]
        most, sure = self._limits.of_member()
        excess = self._excess()
        bound = np.maximum(self._least - most, 0)
        some = (excess > 0) & (np.bincount(member, excess, len(most)) > bound + 0.5)[member]
        there = self._limits.remainders[:-1]
        bound = np.maximum(self._least - sure, 0).sum() - there[there < UNLIMITED].sum()
        if np.maximum(self.beyond[:-1], 0).sum() > max(bound, 0):
            some |= self._needs_remainder & (self.beyond[owner] > 0)
        if self.by_row:
            some |= self.row_spare(self._slots.unit, member) < 0
        return np.asarray(some)

    def built(self) -> BoolArray:
        """Whether the copy of each slot has to be built."""
        return np.asarray(self.now % RACK >= BUILD)

    def bad(self, slot: Numbers) -> BoolArray:
        """Whether each slot has a cost above that of having to be built."""
        unit, member = self._slots.unit[slot], self._slots.member[slot]
        wrong = (self.now[slot] >= RACK) | (self.spare(unit, member) < 0)
        wrong |= self._needs_remainder[slot] & (self.beyond[self.owner[unit]] > 0)
        return wrong | (self.row_spare(unit, member) < 0) if self.by_row else wrong

    def _excess(self) -> FloatArray:
        """The part of each slot in the excess of its pair."""
        spare = self._limits.most(self.owner[self._slots.unit], self._slots.member) - self._in_pair
        return np.asarray(np.maximum(-spare, 0) / self._in_pair)

    def in_one_rack(self) -> int:
        """Count the copies that are in the rack of the owner or of another copy."""
        near, _ = self._beside(self._slots.unit, self._slots.column, self._slots.member)
        return int(near.sum())

    def total(self) -> int:
        """The total cost."""
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

    def transfers(self) -> Keys:
        """The change of cost, as [slot, slot], if the copy of the first replaces that of the second, which is
        removed."""
        slots, count = self._slots, len(self._slots.unit)
        giver, taker = np.repeat(np.arange(count), count), np.tile(np.arange(count), count)
        unit, here, there = slots.unit[giver], slots.member[giver], slots.member[taker]
        change = self.alone(unit, slots.column[giver], there) - self.now[giver]
        change += self.moved(unit, here, there)
        if self.by_row:
            change += self.row_moved(unit, here, there)
        return np.where(here == there, 0, change).reshape(count, count)
