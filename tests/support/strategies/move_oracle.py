"""What the best result costs, level by level, found by an integer programme over single partitions.

Knows nothing of flows, rows of equal units or first deals: one 0/1 variable per partition and member, one per further
unit of a count. Only the fair shares themselves are taken from the strategy's own definition
(`assigner.strategies.exact.targets`); tests without pins, holds and caps check those against the plain formula
elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from assigner.strategies.exact.targets import quotas
from assigner.strategies.problem.current_owners import held
from assigner.strategies.problem.units import fold
from assigner.strategy import NONE, BoolArray, FloatArray, IntArray, Problem
from tests.support.strategies.problems import topic_of

Rows = list[tuple[list[int], list[float], float, float]]


def cost(given: Problem, owner: IntArray, levels: Sequence[str]) -> list[float]:
    """What an ownership costs at each level."""
    measures = _Measures.of(given)
    return [round(measures.value(name, owner), 6) for name in levels]


def least_cost(given: Problem, levels: Sequence[str]) -> list[float]:
    """What the best ownership costs at each level, the first level first."""
    if not len(given.owner):
        return cost(given, given.owner, levels)
    programme = _Programme(given)
    found: list[float] = []
    for name in levels:
        objective = programme.objective(name)
        best = programme.solve(objective)
        found.append(round(programme.of_nothing(name) + best, 6))
        programme.keep(objective, best)
    return found


@dataclass(frozen=True)
class _Measures:
    given: Problem
    goal: FloatArray
    scale: FloatArray
    floor: IntArray
    ceil: IntArray

    @classmethod
    def of(cls, given: Problem) -> _Measures:
        units = fold(given)
        plan = quotas(units, given.members, held(units, given.members))
        base = plan.table.base
        return cls(given, plan.targets.potential.goal, plan.targets.potential.scale, base, base + plan.table.open)

    def value(self, name: str, owner: IntArray) -> float:
        mine = owner != NONE
        members = self.given.members.count
        if name == "unowned":
            return float((~mine).sum())
        if name == "balance":
            load = np.bincount(owner[mine], minlength=members)
            return float(sum(self.of_load(m, int(load[m])) for m in range(members)))
        if name == "spread":
            cells = np.zeros(self.floor.shape, np.int64)
            np.add.at(cells, (topic_of(self.given)[mine], owner[mine]), 1)
            return float(sum(self.of_cell(t, m, int(cells[t, m])) for t, m in np.ndindex(cells.shape)))
        if name == "racks":
            return float(sum(missed(self.given)[p, owner[p]] for p in np.flatnonzero(mine)))
        return float(((self.given.owner != NONE) & (owner != self.given.owner)).sum())

    def of_load(self, member: int, load: int) -> float:
        goal = self.goal[member]
        return float(_distance(load, np.floor(goal + 1e-9), np.ceil(goal - 1e-9)) ** 2 / self.scale[member])

    def of_cell(self, topic: int, member: int, count: int) -> float:
        return _distance(count, self.floor[topic, member], self.ceil[topic, member]) ** 2


def _distance(value: float, floor: float, ceil: float) -> float:
    return max(value - ceil, floor - value, 0.0)


def missed(given: Problem) -> BoolArray:
    """[partition, member]: the member names a rack, and no replica is there though there are some."""
    missing = np.zeros((len(given.owner), given.members.count), np.bool_)
    if given.topics.replica_racks is None:
        return missing
    starts, racks = given.topics.replica_racks
    for partition in range(len(given.owner)):
        near = racks[starts[partition] : starts[partition + 1]]
        if len(near):
            missing[partition] = (given.members.rack != NONE) & ~np.isin(given.members.rack, near)
    return missing


@dataclass
class _Programme:
    """Variables: z[partition, member], then one per unit of each member's load and of each cell."""

    given: Problem
    measures: _Measures = field(init=False)
    rows: Rows = field(default_factory=list)
    upper: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        given = self.given
        self.measures = _Measures.of(given)
        self.partitions, self.members = len(given.owner), given.members.count
        self.upper = self._allowed().astype(float).reshape(-1).tolist()
        for partition in range(self.partitions):
            stays = given.pinned[partition] and given.owner[partition] != NONE
            self._row([self._z(partition, m) for m in range(self.members)], 1.0 if stays else 0.0, 1.0)
        self._caps_and_holds()
        self.load_steps = [self._steps(range(self.partitions), m) for m in range(self.members)]
        topic = topic_of(given)
        self.cell_steps = [
            [self._steps(np.flatnonzero(topic == t).tolist(), m) for m in range(self.members)]
            for t in range(given.topics.count)
        ]

    def _z(self, partition: int, member: int) -> int:
        return partition * self.members + member

    def _row(self, variables: list[int], low: float, high: float, factors: list[float] | None = None) -> None:
        self.rows.append((variables, factors or [1.0] * len(variables), low, high))

    def _allowed(self) -> BoolArray:
        """[partition, member]: pins stay, only subscribers, those on hold only what they have."""
        given, owner = self.given, self.given.owner
        allowed = given.members.subscription[:, topic_of(given)].T.copy()
        mine = owner[:, None] == np.arange(self.members)
        allowed &= mine | ~given.members.hold
        return np.asarray(np.where(given.pinned[:, None], mine, allowed))

    def _caps_and_holds(self) -> None:
        """A member on hold keeps all that its cap allows, the lowest numbers first."""
        units = fold(self.given)
        now = held(units, self.given.members)
        for partition in np.flatnonzero(now.fixed & (now.owner != NONE)).tolist():
            self._row([self._z(partition, int(now.owner[partition]))], 1.0, 1.0)
        for member in np.flatnonzero(self.given.members.cap != NONE).tolist():
            stuck = int((self.given.pinned & (self.given.owner == member)).sum())
            most = float(max(self.given.members.cap[member], stuck))
            self._row([self._z(p, member) for p in range(self.partitions)], 0.0, most)

    def _steps(self, partitions: Sequence[int], member: int) -> list[int]:
        """Variables for the first, second, ... unit of a count; prices rise, so they are used in order."""
        first = len(self.upper)
        steps = list(range(first, first + len(partitions)))
        self.upper += [1.0] * len(steps)
        counted = [self._z(p, member) for p in partitions]
        self._row(counted + steps, 0.0, 0.0, [1.0] * len(counted) + [-1.0] * len(steps))
        return steps

    def objective(self, name: str) -> FloatArray:
        prices = np.zeros(len(self.upper))
        size = self.partitions * self.members
        if name == "unowned":
            prices[:size] = -1.0
        elif name == "balance":
            for member, steps in enumerate(self.load_steps):
                prices[steps] = np.diff([self.measures.of_load(member, n) for n in range(len(steps) + 1)])
        elif name == "spread":
            for topic, row in enumerate(self.cell_steps):
                for member, steps in enumerate(row):
                    prices[steps] = np.diff([self.measures.of_cell(topic, member, n) for n in range(len(steps) + 1)])
        elif name == "racks":
            prices[:size] = missed(self.given).reshape(-1)
        else:
            for partition in np.flatnonzero(self.given.owner != NONE).tolist():
                prices[self._z(partition, int(self.given.owner[partition]))] = -1.0
        return prices

    def of_nothing(self, name: str) -> float:
        """What it costs if nobody has anything, from where the prices count."""
        nobody = np.full(self.partitions, NONE, np.int32)
        return self.measures.value(name, nobody)

    def solve(self, prices: FloatArray) -> float:
        lengths = [len(variables) for variables, _, _, _ in self.rows]
        columns = np.concatenate([np.asarray(v, np.int64) for v, _, _, _ in self.rows])
        factors = np.concatenate([f for _, f, _, _ in self.rows])
        matrix = csr_array(
            (factors, (np.repeat(np.arange(len(lengths)), lengths), columns)), shape=(len(lengths), len(self.upper))
        )
        limits = LinearConstraint(matrix, [row[2] for row in self.rows], [row[3] for row in self.rows])
        answer = milp(
            prices, constraints=limits, integrality=np.ones(len(prices)), bounds=Bounds(0, np.array(self.upper))
        )
        assert answer.success, answer.message
        return float(answer.fun)

    def keep(self, prices: FloatArray, best: float) -> None:
        used = np.flatnonzero(prices).tolist()
        if used:
            self._row(used, -np.inf, best + 1e-6, prices[used].tolist())
