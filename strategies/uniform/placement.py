"""From remainders to owners: each member keeps its first units of each topic, and free units fill what is missing.

Free units are assigned in order, to members in order, so that fresh shares of a topic are ranges.
"""

from __future__ import annotations

import numpy as np

from assigner.strategies.problem.shares import Indices
from assigner.strategies.uniform.model import HAS, Large, Remainders, Small, Tally, UniformProblem, first_of_each, part
from assigner.strategy import NONE, IntArray


def place(problem: UniformProblem, counted: Tally) -> IntArray:
    owner = problem.owner.copy()
    if counted.small is not None:
        _place_small(problem, counted.small, counted.remainders, owner)
    if counted.large is not None:
        _place_large(problem, counted.large, counted.remainders, owner)
    return owner


def _place_small(problem: UniformProblem, small: Small, remainders: Remainders, owner: IntArray) -> None:
    # Whatever has no owner or one too many is of a topic that changed.
    topics = small.topics[remainders.changed[small.topics]]
    units = np.flatnonzero(np.repeat(remainders.changed[small.topics], problem.partitions[small.topics]))
    free = (remainders.cells.reshape(-1).take(small.cell[units]) & HAS) == 0
    if len(small.repeated):
        free |= np.isin(units, small.repeated)
    new = np.flatnonzero(remainders.cells[topics] == HAS)
    where = units[free]
    if problem.pinned is not None:
        where = where[~part(problem.pinned, small.units)[where]]
    owner[where if small.units is None else small.units[where]] = new % (problem.members + 1) - 1


def _place_large(problem: UniformProblem, large: Large, remainders: Remainders, owner: IntArray) -> None:
    keep = large.floor + (remainders.cells[large.topics, 1:] & HAS)
    free = large.owner == NONE
    if (large.held > keep).any():
        free[_surplus(problem, large, keep)] = True
    missing = np.maximum(keep - large.held, 0)
    members = np.tile(np.arange(problem.members, dtype=np.int32), len(keep))
    if problem.pinned is not None:
        free &= ~part(problem.pinned, large.units)
    where = np.flatnonzero(free)
    owner[where if large.units is None else large.units[where]] = np.repeat(members, missing.reshape(-1))


def _surplus(problem: UniformProblem, large: Large, keep: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> Indices:
    """What members have above `keep`, the last units first; nothing that is pinned."""
    over = np.zeros((len(keep), problem.members + 1), np.bool_)
    over[:, 1:] = large.held > keep
    theirs = over.reshape(-1).take(large.cell)
    room = keep
    if problem.pinned is not None and large.immovable is not None:
        theirs &= ~part(problem.pinned, large.units)
        room = keep - large.immovable
    units = np.flatnonzero(theirs)
    cell = large.cell[units]
    topic, column = np.divmod(cell, problem.members + 1)
    return np.asarray(units[~first_of_each(large.owner[units], cell, room[topic, column - 1])])
