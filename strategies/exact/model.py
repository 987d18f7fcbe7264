"""One problem as counts, ready to be made exact: what is, what may be, and what is wanted, in arrays of one shape.

Rows are topics (or co-partition sets), or parts of them whose units have replicas in the same racks. Under caps one
more member stands for nobody: what it gets stays unowned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assigner.strategies.exact.improve import improve
from assigner.strategies.exact.network import UNLIMITED, network
from assigner.strategies.exact.objectives import Balance, Level, Mismatches, Moves, SpreadObjective, Unowned
from assigner.strategies.exact.residual_search import Budget
from assigner.strategies.exact.table import Potential
from assigner.strategies.problem.shares import EPSILON, Indices
from assigner.strategy import BoolArray, FloatArray, IntArray


@dataclass(frozen=True)
class FlowProblem:
    """Arrays are [row, member] unless said otherwise."""

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
    """[member] most partitions."""
    nobody: bool = False
    """Whether the last member stands for nobody."""


def with_nobody(case: FlowProblem) -> FlowProblem:
    served = np.asarray(case.taker.any(axis=1))[:, None]
    potential = Potential(np.append(case.potential.goal, 0.0), np.append(case.potential.scale, 1.0))
    return replace(
        case,
        held=_wider(case.held),
        fixed=_wider(case.fixed),
        taker=np.concatenate((case.taker, served), axis=1),
        floor=_wider(case.floor),
        ceil=_wider(case.ceil, UNLIMITED),
        miss=None if case.miss is None else _wider(case.miss),
        potential=potential,
        room=np.append(case.room, np.inf),
        nobody=True,
    )


def _wider(values: IntArray, last: int = 0) -> IntArray:
    return np.concatenate((values, np.full((len(values), 1), last, values.dtype)), axis=1)


def settle(case: FlowProblem, count: IntArray, order: Sequence[str], budget: Budget) -> tuple[IntArray, bool]:
    """The best counts by the levels named in `order`, from `count` on; and whether that is proved.

    Units of unequal sizes are not traded for each other: their rows are settled in turns while that helps, and the
    result is then not proved."""
    sizes = np.unique(case.size[case.taker.any(axis=1)])
    if len(sizes) == 0:
        return count, True
    if bool((case.size == sizes[0]).all()):
        return _settle(case, count, order, budget, np.zeros(count.shape[1]))
    while True:
        before, proved = count, len(sizes) == 1
        for size in sizes.tolist():
            rows = np.flatnonzero(case.size == size)
            outside = (case.size * (case.size != size)) @ count
            part, done = _settle(_part(case, rows), count[rows], order, budget, outside.astype(np.float64))
            count, proved = count.copy(), proved and done
            count[rows] = part
        if budget.gone or len(sizes) == 1 or bool((count == before).all()):
            return count, proved


def worth(case: FlowProblem, count: IntArray, order: Sequence[str]) -> tuple[float, ...]:
    """What the levels above moves cost; less is better, the first decides first."""
    above = order[: order.index("moves")]
    return tuple(cost(name, case, count) for name in above)


def cost(name: str, case: FlowProblem, count: IntArray) -> float:
    """Of one level other than moves."""
    if name == "unowned":
        return float(case.size @ count[:, -1]) if case.nobody else 0.0
    if name == "racks":
        return 0.0 if case.miss is None else float((case.miss * count).sum())
    if name == "spread":
        cells = count
        if case.parent is not None:
            cells = np.add.reduceat(count, np.flatnonzero(np.diff(case.parent, prepend=-1)), axis=0)
        away = np.maximum(cells - case.ceil, 0) + np.maximum(case.floor - cells, 0)
        return float((away.astype(np.float64) ** 2).sum())
    load = (case.size @ count).astype(np.float64)
    return round(case.potential.of(load[:-1] if case.nobody else load), 6)


def _settle(
    case: FlowProblem, count: IntArray, order: Sequence[str], budget: Budget, outside: FloatArray
) -> tuple[IntArray, bool]:
    size = float(case.size[0])
    room = np.floor((case.room - outside) / size + EPSILON).clip(0, UNLIMITED)
    net = network(count, case.fixed, case.taker, room.astype(np.int32), case.parent)
    levels = [_level(name, case, size, outside) for name in order]
    proved = improve(net, [level for level in levels if level is not None], budget)
    return net.row.count, proved


def _level(name: str, case: FlowProblem, size: float, outside: FloatArray) -> Level | None:
    if name == "unowned":
        return Unowned(case.held.shape[1]) if case.nobody else None
    if name == "balance":
        return _balance(case, size, outside)
    if name == "spread":
        return SpreadObjective(case.floor, case.ceil)
    if name == "racks":
        return None if case.miss is None else Mismatches(case.miss)
    return Moves(case.held)


def _balance(case: FlowProblem, size: float, outside: FloatArray) -> Balance:
    goal, scale = case.potential.goal, case.potential.scale
    floor, ceil = np.floor(goal + EPSILON), np.ceil(goal - EPSILON)
    if case.nobody:
        # What nobody gets is decided by now, and must not be a way to even out the others.
        floor[-1], ceil[-1] = -np.inf, np.inf
    return Balance(floor, ceil, scale, size, outside)


def _part(case: FlowProblem, rows: Indices) -> FlowProblem:
    topics: NDArray[Any] = rows
    parent = None
    if case.parent is not None:
        topics, number = np.unique(case.parent[rows], return_inverse=True)
        parent = number.astype(np.int32)
    return replace(
        case,
        held=case.held[rows],
        fixed=case.fixed[rows],
        taker=case.taker[rows],
        size=case.size[rows],
        parent=parent,
        floor=case.floor[topics],
        ceil=case.ceil[topics],
        miss=None if case.miss is None else case.miss[rows],
    )
