"""Counts per topic and member, split by class: who gets units that have replicas near it, to begin with.

Topic by topic: what can't move stays, then what members have and is near, then what is near and would be new, then what
is left. Where moves come before racks, members keep all they have first. Classes with the fewest places near them
choose first. Not the best there is, for topics are looked at one by one; that is left to
`assigner.strategies.exact.improve`.
"""

from __future__ import annotations

import numpy as np

from assigner.strategies.exact.model import FlowProblem
from assigner.strategies.exact.network import UNLIMITED
from assigner.strategy import IntArray


def split_by_class(problem: FlowProblem, total: IntArray, supply: IntArray, moves_first: bool) -> IntArray:
    """[class, member]. `total` is [topic, member]; `supply` what each class has for members, fixed units included."""
    assert problem.miss is not None
    parent = np.arange(len(supply)) if problem.parent is None else problem.parent
    first = np.flatnonzero(np.diff(parent, prepend=-1)).tolist()
    count = problem.fixed.astype(np.int32)
    for topic, (low, high) in enumerate(zip(first, [*first[1:], len(parent)], strict=True)):
        rows = slice(low, high)
        split = _ClassSplit(count[rows], total[topic] - count[rows].sum(axis=0), supply[rows] - count[rows].sum(axis=1))
        near = problem.miss[rows] == 0
        order = np.argsort((near * split.open).sum(axis=1), kind="stable").tolist()
        held, anything = problem.held[rows], np.full_like(problem.held[rows], UNLIMITED)
        if moves_first:
            split.give(order, held - count[rows])
        split.give(order, np.where(near, held - count[rows], 0))
        split.give(order, np.where(near, anything, 0))
        split.give(order, held - count[rows])
        split.give(order, anything)
    return count


class _ClassSplit:
    """Of one topic; changes `count` in place."""

    def __init__(self, count: IntArray, open_: IntArray, left: IntArray) -> None:
        self._count, self.open, self._left = count, open_.copy(), left.copy()

    def give(self, order: list[int], more: IntArray) -> None:
        """Give up to `more` units of classes in this order, to members in theirs, as long as there are any."""
        for number in order:
            if self._left[number] > 0:
                reached = np.minimum(np.cumsum(np.minimum(more[number].clip(min=0), self.open)), self._left[number])
                given = np.diff(reached, prepend=0).astype(np.int32)
                self._count[number] += given
                self.open -= given
                self._left[number] -= int(reached[-1])
