"""Models a uniform problem: every member may own every unit, so only counts per topic and member matter.

With equal capacities each member gets the floor of every topic, and the topic's remainders go to some of
them. Only remainders are to be decided: `Remainders` keeps them, one byte per topic and member. A remainder that its
member has today costs nothing; any other is moved from another member, or is free. `tally` counts what members have:
topics with fewer units than members (small ones) have a floor of 0, so the byte says it all; the others (large ones)
are counted, and never have more cells than units. So a plan for 10,000 members and 1,000 topics visits each unit once
or twice, and never ten million counts.

Problems with holds, caps, sets of topics, weights or different subscriptions are recognised and left to other solvers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from assigner.strategies.problem.shares import Indices
from assigner.strategies.problem.units import Units
from assigner.strategy import NONE, BoolArray, FloatArray, IntArray, Members

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class UniformProblem:
    """A problem in which every member may own every unit."""

    partitions: Counts
    """[topic]"""
    owner: IntArray
    """[unit]"""
    pinned: BoolArray | None
    """[unit]; None: nothing is pinned."""
    capacity: FloatArray
    """[member]"""

    @property
    def members(self) -> int:
        return len(self.capacity)

    @property
    def even(self) -> bool:
        """Whether all members have equal shares."""
        return bool((self.capacity == self.capacity[0]).all())

    def to_assign(self) -> Counts:
        """Count the units of each topic to be assigned, without those that are pinned as unowned."""
        if self.pinned is None:
            return self.partitions
        unowned = np.flatnonzero(self.pinned & (self.owner == NONE))
        return self.partitions - np.bincount(self.topics_of(unowned), minlength=len(self.partitions))

    def topics_of(self, units: Indices) -> Indices:
        return np.searchsorted(np.cumsum(self.partitions), units, side="right")


def uniform_problem(units: Units, members: Members) -> UniformProblem | None:
    """Convert units to a uniform problem, without topics that no member wants; None: it is not of this kind."""
    plain = units.rows is None and units.weight is None and members.count > 0
    if not plain or units.wanted_by_all is None or members.hold.any() or (members.cap != NONE).any():
        return None
    wanted = units.wanted_by_all
    partitions, owner, pinned = units.partitions.astype(np.int64), units.owner, units.pinned
    if not wanted.all():
        theirs = np.repeat(wanted, partitions)
        if bool((pinned & ~theirs & (owner != NONE)).any()):
            return None
        partitions, owner, pinned = partitions[wanted], owner[theirs], pinned[theirs]
    return UniformProblem(partitions, owner, pinned if pinned.any() else None, members.capacity)


def first_of_each(holder: IntArray, cell: Counts, keep: Counts) -> BoolArray:
    """Find, for units in flat order, whether each is among the first `keep` of its cell.

    A cell is a member and a topic. As flat order is by topic, sorting by member alone brings each cell together."""
    order = np.argsort(narrow(holder), kind="stable")
    ordered = cell[order]
    start = np.flatnonzero(np.concatenate((np.ones(1, np.bool_), ordered[1:] != ordered[:-1])))
    lengths = np.diff(start, append=len(ordered))
    rank = np.arange(len(ordered)) - np.repeat(start, lengths)
    among = np.empty(len(ordered), np.bool_)
    among[order] = rank < keep[order]
    return among


def narrow(numbers: NDArray[np.signedinteger]) -> NDArray[np.integer]:
    """Convert non-negative numbers to 16 bits if they fit: numpy sorts those ten times as fast."""
    return numbers.astype(np.uint16) if len(numbers) and int(numbers.max()) < 2**16 else numbers


def part(values: BoolArray, units: Indices | None) -> BoolArray:
    """Select the values of these units; None: of all."""
    return values if units is None else np.asarray(values[units])


# --- remainders ------------------------------------------------------------------------------------------------------

HAS = 1
"""The member is to have a remainder of the topic."""
HAD = 2
"""The member has one today, so that keeping it is no move."""
LOCKED = 4
"""The member can't give it away: the unit is pinned."""

Flags = NDArray[np.uint8]


