"""Computes the load that each member of a part should have: its fair share, as a real number.

Where all members may own the same units, shares are in proportion to capacity, around units that can't move. A unit
heavier than a whole share can't be shared: it and the largest member are left out, so that one hot partition does not
make all other members look idle. Where members may own different units, each kind is water-filled repeatedly over its
eligible members, to the same level, until nothing changes; the resulting shares have the least sum of
(load^2 / capacity). A cap counts as so many partitions of average weight.

Shares depend on units and eligible members, never on present owners: so a plan made from them is still good at the next
plan. Not promised: exact shares for long chains of members with different topics,
because water-filling stops after a bounded number of rounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from assigner.strategies.problem.shares import fair_shares
from assigner.strategies.weighted.parts import Part
from assigner.strategy import FloatArray, IntArray

_ROUNDS = 60
_CELLS = 20_000_000
"""The maximum of water-fillings of one kind into one cohort."""
_STILL = 1e-7
"""A round that shifts less than this fraction of the total is the last."""


@dataclass(frozen=True)
class WeightGoals:
    load: FloatArray
    """[member]"""
    amounts: FloatArray | None
    """[kind, cohort] how much of each kind the members of a cohort have together; None with one kind."""
    cohort: IntArray
    """[member]"""
    part_of_cohort: FloatArray
    """[member] its fraction of its cohort's capacity."""

    def of_kind(self, kind: int) -> FloatArray:
        """The goal of each member for one kind."""
        if self.amounts is None:
            return self.load
        return np.asarray(self.amounts[kind][self.cohort] * self.part_of_cohort)


def goals(part: Part) -> WeightGoals:
    high = _most(part)
    if len(part.takes) == 1:
        one_cohort = np.zeros(part.count, np.int32)
        return WeightGoals(_one_kind(part, high), None, one_cohort, part.capacity / part.capacity.sum())
    return _many_kinds(part, high)


def _most(part: Part) -> FloatArray | None:
    if not part.capped or not np.isfinite(part.room).any():
        return None
    held = np.bincount(part.owner[part.owner >= 0], part.size[part.owner >= 0], part.count)
    mean = part.weight.sum() / max(1, part.size.sum())
    return np.asarray(part.immovable + np.maximum(part.room + held, 0.0) * mean)


def _one_kind(part: Part, high: FloatArray | None) -> FloatArray:
    capacity, low = part.capacity, part.immovable
    largest = np.argsort(-capacity, kind="stable")
    heaviest = _heaviest(part.weight, part.count - 1)
    whole = np.concatenate((np.zeros(1), np.cumsum(heaviest)))
    total, apart = float(part.weight.sum()), 0
    while True:
        rest = largest[apart:]
        left = total - float(whole[apart]) + float(low[rest].sum())
        level = _level(left, capacity[rest], low[rest], None if high is None else high[rest])
        more = int((heaviest > level * capacity[largest[0]]).sum())
        if more <= apart:
            break
        apart = more
    return np.asarray(np.clip(level * capacity, low, None if high is None else np.maximum(high, low)))


def _heaviest(weight: FloatArray, count: int) -> FloatArray:
    if 0 < count < len(weight):
        weight = np.partition(weight, len(weight) - count)[len(weight) - count :]
    return np.sort(weight)[::-1][:count]


def _level(total: float, capacity: FloatArray, low: FloatArray, high: FloatArray | None) -> float:
    share = fair_shares(total, capacity, low, high)
    free = share > low
    return float((share[free] / capacity[free]).max()) if free.any() else 0.0


def _many_kinds(part: Part, high: FloatArray | None) -> WeightGoals:
    """Compute goals for several kinds: members that take the same kinds form a cohort; kinds are filled over cohorts,
    then cohorts over members."""
    _, first, cohort = np.unique(np.packbits(part.takes, axis=0).T, axis=0, return_index=True, return_inverse=True)
    of_member: IntArray = cohort.reshape(-1).astype(np.int32)
    takes = part.takes[:, first]
    amount = np.bincount(part.kind, part.weight, len(part.takes))
    capacity, low = (np.bincount(of_member, each, len(first)) for each in (part.capacity, part.immovable))
    most = None if high is None else np.bincount(of_member, high, len(first))
    amounts = np.zeros(takes.shape)
    order = np.argsort(takes.sum(axis=1), kind="stable").tolist()
    for _ in range(max(3, min(_ROUNDS, _CELLS // max(1, takes.size)))):
        before = amounts.sum(axis=0)
        for kind in order:
            who = takes[kind]
            others = low[who] + amounts[:, who].sum(axis=0) - amounts[kind, who]
            top = None if most is None else most[who]
            amounts[kind, who] = fair_shares(amount[kind] + others.sum(), capacity[who], others, top) - others
        if np.abs(amounts.sum(axis=0) - before).sum() <= _STILL * amount.sum():
            break
    load = _within_cohorts(part, of_member, low + amounts.sum(axis=0), high)
    return WeightGoals(load, amounts, of_member, part.capacity / capacity[of_member])


def _within_cohorts(part: Part, cohort: IntArray, total: FloatArray, high: FloatArray | None) -> FloatArray:
    goal = np.zeros(part.count)
    for number in range(len(total)):
        who = np.flatnonzero(cohort == number)
        top = None if high is None else high[who]
        goal[who] = fair_shares(float(total[number]), part.capacity[who], part.immovable[who], top)
    return goal
