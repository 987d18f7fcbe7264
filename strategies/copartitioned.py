"""`copartitioned`: topics with equal partition counts and the same subscribers move as one.

A stream processor that joins topics by key needs partition n of each at the same member, without a configured set for
each pair. Configured sets (`Topics.copartition`) are kept; all other topics are put into sets by partition count and
subscribers. The rest is `sticky_balanced` with its options, standbys included: a slot
of a set has one owner and one list of standbys.

A set that changes because a topic is added, grows or gets other subscribers is formed again at the next plan: each slot
belongs to the owner of most of its partitions, and its other partitions move there.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from assigner.strategies.problem.validation import check
from assigner.strategies.sticky_balanced import strategy as sticky_balanced
from assigner.strategy import NONE, IntArray, Problem, Solution


class Copartitioned:
    name = "copartitioned"

    def assign(self, problem: Problem) -> Solution:
        check(problem)
        return sticky_balanced.assign(_joined(problem))

    def place_standbys(self, problem: Problem, owner: IntArray) -> IntArray:
        return sticky_balanced.place_standbys(_joined(problem), owner)


def _joined(problem: Problem) -> Problem:
    return replace(problem, topics=replace(problem.topics, copartition=sets(problem)))


def sets(problem: Problem) -> IntArray:
    """Number the set of each topic. Configured sets keep their numbers."""
    topics = problem.topics
    given = topics.copartition if topics.copartition is not None else np.full(topics.count, NONE, np.int32)
    loose = np.flatnonzero(given == NONE)
    numbers = given.copy()
    if len(loose):
        wanted = np.packbits(problem.members.subscription[:, loose].T, axis=1)
        count = topics.partitions[loose].astype("<u4").view(np.uint8).reshape(len(loose), 4)
        _, kind = np.unique(np.concatenate((count, wanted), axis=1), axis=0, return_inverse=True)
        numbers[loose] = int(given.max(initial=NONE)) + 1 + kind.reshape(-1)
    return numbers


strategy = Copartitioned()
