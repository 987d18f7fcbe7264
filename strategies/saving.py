"""Save moves without making the loads less even: a member that lost an extra it has now takes it back from one to
which it would be new, if that one is at least as full.

Every step saves a move and does not raise the potential, so this ends. Not promised: the minimum. That is left to
`strategies.improving`.
"""

from __future__ import annotations

import numpy as np

from strategies.balancing import taking
from strategies.shares import EPSILON
from strategies.table import Potential, Table

_TURNS = 2
"""Times all rows are looked at: there is little left after that."""


def save_moves(table: Table, potential: Potential) -> None:
    for _ in range(_TURNS):
        if not _take_back(table, potential):
            return


def _take_back(table: Table, potential: Potential) -> int:
    """Directly, from a giver that is at least as full."""
    saved = 0
    lost = table.sticky & ~table.extra
    for row in np.flatnonzero(lost.any(axis=1)).tolist():
        size = float(table.size[row])
        givers = np.flatnonzero(table.extra[row] & ~table.sticky[row])
        takers = np.flatnonzero(lost[row])
        giving, rank = potential.giving(table.load, size), taking(table, potential, size)
        givers = givers[np.lexsort((-givers, -giving[givers]))]
        takers = takers[np.lexsort((takers, rank[takers]))]
        pairs = min(len(givers), len(takers))
        count = int((giving[givers[:pairs]] >= rank[takers[:pairs]] - EPSILON).sum())
        table.move(row, givers[:count], takers[:count])
        saved += count * int(size)
    return saved
