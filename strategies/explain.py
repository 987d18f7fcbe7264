"""What strategies have in common when they say what they did."""

from __future__ import annotations

import numpy as np

from assigner.strategy import NONE, IntArray, Problem


def must_move(problem: Problem) -> int:
    """Partitions whose owner may not keep them: it does not subscribe to their topic."""
    if problem.members.subscription.all():
        return 0
    topic = np.repeat(np.arange(problem.topics.count), problem.topics.partitions)
    loose = (problem.owner != NONE) & ~problem.pinned
    return int((~problem.members.subscription[problem.owner[loose], topic[loose]]).sum())


def keep_standbys(problem: Problem, owner: IntArray) -> IntArray:
    """The present standbys that are still sensible: at most as many as asked for, none on the owner itself."""
    kept = np.full((len(owner), problem.standby_count), NONE, np.int32)
    width = min(problem.standby_count, problem.standbys.shape[1])
    if width and problem.standbys.size:
        old = problem.standbys
        gone = (old == NONE) | (old == owner[:, None])
        order = np.argsort(gone, axis=1, kind="stable")
        sorted_ = np.take_along_axis(np.where(gone, np.int32(NONE), old), order, axis=1)
        kept[:, :width] = sorted_[:, :width]
    return kept
