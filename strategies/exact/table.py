"""Holds how many units of each row each member gets: the state that `sticky_balanced` works on.

Every cell is a floor (`base`) plus at most one remainder. Only remainders are to be decided: the members that get them
determine the balance over all topics and the moves. Balancing lowers the `Potential`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from assigner.strategies.problem.shares import EPSILON, Indices
from assigner.strategy import BoolArray, FloatArray, IntArray


@dataclass(frozen=True)
class Potential:
    """The sum over members of (distance of the load from the goal's floor and ceiling)^2 / scale.

    Every step of balancing lowers it, so balancing ends. It is convex in each load, so it is at its minimum when no
    augmenting path lowers it any more."""

    goal: FloatArray
    scale: FloatArray

    def of(self, load: FloatArray) -> float:
        return float((self._distance(load) ** 2 / self.scale).sum())

    def emptiness(self, load: FloatArray) -> FloatArray:
        """How far members are below their goals; the lowest value is served first."""
        return np.asarray((load - self.goal) / self.scale)

    def giving(self, load: FloatArray, size: float) -> FloatArray:
        """The fall of the potential when a member gives `size` partitions away. A transfer lowers it iff giving >
        taking."""
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
    """The state of an assignment. Arrays are [row, member] unless said otherwise. `remainder` and `load` change; caps
    change the rest too."""

    size: IntArray
    """[row] partitions per unit."""
    held: IntArray
    """Units the member has now and may keep."""
    fixed: IntArray
    """Of these, units that can't move."""
    base: IntArray
    open: BoolArray
    """Whether the member may have a remainder of the row."""
    remainder: BoolArray
    remainders: IntArray
    """[row] the number of remainders to assign."""
    taker: BoolArray
    """Whether the member may be assigned units of the row."""
    load: FloatArray
    """[member] partitions, remainders included."""
    room: FloatArray
    """[member] the maximum of partitions."""
    unplaced: IntArray
    """[row] units that no member may own."""
    sticky: BoolArray
    """Remainders that cost no move: the member owns such a unit today."""

    def count(self, row: int) -> IntArray:
        return np.asarray(self.base[row] + self.remainder[row])

    def move(self, row: int, givers: Indices, takers: Indices) -> None:
        """Transfer one remainder of the row from each giver to the taker at the same index."""
        self.remainder[row, givers] = False
        self.remainder[row, takers] = True
        self.load[givers] -= self.size[row]
        self.load[takers] += self.size[row]
