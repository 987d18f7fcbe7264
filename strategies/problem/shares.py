"""Computes fair shares: how much of a total each member should have.

Shares are real numbers in proportion to weights, within lower limits (fixed units) and upper limits.
Whole partitions follow by rounding: each member gets the floor, and the remainders are assigned one by one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from assigner.strategy import BoolArray, FloatArray, IntArray

Indices = NDArray[np.intp]

EPSILON = 1e-9
"""Shares closer to a whole number than this are whole. Far above rounding errors, far below one partition."""


_SMALLEST = 1e-100
"""The lower limit of weights, to divide by: a smaller one would get nothing anyway."""


def relative(capacity: FloatArray) -> FloatArray:
    """Scale capacities to weights: the largest is 1."""
    return np.asarray(np.maximum(capacity / capacity.max(), _SMALLEST))


def fair_shares(total: float, weight: FloatArray, low: FloatArray, high: FloatArray | None = None) -> FloatArray:
    """Compute the shares `clip(level * weight, low, high)` whose sum is `total`, or as near to it as the limits
    allow."""
    if not len(weight):
        return np.zeros(0)
    if high is None and not low.any():
        return np.asarray(total * weight / weight.sum())
    top = np.full(len(weight), np.inf) if high is None else np.maximum(high, low)
    # As the level rises, a share starts to grow where it leaves its lower limit and stops at its upper one.
    levels = np.concatenate((low / weight, top / weight))
    slopes = np.concatenate((weight, -weight))
    finite = np.isfinite(levels)
    order = np.argsort(levels[finite], kind="stable")
    levels, slopes = levels[finite][order], np.cumsum(slopes[finite][order])
    sums = low.sum() + np.concatenate((np.zeros(1), np.cumsum(slopes[:-1] * np.diff(levels))))
    at = int(np.searchsorted(sums, total, side="right")) - 1
    if at < 0:
        return low.astype(np.float64)
    slope = slopes[at]
    rest = (total - sums[at]) / slope if slope > EPSILON * weight.max() else 0.0
    return np.asarray(np.clip((levels[at] + rest) * weight, low, top))


def floors(share: FloatArray, low: FloatArray) -> tuple[IntArray, BoolArray]:
    """Split shares into whole parts, and flags for members that may get one more."""
    base = np.floor(share + EPSILON)
    return base.astype(np.int32), (share - base > EPSILON) & (share > low + EPSILON)


def lowest(score: FloatArray, among: BoolArray, count: int) -> Indices:
    """Choose the `count` members of `among` with the lowest score; of equals, those that come first."""
    members = np.flatnonzero(among)
    if len(members) <= count:
        return members
    scores = score[members]
    limit = np.partition(scores, count - 1)[count - 1]
    below = members[scores < limit]
    return np.concatenate((below, members[scores == limit][: count - len(below)]))
