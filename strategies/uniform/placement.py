"""From extras to owners: everyone keeps its first units of each topic, and what is loose fills what is missing.

Loose units are handed out in order, to members in order, so that fresh shares of a topic are ranges.
"""

from __future__ import annotations

import numpy as np

from assigner.strategies.problem.shares import Indices
from assigner.strategies.uniform.model import HAS, Alike, Large, Remainders, Small, Tally, first_of_each, part
from assigner.strategy import NONE, IntArray


def settle(problem: Alike, counted: Tally) -> IntArray:
    owner = problem.owner.copy()
    if counted.small is not None:
        _settle_small(problem, counted.small, counted.extras, owner)
    if counted.large is not None:
        _settle_large(problem, counted.large, counted.extras, owner)
    return owner


def _settle_small(problem: Alike, small: Small, extras: Remainders, owner: IntArray) -> None:
    # Whatever has no owner or one too many is of a topic that changed.
    topics = small.topics[extras.changed[small.topics]]
    units = np.flatnonzero(np.repeat(extras.changed[small.topics], problem.partitions[small.topics]))
    loose = (extras.cells.reshape(-1).take(small.cell[units]) & HAS) == 0
    if len(small.repeated):
        loose |= np.isin(units, small.repeated)
    new = np.flatnonzero(extras.cells[topics] == HAS)
    where = units[loose]
    if problem.pinned is not None:
        where = where[~part(problem.pinned, small.units)[where]]
    owner[where if small.units is None else small.units[where]] = new % (problem.members + 1) - 1


def _settle_large(problem: Alike, large: Large, extras: Remainders, owner: IntArray) -> None:
    keep = large.floor + (extras.cells[large.topics, 1:] & HAS)
    loose = large.owner == NONE
    if (large.held > keep).any():
        loose[_surplus(problem, large, keep)] = True
    missing = np.maximum(keep - large.held, 0)
    members = np.tile(np.arange(problem.members, dtype=np.int32), len(keep))
    if problem.pinned is not None:
        loose &= ~part(problem.pinned, large.units)
    where = np.flatnonzero(loose)
    owner[where if large.units is None else large.units[where]] = np.repeat(members, missing.reshape(-1))


def _surplus(problem: Alike, large: Large, keep: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> Indices:
    """What members have above `keep`, the last units first; nothing that is pinned."""
    over = np.zeros((len(keep), problem.members + 1), np.bool_)
    over[:, 1:] = large.held > keep
    theirs = over.reshape(-1).take(large.cell)
    room = keep
    if problem.pinned is not None and large.stuck is not None:
        theirs &= ~part(problem.pinned, large.units)
        room = keep - large.stuck
    units = np.flatnonzero(theirs)
    cell = large.cell[units]
    topic, column = np.divmod(cell, problem.members + 1)
    return np.asarray(units[~first_of_each(large.owner[units], cell, room[topic, column - 1])])