@dataclass
class Remainders:
    cells: Flags
    """[topic, member + 1]: flags. The first column is for unowned units, and stays empty."""
    quota: Counts
    """[topic]: remainders to assign."""
    taken: Counts
    """[topic]: remainders assigned."""
    load: Counts
    """[member]: remainders of all topics."""
    changed: BoolArray
    """[topic]: whether one of its remainders was transferred since it was counted."""

    @property
    def floor(self) -> int:
        """The number of remainders that every member has at least, when loads are even."""
        return int(self.quota.sum()) // len(self.load)

    @property
    def ceilings(self) -> int:
        """The number of members that have one remainder more."""
        return int(self.quota.sum()) % len(self.load)

    def flags(self, topic: int, members: Indices) -> Flags:
        return np.asarray(self.cells[topic].take(members + 1))

    def give(self, topic: int, members: Indices) -> None:
        self.cells[topic, members + 1] |= HAS
        self.changed[topic] = True
        self.load[members] += 1
        self.taken[topic] += len(members)

    def take(self, topic: int, members: Indices) -> None:
        self.cells[topic, members + 1] &= 255 - HAS
        self.changed[topic] = True
        self.load[members] -= 1
        self.taken[topic] -= len(members)

    def lower_bound(self, per_topic_only: bool) -> int:
        """Compute how many of today's remainders must be lost: those above a topic's quota, or above what a member may
        have in all, whichever are more."""
        by_topic = int(np.maximum(self.taken - self.quota, 0).sum())
        if per_topic_only:
            return by_topic
        over = np.maximum(self.load - self.floor, 0)
        by_member = int(over.sum()) - min(self.ceilings, int(np.count_nonzero(over)))
        return max(by_topic, by_member)


@dataclass(frozen=True)
class Small:
    """Topics with fewer units than there are members."""

    topics: Indices
    units: Indices | None
    """The numbers of these units; None: all."""
    owner: IntArray
    cell: Counts
    """The index of each unit's cell in `Remainders.cells`."""
    repeated: Indices
    """Units whose owner has another of the same topic: positions in `owner`."""


@dataclass(frozen=True)
class Large:
    """Topics with as many units as members, or more."""

    topics: Indices
    units: Indices | None
    owner: IntArray
    cell: Counts
    """The index of each unit's cell in `held`, with a column for unowned units in front."""
    held: Counts
    """[topic, member]"""
    immovable: Counts | None
    """[topic, member]: of these, pinned; None: nothing is."""
    floor: Counts
    """[topic, 1]"""


@dataclass(frozen=True)
class Tally:
    remainders: Remainders
    small: Small | None
    large: Large | None
    excess: int
    """Units that members have above floor and remainder: these must move in any plan."""

    @property
    def even(self) -> bool:
        """Whether every topic is even, and nothing is left to assign."""
        done = bool((self.remainders.taken == self.remainders.quota).all()) and self.excess == 0
        return done and (self.large is None or bool((self.large.held >= self.large.floor).all()))


def tally(problem: UniformProblem) -> Tally | None:
    """Count what members have; None: pinned units prevent even shares."""
    count, topics = problem.members, len(problem.partitions)
    floor, quota = np.divmod(problem.to_assign(), count)
    cells = np.zeros((topics, count + 1), np.uint8)
    remainders = Remainders(
        cells, quota, np.zeros(topics, np.int64), np.zeros(count, np.int64), np.zeros(topics, np.bool_)
    )
    is_large = floor > 0
    small = None if is_large.all() else _count_small(problem, ~is_large, remainders)
    large = _count_large(problem, is_large, floor, remainders) if is_large.any() else None
    excess = len(small.repeated) if small is not None else 0
    if large is not None:
        excess += int(np.maximum(large.held - large.floor - 1, 0).sum())
    if problem.pinned is not None and not _lock(problem.pinned, remainders, small, large):
        return None
    return Tally(remainders, small, large, excess)


