"""How many copies of what one member owns another may have, so that they can all be promoted when the first one dies.

After the death of `a`, member `b` may own the ceiling of its new share, so it can take that much less what it owns
already: of one row, and over all rows. With r copies of each unit it is enough if `b` has no more than r times that
(each orphan can be divided among its r holders, and where shares fit, whole ones do too). What is above the limit
would be promoted to a member without a copy: a cold start.

Nothing is promised for members with different subscriptions beyond the limit of each row.
"""

from __future__ import annotations

import numpy as np

from assigner.strategy import NONE, FloatArray, IntArray
from strategies.shares import EPSILON
from strategies.standby_copies import Keys, Numbers
from strategies.standby_shares import Pool

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


class Limits:
    """The owner of a ghost is the number of members; it may have one copy with each of them."""

    def __init__(self, given: Pool) -> None:
        copies = self._copies = given.copies
        members = copies.members
        self.nobody = members.count
        self._size = given.size
        self._capacity = np.append(members.capacity, 0.0)
        self._room = np.where(members.cap == NONE, np.inf, members.cap) - copies.active
        self.whole = len(given.wanted) == 1
        who = given.wanted[0] if self.whole else np.zeros(members.count, np.bool_)
        self._capacity_of_all = float(members.capacity[who].sum())
        self._active_of_all = float(copies.active[who].sum())
        rows = np.unique(copies.row[given.unit])
        self.by_row = len(rows) > 1 or not self.whole
        self._count_rows(given)
        self._known = self._table()

    def _table(self) -> tuple[IntArray, IntArray] | None:
        """(kind of each owner, [kind, member] limits), where few capacities differ: looking up is faster."""
        kinds, first, kind = np.unique(self._capacity, return_index=True, return_inverse=True)
        if len(kinds) * self.nobody > _DENSE:
            return None
        owner, member = np.meshgrid(first.astype(np.int32), np.arange(self.nobody, dtype=np.int32), indexing="ij")
        return kind.astype(np.int32), self._of_pair(owner, member)

    def _count_rows(self, given: Pool) -> None:
        copies = self._copies
        self._cells = Counts(copies.units.count * self.nobody)
        if not self.by_row:
            return
        owned = np.flatnonzero(copies.owner != NONE)
        self._cells.take(copies.row[owned].astype(np.int64) * self.nobody + copies.owner[owned])
        self._row_capacity = copies.units.wanted @ copies.members.capacity

    def of_pair(self, owner: Numbers, member: Numbers) -> IntArray:
        """Copies of the owner's units, of all rows, that the member should have at most."""
        if self._known is None:
            return self._of_pair(owner, member)
        kind, limit = self._known
        return limit[kind[owner], member]

    def _of_pair(self, owner: Numbers, member: Numbers) -> IntArray:
        if not self.whole:
            return np.where(owner == self.nobody, 1, UNLIMITED).astype(np.int32)
        left = self._capacity_of_all - self._capacity[owner]
        share = self._after(self._active_of_all, left, member)
        more = np.minimum(share - self._copies.active[member], self._room[member]) // self._size
        return self._times(more, owner)

    def of_member(self) -> IntArray:
        """Copies that the member could have at most without too many of any one owner's."""
        if not self.whole:
            return np.full(self.nobody, UNLIMITED, np.int32)
        everyone = np.arange(self.nobody, dtype=np.int32)
        largest = np.full(self.nobody, self._copies.members.capacity.argmax(), np.int32)
        limit = self.of_pair(largest, everyone).astype(np.int64) * (self.nobody - 1)
        return np.minimum(limit, UNLIMITED).astype(np.int32)

    def of_row(self, row: Numbers, owner: Numbers, member: Numbers) -> IntArray:
        """The same for units of one row."""
        inside = np.minimum(row, self._copies.units.count - 1)
        left = self._row_capacity[inside] - self._capacity[owner]
        share = self._after(self._copies.units.partitions[inside].astype(np.float64), left, member)
        more = share - self._cells.of(inside.astype(np.int64) * self.nobody + member)
        return np.where(owner == self.nobody, UNLIMITED, self._times(more, owner))

    def _after(self, total: float | FloatArray, capacity: FloatArray, member: Numbers) -> FloatArray:
        """The member's share once the owner's capacity is gone."""
        known = np.maximum(capacity, self._capacity[member])
        return np.asarray(np.ceil(total * self._capacity[member] / known - EPSILON))

    def _times(self, more: FloatArray, owner: Numbers) -> IntArray:
        limit = np.maximum(more, 0) * self._copies.width
        return np.where(owner == self.nobody, 1, np.minimum(limit, UNLIMITED)).astype(np.int32)
