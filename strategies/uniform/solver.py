"""Solves problems in which every member may own every unit, which is what nearly all groups look like.

A few passes over the units are enough, however many members and topics there are. `global`: every member has the floor
or the ceiling of its share, with the fewest moves. `both`, `topic`: the same in every topic as well, which for equal
capacities is always possible at once, again with the fewest moves (unless the search for them runs out of effort, see
`assigner.strategies.uniform.balance`; the lower bound is then below the moves). `topic_only`: per topic alone, with the
fewest moves.

Not solved here (None): holds, caps, weights, sets of topics, unequal capacities other than by `global`, pins that
prevent even shares. Racks, standbys and the load of nodes are ignored; among equal members the first in order comes
first. It ends: see `assigner.strategies.uniform.balance`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from assigner.strategies.problem.shares import Indices
from assigner.strategies.problem.units import Units
from assigner.strategies.uniform.balance import balance_all, balance_topics
from assigner.strategies.uniform.balance_total import balance_total
from assigner.strategies.uniform.model import (
    HAS,
    Large,
    Remainders,
    Small,
    Tally,
    UniformProblem,
    first_of_each,
    part,
    tally,
    uniform_problem,
)
from assigner.strategies.uniform.round_robin import assign_fresh
from assigner.strategy import NONE, IntArray, Members


@dataclass(frozen=True)
class SolverResult:
    owner: IntArray
    """New owner per unit; the problem's own array if nothing changes."""
    lower_bound: int
    """A lower bound on the moves of any result as even as this, among units whose owner may keep them."""


def solve(units: Units, members: Members, balance: str) -> SolverResult | None:
    """Solve a uniform problem. `balance`: `global`, `both`, `topic` or `topic_only`. None: it is not of this kind."""
    problem = uniform_problem(units, members)
    if problem is None or (balance != "global" and not problem.even):
        return None
    found = _solve(problem, balance)
    return found if found is None or len(problem.owner) == len(units.owner) else _with_unwanted(found, units)


def _solve(problem: UniformProblem, balance: str) -> SolverResult | None:
    if not len(problem.owner):
        return SolverResult(problem.owner, 0)
    if problem.even and problem.pinned is None and int(problem.owner.max()) == NONE:
        return SolverResult(assign_fresh(problem.partitions, problem.members), 0)
    if balance == "global":
        found = balance_total(problem)
        return None if found is None else SolverResult(*found)
    return _even_per_topic(problem, over_all=balance != "topic_only")


def _even_per_topic(problem: UniformProblem, over_all: bool) -> SolverResult | None:
    counted = tally(problem)
    if counted is None:
        return None
    remainders = counted.remainders
    bound = counted.excess + remainders.lower_bound(per_topic_only=not over_all)
    if bound == 0 and counted.even and (not over_all or int(np.ptp(remainders.load)) <= 1):
        return SolverResult(problem.owner, 0)
    if over_all:
        least = counted.excess + remainders.lower_bound(per_topic_only=True)
        outcome = balance_all(remainders)
        if outcome is None:
            return None
        if outcome.exact:
            bound = least + outcome.paid
    else:
        balance_topics(remainders)
    return SolverResult(place(problem, counted), bound)


def _with_unwanted(found: SolverResult, units: Units) -> SolverResult:
    """Add the units of topics without a subscriber, which have no owner."""
    owner = np.full(len(units.owner), NONE, np.int32)
    owner[np.repeat(units.wanted.any(axis=1), units.partitions)] = found.owner
    return SolverResult(units.owner if bool((owner == units.owner).all()) else owner, found.lower_bound)


# --- from remainders to owners ----------------------------------------------------------------------------------------


def place(problem: UniformProblem, counted: Tally) -> IntArray:
    """Turn remainders into owners: each member keeps its first units of each topic, and free units fill its count.

    Free units are assigned in order, to members in order, so that new shares of a topic are ranges."""
    owner = problem.owner.copy()
    if counted.small is not None:
        _place_small(problem, counted.small, counted.remainders, owner)
    if counted.large is not None:
        _place_large(problem, counted.large, counted.remainders, owner)
    return owner


def _place_small(problem: UniformProblem, small: Small, remainders: Remainders, owner: IntArray) -> None:
    # Units without an owner, or of an owner that has too many, are of topics that changed.
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
    """Find the units that members have above `keep`, the last ones first, without pinned ones."""
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
