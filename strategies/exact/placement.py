"""Turns counts into owners: each member keeps its units with the lowest numbers, and free units fill its count.

Free units are assigned in order, to members in order, so that new shares are ranges.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from assigner.strategies.problem.current_owners import CurrentOwners
from assigner.strategies.problem.shares import Indices
from assigner.strategy import NONE, IntArray


def place(now: CurrentOwners, count: IntArray, held: IntArray) -> IntArray:
    """Compute the new owner of every unit. `count` and `held` are [row, member]: wanted units, and units held today.

    A row's counts may sum up to fewer units than it has: the last free ones stay unowned."""
    owner = now.owner.copy()
    members = count.shape[1]
    surplus = np.flatnonzero((held > count).reshape(-1))
    if len(surplus):
        _free_surplus(owner, now, surplus, count)
    missing = np.maximum(count - held, 0).astype(np.int32)
    free = np.flatnonzero((owner == NONE) & ~now.fixed)
    wanted = missing.sum(axis=1)
    rank = _rank(now.row[free])
    served = rank < wanted[now.row[free]]
    owner[free[served]] = np.repeat(np.tile(np.arange(members, dtype=np.int32), len(count)), missing.reshape(-1))
    return owner


def _free_surplus(owner: IntArray, now: CurrentOwners, surplus: Indices, count: IntArray) -> None:
    """Free the units beyond a member's count in the cells `surplus`, the highest numbers first."""
    members = count.shape[1]
    mine = np.flatnonzero(owner != NONE)
    cell = now.row[mine].astype(np.int64) * members + owner[mine]
    over = np.zeros(count.size, np.bool_)
    over[surplus] = True
    mine, cell = mine[over[cell]], cell[over[cell]]
    # What can't move comes first, so that it stays.
    order = np.lexsort((mine, ~now.fixed[mine], cell))
    ordered = cell[order]
    owner[mine[order[_rank(ordered) >= count.reshape(-1)[ordered]]]] = NONE


def _rank(ordered: NDArray[Any]) -> Indices:
    """Number equal values from 0, in an array where equal values are adjacent."""
    first = np.flatnonzero(np.diff(ordered, prepend=-1))
    return np.asarray(np.arange(len(ordered)) - np.repeat(first, np.diff(np.append(first, len(ordered)))))
