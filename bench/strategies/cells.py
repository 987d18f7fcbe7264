"""One cell of the grid after the other: what each contestant took, moved and achieved, beside what was possible."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec

from assigner.strategy import IntArray, Problem
from assigner.strategy.explanation import Explanation
from bench.strategies.bounds import MOST_CELLS, Balance, Bound, fewest_moves, imbalance
from bench.strategies.contestants import STICKY, Contestant
from bench.strategies.grid import Operation, Shape, Sizes, Subscriptions, changed, fresh, members_before
from bench.strategies.racks import fewest_mismatches
from bench.strategies.timed_calls import ONCE, Effort, Failed


class Row(msgspec.Struct, frozen=True):
    """One contestant in one cell."""

    members: int
    topics: int
    partitions: int
    sizes: str
    subscriptions: str
    racks: bool
    operation: str
    contestant: str
    not_run: str | None = None
    ms: float | None = None
    """Median of the calls."""
    fastest_ms: float | None = None
    moves: int | None = None
    bound: int | None = None
    """Fewest moves with which the group could be as balanced, None where that was not worked out."""
    bound_is_loose: bool = False
    """More may be needed than the bound says: it does not know of overlapping subscriptions' topics or of racks."""
    imbalance: int | None = None
    worst_topic: int | None = None
    mismatches: int | None = None
    fewest_mismatches: int | None = None

    @property
    def group(self) -> str:
        sizes, subscriptions = Sizes(self.sizes), Subscriptions(self.subscriptions)
        return str(Shape(self.members, self.topics, self.partitions, sizes, subscriptions, self.racks))

    @property
    def gap(self) -> int | None:
        return None if self.moves is None or self.bound is None else self.moves - self.bound


@dataclass(frozen=True)
class Cell:
    shape: Shape
    operation: Operation


class Grid:
    """Measures cells; remembers what groups looked like before, because many cells start alike."""

    def __init__(self, contestants: Sequence[Contestant], effort: Effort) -> None:
        self._contestants = contestants
        self._effort = effort
        self._starts: dict[tuple[Shape, int, str], IntArray] = {}

    def run(
        self, shapes: Sequence[Shape], operations: Sequence[Operation], tell: Callable[[str], None]
    ) -> Iterator[Row]:
        for shape in shapes:
            self._starts.clear()
            for operation in operations:
                yield from self._cell(Cell(shape, operation), tell)

    def _cell(self, cell: Cell, tell: Callable[[str], None]) -> Iterator[Row]:
        problem = self.problem(cell, self._contestants[0])
        bounds = _Bounds(problem)
        for contestant in self._contestants:
            tell(f"{cell.shape}: {cell.operation}, {contestant.name}")
            yield self._row(cell, contestant, problem, bounds)

    def _row(self, cell: Cell, contestant: Contestant, shared: Problem, bounds: _Bounds) -> Row:
        shape = cell.shape
        row = Row(
            shape.members,
            shape.topics,
            shape.partitions,
            shape.sizes.value,
            shape.subscriptions.value,
            shape.racks,
            cell.operation.value,
            contestant.name,
        )
        refusal = contestant.refuses(shared)
        if refusal is not None:
            return msgspec.structs.replace(row, not_run=refusal)
        try:
            problem = self.problem(cell, contestant) if contestant.own_start else shared
            answer = contestant.solve(problem, self._effort)
        except Failed as failure:
            return msgspec.structs.replace(row, not_run=str(failure))
        result = Explanation(problem, answer.owner, 0)
        bound = None if contestant.own_start else bounds.moves(contestant.name, result.moves)
        return msgspec.structs.replace(
            row,
            ms=answer.median,
            fastest_ms=min(answer.milliseconds),
            moves=result.moves,
            bound=None if bound is None else bound.moves,
            bound_is_loose=bound is not None and bound.loose,
            imbalance=imbalance(problem, answer.owner),
            worst_topic=int(result.imbalance_by_topic.max(initial=0)),
            mismatches=result.rack_mismatches if shape.racks else None,
            fewest_mismatches=bounds.mismatches if shape.racks else None,
        )

    def problem(self, cell: Cell, contestant: Contestant) -> Problem:
        """The cell as it is for a contestant that made the plan before."""
        if cell.operation is Operation.FULL:
            return fresh(cell.shape)
        before = members_before(cell.shape, cell.operation)
        key = (cell.shape, before, contestant.name)
        if key not in self._starts:
            effort = replace(ONCE, patience=self._effort.patience)
            self._starts[key] = contestant.solve(fresh(cell.shape, before), effort).owner
        return changed(cell.shape, cell.operation, self._starts[key])


class _Bounds:
    """Worked out once per cell and kind of balance."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._cells = problem.members.count * problem.topics.count
        self._known: dict[Balance, Bound] = {}
        self._looked_closely: set[Balance] = set()
        self.mismatches = fewest_mismatches(problem)

    def moves(self, contestant: str, moved: int) -> Bound | None:
        """The bound for the contestant's kind of balance."""
        balance = Balance.BOTH if contestant == STICKY else Balance.GLOBAL
        if self._cells > MOST_CELLS:
            return None
        if balance not in self._known:
            self._known[balance] = fewest_moves(self._problem, balance)
        if moved > self._known[balance].moves and balance not in self._looked_closely:
            # The solution may be right and the bound wrong.
            self._looked_closely.add(balance)
            self._known[balance] = fewest_moves(self._problem, balance, closely=True)
        return self._known[balance]
