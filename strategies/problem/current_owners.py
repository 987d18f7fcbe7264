"""Finds which present owners may keep their units, and which units can't move at all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from assigner.strategies.problem.units import Units
from assigner.strategy import NONE, BoolArray, IntArray, Members


@dataclass(frozen=True)
class CurrentOwners:
    """The present owners that may keep their units, and the units that can't move."""

    owner: IntArray
    """Per unit: the owner if it may keep the unit, else NONE."""
    fixed: BoolArray
    """Per unit: can't move. A unit pinned as unowned is fixed too."""
    row: IntArray
    """Per unit: its row."""


def held(units: Units, members: Members) -> CurrentOwners:
    row = np.repeat(np.arange(units.count, dtype=np.int32), units.partitions)
    live = units.owner != NONE
    allowed = live.copy()
    allowed[live] = units.wanted[row[live], units.owner[live]]
    owner = np.where(allowed | units.pinned, units.owner, np.int32(NONE))
    fixed = units.pinned.copy()
    if members.hold.any():
        kept = allowed.copy()
        kept[allowed] = members.hold[owner[allowed]]
        fixed |= kept
        _cap_holds(owner, fixed, units, members, units.size[row])
    return CurrentOwners(owner, fixed, row)


def _cap_holds(owner: IntArray, fixed: BoolArray, units: Units, members: Members, size: IntArray) -> None:
    """Take units above its cap from a member on hold as well, the last units first."""
    for member in np.flatnonzero(members.hold & (members.cap != NONE)).tolist():
        mine = np.flatnonzero((owner == member) & ~units.pinned)
        pinned = int(size[(owner == member) & units.pinned].sum())
        excess = mine[pinned + np.cumsum(size[mine]) > members.cap[member]]
        owner[excess] = NONE
        fixed[excess] = False
