"""Count what members have of each topic, as far as it matters.

Topics with fewer units than members (small ones) have a floor of 0, so a byte per member says it all; the others
(large ones) are counted, and there are never more of their cells than units. So a plan for 10,000 members and 1,000
topics looks at each unit once or twice, and never at ten million counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from assigner.strategy import NONE, BoolArray, IntArray
from strategies.alike import Alike, Counts, first_of_each, part
from strategies.extras import HAD, HAS, LOCKED, Extras
from strategies.shares import Indices


@dataclass(frozen=True)
class Small:
    """Topics with fewer units than there are members."""

    topics: Indices
    units: Indices | None
    """Which units these are; None: all."""
    owner: IntArray
    cell: Counts
    """Where each unit's cell is in `Extras.cells`."""
    repeated: Indices
    """Units whose owner has another of the same topic: positions in `owner`."""


@dataclass(frozen=True)
class Large:
    """Topics with as many units as members, or more."""

    topics: Indices
    units: Indices | None
    owner: IntArray
    cell: Counts
    """Where each unit's cell is in `held`, with a column for nobody in front."""
    held: Counts
    """[topic, member]"""
    stuck: Counts | None
    """[topic, member]: of these, pinned; None: nothing is."""
    floor: Counts
    """[topic, 1]"""


@dataclass(frozen=True)
class Tally:
    extras: Extras
    small: Small | None
    large: Large | None
    excess: int
    """Units that members have above floor and extra: these must move whatever is decided."""

    @property
    def even(self) -> bool:
        """Whether every topic is as it should be, and nothing is to be dealt."""
        done = bool((self.extras.taken == self.extras.quota).all()) and self.excess == 0
        return done and (self.large is None or bool((self.large.held >= self.large.floor).all()))


def tally(problem: Alike) -> Tally | None:
    """None: what is pinned stands in the way of even shares."""
    count, topics = problem.members, len(problem.partitions)
    floor, quota = np.divmod(problem.to_deal(), count)
    cells = np.zeros((topics, count + 1), np.uint8)
    extras = Extras(cells, quota, np.zeros(topics, np.int64), np.zeros(count, np.int64), np.zeros(topics, np.bool_))
    is_large = floor > 0
    small = None if is_large.all() else _count_small(problem, ~is_large, extras)
    large = _count_large(problem, is_large, floor, extras) if is_large.any() else None
    excess = len(small.repeated) if small is not None else 0
    if large is not None:
        excess += int(np.maximum(large.held - large.floor - 1, 0).sum())
    if problem.pinned is not None and not _lock(problem.pinned, extras, small, large):
        return None
    return Tally(extras, small, large, excess)


def _count_small(problem: Alike, which: BoolArray, extras: Extras) -> Small:
    topics = np.flatnonzero(which)
    units, owner = _of(problem, which)
    width = problem.members + 1
    cell = np.repeat(topics * width + 1, problem.partitions[topics])
    cell += owner
    flat = extras.cells.reshape(-1)
    flat[cell] = HAS | HAD
    extras.cells[:, 0] = 0
    load = np.bincount(owner + 1, minlength=width)
    nobodys = np.flatnonzero(owner == NONE) if load[0] else np.zeros(0, np.intp)
    distinct = int(np.count_nonzero(flat.view(np.bool_)))
    repeated = np.zeros(0, np.intp)
    if distinct < len(owner) - len(nobodys):
        repeated = _repeated(owner, cell, None if problem.pinned is None else part(problem.pinned, units))
    idle = np.concatenate((nobodys, repeated))
    extras.load += load[1:] - np.bincount(owner[repeated], minlength=problem.members)
    extras.taken[topics] = problem.partitions[topics]
    extras.taken -= np.bincount((cell[idle] - 1 - owner[idle]) // width, minlength=len(which))
    return Small(topics, units, owner, cell, repeated)


def _repeated(owner: IntArray, cell: Counts, pinned: BoolArray | None) -> Indices:
    """All but one unit of each cell: the pinned one stays, else the first."""
    some = np.flatnonzero(owner != NONE if pinned is None else (owner != NONE) & ~pinned)
    keep = np.ones(len(some), np.int64)
    if pinned is not None:
        keep[np.isin(cell[some], cell[pinned & (owner != NONE)])] = 0
    return np.asarray(some[~first_of_each(owner[some], cell[some], keep)])


def _count_large(problem: Alike, which: BoolArray, floor: Counts, extras: Extras) -> Large:
    topics = np.flatnonzero(which)
    units, owner = _of(problem, which)
    width, shape = problem.members + 1, (len(topics), problem.members + 1)
    cell = np.repeat(np.arange(len(topics)) * width + 1, problem.partitions[topics])
    cell += owner
    held = np.bincount(cell, minlength=shape[0] * width).reshape(shape)[:, 1:]
    over = held > floor[topics, None]
    extras.cells[topics, 1:] = over * np.uint8(HAS | HAD)
    extras.load += over.sum(axis=0)
    extras.taken[topics] = over.sum(axis=1)
    stuck = None
    if problem.pinned is not None:
        pinned = part(problem.pinned, units)
        stuck = np.bincount(cell[pinned], minlength=shape[0] * width).reshape(shape)[:, 1:]
    return Large(topics, units, owner, cell, held, stuck, floor[topics, None])


def _lock(pinned: BoolArray, extras: Extras, small: Small | None, large: Large | None) -> bool:
    """Mark the extras that can't move; False: there are too many of them somewhere."""
    width = extras.cells.shape[1]
    locked = [np.zeros(0, np.int64)]
    if small is not None:
        mine = part(pinned, small.units) & (small.owner != NONE)
        locked.append(small.cell[mine])
    if large is not None and large.stuck is not None:
        if (large.stuck > large.floor + 1).any():
            return False
        row, member = np.divmod(np.flatnonzero(large.stuck > large.floor), width - 1)
        locked.append(large.topics[row] * width + member + 1)
    cells = np.concatenate(locked)
    extras.cells.reshape(-1)[cells] |= LOCKED
    return _leave_room(extras, cells)


def _leave_room(extras: Extras, locked: Counts) -> bool:
    topic, column = np.divmod(locked, extras.cells.shape[1])
    by_topic = np.bincount(topic, minlength=len(extras.quota))
    by_member = np.bincount(column, minlength=1)
    full = int(np.count_nonzero(by_member > extras.floor))
    fits = int(by_member.max()) <= extras.floor + 1 and full <= extras.ceilings
    return fits and bool((by_topic <= extras.quota).all()) and len(np.unique(locked)) == len(locked)


def _of(problem: Alike, which: BoolArray) -> tuple[Indices | None, IntArray]:
    if which.all():
        return None, problem.owner
    units = np.flatnonzero(np.repeat(which, problem.partitions))
    return units, problem.owner[units]
