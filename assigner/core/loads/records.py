"""Translates stored loads into arrays and back, and merges a write into what was stored.

A load is valid until a time that is stored with it, so a reader needs none of the writer's settings. A topic with many
partitions is cut into blocks, each of which fits into one value of the store. A record that does not match its key
raises `UnreadableRecord`.

Not promised: agreement of clocks. A load that claims to be valid for longer than the maximum is ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from assigner.core.group import MAX_PARTITIONS
from assigner.errors import UnreadableRecord
from assigner.model.records import Loads
from assigner.strategy import FloatArray, IntArray

BLOCK = 32_768
"""Partitions in one record: about 350 KB of JSON."""
LONGEST = 7 * 86_400
"""Seconds that a load may be valid."""
SKEW = 3_600
"""Seconds by which the writer's clock may be ahead."""
LARGEST = 1e15
MAX_NODES = 10_000
_NODE_BYTES = 800_000
"""Of names, so that the record of a group's nodes fits into one value too."""

_LOAD, _UNTIL = np.dtype("<f4"), np.dtype("<u4")


@dataclass(frozen=True)
class Timed:
    """Loads with the wall time until which each is valid."""

    loads: FloatArray
    """NaN where there is none."""
    until: FloatArray

    def at(self, wall: float) -> FloatArray:
        """The loads that are valid now; NaN for the others."""
        counts = (self.until > wall) & (self.until <= wall + LONGEST + SKEW)
        return np.where(counts, self.loads, np.nan)

    def one(self, number: int, wall: float) -> float:
        counts = wall < self.until[number] <= wall + LONGEST + SKEW
        return float(self.loads[number]) if counts else float("nan")


def read(record: Loads) -> Timed:
    if len(record.loads) != len(record.until) or len(record.loads) % _LOAD.itemsize:
        raise UnreadableRecord(f"{len(record.loads)} bytes of loads do not fit {len(record.until)} bytes of times")
    loads = np.frombuffer(record.loads, _LOAD).astype(np.float64)
    most = MAX_NODES if record.nodes else BLOCK
    if len(loads) > most or (record.nodes and len(record.nodes) != len(loads)):
        raise UnreadableRecord(f"{len(loads)} loads for {len(record.nodes) or most} places")
    if not 0 <= record.first < MAX_PARTITIONS or record.first % BLOCK:
        raise UnreadableRecord(f"a block of loads begins at a multiple of {BLOCK}, not at {record.first}")
    if (loads < 0).any() or np.isinf(loads).any():
        raise UnreadableRecord("a load is negative or infinite")
    return Timed(loads, np.frombuffer(record.until, _UNTIL).astype(np.float64))


@dataclass(frozen=True)
class PartitionChange:
    """New loads of some partitions of one block."""

    topic: str
    block: int
    numbers: IntArray
    """Partitions, counted from the block's beginning."""
    loads: FloatArray
    until: FloatArray
    replaces: bool = False
    """Drop the loads of the block's other partitions."""

    @property
    def is_empty(self) -> bool:
        return not len(self.numbers)

    def of(self, before: Loads | None, wall: float) -> Loads:
        known = read(before) if before and not self.replaces else Timed(np.empty(0), np.empty(0))
        size = max(len(known.loads), int(self.numbers.max(initial=-1)) + 1)
        loads, until = np.full(size, np.nan), np.zeros(size)
        loads[: len(known.loads)], until[: len(known.loads)] = known.at(wall), known.until
        loads[self.numbers], until[self.numbers] = self.loads, self.until
        until[np.isnan(loads)] = 0
        return Loads(
            at=int(wall),
            topic=self.topic,
            first=self.block * BLOCK,
            loads=loads.astype(_LOAD).tobytes(),
            until=np.ceil(until).astype(_UNTIL).tobytes(),
        )


@dataclass(frozen=True)
class NodeChange:
    loads: Mapping[str, tuple[float, float]]
    """Node -> its load and until when it is valid."""

    @property
    def is_empty(self) -> bool:
        return not self.loads

    def of(self, before: Loads | None, wall: float) -> Loads:
        """Merge the change into the record before it. If more nodes are known than fit, the busiest are kept."""
        kept = dict(self.loads)
        if before and before.nodes:
            known = read(before)
            entries = zip(before.nodes, known.at(wall).tolist(), known.until.tolist(), strict=True)
            kept = {name: (load, until) for name, load, until in entries if load == load} | kept
        names = _fitting(sorted(kept, key=lambda name: (-kept[name][0], name)))
        return Loads(
            at=int(wall),
            nodes=names,
            loads=np.asarray([kept[name][0] for name in names], _LOAD).tobytes(),
            until=np.asarray([np.ceil(kept[name][1]) for name in names], _UNTIL).tobytes(),
        )


def _fitting(names: list[str]) -> tuple[str, ...]:
    """The first names that fit into one value; quoting takes three bytes, and one per escaped character."""
    sizes = [len(name.encode()) + name.count('"') + name.count("\\") + 3 for name in names[:MAX_NODES]]
    return tuple(names[: int(np.searchsorted(np.cumsum(sizes), _NODE_BYTES, "right"))])
