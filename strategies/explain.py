"""What strategies have in common when they say what they did."""

from __future__ import annotations

import numpy as np

from assigner.strategy import NONE, Problem


def must_move(problem: Problem) -> int:
    """Partitions whose owner may not keep them: it does not subscribe to their topic."""
    if problem.members.subscription.all():
        return 0
    topic = np.repeat(np.arange(problem.topics.count), problem.topics.partitions)
    loose = (problem.owner != NONE) & ~problem.pinned
    return int((~problem.members.subscription[problem.owner[loose], topic[loose]]).sum())
