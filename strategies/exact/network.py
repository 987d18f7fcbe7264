"""Models counts as a flow network: units flow from their row to a member and from there to the sink.

Where several rows belong to one topic (`assigner.strategies.problem.rack_classes`), they flow through the topic's cell.
Each stage has its present flow and its limits; optimising an objective narrows the limits, within which the next
objective is optimised. The network does not know the objectives.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from assigner.strategy import BoolArray, IntArray

UNLIMITED = 2**30
"""More than any count; twice of it still fits into 32 bits."""


@dataclass
class NetworkStage:
    """The counts of a stage and their limits, as [row, member], [topic, member] or [member]."""

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
        """The stage in which spread is counted."""
        return self.row if self.topic is None else self.topic

    @property
    def cells(self) -> int:
        return int(self.row.count.size)


@dataclass(frozen=True)
class AugmentStep:
    """A step of a path: one unit more (or one less) at a place of a stage."""

    stage: NetworkStage
    place: int
    more: bool


AugmentingPath = list[AugmentStep]
"""Steps that together keep every total."""


def network(
    count: IntArray,
    fixed: IntArray,
    taker: BoolArray,
    room: IntArray,
    parent: IntArray | None = None,
) -> Network:
    """Build the network. `count`, `fixed` and `taker` are [row, member]; `room` is each member's maximum of units."""
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
