"""Ways like one that was found, over other members: what helps once often helps many.

A search finds ways that share no row, so with few rows it finds few. A member on a way can be replaced by any other at
which the same steps have the same prices, and members that are on no way yet make up further ways of the same gain.
"""

from __future__ import annotations

import numpy as np

from assigner.strategy import BoolArray
from strategies.network import Step, Way
from strategies.residual import Prices
from strategies.shares import Indices


def multiplied(ways: list[Way], prices: list[Prices], members: int) -> list[Way]:
    """The ways and as many others like them as there are; no two share a member."""
    used = np.zeros(members, np.bool_)
    used[[step.place % members for way in ways for step in way]] = True
    copies: list[Way] = []
    for way in ways:
        copies += _others(way, prices, used)
    return ways + copies


def _others(way: Way, prices: list[Prices], used: BoolArray) -> list[Way]:
    at = np.array([step.place % len(used) for step in way])
    found: dict[int, Indices] = {}
    taken, count = used.copy(), len(used)
    for member in np.unique(at).tolist():
        same = ~taken
        for step in way:
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
        [Step(step.stage, step.place + shift, step.more) for step, shift in zip(way, row, strict=True)]
        for row in shifts.tolist()
    ]


def _same_price(step: Step, prices: list[Prices], members: int) -> BoolArray:
    own = next(p for p in prices if p.stage is step.stage)
    values = own.more if step.more else own.less
    line = values if values.ndim == 1 else values[step.place // members]
    return np.asarray(line == line[step.place % members])
