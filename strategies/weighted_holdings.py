"""Who has which units, the lightest first, kept up while units change hands one by one."""

from __future__ import annotations

import numpy as np

from assigner.strategy import NONE, BoolArray, FloatArray
from strategies.shares import Indices
from strategies.weighted_parts import Part, by_number


class Holdings:
    def __init__(self, part: Part, goal: FloatArray) -> None:
        self.part = part
        self.excess = part.load - goal
        """[member] how far above its goal its load is."""
        self._goal = goal
        self._bounds: Indices | None = None
        self._sorted: Indices = np.zeros(0, np.int64)
        self._changed: dict[int, Indices] = {}
        self._lightest: FloatArray | None = None
        self._size = np.zeros(len(part.takes), np.int32)
        self._size[part.kind] = part.size

    def units(self, member: int) -> Indices:
        changed = self._changed.get(member)
        if changed is not None:
            return changed
        if self._bounds is None:
            owned = self.part.sort(self.part.owner != NONE)[::-1]
            self._sorted = owned[by_number(self.part.owner[owned], self.part.count)]
            self._bounds = np.searchsorted(self.part.owner[self._sorted], np.arange(self.part.count + 1))
        return self._sorted[self._bounds[member] : self._bounds[member + 1]]

    def lightest(self) -> FloatArray:
        """[kind, member]: the lightest unit of the kind that the member has; infinite for none."""
        if self._lightest is None:
            part = self.part
            owned = part.owner != NONE
            cell = part.kind[owned].astype(np.int64) * part.count + part.owner[owned]
            lightest = np.full(len(part.takes) * part.count, np.inf)
            np.minimum.at(lightest, cell, part.weight[owned])
            self._lightest = lightest.reshape(part.takes.shape)
        return self._lightest

    def able(self, kinds: int | slice | Indices) -> BoolArray:
        """[kind, member] who may be given one more of these kinds."""
        takes: BoolArray = self.part.takes[kinds]
        # With caps, all units of a kind are of one size.
        return takes & (self.part.room >= self._size[kinds][..., None]) if self.part.capped else takes

    def hand_over(self, units: Indices, giver: int, taker: int) -> None:
        part, weight = self.part, self.part.weight
        left, mine = self.units(giver), self.units(taker)
        left = left[left != units[0]] if len(units) == 1 else left[~np.isin(left, units)]
        mine = np.insert(mine, weight[mine].searchsorted(weight[units]), units)
        self._changed[giver], self._changed[taker] = left, mine
        for unit in units.tolist():
            part.give_one(unit, taker)
        kinds = {0} if len(part.takes) == 1 else set(part.kind[units].tolist())
        lightest = self.lightest()
        for member, has in ((giver, left), (taker, mine)):
            self.excess[member] = part.load[member] - self._goal[member]
            for kind in kinds:
                some = has if len(part.takes) == 1 else has[part.kind[has] == kind]
                lightest[kind, member] = weight[some[0]] if len(some) else np.inf
