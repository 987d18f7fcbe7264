"""Measures what a solution costs and achieves, from the problem and the result alone.

The strategy is not trusted: moves, imbalance, mismatches and cold starts are counted from the arrays. Only the lower
bound, and whether the search for the optimum was abandoned, are the strategy's own claims. Counting takes longer than
planning, so each figure is computed when it is first read.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from assigner.strategy.interface import NONE, IntArray, Problem
from assigner.strategy.reasons import ReasonArray, reasons

_BLOCK_CELLS = 500_000
"""Cells of the topic x member count that are looked at in one go: about 20 MB, and still in the processor's cache."""


@dataclass(frozen=True)
class Explanation:
    problem: Problem
    owner: IntArray
    """The solution's."""
    lower_bound: int
    """No solution as valid and as balanced moves fewer."""
    by_rule: bool = False
    """The strategy follows a rule that does not look at present owners."""
    unproved: bool = False
    """The strategy gave up its search for the best plan, because the group is too large for it: a more even one, or one
    with fewer moves, may exist."""

    @cached_property
    def moves(self) -> int:
        """How many partitions were taken from their present owner."""
        if self.owner is self.problem.owner:
            return 0
        return int(np.count_nonzero((self.problem.owner != NONE) & (self.problem.owner != self.owner)))

    @cached_property
    def imbalance(self) -> int:
        """The difference between most and fewest partitions of the members that could take them (per unit of capacity,
        rounded up)."""
        return _imbalance(self.problem, self.owner)

    @cached_property
    def imbalance_by_topic(self) -> IntArray:
        return _imbalance_by_topic(self.problem, self.owner)

    @cached_property
    def rack_mismatches(self) -> int:
        """How many partitions have an owner with a rack, and no replica in that rack."""
        return _rack_mismatches(self.problem, self.owner)

    @cached_property
    def cold_actives(self) -> int:
        """How many partitions were given to a member that neither owned them nor held a standby, while a live member
        did."""
        return _cold_actives(self.problem, self.owner)

    @cached_property
    def reasons(self) -> ReasonArray:
        """Why each partition moves, one `assigner.strategy.reasons.Reason` per flat partition."""
        return reasons(self.problem, self.owner, by_rule=self.by_rule)


def _imbalance(problem: Problem, owner: IntArray) -> int:
    members = problem.members
    could = members.subscription.any(axis=1) & ~members.hold
    if not could.any():
        return 0
    load = np.bincount(owner[owner != NONE], minlength=members.count) / members.capacity
    return _whole(float(load[could].max() - load[could].min()))


def _imbalance_by_topic(problem: Problem, owner: IntArray) -> IntArray:
    members, count = problem.members, problem.topics.count
    spread = np.zeros(count, np.int32)
    if not members.count:
        return spread
    step = max(1, _BLOCK_CELLS // members.count)
    offsets = problem.offsets
    for first in range(0, count, step):
        last = min(first + step, count)
        part = owner[offsets[first] : offsets[last]]
        topic = np.repeat(np.arange(last - first), problem.topics.partitions[first:last])
        cell = topic[part != NONE] * members.count + part[part != NONE]
        counts = np.bincount(cell, minlength=(last - first) * members.count)
        load = counts.reshape(last - first, members.count) / members.capacity
        could = members.subscription[:, first:last].T & ~members.hold
        most = np.where(could, load, -np.inf).max(axis=1)
        fewest = np.where(could, load, np.inf).min(axis=1)
        some = could.any(axis=1)
        spread[first:last][some] = np.ceil(most[some] - fewest[some] - 1e-9)
    return spread


def _whole(difference: float) -> int:
    return int(np.ceil(difference - 1e-9))


def _rack_mismatches(problem: Problem, owner: IntArray) -> int:
    if problem.topics.replica_racks is None or not problem.members.count:
        return 0
    starts, racks = problem.topics.replica_racks
    rack = np.where(owner == NONE, np.int32(NONE), problem.members.rack[owner])
    partition = np.repeat(np.arange(len(owner)), np.diff(starts))
    near = np.zeros(len(owner), np.bool_)
    near[partition[racks == rack[partition]]] = True
    known = np.diff(starts) > 0
    return int((known & (rack != NONE) & ~near).sum())


def _cold_actives(problem: Problem, owner: IntArray) -> int:
    given = (owner != NONE) & (owner != problem.owner)
    warm = problem.owner != NONE
    if problem.standbys.size:
        warm = warm | (problem.standbys != NONE).any(axis=1)
        given &= ~(problem.standbys == owner[:, None]).any(axis=1)
    return int((given & warm).sum())
