"""The largest group there is a target for: 500,000 partitions on 10,000 members with one subscription.

`global` against Kafka's uniform assignor in the same run: no slower, and no more moves. The default, even both ways: at
most three times as long as Kafka's. Each change is measured from two beginnings, because Kafka's time depends on it: an
ownership that is even both ways, and the one that Kafka's assignor itself had made. They take turns, three times each,
and the best median of each counts, so that a busy moment of the machine favours nobody.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from assigner.strategy import IntArray, Problem
from assigner.strategy.explanation import Explanation
from bench.sheets import Sheet
from bench.strategies.contestants import GLOBAL, STICKY, UNIFORM, Contestant
from bench.strategies.grid import Operation, Shape, changed, fresh, members_before
from bench.strategies.timed_calls import ONCE, Effort, Failed

OPERATIONS = (Operation.FULL, Operation.JOIN_ONE, Operation.LEAVE_ONE)
SLOWER_AT_MOST = 3.0
"""`both` against Kafka's uniform assignor."""


class Target(msgspec.Struct, frozen=True):
    topics: int
    operation: str
    start: str
    ms: dict[str, float]
    """By contestant; without Kafka where it can't be run."""
    moves: dict[str, int]

    def verdicts(self) -> list[str]:
        """Times, moves, and whether they are what they should be."""
        return [*self._global(), *self._both()]

    def _global(self) -> list[str]:
        ratio, times = self._ratio(GLOBAL)
        fewer = UNIFORM in self.moves and self.moves[GLOBAL] <= self.moves[UNIFORM]
        moves = f"{self.moves[GLOBAL]:,} / {self.moves.get(UNIFORM, '-')}"
        known = UNIFORM in self.moves
        return [times, _verdict(ratio is not None and ratio <= 1, known=known), moves, _verdict(fewer, known=known)]

    def _both(self) -> list[str]:
        if STICKY not in self.ms:
            return ["", ""]
        ratio, times = self._ratio(STICKY)
        return [times, _verdict(ratio is not None and ratio <= SLOWER_AT_MOST, known=ratio is not None)]

    def _ratio(self, name: str) -> tuple[float | None, str]:
        if UNIFORM not in self.ms:
            return None, f"{self.ms[name]:.1f} / -"
        ratio = self.ms[name] / self.ms[UNIFORM]
        return ratio, f"{self.ms[name]:.1f} / {self.ms[UNIFORM]:.1f} ({ratio:.2f}x)"


def _verdict(kept: bool, *, known: bool) -> str:
    return ("yes" if kept else "NO") if known else "-"


@dataclass(frozen=True)
class _Start:
    name: str
    maker: str


SPREAD = _Start("even both ways", STICKY)
KAFKAS = _Start("as Kafka made it", UNIFORM)


@dataclass(frozen=True)
class Size:
    members: int = 10_000
    partitions: int = 500_000
    topics: tuple[int, ...] = (10, 100, 1_000)
    turns: int = 3


SMALL = Size(1_000, 50_000, (10, 100), 1)


def targets(
    contestants: Sequence[Contestant], effort: Effort, tell: Callable[[str], None], size: Size
) -> Iterator[Target]:
    by_name = {one.name: one for one in contestants if one.name in (STICKY, GLOBAL, UNIFORM)}
    for topics in size.topics:
        shape = Shape(size.members, topics, size.partitions)
        for operation in OPERATIONS:
            for start in (SPREAD, KAFKAS):
                if start.maker not in by_name or (operation is Operation.FULL and start is KAFKAS):
                    continue
                tell(f"target: {topics} topics, {operation}, {start.name}")
                # From Kafka's ownership `both` has to repair every topic, which is another task.
                running = [one for one in by_name.values() if start is SPREAD or one.name != STICKY]
                began = "nothing owned" if operation is Operation.FULL else start.name
                with contextlib.suppress(Failed):
                    problem = _problem(shape, operation, by_name[start.maker])
                    times, moves = _take_turns(problem, running, effort, size.turns)
                    if GLOBAL in times:
                        yield Target(topics, operation.value, began, times, moves)


def _problem(shape: Shape, operation: Operation, maker: Contestant) -> Problem:
    if operation is Operation.FULL:
        return fresh(shape)
    before = fresh(shape, members_before(shape, operation))
    return changed(shape, operation, maker.solve(before, ONCE).owner)


def _take_turns(
    problem: Problem, running: Sequence[Contestant], effort: Effort, turns: int
) -> tuple[dict[str, float], dict[str, int]]:
    """Best median and moves of each."""
    times: dict[str, float] = {}
    owners: dict[str, IntArray] = {}
    for _ in range(turns):
        for one in running:
            try:
                answer = one.solve(problem, effort)
            except Failed:
                continue
            times[one.name] = min(times.get(one.name, answer.median), answer.median)
            owners[one.name] = answer.owner
    return times, {name: Explanation(problem, owner, 0).moves for name, owner in owners.items()}


def targets_sheet(found: Sequence[Target], size: Size) -> Sheet:
    header = [
        "topics",
        "operation",
        "from",
        "`global` / Kafka ms",
        "no slower",
        "moves",
        "no more",
        "`both` / Kafka ms",
        "within 3x",
    ]
    rows = [[f"{one.topics:,}", one.operation, one.start, *one.verdicts()] for one in found]
    note = "The best of several medians, ours and Kafka's uniform assignor taking turns on the same input."
    return Sheet(f"{size.partitions:,} partitions, {size.members:,} members", note, header, rows)
