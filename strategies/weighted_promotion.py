"""By weight too, what lost its owner goes to a holder of a standby first, as far as that keeps the holder in bounds.

The heaviest come first, and to the holder with the most room below its goal. A holder takes a unit only if its load
stays within the tolerance, so that nothing has to move on afterwards. Not promised: the most promotions there can be.
"""

from __future__ import annotations

import numpy as np

from assigner.strategy import NONE, FloatArray
from strategies.units import Units
from strategies.weighted_parts import Part


def promote(part: Part, units: Units, goal: FloatArray, band: FloatArray) -> None:
    """Give units without an owner to holders. `goal` and `band`: [member] the fair load, and how far from it is
    still even."""
    if units.standbys is None:
        return
    waiting = part.sort(part.owner == NONE)
    if not len(waiting):
        return
    local = np.full(int(part.members.max()) + 2, NONE, np.int32)
    local[part.members] = np.arange(part.count, dtype=np.int32)
    copies = units.standbys[part.units[waiting]]
    # Holders beyond the part's last member are not of this part; index -1 is NONE's own place.
    holders = local[np.where(copies < len(local) - 1, copies, NONE)]
    for unit, row in zip(waiting.tolist(), holders.tolist(), strict=True):
        able = [member for member in row if member != NONE and _fits(part, unit, member, goal, band)]
        if able:
            best = min(able, key=lambda member: (part.load[member] - goal[member], member))
            part.give(np.array([unit]), best)


def _fits(part: Part, unit: int, member: int, goal: FloatArray, band: FloatArray) -> bool:
    weight, room = part.weight[unit], part.room[member] >= part.size[unit]
    return bool(
        part.takes[part.kind[unit], member] and room and part.load[member] + weight <= goal[member] + band[member]
    )
