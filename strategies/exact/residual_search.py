"""Finds augmenting paths that lower an objective's cost: shortest paths with negative prices (Bellman-Ford), on arrays.

Every node has a label; a step that lowers the label of its end is relaxed. When no label changes any more there is no
path left, and the labels prove it: as node potentials, they leave no step with a negative cost. A node that is its own
ancestor is on a negative cycle. Paths found in one search share no node, so all of them can be applied at once;
`multiplied` adds paths of the same gain over other members.

The search always ends: within as many rounds as there are nodes, labels stop changing or a cycle appears.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assigner.strategies.exact.network import AugmentingPath, AugmentStep, Network, NetworkStage
from assigner.strategies.exact.objectives import Costs, Objective
from assigner.strategies.problem.shares import Indices
from assigner.strategy import NONE, BoolArray

SINK = -2
"""The sink, into which all loads flow, as the predecessor of a member."""


@dataclass
class Budget:
    """The work that is left, in visited places. Counted and not timed, so that results don't depend on a clock."""

    left: int

    def spend(self, places: int) -> None:
        self.left -= places

    @property
    def gone(self) -> bool:
        return self.left <= 0


@dataclass
class Prices:
    """The prices of one unit more and one less at every place of a stage; prohibitive where limits forbid it."""

    stage: NetworkStage
    objective: Objective | None
    """None: steps at this stage are free."""
    more: Costs
    less: Costs

    @classmethod
    def of(cls, stage: NetworkStage, objective: Objective | None, dtype: Any) -> Prices:
        shape = stage.count.shape
        prices = cls(stage, objective, np.zeros(shape, dtype), np.zeros(shape, dtype))
        prices.renew(...)
        return prices

    def renew(self, places: Any) -> None:
        count, low, high = (_pick(a, places) for a in (self.stage.count, self.stage.low, self.stage.high))
        more: Any = 0
        less: Any = 0
        if self.objective is not None:
            more, less = self.objective.price(places, count), -self.objective.price(places, count - 1)
        forbidden = prohibitive(self.more.dtype)
        _put(self.more, places, np.where(count < high, more, forbidden))
        _put(self.less, places, np.where(count > low, less, forbidden))


