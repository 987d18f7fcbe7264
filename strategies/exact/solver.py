"""Solves exactly: optimises an initial assignment of counts, and chooses owners that fit them.

The initial assignment (`exact.initial`) is even per row and nearly so over all, and keeps most of what members have;
`exact.improve` then mostly proves that it is optimal.

Where that takes more work than the budget allows, or there are more than `MOST_CELLS` rows x members, nothing is
assigned anew: present owners stay, units without an owner are placed, and single transfers improve the result
(`exact.keep_owners`). `lower_bound` is then an estimate from below. Only where no unit has an owner is the best
assignment found so far used, and improved by transfers.

Not proved either: sets of different sizes. Such a result replaces the present one only if it is better, and is then
tried again from there until it is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from assigner.strategies.exact.initial import first_counts, split_by_class
from assigner.strategies.exact.keep_owners import improve_by_transfers, keep_and_fill
from assigner.strategies.exact.model import FlowProblem, cost, optimise, with_dummy
from assigner.strategies.exact.placement import place
from assigner.strategies.exact.residual_search import Budget
from assigner.strategies.exact.targets import Quotas, quotas
from assigner.strategies.problem.current_owners import CurrentOwners, held
from assigner.strategies.problem.rack_classes import Classes
from assigner.strategies.problem.shares import EPSILON
from assigner.strategies.problem.units import Units
from assigner.strategy import NONE, IntArray, Members


def lower_bound(problem: FlowProblem, count: IntArray) -> int:
    """Compute a lower bound on moves, in partitions: what members have above any fair share, per row or in all,
    whichever is more. Only shares that the result itself keeps count: where it violates one, another plan might save
    moves."""
    return max(_by_row(problem, count), _over_all(problem, count), _one_apart(problem, count))


def _by_row(problem: FlowProblem, count: IntArray) -> int:
    if bool((count < problem.floor).any()) or bool((count > problem.ceil).any()):
        return 0
    over = np.maximum(problem.held - problem.floor, 0).sum(axis=1)
    remainders = (count - problem.floor).sum(axis=1)
    kept = np.minimum(((problem.held > problem.floor) & (problem.ceil > problem.floor)).sum(axis=1), remainders)
    return int(problem.size @ (over - kept))


def _over_all(problem: FlowProblem, count: IntArray) -> int:
    goal = problem.potential.goal
    most = np.ceil(goal - EPSILON)
    load = problem.size @ count
    if bool((load > most).any()) or bool((load < np.floor(goal + EPSILON)).any()):
        return 0
    return int(np.maximum(problem.size @ problem.held - most, 0).sum())


def _one_apart(problem: FlowProblem, count: IntArray) -> int:
    """Bound moves where each load is a number or one more: an equally even plan has as many loads of each."""
    who = np.asarray(problem.taker.any(axis=0))
    load, have = count.sum(axis=0)[who], problem.held.sum(axis=0)[who]
    uniform_problem = bool((problem.size == 1).all()) and len(load) > 0 and np.ptp(problem.potential.scale[who]) == 0
    if not uniform_problem or np.ptp(load) > 1:
        return 0
    least = int(load.min())
    return int(np.maximum(have - least, 0).sum()) - min(int((load > least).sum()), int((have > least).sum()))


MOST_CELLS = 4_000_000
"""Above this many rows x members the solver would use too much memory."""

BUDGET = 2_000_000_000
"""Visited places after which the search for the optimum is abandoned: some seconds of work."""


@dataclass(frozen=True)
class Exact:
    owner: IntArray
    """New owner per unit."""
    proved: bool
    """Whether the result is proved optimal by all objectives."""
    lower_bound: int
    """Where it is not proved: a lower bound on the moves, in partitions, of any plan that is as even."""


def solve(
    units: Units,
    members: Members,
    objectives: Sequence[str],
    classes: Classes | None,
    start: IntArray | None = None,
) -> Exact:
    """Solve the problem. `start`: known good owners to begin with."""
    budget = Budget(BUDGET)
    first = _Attempt(units, members, objectives, classes)
    if first.is_evidently_best(units.owner):
        return Exact(units.owner, True, 0)
    owner, proved = units.owner, False
    if first.fresh or not first.large:
        owner, proved = first.run(start, budget)
    if not proved and (budget.gone or first.large or first.blind):
        owner = first.kept(owner)
    else:
        owner = _until_no_better(owner, proved, first, budget)
    return Exact(owner, proved, 0 if proved else lower_bound(first.problem, first.count(owner)))


def fewest_moves(units: Units, members: Members, owner: IntArray) -> int:
    """Compute a lower bound on moves, in partitions, from the owners of `units` to any plan as even as `owner`."""
    attempt = _Attempt(units, members, (), None)
    return lower_bound(attempt.problem, attempt.count(owner))


def _until_no_better(owner: IntArray, proved: bool, first: _Attempt, budget: Budget) -> IntArray:
    """Solve again from the result until it does not improve: sets of different sizes are not exchanged for each other,
    so a result may not be optimal from its own owners."""
    attempts = len(owner)
    while not (proved or budget.gone or first.is_evidently_best(owner)) and attempts > 1:
        units = replace(first.units, owner=owner)
        better, _ = _Attempt(units, first.members, first.objectives, first.classes).run(None, budget)
        if better is owner:
            break
        owner, attempts = better, attempts - 1
    return owner


class _Attempt:
    """One attempt to solve, from the owners in `units`."""

    def __init__(self, units: Units, members: Members, objectives: Sequence[str], classes: Classes | None) -> None:
        self.units, self.members, self.objectives, self.classes = units, members, objectives, classes
        self.now = held(units, members)
        self.plan = quotas(units, members, self.now)
        self.problem = _flow_problem(self.plan, units)
        self.large = self.problem.held.size > MOST_CELLS
        self.blind = classes is not None and classes.units.count * members.count > MOST_CELLS
        self.fresh = bool((self.now.owner == NONE).all())
        """No unit has an owner to keep."""

    def run(self, start: IntArray | None, budget: Budget) -> tuple[IntArray, bool]:
        """Compute new owners, or return the array of `units` itself if it is as good; also whether they are proved
        optimal."""
        count = self._first() if start is None else self.count(start)
        owner, proved = self._made_exact(count, budget)
        if not proved and self._worth(self.units.owner) <= self._worth(owner):
            return self.units.owner, False
        return owner, proved

    def kept(self, assigned: IntArray) -> IntArray:
        """Compute owners that keep the present ones; the array of `units` itself if none changes. `assigned`: the best
        assignment found, for problems in which no unit has an owner."""
        problem, now, rows, order = self.problem, self.now, self.units, np.arange(len(self.units.owner), dtype=np.int32)
        if self.classes is not None and not self.blind:
            rows, order = self.classes.units, self.classes.order
            now = self._in_classes(self.classes)
            problem = _class_problem(self.problem, self.classes, now)
        supply = rows.partitions - np.bincount(now.row[now.fixed & (now.owner == NONE)], minlength=rows.count)
        count = keep_and_fill(problem, supply.astype(np.int32), self.objectives)
        owner = np.empty_like(self.units.owner)
        owner[order] = place(now, count, problem.held)
        if self.fresh:
            count = improve_by_transfers(problem, _count(now.row, assigned[order], problem.held.shape), self.objectives)
            other = np.empty_like(owner)
            other[order] = place(now, count, problem.held)
            owner = min(owner, other, key=self._worth)
        return self.units.owner if bool((owner == self.units.owner).all()) else owner

    def is_evidently_best(self, owner: IntArray) -> bool:
        """Whether a quick check shows that only moves could be improved."""
        if (
            self.classes is not None
            or bool(np.isfinite(self.problem.room).any())
            or bool((self.problem.size != 1).any())
        ):
            return False
        if owner is self.units.owner and bool((owner != self.now.owner).any()):
            return False
        wanted = np.asarray(self.problem.taker.any(axis=1))
        if bool(((owner == NONE) & ~self.now.fixed & wanted[self.now.row]).any()):
            return False
        count = self.count(owner)
        even = bool((count >= self.problem.floor).all()) and bool((count <= self.problem.ceil).all())
        return even and self.plan.targets.met(count.sum(axis=0).astype(np.float64))

    def _first(self) -> IntArray:
        return first_counts(self.plan, self.problem, self.members, self.objectives)

    def count(self, owner: IntArray) -> IntArray:
        return _count(self.now.row, owner, self.problem.held.shape)

    def _made_exact(self, count: IntArray, budget: Budget) -> tuple[IntArray, bool]:
        if self.classes is not None and not self.blind:
            return self._by_class(self.classes, count, budget)
        proved = False
        if not self.large:
            count, proved = _optimised(self.problem, self.now, count, self.units.partitions, self.objectives, budget)
        return place(self.now, count, self.problem.held), proved and not self.blind

    def _by_class(self, classes: Classes, total: IntArray, budget: Budget) -> tuple[IntArray, bool]:
        now = self._in_classes(classes)
        problem = _class_problem(self.problem, classes, now)
        immovable = np.bincount(now.row[now.fixed & (now.owner == NONE)], minlength=len(classes.row))
        moves_first = self.objectives.index("moves") < self.objectives.index("racks")
        topics = np.unique(classes.row)
        count = split_by_class(problem, total[topics], classes.units.partitions - immovable, moves_first)
        count, proved = _optimised(problem, now, count, classes.units.partitions, self.objectives, budget)
        owner = np.empty_like(self.units.owner)
        owner[classes.order] = place(now, count, problem.held)
        return owner, proved

    def _in_classes(self, classes: Classes) -> CurrentOwners:
        row = np.repeat(np.arange(classes.units.count, dtype=np.int32), classes.units.partitions)
        return CurrentOwners(self.now.owner[classes.order], self.now.fixed[classes.order], row)

    def _worth(self, owner: IntArray) -> tuple[float, ...]:
        """Rate owners, less is better: (constraints violated, units unowned, costs of the objectives above moves)."""
        # `now` does not have the units that members must not keep.
        broken = int((self.now.owner != owner).sum()) if owner is self.units.owner else 0
        count = self.count(owner)
        broken += int(
            (self.problem.size @ count > np.maximum(self.problem.room, self.problem.size @ self.problem.fixed)).sum()
        )
        wanted = np.asarray(self.problem.taker.any(axis=1))
        unowned = int(((owner == NONE) & ~self.now.fixed & wanted[self.now.row]).sum())
        above = self.objectives[: self.objectives.index("moves")]
        costs = [self._mismatches(owner) if name == "racks" else cost(name, self.problem, count) for name in above]
        return broken, unowned, *costs

    def _mismatches(self, owner: IntArray) -> float:
        mine = np.flatnonzero(owner != NONE)
        return 0.0 if self.classes is None else float(self.classes.miss[self.classes.of_units[mine], owner[mine]].sum())


def _flow_problem(plan: Quotas, units: Units) -> FlowProblem:
    table, potential = plan.table, plan.targets.potential
    # A copy, because caps change the table.
    floor, ceil = table.base.copy(), table.base + table.open
    return FlowProblem(table.held, table.fixed, table.taker, units.size, None, floor, ceil, None, potential, table.room)


def _class_problem(problem: FlowProblem, classes: Classes, now: CurrentOwners) -> FlowProblem:
    shape = (classes.units.count, problem.held.shape[1])
    topics, parent = np.unique(classes.row, return_inverse=True)
    return replace(
        problem,
        held=_count(now.row, now.owner, shape),
        fixed=_count(now.row, np.where(now.fixed, now.owner, np.int32(NONE)), shape),
        taker=problem.taker[classes.row],
        size=classes.units.size,
        parent=parent.astype(np.int32) if len(topics) < len(parent) else None,
        floor=problem.floor[topics],
        ceil=problem.ceil[topics],
        miss=classes.miss,
    )


def _count(row: IntArray, owner: IntArray, shape: tuple[int, ...]) -> IntArray:
    mine = owner != NONE
    cell = row[mine].astype(np.int64) * shape[1] + owner[mine]
    return np.bincount(cell, minlength=shape[0] * shape[1]).astype(np.int32).reshape(shape)


def _optimised(
    problem: FlowProblem,
    now: CurrentOwners,
    count: IntArray,
    units: IntArray,
    objectives: Sequence[str],
    budget: Budget,
) -> tuple[IntArray, bool]:
    if not np.isfinite(problem.room).any():
        return optimise(problem, count, objectives, budget)
    # Under caps some units may stay unowned: those that are neither fixed nor assigned go to the dummy.
    immovable = np.bincount(now.row[now.fixed & (now.owner == NONE)], minlength=len(units))
    unowned = np.where(problem.taker.any(axis=1), units - immovable - count.sum(axis=1), 0)
    count = np.concatenate((count, unowned[:, None].astype(np.int32)), axis=1)
    count, proved = optimise(with_dummy(problem), count, objectives, budget)
    return count[:, :-1], proved
