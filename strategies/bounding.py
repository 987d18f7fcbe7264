"""A lower bound on moves for when the minimum is not known: what members have above any fair share, per row and over
all, whichever says more.

Only what the result at hand keeps to counts: if it leaves some share, another one might, and might save moves by it.
"""

from __future__ import annotations

import numpy as np

from assigner.strategy import IntArray
from strategies.case import Case
from strategies.shares import EPSILON


def lower_bound(case: Case, count: IntArray) -> int:
    """In partitions."""
    return max(_by_row(case, count), _over_all(case, count), _one_apart(case, count))


def _by_row(case: Case, count: IntArray) -> int:
    if bool((count < case.floor).any()) or bool((count > case.ceil).any()):
        return 0
    over = np.maximum(case.held - case.floor, 0).sum(axis=1)
    extras = (count - case.floor).sum(axis=1)
    kept = np.minimum(((case.held > case.floor) & (case.ceil > case.floor)).sum(axis=1), extras)
    return int(case.size @ (over - kept))


def _over_all(case: Case, count: IntArray) -> int:
    goal = case.potential.goal
    most = np.ceil(goal - EPSILON)
    load = case.size @ count
    if bool((load > most).any()) or bool((load < np.floor(goal + EPSILON)).any()):
        return 0
    return int(np.maximum(case.size @ case.held - most, 0).sum())


def _one_apart(case: Case, count: IntArray) -> int:
    """Where all have a number or one more: as even is only what has that one more as often."""
    who = np.asarray(case.taker.any(axis=0))
    load, have = count.sum(axis=0)[who], case.held.sum(axis=0)[who]
    alike = bool((case.size == 1).all()) and len(load) > 0 and np.ptp(case.potential.scale[who]) == 0
    if not alike or np.ptp(load) > 1:
        return 0
    least = int(load.min())
    return int(np.maximum(have - least, 0).sum()) - min(int((load > least).sum()), int((have > least).sum()))
