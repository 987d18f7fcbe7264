"""Defines the `Strategy` interface: a pure function from members, topics and present owners to new owners.

Everything is an integer array: strings are interned once at the edge (`assigner.core.planning.request`), members in
name order and topics in name order, so that an index order is a name order and results do not depend on input order or
on the hash seed. Partitions of all topics lie one after the other in one flat array; `Problem.offsets` says where each
topic starts.

A strategy must not read a clock, random numbers or anything but its input, must terminate, and must give a pinned
partition to its current owner. It runs on a worker thread for large problems, and in Spark executors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from assigner.strategy.explanation import Explanation

NONE = -1
"""No owner, no rack, no co-partition set, no cap."""

IntArray = NDArray[np.int32]
BoolArray = NDArray[np.bool_]
FloatArray = NDArray[np.float64]
KeyArray = NDArray[np.uint64]


@dataclass(frozen=True)
class Members:
    """The members that may own partitions, one row each."""

    capacity: FloatArray
    """Relative share, > 0; 1.0 is ordinary."""
    rack: IntArray
    """Rack id or NONE."""
    subscription: BoolArray
    """[member, topic]: whether the member wants the topic."""
    hold: BoolArray
    """A member on hold keeps what it has and gets nothing new."""
    cap: IntArray
    """Most partitions the member may have, or NONE."""
    load: FloatArray | None = None
    """The load that each node reports, 0 for idle, NaN for unknown. Advisory: of otherwise equal members the less busy
    one comes first. It never causes a move."""
    key: KeyArray | None = None
    """A number per member that never changes, from `name_keys`, for strategies that hash; None: its index."""

    @property
    def count(self) -> int:
        return len(self.capacity)


@dataclass(frozen=True)
class Topics:
    """The topics whose partitions are assigned, one row each."""

    partitions: IntArray
    weight: FloatArray | None = None
    """Per flat partition, > 0; None: all are equal."""
    copartition: IntArray | None = None
    """Co-partition set per topic or NONE. Topics of one set have equal partition counts and move as one."""
    replica_racks: tuple[IntArray, IntArray] | None = None
    """Racks of each flat partition's replicas as (starts, rack ids); one more start for the end."""
    key: KeyArray | None = None
    """A number per topic that never changes, from `name_keys`, for strategies that hash; None: its index."""

    @property
    def count(self) -> int:
        return len(self.partitions)


@dataclass(frozen=True)
class Problem:
    members: Members
    topics: Topics
    owner: IntArray
    """Current owner per flat partition or NONE."""
    pinned: BoolArray
    """Partitions that must stay with `owner`: a handoff to it is in flight, or it can't be moved now."""
    standbys: IntArray = field(default_factory=lambda: np.empty((0, 0), np.int32))
    """[flat partition, replica]: current standby holders or NONE."""
    standby_count: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def offsets(self) -> IntArray:
        """The index in the flat arrays at which each topic starts; one more entry for the end."""
        ends = np.cumsum(self.topics.partitions, dtype=np.int32)
        return np.concatenate((np.zeros(1, np.int32), ends))


@dataclass(frozen=True)
class Solution:
    owner: IntArray
    """New owner per flat partition; NONE only where no member may own it."""
    standbys: IntArray
    explanation: Explanation


class Strategy(Protocol):
    """The interface of a strategy. Found by name among the entry points `assigner.strategies`."""

    name: str

    def assign(self, problem: Problem) -> Solution: ...


@runtime_checkable
class PlacesStandbys(Protocol):
    """An optional interface of a strategy: it places standbys in a second step, once owners are known.

    Then `assign` is called with a `standby_count` of 0, and its owners are assigned while `place_standbys` runs, so
    that no unowned partition waits for copies. A strategy without this interface computes both in `assign`."""

    def place_standbys(self, problem: Problem, owner: IntArray) -> IntArray:
        """Return the standbys for new owners, as in `Solution`: [flat partition, replica]. `problem` is that of
        `assign`, with the actual `standby_count`."""
        ...


def name_keys(names: Sequence[str]) -> KeyArray:
    """Hash names to numbers that never change; an index changes when another member or topic is added or removed."""
    digests = b"".join(blake2b(name.encode(), digest_size=8).digest() for name in names)
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)