def _count_small(problem: UniformProblem, which: BoolArray, remainders: Remainders) -> Small:
    topics = np.flatnonzero(which)
    units, owner = _of(problem, which)
    width = problem.members + 1
    cell = np.repeat(topics * width + 1, problem.partitions[topics])
    cell += owner
    flat = remainders.cells.reshape(-1)
    flat[cell] = HAS | HAD
    remainders.cells[:, 0] = 0
    load = np.bincount(owner + 1, minlength=width)
    unowned = np.flatnonzero(owner == NONE) if load[0] else np.zeros(0, np.intp)
    distinct = int(np.count_nonzero(flat.view(np.bool_)))
    repeated = np.zeros(0, np.intp)
    if distinct < len(owner) - len(unowned):
        repeated = _repeated(owner, cell, None if problem.pinned is None else part(problem.pinned, units))
    idle = np.concatenate((unowned, repeated))
    remainders.load += load[1:] - np.bincount(owner[repeated], minlength=problem.members)
    remainders.taken[topics] = problem.partitions[topics]
    remainders.taken -= np.bincount((cell[idle] - 1 - owner[idle]) // width, minlength=len(which))
    return Small(topics, units, owner, cell, repeated)


def _repeated(owner: IntArray, cell: Counts, pinned: BoolArray | None) -> Indices:
    """Find all but one unit of each cell: the pinned one stays, else the first."""
    some = np.flatnonzero(owner != NONE if pinned is None else (owner != NONE) & ~pinned)
    keep = np.ones(len(some), np.int64)
    if pinned is not None:
        keep[np.isin(cell[some], cell[pinned & (owner != NONE)])] = 0
    return np.asarray(some[~first_of_each(owner[some], cell[some], keep)])


def _count_large(problem: UniformProblem, which: BoolArray, floor: Counts, remainders: Remainders) -> Large:
    topics = np.flatnonzero(which)
    units, owner = _of(problem, which)
    width, shape = problem.members + 1, (len(topics), problem.members + 1)
    cell = np.repeat(np.arange(len(topics)) * width + 1, problem.partitions[topics])
    cell += owner
    held = np.bincount(cell, minlength=shape[0] * width).reshape(shape)[:, 1:]
    over = held > floor[topics, None]
    remainders.cells[topics, 1:] = over * np.uint8(HAS | HAD)
    remainders.load += over.sum(axis=0)
    remainders.taken[topics] = over.sum(axis=1)
    immovable = None
    if problem.pinned is not None:
        pinned = part(problem.pinned, units)
        immovable = np.bincount(cell[pinned], minlength=shape[0] * width).reshape(shape)[:, 1:]
    return Large(topics, units, owner, cell, held, immovable, floor[topics, None])


def _lock(pinned: BoolArray, remainders: Remainders, small: Small | None, large: Large | None) -> bool:
    """Mark the remainders that can't move; False: a topic or a member has too many of them."""
    width = remainders.cells.shape[1]
    locked = [np.zeros(0, np.int64)]
    if small is not None:
        mine = part(pinned, small.units) & (small.owner != NONE)
        locked.append(small.cell[mine])
    if large is not None and large.immovable is not None:
        if (large.immovable > large.floor + 1).any():
            return False
        row, member = np.divmod(np.flatnonzero(large.immovable > large.floor), width - 1)
        locked.append(large.topics[row] * width + member + 1)
    cells = np.concatenate(locked)
    remainders.cells.reshape(-1)[cells] |= LOCKED
    return _leave_room(remainders, cells)


def _leave_room(remainders: Remainders, locked: Counts) -> bool:
    topic, column = np.divmod(locked, remainders.cells.shape[1])
    by_topic = np.bincount(topic, minlength=len(remainders.quota))
    by_member = np.bincount(column, minlength=1)
    full = int(np.count_nonzero(by_member > remainders.floor))
    fits = int(by_member.max()) <= remainders.floor + 1 and full <= remainders.ceilings
    return fits and bool((by_topic <= remainders.quota).all()) and len(np.unique(locked)) == len(locked)


def _of(problem: UniformProblem, which: BoolArray) -> tuple[Indices | None, IntArray]:
    if which.all():
        return None, problem.owner
    units = np.flatnonzero(np.repeat(which, problem.partitions))
    return units, problem.owner[units]
