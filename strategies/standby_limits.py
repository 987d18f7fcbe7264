"""How many copies of what one member owns another may have, so that they can all be promoted when the first one dies.

After the death of `a`, each other member `b` is to own the floor or the ceiling of its new share. So it can be promoted
to up to the floor of it, less what it owns already; and of all members together, as many as there are remainders can
be promoted to one more. The same holds for each row by itself, where only the ceiling is looked at. With r copies of
each unit it is enough if `b` has no more than r times that: each orphan can be divided among its r holders, and where
shares fit, whole ones do too. What is above would be promoted to a member without a copy: a cold start.

Nothing is promised beyond the ceiling of each row where members differ in what they subscribe to, and beyond the
ceilings where sets of different sizes mix.
"""

from __future__ import annotations

import numpy as np

from assigner.strategy import NONE, FloatArray, IntArray
from strategies.shares import EPSILON
from strategies.standby_copies import Keys, Numbers
from strategies.standby_shares import Pool, least_copies

_DENSE = 2**22
"""Pairs of members up to which each pair has a counter of its own."""

UNLIMITED = 2**30


class Counts:
    """How often each key occurs."""

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
    """For pairs of an owner and a member, over all rows. The owner of a ghost is `nobody`, the number of members; it
    may have one with each member that may have one copy less."""

    def __init__(self, given: Pool) -> None:
        copies = self._copies = given.copies
        members = copies.members
        self.nobody = members.count
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
        self.remainders = np.full(self.nobody + 1, UNLIMITED, np.int32)
        """[owner]: how many others can be promoted to one more than `sure`."""
        if len(kinds) * self.nobody <= _DENSE:
            self._tabulate()

    def _tabulate(self) -> None:
        """Where few capacities differ, what holds for one owner holds for many: looking up is faster."""
        everyone = np.arange(self.nobody, dtype=np.int32)
        owner, member = np.meshgrid(self._first, everyone, indexing="ij")
        self._tables = self._most(owner, member), self._sure(owner, member)
        if self._exact:
            taken = np.maximum(np.floor(self._after(owner, member) + EPSILON), self._own)
            left = self._all[1] - np.where(self._who, taken, 0).sum(axis=1)[self._kind]
            left[:-1] += np.where(self._who, taken[self._kind[:-1], everyone], 0)
            self.remainders = (np.maximum(left, 0) * self._copies.width).astype(np.int32)
            self.remainders[-1] = UNLIMITED

    def most(self, owner: Numbers, member: Numbers) -> IntArray:
        """Copies of the owner's units that the member should have at most."""
        return self._most(owner, member) if self._tables is None else self._tables[0][self._kind[owner], member]

    def sure(self, owner: Numbers, member: Numbers) -> IntArray:
        """Of these, those that can be promoted whatever the others have."""
        return self._sure(owner, member) if self._tables is None else self._tables[1][self._kind[owner], member]

    def of_member(self) -> tuple[Keys, Keys]:
        """[member]: how many copies it could have, at most and for sure, without too many of any one owner's."""
        if self._tables is None or not self._whole:
            return np.full(self.nobody, UNLIMITED, np.int64), np.full(self.nobody, UNLIMITED, np.int64)
        owners = np.bincount(self._kind[:-1][self._who], minlength=len(self._first))
        everyone = np.arange(self.nobody)
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
        return np.where(owner == self.nobody, self._open[member], limit).astype(np.int32)


class RowLimits:
    """For pairs within one row."""

    def __init__(self, given: Pool) -> None:
        copies = self._copies = given.copies
        self._nobody = copies.members.count
        rows = np.unique(copies.row[given.unit])
        self.needed = len(rows) > 1 or len(given.wanted) != 1
        self._cells = Counts(copies.units.count * self._nobody)
        self._row_capacity = copies.units.wanted @ copies.members.capacity if self.needed else np.zeros(0)
        self._capacity = np.append(copies.members.capacity, 0.0)
        if self.needed:
            owned = np.flatnonzero(copies.owner != NONE)
            self._cells.take(copies.row[owned].astype(np.int64) * self._nobody + copies.owner[owned])

    def most(self, row: Numbers, owner: Numbers, member: Numbers) -> IntArray:
        inside = np.minimum(row, self._copies.units.count - 1)
        capacity = self._capacity[member]
        left = np.maximum(self._row_capacity[inside] - self._capacity[owner], capacity)
        share = np.ceil(self._copies.units.partitions[inside] * capacity / left - EPSILON)
        more = share - self._cells.of(inside.astype(np.int64) * self._nobody + member)
        limit = np.maximum(more, 0) * self._copies.width
        return np.where(owner == self._nobody, UNLIMITED, limit).astype(np.int32)
