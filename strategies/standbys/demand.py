"""Computes how many copies each unit is to have, which members have one already, and which may get one.

A member has a copy of a unit if it is one of its standbys or owned it until now: it still has the state, so keeping it
as a standby costs nothing. Members on hold may keep copies and get none. Caps bound what a member owns, not its copies.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assigner.strategies.problem.units import Units, fold
from assigner.strategy import NONE, BoolArray, FloatArray, IntArray, Members, Problem

Numbers = NDArray[np.signedinteger[Any]]
"""Integers of any width: indices of units, members, slots."""
Keys = NDArray[np.int64]
"""(unit, member) as one number, unit * members + member; sorted and unique."""


@dataclass(frozen=True)
class Copies:
    members: Members
    units: Units
    """The units with their new owners."""
    row: IntArray
    """[unit]"""
    demand: IntArray
    """[unit] copies beside the owner's, as many as there are members for, `width` at most; 0 for unowned units."""
    width: int
    held: Keys
    """Copies that exist and may stay."""
    barred: Keys
    """Owners of pinned partitions of a slot that another member owns: they may not be its standbys."""
    active: FloatArray
    """[member] partitions owned."""

    @property
    def owner(self) -> IntArray:
        return self.units.owner

    def key(self, unit: Numbers, member: Numbers) -> Keys:
        return np.asarray(unit.astype(np.int64) * self.members.count + member)

    def split(self, keys: Keys) -> tuple[IntArray, IntArray]:
        """Split keys into units and members."""
        unit, member = np.divmod(keys, self.members.count)
        return unit.astype(np.int32), member.astype(np.int32)


def copies(problem: Problem, owner: IntArray, width: int) -> Copies:
    """Compute the copies that exist and that are wanted. `owner`: the new owner of each partition."""
    members = problem.members
    units, before = fold(replace(problem, owner=owner)), fold(problem)
    row = np.repeat(np.arange(units.count, dtype=np.int32), units.partitions)
    unit_of = unit_of_partition(units, problem)
    owned = np.flatnonzero(owner != NONE)
    barred = _keys(unit_of[owned], owner[owned], members.count) if units.rows is not None else np.zeros(0, np.int64)
    held = _held(units, before, _whole_owner(before, problem, unit_of), row, barred, members.count)
    active = np.bincount(owner[owned], minlength=members.count).astype(np.float64)
    counted = _demand(units, members, row, held, barred, width)
    return Copies(members, units, row, counted, width, held, barred, active)


def unit_of_partition(units: Units, problem: Problem) -> IntArray:
    """Find the unit of each flat partition."""
    if units.rows is None:
        return np.arange(len(problem.owner), dtype=np.int32)
    unit_of = np.zeros(len(problem.owner), np.int32)
    starts, offsets = problem.offsets, units.offsets
    for index, row in enumerate(units.rows):
        slots = np.arange(offsets[index], offsets[index + 1], dtype=np.int32)
        for topic in row.tolist():
            unit_of[starts[topic] : starts[topic + 1]] = slots
    return unit_of


def contains(keys: Keys, wanted: Keys) -> BoolArray:
    """Whether each of `wanted` is among the sorted `keys`."""
    if not len(keys):
        return np.zeros(wanted.shape, np.bool_)
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.asarray(keys[at] == wanted)


def _keys(unit: IntArray, member: IntArray, members: int) -> Keys:
    return np.unique(unit.astype(np.int64) * members + member)


def _whole_owner(before: Units, problem: Problem, unit_of: IntArray) -> IntArray:
    """Find the owner of each whole unit until now, or NONE."""
    if before.rows is None:
        return before.owner
    owner = before.owner.copy()
    owner[unit_of[problem.owner != before.owner[unit_of]]] = NONE
    return owner


def _held(units: Units, before: Units, former: IntArray, row: IntArray, barred: Keys, members: int) -> Keys:
    count = len(units.owner)
    columns = [former] if before.standbys is None else [former, *before.standbys.T]
    unit = np.tile(np.arange(count, dtype=np.int32), len(columns))
    member = np.concatenate(columns)
    there = (member != NONE) & (member != units.owner[unit])
    unit, member = unit[there], member[there]
    wanted = units.wanted[row[unit], member]
    keys = _keys(unit[wanted], member[wanted], members)
    return keys[~contains(barred, keys)] if len(barred) else keys


def _demand(units: Units, members: Members, row: IntArray, held: Keys, barred: Keys, width: int) -> IntArray:
    """Count the copies wanted per unit: as many as requested, if so many members may have one."""
    owned = units.owner != NONE
    takers = units.wanted & ~members.hold
    could = takers.sum(axis=1)[row]
    if units.rows is None:
        could[owned] -= takers[row[owned], units.owner[owned]]
    else:
        unit, member = np.divmod(barred, members.count)
        np.subtract.at(could, unit, takers[row[unit], member])
    if members.hold.any():
        unit, member = np.divmod(held, members.count)
        np.add.at(could, unit, members.hold[member])
    return np.where(owned, np.minimum(could, width), 0).astype(np.int32)
