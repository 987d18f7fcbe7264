"""Keeps present owners, places units without one, and transfers single units: the plan where no optimum is proved.

Members keep what they have, as far as caps let them. Units without an owner go where the load (or, if topics come
first, the topic's share) is lowest. Then single transfers between members that want the same topic, as long as one of
them improves the objectives above moves, the first objective first. A transfer is one move, and each lowers the cost,
so this ends; and where it ended no transfer is left, so that given its own result it changes nothing.

Not promised: the optimum. It may need a path through a member whose own load stays as it is, or two transfers at once;
`assigner.strategies.exact.improve` finds these, as long as its budget lasts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from assigner.strategies.exact.model import FlowProblem
from assigner.strategies.problem.shares import EPSILON, Indices, fair_shares
from assigner.strategy import BoolArray, FloatArray, IntArray

_DIGITS = 6
"""Of costs that are compared: sums of fractions differ in the last bits."""

_LEAST_WEIGHT = 1e-9

_SWEEPS = 10_000
"""How often all rows are searched for transfers. Each sweep but the last lowers the cost; with sets of different sizes,
whose costs are rounded differently, this limit ends it."""


def keep_and_fill(problem: FlowProblem, supply: IntArray, objectives: Sequence[str]) -> IntArray:
    """Compute counts [row, member] that keep present owners. `supply`: each row's units for eligible members, and those
    fixed to others."""
    kept = _KeepOwners(problem, objectives)
    kept.enforce_caps()
    kept.fill(supply)
    kept.transfer_all()
    return kept.count


def improve_by_transfers(problem: FlowProblem, count: IntArray, objectives: Sequence[str]) -> IntArray:
    """Improve the counts by single transfers."""
    kept = _KeepOwners(problem, objectives, count)
    kept.transfer_all()
    return kept.count


class _KeepOwners:
    def __init__(self, problem: FlowProblem, objectives: Sequence[str], count: IntArray | None = None) -> None:
        self._flow_problem = problem
        self._objectives = [name for name in objectives[: objectives.index("moves")] if name != "unowned"]
        present = np.where(problem.taker, problem.held, problem.fixed) if count is None else count
        self.count = np.array(present, np.int32)
        self._load: FloatArray = (problem.size @ self.count).astype(np.float64)
        self._room = np.maximum(problem.room, (problem.size @ problem.fixed).astype(np.float64))
        goal = problem.potential.goal
        self._weight: FloatArray = np.maximum(np.where(goal > 0, goal, problem.potential.scale), _LEAST_WEIGHT)
        self._topic = np.arange(len(self.count)) if problem.parent is None else problem.parent
        self._cells = self.count
        """[topic, member], where rows are not topics; else the counts themselves."""
        if problem.parent is not None:
            self._cells = np.add.reduceat(self.count, np.flatnonzero(np.diff(problem.parent, prepend=-1)), axis=0)

    def _add(self, row: int, who: Indices, often: IntArray) -> None:
        self.count[row, who] += often
        if self._cells is not self.count:
            self._cells[self._topic[row], who] += often
        self._load[who] += self._flow_problem.size[row] * often

    # --- caps ------------------------------------------------------------------------------------------------

    def enforce_caps(self) -> None:
        for member in np.flatnonzero(self._load > self._room + EPSILON).tolist():
            problem, have = self._flow_problem, self.count[:, member]
            loose = have - problem.fixed[:, member]
            row = np.repeat(np.arange(len(have)), loose)
            above = np.concatenate([np.arange(n, 0, -1) for n in loose.tolist()] or [np.zeros(0)])
            # First of the rows of which it has the most, so that the rest is spread.
            order = np.argsort(-above, kind="stable")
            excess = self._load[member] - self._room[member]
            before = np.cumsum(problem.size[row[order]]) - problem.size[row[order]]
            gone = np.bincount(row[order][before < excess - EPSILON], minlength=len(have)).astype(np.int32)
            for number in np.flatnonzero(gone).tolist():
                self._add(number, np.array([member]), -gone[[number]])

    # --- filling -------------------------------------------------------------------------------------------------

    def fill(self, supply: IntArray) -> None:
        missing = supply - self.count.sum(axis=1)
        choice = self._flow_problem.taker.sum(axis=1)
        rows = np.flatnonzero((missing > 0) & (choice > 0))
        for row in rows[np.argsort(choice[rows], kind="stable")].tolist():
            self._fill(row, int(missing[row]))

    def _fill(self, row: int, missing: int) -> None:
        missing -= self._water_fill(row, missing)
        while missing > 0:
            takers = self._takers(row)
            if not len(takers):
                return
            keys = self._taking(row, takers, np.zeros(len(takers)))
            first = takers[np.lexsort((takers, *keys[::-1]))][:missing]
            self._add(row, first, np.ones(len(first), np.int32))
            missing -= len(first)

    def _water_fill(self, row: int, missing: int) -> int:
        """Assign the whole units that bring the takers to one level; the rest is less than one for each."""
        who, size = self._takers(row), float(self._flow_problem.size[row])
        if not len(who):
            return 0
        weight = self._weight[who]
        if self._objectives[0] == "spread":
            have = self._cells[self._topic[row], who].astype(np.float64)
            more = fair_shares(have.sum() + missing, weight, have) - have
        else:
            have = self._load[who]
            more = (fair_shares(have.sum() + size * missing, weight, have, self._room[who]) - have) / size
        room = np.minimum(np.floor((self._room[who] - self._load[who]) / size + EPSILON), float(missing))
        often = np.minimum(np.floor(more + EPSILON), room).astype(np.int32)
        often = np.diff(np.minimum(np.cumsum(often), missing), prepend=0).astype(np.int32)
        self._add(row, who, often)
        return int(often.sum())

    def _takers(self, row: int) -> Indices:
        size = self._flow_problem.size[row]
        return np.flatnonzero(self._flow_problem.taker[row] & (self._load + size <= self._room + EPSILON))

    # --- transfers ---------------------------------------------------------------------------------------------------

    def transfer_all(self) -> None:
        rows = np.flatnonzero(self._flow_problem.taker.any(axis=1)).tolist()
        for _ in range(_SWEEPS):
            if sum(map(self._transfer, rows)) == 0:
                return

    def _transfer(self, row: int) -> bool:
        takers = self._takers(row)
        givers = np.flatnonzero(self._flow_problem.taker[row] & (self.count[row] > self._flow_problem.fixed[row]))
        if not len(takers) or not len(givers):
            return False
        costs = self._taking(row, takers, np.zeros(len(takers)))
        gains = self._giving(row, givers, np.zeros(len(givers)))
        if not _below(_least(costs) - _most(gains)):
            return False
        takers = takers[np.lexsort((takers, *costs[::-1]))]
        givers = givers[np.lexsort((-givers, *(-gains)[::-1]))]
        pairs = min(len(takers), len(givers))
        takers, givers = takers[:pairs], givers[:pairs]
        better = self._lowers(row, givers, takers, np.zeros(pairs))
        takers, givers = takers[better], givers[better]
        often = self._often(row, givers, takers)
        self._add(row, givers, -often)
        self._add(row, takers, often)
        return bool(len(often))

    def _often(self, row: int, givers: Indices, takers: Indices) -> IntArray:
        """Compute how often each pair repeats its transfer: while the cost falls and both keep about their topic
        share."""
        problem, topic, size = self._flow_problem, self._topic[row], self._flow_problem.size[row]
        cells = self._cells[topic]
        above, below = cells[givers] - problem.floor[topic, givers], problem.ceil[topic, takers] - cells[takers]
        loose = self.count[row, givers] - problem.fixed[row, givers]
        room = np.minimum(np.floor((self._room[takers] - self._load[takers]) / size + EPSILON), loose)
        most = np.maximum(np.minimum(np.minimum(above, below), room), 1).astype(np.int64)
        enough = np.ones(len(most), np.int64)
        while (enough < most).any():
            middle = (enough + most + 1) // 2
            lowers = self._lowers(row, givers, takers, (middle - 1).astype(np.float64))
            enough, most = np.where(lowers, middle, enough), np.where(lowers, most, middle - 1)
        return enough.astype(np.int32)

    def _lowers(self, row: int, givers: Indices, takers: Indices, times: FloatArray) -> BoolArray:
        """[pair] whether its transfer lowers the cost after `times` others."""
        return _below(self._taking(row, takers, times) - self._giving(row, givers, times))

    def _taking(self, row: int, who: Indices, times: FloatArray) -> FloatArray:
        """[objective, member]: the cost of one more unit of the row, after it got `times` units."""
        return self._costs(row, who, times)

    def _giving(self, row: int, who: Indices, times: FloatArray) -> FloatArray:
        """[objective, member]: the cost saved by one unit of the row less, after it gave `times` units."""
        return self._costs(row, who, -times - 1)

    def _costs(self, row: int, who: Indices, more: FloatArray) -> FloatArray:
        """[objective, member]: the cost of one unit on top of the present count and `more`."""
        problem, topic, size = self._flow_problem, self._topic[row], float(self._flow_problem.size[row])
        goal, scale = problem.potential.goal[who], problem.potential.scale[who]
        costs = np.zeros((len(self._objectives), len(who)))
        for objective, name in enumerate(self._objectives):
            if name == "balance":
                low, high = np.floor(goal + EPSILON), np.ceil(goal - EPSILON)
                costs[objective] = _step(self._load[who] + size * more, size, low, high) / scale
            elif name == "spread":
                low, high = problem.floor[topic, who].astype(np.float64), problem.ceil[topic, who].astype(np.float64)
                costs[objective] = _step(self._cells[topic, who] + more, 1.0, low, high)
            elif problem.miss is not None:
                costs[objective] = problem.miss[row, who]
        return np.round(costs, _DIGITS)


def _step(count: FloatArray, size: float, low: FloatArray, high: FloatArray) -> FloatArray:
    """Compute the growth of the squared distance from [low, high] by `size` more."""
    here, there = (np.maximum(n - high, 0.0) + np.maximum(low - n, 0.0) for n in (count, count + size))
    return np.asarray((there - here) * (there + here))


def _below(costs: FloatArray) -> BoolArray:
    """Whether, per member, the first objective with a cost other than 0 has a negative one. `costs`: [objective,
    member]."""
    result = np.zeros(costs.shape[1], np.bool_)
    open_ = np.ones(costs.shape[1], np.bool_)
    for objective in costs:
        result |= open_ & (objective < -EPSILON)
        open_ &= np.abs(objective) <= EPSILON
    return result


def _least(costs: FloatArray) -> FloatArray:
    """Find the lexicographically lowest costs, as [objective, 1]."""
    for objective in range(len(costs)):
        costs = costs[:, costs[objective] == costs[objective].min()]
    return costs[:, :1]


def _most(gains: FloatArray) -> FloatArray:
    return -_least(-gains)
