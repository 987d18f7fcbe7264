"""Models a problem by counts: present, allowed and wanted ones, in arrays of one shape; and optimises it.

Rows are topics (or co-partition sets), or parts of them whose units have replicas in the same racks. Under caps a dummy
member is added: its units stay unowned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assigner.strategies.exact.improve import improve
from assigner.strategies.exact.network import UNLIMITED, network
from assigner.strategies.exact.objectives import Balance, Mismatches, Moves, Objective, SpreadObjective, Unowned
from assigner.strategies.exact.residual_search import Budget
from assigner.strategies.exact.table import Potential
from assigner.strategies.problem.shares import EPSILON, Indices
from assigner.strategy import BoolArray, FloatArray, IntArray


@dataclass(frozen=True)
class FlowProblem:
    """A problem as counts. Arrays are [row, member] unless said otherwise."""

    held: IntArray
    fixed: IntArray
    taker: BoolArray
    size: IntArray
    """[row] partitions per unit."""
    parent: IntArray | None
    """[row] its topic, rising without gaps; None: rows are topics."""
    floor: IntArray
    """[topic, member] of the fair share."""
    ceil: IntArray
    miss: IntArray | None
    """Replicas of a unit that are in other racks; None: racks don't matter."""
    potential: Potential
    room: FloatArray
    """[member] the maximum of partitions."""
    has_dummy: bool = False
    """Whether the last member is the dummy, whose units stay unowned."""


def with_dummy(problem: FlowProblem) -> FlowProblem:
    served = np.asarray(problem.taker.any(axis=1))[:, None]
    potential = Potential(np.append(problem.potential.goal, 0.0), np.append(problem.potential.scale, 1.0))
    return replace(
        problem,
        held=_wider(problem.held),
        fixed=_wider(problem.fixed),
        taker=np.concatenate((problem.taker, served), axis=1),
        floor=_wider(problem.floor),
        ceil=_wider(problem.ceil, UNLIMITED),
        miss=None if problem.miss is None else _wider(problem.miss),
        potential=potential,
        room=np.append(problem.room, np.inf),
        has_dummy=True,
    )


def _wider(values: IntArray, last: int = 0) -> IntArray:
    return np.concatenate((values, np.full((len(values), 1), last, values.dtype)), axis=1)


def optimise(problem: FlowProblem, count: IntArray, names: Sequence[str], budget: Budget) -> tuple[IntArray, bool]:
    """Optimise counts by the named objectives, from `count` on; also returns whether the optimum is proved.

    Units of unequal sizes are not exchanged for each other: the rows of each size are optimised in turn while that
    helps, and the result is then not proved."""
    sizes = np.unique(problem.size[problem.taker.any(axis=1)])
    if len(sizes) == 0:
        return count, True
    if bool((problem.size == sizes[0]).all()):
        return _optimise(problem, count, names, budget, np.zeros(count.shape[1]))
    while True:
        before, proved = count, len(sizes) == 1
        for size in sizes.tolist():
            rows = np.flatnonzero(problem.size == size)
            outside = (problem.size * (problem.size != size)) @ count
            part, done = _optimise(_part(problem, rows), count[rows], names, budget, outside.astype(np.float64))
            count, proved = count.copy(), proved and done
            count[rows] = part
        if budget.gone or len(sizes) == 1 or bool((count == before).all()):
            return count, proved


def costs_above_moves(problem: FlowProblem, count: IntArray, names: Sequence[str]) -> tuple[float, ...]:
    """Compute the costs of the objectives above moves, compared lexicographically."""
    above = names[: names.index("moves")]
    return tuple(cost(name, problem, count) for name in above)


def cost(name: str, problem: FlowProblem, count: IntArray) -> float:
    """Compute the cost of one objective other than moves."""
    if name == "unowned":
        return float(problem.size @ count[:, -1]) if problem.has_dummy else 0.0
    if name == "racks":
        return 0.0 if problem.miss is None else float((problem.miss * count).sum())
    if name == "spread":
        cells = count
        if problem.parent is not None:
            cells = np.add.reduceat(count, np.flatnonzero(np.diff(problem.parent, prepend=-1)), axis=0)
        away = np.maximum(cells - problem.ceil, 0) + np.maximum(problem.floor - cells, 0)
        return float((away.astype(np.float64) ** 2).sum())
    load = (problem.size @ count).astype(np.float64)
    return round(problem.potential.of(load[:-1] if problem.has_dummy else load), 6)


def _optimise(
    problem: FlowProblem, count: IntArray, names: Sequence[str], budget: Budget, outside: FloatArray
) -> tuple[IntArray, bool]:
    size = float(problem.size[0])
    room = np.floor((problem.room - outside) / size + EPSILON).clip(0, UNLIMITED)
    net = network(count, problem.fixed, problem.taker, room.astype(np.int32), problem.parent)
    objectives = [_objective(name, problem, size, outside) for name in names]
    proved = improve(net, [objective for objective in objectives if objective is not None], budget)
    return net.row.count, proved


def _objective(name: str, problem: FlowProblem, size: float, outside: FloatArray) -> Objective | None:
    if name == "unowned":
        return Unowned(problem.held.shape[1]) if problem.has_dummy else None
    if name == "balance":
        return _balance(problem, size, outside)
    if name == "spread":
        return SpreadObjective(problem.floor, problem.ceil)
    if name == "racks":
        return None if problem.miss is None else Mismatches(problem.miss)
    return Moves(problem.held)


def _balance(problem: FlowProblem, size: float, outside: FloatArray) -> Balance:
    goal, scale = problem.potential.goal, problem.potential.scale
    floor, ceil = np.floor(goal + EPSILON), np.ceil(goal - EPSILON)
    if problem.has_dummy:
        # The number of unowned units is decided by now, and must not change to even out the others.
        floor[-1], ceil[-1] = -np.inf, np.inf
    return Balance(floor, ceil, scale, size, outside)


def _part(problem: FlowProblem, rows: Indices) -> FlowProblem:
    topics: NDArray[Any] = rows
    parent = None
    if problem.parent is not None:
        topics, number = np.unique(problem.parent[rows], return_inverse=True)
        parent = number.astype(np.int32)
    return replace(
        problem,
        held=problem.held[rows],
        fixed=problem.fixed[rows],
        taker=problem.taker[rows],
        size=problem.size[rows],
        parent=parent,
        floor=problem.floor[topics],
        ceil=problem.ceil[topics],
        miss=None if problem.miss is None else problem.miss[rows],
    )
