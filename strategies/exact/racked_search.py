"""Extends the search of `exact.residual_search` to topics of several rows: the topic's cells are nodes in between.

A unit of one row can replace another row's unit within a cell, so that the topic's count there stays the same. Cells
are skipped when paths are traced: the predecessor of a row or a member is that of its cell.
"""

from __future__ import annotations

import numpy as np

from assigner.strategies.exact.network import AugmentStep, Network, NetworkStage
from assigner.strategies.exact.objectives import Objective
from assigner.strategies.exact.residual_search import SINK, Budget, Prices, Search
from assigner.strategies.problem.shares import Indices
from assigner.strategy import NONE

BY_MEMBER = SINK
"""The predecessor of the cell is its member."""


class RackedSearch(Search):
    def __init__(self, network: Network, objective: Objective, budget: Budget) -> None:
        super().__init__(network, objective, budget)
        assert network.topic is not None
        assert network.parent is not None
        self._topic: NetworkStage = network.topic
        self._parent: Indices = network.parent.astype(np.intp)
        self.cell = Prices.of(
            self._topic, objective if objective.stage(network) is self._topic else None, self.of_member.dtype
        )
        self.of_cell = np.zeros(self._topic.count.shape, self.of_member.dtype)
        self.cell_from = np.full(self._topic.count.shape, NONE)
        self._changed = np.ones(len(self._topic.count), np.bool_)
        first = np.flatnonzero(np.diff(self._parent, prepend=-1))
        # The number of each row within its topic: rows of one number belong to different topics.
        self._number = np.arange(len(self._parent)) - first[self._parent]

    def narrow(self) -> None:
        self._rule_out(self.row, self.of_row[:, None], self.of_cell[self._parent])
        self._rule_out(self.cell, self.of_cell, self.of_member[None, :])
        self._rule_out(self.load, self.of_member, np.broadcast_to(self.of_out, self.of_member.shape))

    def prices(self) -> list[Prices]:
        return [self.row, self.cell, self.load]

    def _pending(self) -> bool:
        return bool(self._changed.any())

    def _zero(self) -> None:
        super()._zero()
        self.of_cell[:] = 0

    def _forget(self) -> None:
        super()._forget()
        self.cell_from[:] = NONE
        self._changed[:] = True

    def _to_rows(self, members: Indices) -> Indices:
        self._cells_from(members)
        rows = np.flatnonzero(self._changed[self._parent])
        self._changed[:] = False
        if not len(rows):
            return rows
        some = len(rows) < len(self._parent)
        block = self.of_cell[self._parent[rows]]
        block += self.row.less[rows] if some else self.row.less
        self.budget.spend(block.size)
        best = block.min(axis=1)
        better = np.flatnonzero(best < self.of_row[rows])
        self.of_row[rows[better]] = best[better]
        self.row_from[rows[better]] = block[better].argmin(axis=1)
        return rows[better]

    def _cells_from(self, members: Indices) -> None:
        """Relax the steps by which a member gives a unit of a topic back."""
        every = len(members) == len(self.of_member)
        block = (self.cell.less if every else self.cell.less[:, members]) + self.of_member[members]
        self.budget.spend(block.size)
        lower = block < (self.of_cell if every else self.of_cell[:, members])
        topics = np.flatnonzero(lower.any(axis=1))
        at, who = np.nonzero(lower[topics])
        self.of_cell[topics[at], members[who]] = block[topics[at], who]
        self.cell_from[topics[at], members[who]] = BY_MEMBER
        self._changed[topics] = True

    def _to_members(self, rows: Indices) -> Indices:
        if not len(rows):
            return rows
        topics = self._cells_from_rows(rows)
        block = self.cell.more[topics] + self.of_cell[topics]
        self.budget.spend(block.size)
        if not block.size:
            return np.zeros(0, np.int64)
        best = block.min(axis=0)
        better = np.flatnonzero(best < self.of_member)
        self.of_member[better] = best[better]
        self.member_from[better] = topics[block[:, better].argmin(axis=0)]
        return better

    def _cells_from_rows(self, rows: Indices) -> Indices:
        """Relax the steps from rows to cells; returns the topics whose cells changed, at first all."""
        for number in range(int(self._number[rows].max()) + 1):
            chosen = rows[self._number[rows] == number]
            block = self.row.more[chosen] + self.of_row[chosen, None]
            self.budget.spend(block.size)
            lower = block < self.of_cell[self._parent[chosen]]
            some = np.flatnonzero(lower.any(axis=1))
            at, who = np.nonzero(lower[some])
            topics = self._parent[chosen[some]]
            self.of_cell[topics[at], who] = block[some[at], who]
            self.cell_from[topics[at], who] = chosen[some[at]]
            self._changed[topics] = True
        return np.arange(len(self._changed)) if len(rows) == len(self._parent) else np.flatnonzero(self._changed)

    def _predecessors(self) -> Indices:
        rows, members = len(self.of_row), len(self.of_member)
        no_node = rows + members
        came = np.full(no_node + 1, no_node)
        some = np.flatnonzero(self.row_from != NONE)
        came[some] = self._predecessor(self._parent[some], self.row_from[some])
        inside = np.flatnonzero(self.member_from >= 0)
        came[rows + inside] = self._predecessor(self.member_from[inside], inside)
        outside = rows + np.flatnonzero(self.member_from == SINK)
        came[outside] = outside
        return came

    def _predecessor(self, topic: Indices, member: Indices) -> Indices:
        """Find the predecessor of a cell."""
        rows, source = len(self.of_row), self.cell_from[topic, member]
        by_row = np.where(source == NONE, rows + len(self.of_member), source)
        return np.where(source == BY_MEMBER, rows + member, by_row)

    def _steps(self, node: int) -> list[AugmentStep]:
        rows, members = self.network.row.count.shape
        row_stage = self.network.row
        if node < rows:
            topic, member = int(self._parent[node]), int(self.row_from[node])
            steps = [AugmentStep(row_stage, node * members + member, False)]
        else:
            member = node - rows
            topic = int(self.member_from[member])
            steps = [AugmentStep(self._topic, topic * members + member, True)]
        source = int(self.cell_from[topic, member])
        if source == BY_MEMBER:
            return [*steps, AugmentStep(self._topic, topic * members + member, False)]
        return [*steps, AugmentStep(row_stage, source * members + member, True)]
