"""`copartitioned`: topics with as many partitions and the same subscribers move as one.

A stream processor that joins topics by key needs partition n of each at the same member, and does not want to say so
for every pair. Sets that are given (`Topics.copartition`) are taken as they are; all other topics are put into sets by
partition count and by who subscribes to them. The rest is `sticky_balanced` with its options, standbys included: a slot
of a set has one owner and one list of standbys.

A set that changes because a topic comes, grows or finds other subscribers is put together again at the next plan: its
slots belong to those who own most of their partitions, and what is elsewhere moves there.
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
    """[topic]: the number of its set. Those that are given keep their numbers."""
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