def prohibitive(dtype: Any) -> Any:
    """A price above any sum of prices, and far enough from the type's maximum that sums do not overflow."""
    if np.issubdtype(dtype, np.floating):
        return dtype.type(np.inf)
    return dtype.type(np.iinfo(dtype).max // 4)


def _pick(values: NDArray[Any], places: Any) -> NDArray[Any]:
    return values if places is ... else values.reshape(-1)[places]


def _put(target: NDArray[Any], places: Any, values: NDArray[Any]) -> None:
    if places is ...:
        target[...] = values
    else:
        target.reshape(-1)[places] = values


class Search:
    """The search where rows are topics: rows and members are the nodes."""

    def __init__(self, network: Network, objective: Objective, budget: Budget) -> None:
        self.network, self.objective, self.budget = network, objective, budget
        stage, dtype = objective.stage(network), np.dtype(objective.dtype)
        self.row = Prices.of(network.row, objective if stage is network.row else None, dtype)
        self.load = Prices.of(network.load, objective if stage is network.load else None, dtype)
        rows, members = network.row.count.shape
        self.of_row, self.of_member = np.zeros(rows, dtype), np.zeros(members, dtype)
        self.of_out = dtype.type(0)
        self.row_from = np.full(rows, NONE)
        self.member_from = np.full(members, NONE)

    # --- interface -------------------------------------------------------------------------------------

    def is_optimal(self) -> bool:
        """Whether no step has a negative cost."""
        return all(bool((p.more >= 0).all()) and bool((p.less >= 0).all()) for p in self.prices())

    def paths(self) -> list[AugmentingPath]:
        """Find disjoint paths that lower the cost; none if there are none, or if the budget is spent."""
        self._forget()
        self._from_sink()
        self._to_rows(np.arange(len(self.of_member)))
        rows, turn = np.arange(len(self.of_row)), 0
        while not self.budget.gone:
            members, turn = self._to_members(rows), turn + 1
            if turn % 2 == 0 or not len(members):
                found = self._cycles()
                if found:
                    return found
                if self._to_sink():
                    members = np.union1d(members, self._from_sink())
                elif not len(members) and not self._pending():
                    return []
            rows = self._to_rows(members)
        return []

    def applied(self, steps: list[AugmentStep]) -> None:
        """Update the prices at the places of applied steps."""
        for prices in self.prices():
            places = np.array([step.place for step in steps if step.stage is prices.stage], np.int64)
            if len(places):
                prices.renew(places)
        if np.issubdtype(self.of_member.dtype, np.floating):
            self._zero()  # Rounding errors of sums would accumulate.

    def narrow(self) -> None:
        """Narrow the limits to counts of equal cost, by these labels, for the objectives below."""
        out = self.of_out
        self._rule_out(self.row, self.of_row[:, None], self.of_member[None, :])
        self._rule_out(self.load, self.of_member, np.broadcast_to(out, self.of_member.shape))

    # --- steps ---------------------------------------------------------------------------------------------------

    def prices(self) -> list[Prices]:
        return [self.row, self.load]

    def _pending(self) -> bool:
        """Whether labels between rows and members changed that were not propagated yet."""
        return False

    def _zero(self) -> None:
        self.of_row[:] = 0
        self.of_member[:] = 0
        self.of_out = self.of_member.dtype.type(0)

    def _forget(self) -> None:
        self.row_from[:] = NONE
        self.member_from[:] = NONE

    def _to_rows(self, members: Indices) -> Indices:
        """Relax the steps by which a member gives a unit back to its row."""
        less = self.row.less
        some = len(members) < less.shape[1]
        block = (less[:, members] if some else less) + self.of_member[members if some else slice(None)]
        self.budget.spend(block.size)
        if not block.size:
            return np.zeros(0, np.int64)
        best = block.min(axis=1)
        better = np.flatnonzero(best < self.of_row)
        if len(better):
            self.of_row[better] = best[better]
            self.row_from[better] = members[block[better].argmin(axis=1)]
        return better

    def _to_members(self, rows: Indices) -> Indices:
        """Relax the steps by which a row gives a unit to a member."""
        more = self.row.more
        some = len(rows) < len(more)
        block = (more[rows] if some else more) + self.of_row[rows if some else slice(None), None]
        self.budget.spend(block.size)
        if not block.size:
            return np.zeros(0, np.int64)
        best = block.min(axis=0)
        better = np.flatnonzero(best < self.of_member)
        if len(better):
            self.of_member[better] = best[better]
            self.member_from[better] = rows[block[:, better].argmin(axis=0)]
        return better

    def _from_sink(self) -> Indices:
        """Relax the steps by which a member's load falls."""
        best = self.load.less + self.of_out
        better = np.flatnonzero(best < self.of_member)
        self.of_member[better] = best[better]
        self.member_from[better] = SINK
        return better

    def _to_sink(self) -> bool:
        best = (self.of_member + self.load.more).min(initial=prohibitive(self.of_member.dtype))
        if best < self.of_out:
            self.of_out = best
            return True
        return False

    # --- cycles --------------------------------------------------------------------------------------------------

    def _predecessors(self) -> Indices:
        """Find the predecessor of each node: rows first, then members, then `no_node`. Members that come from the sink,
        and `no_node`, point at themselves."""
        rows, members = len(self.of_row), len(self.of_member)
        no_node = rows + members
        came = np.empty(no_node + 1, np.int64)
        came[:rows] = np.where(self.row_from == NONE, no_node, rows + self.row_from)
        came[rows:no_node] = np.where(self.member_from == NONE, no_node, self.member_from)
        outside = rows + np.flatnonzero(self.member_from == SINK)
        came[outside] = outside
        came[no_node] = no_node
        return came

    def _cycles(self) -> list[AugmentingPath]:
        came = self._predecessors()
        origin = came
        for _ in range(len(came).bit_length()):
            origin = origin[origin]
        self.budget.spend(len(came))
        no_node, rows = len(came) - 1, len(self.of_row)
        outside = np.zeros(len(came), np.bool_)
        outside[rows:no_node] = self.member_from == SINK
        cyclic = np.unique(origin[~outside[origin] & (origin != no_node)])
        return self._simple_cycles(came, cyclic.tolist()) + self._paths_through_sink(came, origin, outside)

    def _simple_cycles(self, came: Indices, cyclic: list[int]) -> list[AugmentingPath]:
        paths: list[AugmentingPath] = []
        seen: set[int] = set()
        for start in cyclic:
            if start in seen:
                continue
            path: AugmentingPath = []
            node = start
            while node not in seen:
                seen.add(node)
                path += self._steps(node)
                node = int(came[node])
            paths.append(path)
        return paths

    def _paths_through_sink(self, came: Indices, origin: Indices, outside: NDArray[np.bool_]) -> list[AugmentingPath]:
        """Find paths from the sink to a member and on, and back to the sink, that lower the cost; one per branch."""
        rows, no_node = len(self.of_row), len(came) - 1
        total = self.of_member + self.load.more
        ends = np.flatnonzero((total < self.of_out) & outside[origin[rows:no_node]])
        ends = ends[np.argsort(total[ends], kind="stable")]
        _, best = np.unique(origin[rows + ends], return_index=True)
        paths: list[AugmentingPath] = []
        for end in ends[np.sort(best)].tolist():
            path: AugmentingPath = [AugmentStep(self.network.load, end, True)]
            node = rows + end
            while not outside[node]:
                path += self._steps(node)
                node = int(came[node])
            path.append(AugmentStep(self.network.load, node - rows, False))
            paths.append(path)
        return paths

    def _steps(self, node: int) -> list[AugmentStep]:
        """The steps by which the node was reached."""
        rows, members = self.network.row.count.shape
        if node < rows:
            return [AugmentStep(self.network.row, node * members + int(self.row_from[node]), False)]
        member = node - rows
        return [AugmentStep(self.network.row, int(self.member_from[member]) * members + member, True)]

    # --- the next objective --------------------------------------------------------------------------------------

    def _rule_out(self, prices: Prices, here: Costs, there: Costs) -> None:
        stage, count = prices.stage, prices.stage.count
        low = np.zeros_like(count)
        high = stage.high
        if prices.objective is not None:
            low, high = prices.objective.reach(stage)
        stage.narrow(
            np.where(prices.less + there - here > 0, count, low).astype(np.int32),
            np.where(prices.more + here - there > 0, count, high).astype(np.int32),
        )


# --- the same path over other members ---------------------------------------------------------------------------------


def multiplied(paths: list[AugmentingPath], prices: list[Prices], members: int) -> list[AugmentingPath]:
    """Add paths over other members at which the same steps have the same prices; no two share a member.

    A search finds paths that share no row, so with few rows it finds few."""
    used = np.zeros(members, np.bool_)
    used[[step.place % members for path in paths for step in path]] = True
    copies: list[AugmentingPath] = []
    for path in paths:
        copies += _others(path, prices, used)
    return paths + copies


def _others(path: AugmentingPath, prices: list[Prices], used: BoolArray) -> list[AugmentingPath]:
    at = np.array([step.place % len(used) for step in path])
    found: dict[int, Indices] = {}
    taken, count = used.copy(), len(used)
    for member in np.unique(at).tolist():
        same = ~taken
        for step in path:
            if step.place % len(used) == member:
                same &= _same_price(step, prices, len(used))
        found[member] = np.flatnonzero(same)[:count]
        taken[found[member]] = True
        count = len(found[member])
        if not count:
            return []
    for others in found.values():
        used[others[:count]] = True
    shifts = np.stack([found[int(member)][:count] - member for member in at], axis=1)
    return [
        [AugmentStep(step.stage, step.place + shift, step.more) for step, shift in zip(path, row, strict=True)]
        for row in shifts.tolist()
    ]


def _same_price(step: AugmentStep, prices: list[Prices], members: int) -> BoolArray:
    own = next(p for p in prices if p.stage is step.stage)
    values = own.more if step.more else own.less
    line = values if values.ndim == 1 else values[step.place // members]
    return np.asarray(line == line[step.place % members])
