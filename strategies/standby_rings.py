"""Find a ring of gifts: each of some slots gives its copy to the next, and all together are better off.

By Bellman and Ford: the cheapest way to each slot is improved until nothing changes; if ways run in a ring, going
round it costs less than nothing. It ends after as many rounds as there are slots at the latest.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.int64]


def ring(cost: Matrix) -> list[int]:
    """Slots in the order of giving, or nothing. `cost[i, j]`: what changes if the copy in slot i goes to slot j."""
    count = len(cost)
    reached = np.zeros(count, np.int64)
    came = np.full(count, -1)
    for _ in range(count):
        ways = reached[:, None] + cost
        best = ways.argmin(axis=0)
        cheapest = ways[best, np.arange(count)]
        better = cheapest < reached
        if not better.any():
            return []
        reached = np.where(better, cheapest, reached)
        came = np.where(better, best, came)
        found = _round_trip(came.tolist())
        if found:
            return found
    return []


def _round_trip(came: list[int]) -> list[int]:
    """A ring among ways back, in the direction of the ways."""
    visited = [0] * len(came)
    for start in range(len(came)):
        slot = start
        while slot >= 0 and not visited[slot]:
            visited[slot] = start + 1
            slot = came[slot]
        if slot >= 0 and visited[slot] == start + 1:
            found = [slot]
            while came[found[-1]] != slot:
                found.append(came[found[-1]])
            return found[::-1]
    return []
