"""Defines the objectives: each is a sum of convex costs of counts, to be minimised.

An objective applies to one stage of the network. It gives the price of one more unit there, and how far that price is
constant in either direction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from assigner.strategies.exact.network import UNLIMITED, Network, NetworkStage
from assigner.strategy import FloatArray, IntArray

Costs = NDArray[Any]
Counts = NDArray[Any]
Places = Any
"""Places of a stage: flat indices, or `...` for all."""


class Objective(Protocol):
    @property
    def dtype(self) -> Any:
        """The type of costs; whole numbers where sums of many must be exact."""
        ...

    def stage(self, network: Network) -> NetworkStage: ...

    def price(self, places: Places, count: Counts) -> Costs:
        """The price of one unit more than `count` at these places."""
        ...

    def reach(self, stage: NetworkStage) -> tuple[IntArray, IntArray]:
        """The range in which each count may change at the price of the first unit in that direction."""
        ...


def _at(values: NDArray[Any], places: Places) -> NDArray[Any]:
    return values if places is ... else values.reshape(-1)[places]


@dataclass(frozen=True)
class SpreadObjective:
    """The squared distance from the floor and the ceiling of the fair share, in every cell."""

    floor: IntArray
    ceil: IntArray
    dtype: Any = np.int64

    def stage(self, network: Network) -> NetworkStage:
        return network.cell

    def price(self, places: Places, count: Counts) -> Costs:
        over = count - _at(self.ceil, places).astype(np.int64)
        under = _at(self.floor, places) - count
        return np.where(over >= 0, 2 * over + 1, np.where(under > 0, 1 - 2 * under, 0)).astype(np.int64)

    def reach(self, stage: NetworkStage) -> tuple[IntArray, IntArray]:
        within = (stage.count >= self.floor) & (stage.count <= self.ceil)
        low = np.where(within & (stage.count > self.floor), self.floor, stage.count - 1)
        high = np.where(within & (stage.count < self.ceil), self.ceil, stage.count + 1)
        return low.astype(np.int32), high.astype(np.int32)


@dataclass(frozen=True)
class Moves:
    """The number of units taken from their present owners."""

    held: IntArray
    dtype: Any = np.int32

    def stage(self, network: Network) -> NetworkStage:
        return network.row

    def price(self, places: Places, count: Counts) -> Costs:
        return -(count < _at(self.held, places)).astype(np.int32)

    def reach(self, stage: NetworkStage) -> tuple[IntArray, IntArray]:
        low = np.where(stage.count > self.held, self.held, 0)
        high = np.where(stage.count < self.held, self.held, UNLIMITED)
        return low.astype(np.int32), high.astype(np.int32)


@dataclass(frozen=True)
class Mismatches:
    """The number of units on members whose rack has no replica; `miss` is [row, member]."""

    miss: IntArray
    dtype: Any = np.int32

    def stage(self, network: Network) -> NetworkStage:
        return network.row

    def price(self, places: Places, count: Counts) -> Costs:
        return np.asarray(_at(self.miss, places), np.int32)

    def reach(self, stage: NetworkStage) -> tuple[IntArray, IntArray]:
        return np.zeros_like(stage.count), np.full_like(stage.count, UNLIMITED)


@dataclass(frozen=True)
class Unowned:
    """The number of unowned units: those of the dummy, which is the last member."""

    members: int
    dtype: Any = np.int32

    def stage(self, network: Network) -> NetworkStage:
        return network.load

    def price(self, places: Places, count: Counts) -> Costs:
        return _at(np.arange(self.members) == self.members - 1, places).astype(np.int32)

    def reach(self, stage: NetworkStage) -> tuple[IntArray, IntArray]:
        return np.zeros_like(stage.count), np.full_like(stage.count, UNLIMITED)


@dataclass(frozen=True)
class Balance:
    """The squared distance of each member's load from the floor and the ceiling of its goal, over its scale.

    Prices are compared and never summed along a path (a path has one giver and one taker), so they may be fractions.
    """

    floor: FloatArray
    ceil: FloatArray
    scale: FloatArray
    size: float
    """Partitions per unit."""
    outside: FloatArray
    """Partitions of each member outside the network."""
    dtype: Any = np.float64

    def stage(self, network: Network) -> NetworkStage:
        return network.load

    def price(self, places: Places, count: Counts) -> Costs:
        load = _at(self.outside, places) + self.size * count
        floor, ceil = _at(self.floor, places), _at(self.ceil, places)
        here, there = _distance(load, floor, ceil), _distance(load + self.size, floor, ceil)
        return _shortened((there - here) * (there + here) / _at(self.scale, places))

    def reach(self, stage: NetworkStage) -> tuple[IntArray, IntArray]:
        return stage.count - np.int32(1), stage.count + np.int32(1)


@dataclass(frozen=True)
class Halves:
    """`Balance` reduced to two prices: members above a limit give, and those below it take, all at equal cost.

    So one search finds paths for many of them at once."""

    balance: Balance
    limit: float
    dtype: Any = np.int32

    def stage(self, network: Network) -> NetworkStage:
        return network.load

    def price(self, places: Places, count: Counts) -> Costs:
        return (self.balance.price(places, count) >= self.limit).astype(np.int32)

    def reach(self, stage: NetworkStage) -> tuple[IntArray, IntArray]:
        return self.balance.reach(stage)


def _distance(load: FloatArray, floor: FloatArray, ceil: FloatArray) -> FloatArray:
    return np.asarray(np.maximum(load - ceil, 0.0) + np.maximum(floor - load, 0.0))


def _shortened(values: FloatArray) -> FloatArray:
    """Round off the last bits, so that capacities like 0.1 and 0.3 give equal prices where they should."""
    part, power = np.frexp(values)
    return np.asarray(np.ldexp(np.round(part * 2.0**40) / 2.0**40, power))
