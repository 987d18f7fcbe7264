"""Groups units into classes with replicas in the same racks, and counts the replicas each member would miss.

Units of one row that miss the same number of replicas in every rack are one class. Classes are rows of their own for
the solver; which unit of a class a member gets matters for moves only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from assigner.strategies.problem.shares import Indices
from assigner.strategies.problem.units import Units, unit_of_partitions
from assigner.strategy import NONE, BoolArray, IntArray, Problem


@dataclass(frozen=True)
class Classes:
    units: Units
    """The same units, ordered by class; a row is a class."""
    order: IntArray
    """The original number of each unit."""
    row: IntArray
    """[class] the original row."""
    miss: IntArray
    """[class, member] partitions of a unit with no replica in the member's rack."""

    @property
    def of_units(self) -> IntArray:
        """[original unit] its class."""
        number = np.empty(len(self.order), np.int32)
        number[self.order] = np.repeat(np.arange(len(self.row), dtype=np.int32), self.units.partitions)
        return number


def rack_classes(units: Units, problem: Problem) -> Classes | None:
    """Group units by rack; None where racks make no difference."""
    members = problem.members
    if problem.topics.replica_racks is None or not len(units.owner) or not _overlap(problem):
        return None
    racks = np.unique(members.rack[members.rack != NONE])
    miss = _miss(units, problem, racks)
    everywhere = np.concatenate((miss, np.zeros((len(miss), 1), miss.dtype)), axis=1)
    column = np.where(members.rack == NONE, len(racks), np.searchsorted(racks, members.rack))
    # Where caps leave units unowned, their class matters: an unowned unit misses no replica.
    capped = [len(racks)] if bool((members.cap != NONE).any()) else []
    used = everywhere[:, np.union1d(column, capped).astype(np.int64)]
    if bool((used == used[:, :1]).all()):
        return None
    row = np.repeat(np.arange(units.count), units.partitions)
    pattern = _numbered(row, miss)
    order = np.argsort(pattern, kind="stable").astype(np.int32)
    first = order[np.flatnonzero(np.diff(pattern[order], prepend=-1))]
    split = _by_class(units, order, pattern, row[first])
    return Classes(split, order, row[first].astype(np.int32), everywhere[first][:, column])


def _overlap(problem: Problem) -> bool:
    """Whether a member and a replica have a common rack. If none have, racks are named by different schemes, as when
    consumers name zones and brokers name hosts: then members without a rack must not appear nearer than all others."""
    assert problem.topics.replica_racks is not None
    mine = problem.members.rack[problem.members.rack != NONE]
    return bool(np.isin(mine, problem.topics.replica_racks[1]).any())


def _miss(units: Units, problem: Problem, racks: IntArray) -> IntArray:
    """Count, as [unit, rack], a unit's partitions that have replicas but none in the rack."""
    assert problem.topics.replica_racks is not None
    starts, ids = problem.topics.replica_racks
    partition = np.repeat(np.arange(len(problem.owner)), np.diff(starts))
    column = np.searchsorted(racks, ids).clip(max=len(racks) - 1)
    near = np.zeros((len(problem.owner), len(racks)), np.bool_)
    known = racks[column] == ids
    near[partition[known], column[known]] = True
    missed: BoolArray = (np.diff(starts) > 0)[:, None] & ~near
    if units.rows is None:
        return missed.astype(np.int32)
    total = np.zeros((len(units.owner), len(racks)), np.int32)
    np.add.at(total, unit_of_partitions(units, problem), missed)
    return total


def _numbered(row: Indices, miss: IntArray) -> Indices:
    """Number units by row and misses: equal ones get equal numbers, in the order of rows."""
    number = row.astype(np.int64)
    base = int(miss.max(initial=0)) + 1
    for column in miss.T:
        number = number * base + column
        if int(number.max()) > 2**61 // base:
            number = np.unique(number, return_inverse=True)[1]
    return np.asarray(np.unique(number, return_inverse=True)[1])


def _by_class(units: Units, order: IntArray, pattern: Indices, row: Indices) -> Units:
    return replace(
        units,
        rows=None,
        partitions=np.bincount(pattern).astype(np.int32),
        size=units.size[row],
        key=units.key[row],
        wanted=units.wanted[row],
        owner=units.owner[order],
        pinned=units.pinned[order],
        weight=None if units.weight is None else units.weight[order],
        standbys=None if units.standbys is None else units.standbys[order],
    )
