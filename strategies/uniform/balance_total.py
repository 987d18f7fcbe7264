"""Makes the total over all topics even, with the fewest moves; single topics are not balanced.

A member above its quota keeps as many units as its quota. Which units it loses, and who gets free ones, rotates over
the topics, so that no topic concentrates on one member without need.
"""

from __future__ import annotations

import numpy as np

from assigner.strategies.problem.shares import EPSILON, Indices
from assigner.strategies.uniform.model import Counts, UniformProblem, narrow
from assigner.strategy import NONE, BoolArray, IntArray


def balance_total(problem: UniformProblem) -> tuple[IntArray, int] | None:
    """Compute new owners and the moves; None: pinned units prevent it."""
    holder = problem.owner + np.int32(1)
    held = np.bincount(holder, minlength=problem.members + 1)
    immovable = np.zeros_like(held)
    if problem.pinned is not None:
        immovable = np.bincount(holder[problem.pinned], minlength=problem.members + 1)
    quota = _quotas(problem, held[1:], immovable[1:], len(holder) - int(immovable[0]))
    if (immovable[1:] > quota).any():
        return None
    moves = int(np.maximum(held[1:] - quota, 0).sum())
    if moves == 0 and held[0] == immovable[0]:
        return problem.owner, 0
    owner = problem.owner.copy()
    if moves:
        owner[_surplus(problem, holder, held, immovable, quota)] = NONE
    free = owner == NONE if problem.pinned is None else (owner == NONE) & ~problem.pinned
    takers = _round(np.maximum(quota - held[1:], 0), len(problem.partitions) == 1)
    owner[np.flatnonzero(free)] = takers
    return owner, moves


def _quotas(problem: UniformProblem, held: Counts, immovable: Counts, total: int) -> Counts:
    """Compute quotas in proportion to capacity. Remainders go to members that have more than their floor already (first
    those that can't give it up), then to the largest fractions, then to the first."""
    share = total * (problem.capacity / problem.capacity.sum())
    floor = np.floor(share + EPSILON).astype(np.int64)
    left = total - int(floor.sum())
    if left:
        rest = np.round(share - floor, 9)
        may = np.flatnonzero(rest > EPSILON)
        order = np.lexsort((-rest[may], held[may] <= floor[may], immovable[may] <= floor[may]))
        floor[may[order[:left]]] += 1
    return np.asarray(floor)


def _surplus(problem: UniformProblem, holder: IntArray, held: Counts, immovable: Counts, quota: Counts) -> Indices:
    """Find the units that members have above their quotas. Of one topic these are the last units; of several, each
    member loses others, or all would lose units of the same topics."""
    over = np.concatenate((np.zeros(1, np.bool_), held[1:] > quota))
    theirs: BoolArray = over.take(holder)
    if problem.pinned is not None:
        theirs &= ~problem.pinned
    units = np.flatnonzero(theirs)
    units = units[np.argsort(narrow(holder[units]), kind="stable")]
    members = np.flatnonzero(over)
    each = (held - immovable)[members]
    shift = (members * 0.6180339887 % 1.0 * each).astype(np.int64) if len(problem.partitions) > 1 else 0 * each
    place = np.arange(len(units)) - np.repeat(np.cumsum(each) - each - shift, each)
    place -= np.where(place >= np.repeat(each, each), np.repeat(each, each), 0)
    return np.asarray(units[place >= np.repeat(quota[members - 1] - immovable[members], each)])


def _round(missing: Counts, in_ranges: bool) -> Indices:
    """List every member as often as it lacks units: in turn, or in ranges."""
    members = np.flatnonzero(missing)
    each = missing[members]
    ranges = np.repeat(members, each)
    if in_ranges or len(members) <= 1:
        return ranges
    turn = np.arange(len(ranges)) - np.repeat(np.cumsum(each) - each, each)
    return np.asarray(ranges[np.argsort(narrow(turn), kind="stable")])
