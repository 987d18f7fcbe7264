"""How many units of each row each member gets: the state that `sticky_balanced` works on.

Every cell is a floor (`base`) plus perhaps one extra. Extras are all there is to decide: which members get them
decides the global balance and what has to move. `Potential` is what balancing lowers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from assigner.strategies.problem.shares import EPSILON, Indices
from assigner.strategy import BoolArray, FloatArray, IntArray


@dataclass(frozen=True)
class Potential:
    """Sum over members of (distance of the load from the goal's floor and ceiling)^2 / scale.

    Every step of balancing lowers it, which is why balancing ends. It is convex in each load, which is why it is at
    its lowest when no chain of gifts lowers it any more."""

    goal: FloatArray
    scale: FloatArray

    def of(self, load: FloatArray) -> float:
        return float((self._distance(load) ** 2 / self.scale).sum())

    def emptiness(self, load: FloatArray) -> FloatArray:
        """Whom to serve first when nothing speaks against it: the lowest."""
        return np.asarray((load - self.goal) / self.scale)

    def giving(self, load: FloatArray, size: float) -> FloatArray:
        """What giving `size` partitions away lowers. A gift lowers the whole iff giving > taking."""
        return self._difference(load, load - size)

    def taking(self, load: FloatArray, size: float) -> FloatArray:
        return self._difference(load + size, load)

    def _difference(self, load: FloatArray, other: FloatArray) -> FloatArray:
        # The difference of squares, multiplied out so that large loads lose no digits.
        here, there = self._distance(load), self._distance(other)
        return np.asarray((here - there) * (here + there) / self.scale)

    def _distance(self, load: FloatArray) -> FloatArray:
        above = np.maximum(load - np.ceil(self.goal - EPSILON), 0.0)
        return above + np.maximum(np.floor(self.goal + EPSILON) - load, 0.0)


@dataclass
class Table:
    """Arrays are [row, member] unless said otherwise. `extra` and `load` change; caps change the rest too."""

    size: IntArray
    """[row] partitions per unit."""
    held: IntArray
    """Units the member has now and may keep."""
    fixed: IntArray
    """Of these, units that can't move."""
    base: IntArray
    open: BoolArray
    """Who may have an extra of the row."""
    remainder: BoolArray
    remainders: IntArray
    """[row] extras to deal."""
    taker: BoolArray
    """Who may be given anything of the row."""
    load: FloatArray
    """[member] partitions, extras included."""
    room: FloatArray
    """[member] most partitions."""
    unplaced: IntArray
    """[row] units that nobody may have."""
    sticky: BoolArray
    """Extras that cost nothing: the member has such a unit already."""

    def count(self, row: int) -> IntArray:
        return np.asarray(self.base[row] + self.remainder[row])

    def move(self, row: int, givers: Indices, takers: Indices) -> None:
        """Hand one extra of the row from each giver to the taker beside it."""
        self.remainder[row, givers] = False
        self.remainder[row, takers] = True
        self.load[givers] -= self.size[row]
        self.load[takers] += self.size[row]
