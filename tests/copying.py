"""A strategy for tests of standbys: even, sticky, and it gives partitions to those that hold a copy.

Simple instead of good: it wants as many partitions as members can share evenly, and knows neither sets nor racks.
"""

from __future__ import annotations

from collections import Counter
from importlib.metadata import EntryPoint, EntryPoints, entry_points

import numpy as np
import pytest

from assigner import strategy_registry
from assigner.explanation import Explanation
from assigner.strategy import NONE, Problem, Solution

NAME = "copying"


class Copying:
    name = NAME

    def assign(self, problem: Problem) -> Solution:
        owners = problem.owner.tolist()
        rows = [[h for h in row if h != NONE] for row in problem.standbys.tolist()] or [[] for _ in owners]
        places = [m for m in range(problem.members.count) if not problem.members.hold[m]]
        before = list(owners)
        _share(owners, rows, places, problem.pinned.tolist())
        copies = _stand_by(owners, before, rows, places, problem.standby_count)
        owner = np.asarray(owners, np.int32)
        return Solution(owner, copies, Explanation(problem, owner, 0))


def _share(owners: list[int], rows: list[list[int]], places: list[int], pinned: list[bool]) -> None:
    share = -(-len(owners) // max(1, len(places)))
    loose = [p for p, owner in enumerate(owners) if not pinned[p]]
    for member in places:
        own = [p for p in loose if owners[p] == member]
        # What somebody else holds a copy of is given away first.
        own.sort(key=lambda p: (bool(rows[p]), p))
        spare = owners.count(member) - share
        for p in own[len(own) - max(0, spare) :]:
            owners[p] = NONE
    for p in loose:
        if owners[p] == NONE and places:
            load = Counter(owners)
            fits = [m for m in rows[p] if m in places and load[m] < share]
            owners[p] = min(fits or places, key=lambda m: (load[m], m))


def _stand_by(
    owners: list[int], before: list[int], rows: list[list[int]], places: list[int], count: int
) -> np.typing.NDArray[np.int32]:
    count = min(count, len(places) - 1) if places else 0
    most = -(-len(owners) * count // max(1, len(places)))
    table = np.full((len(owners), max(count, 0)), NONE, np.int32)
    load: Counter[int] = Counter()
    chosen: list[list[int]] = []
    for p, owner in enumerate(owners):
        kept = [m for m in dict.fromkeys([before[p], *rows[p]]) if m in places and m != owner and load[m] < most]
        chosen.append(kept[:count])
        load.update(chosen[-1])
    for p, owner in enumerate(owners):
        while len(chosen[p]) < count:
            free = [m for m in places if m != owner and m not in chosen[p]]
            chosen[p].append(min(free, key=lambda m: (load[m], m)))
            load[chosen[p][-1]] += 1
        table[p, :] = chosen[p]
    return table


strategy = Copying()


def install(patch: pytest.MonkeyPatch) -> None:
    """Have it found beside the installed ones."""
    ours = EntryPoint(NAME, "tests.copying:strategy", strategy_registry.ENTRY_POINTS)
    found = EntryPoints([*entry_points(group=strategy_registry.ENTRY_POINTS), ours])
    patch.setattr(strategy_registry, "entry_points", lambda group: found)
    strategy_registry.load.cache_clear()
