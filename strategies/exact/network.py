"""Who gets how many, as a flow: units run from their row to a member and from there out of the network.

Where several rows belong to one topic (`assigner.strategies.problem.rack_classes`), they run through the topic's cell
on the way. Each stage says how much runs through it now and how much may; solving one level of priority narrows what
may, and the next level works within that. Nothing here knows what is being made better.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from assigner.strategy import BoolArray, IntArray

UNLIMITED = 2**30
"""More than any count; twice of it still fits into 32 bits."""


@dataclass
class NetworkStage:
    """Counts and their limits, [row, member], [topic, member] or [member]."""

    count: IntArray
    low: IntArray
    high: IntArray

    def narrow(self, low: IntArray, high: IntArray) -> None:
        np.maximum(self.low, low, out=self.low)
        np.minimum(self.high, high, out=self.high)


@dataclass
class Network:
    row: NetworkStage
    load: NetworkStage
    """Units per member."""
    parent: IntArray | None = None
    """[row] the topic it belongs to, in rising order; None: rows are topics."""
    topic: NetworkStage | None = None
    """Units per topic and member, where rows are not topics."""

    @property
    def cell(self) -> NetworkStage:
        """Where spread is counted."""
        return self.row if self.topic is None else self.topic

    @property
    def cells(self) -> int:
        return int(self.row.count.size)


@dataclass(frozen=True)
class AugmentStep:
    """One unit more (or one less) at a place of a stage."""

    stage: NetworkStage
    place: int
    more: bool


AugmentingPath = list[AugmentStep]
"""Steps that together leave every total as it is."""


def network(
    count: IntArray,
    fixed: IntArray,
    taker: BoolArray,
    room: IntArray,
    parent: IntArray | None = None,
) -> Network:
    """`count`, `fixed` and `taker` are [row, member]; `room` is the most units a member may have."""
    high = np.where(taker, np.int32(UNLIMITED), fixed)
    row = NetworkStage(count.astype(np.int32), fixed.astype(np.int32), high.astype(np.int32))
    total = row.count.sum(axis=0, dtype=np.int32)
    load = NetworkStage(total, np.zeros_like(total), np.maximum(room, fixed.sum(axis=0)).astype(np.int32))
    if parent is None:
        return Network(row, load)
    first = np.flatnonzero(np.diff(parent, prepend=-1))
    joined = np.add.reduceat(row.count, first, axis=0)
    topic = NetworkStage(joined, np.zeros_like(joined), np.full_like(joined, UNLIMITED))
    return Network(row, load, parent, topic)
