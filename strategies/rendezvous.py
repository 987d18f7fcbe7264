"""`rendezvous`: every partition goes to the member with the highest score for it, by weighted rendezvous hashing.

Scores come from the partition, the member's name and its capacity alone (Thaler and Ravishankar's highest random
weight; the weighting is -capacity / ln(u) with u uniform in (0, 1)). So when a member joins or leaves, only
partitions that go to it or come from it move, and in expectation each member has a share in proportion to its capacity.

Not promised: balance (owners are random: at 1,000 partitions on 100 members the fullest has nearly twice the mean).
Every partition is scored for every member, which takes a second for 50 million pairs. Present owners, weights and
racks are ignored.
"""

from __future__ import annotations

import numpy as np

from assigner.strategies.hashing import assign_by_hash, splitmix64
from assigner.strategies.problem.current_owners import held
from assigner.strategies.problem.options import must_move, refuse_unknown
from assigner.strategies.problem.units import fold, unfold
from assigner.strategies.problem.validation import check
from assigner.strategies.standbys.placement import place_standbys
from assigner.strategy import FloatArray, IntArray, KeyArray, Members, Problem, Solution
from assigner.strategy.explanation import Explanation

_BLOCK = 1 << 20
"""Pairs scored in one go; bounds the memory."""


class Rendezvous:
    name = "rendezvous"

    def assign(self, problem: Problem) -> Solution:
        check(problem)
        refuse_unknown(self.name, problem.options)
        units = fold(problem)
        now = held(units, problem.members)
        owner = assign_by_hash(units, problem.members, now, _Scores(problem.members))
        owner = unfold(units, problem, owner)
        return Solution(
            owner, place_standbys(problem, owner), Explanation(problem, owner, must_move(problem), by_rule=True)
        )

    def place_standbys(self, problem: Problem, owner: IntArray) -> IntArray:
        return place_standbys(problem, owner)


class _Scores:
    def __init__(self, members: Members) -> None:
        key = np.arange(members.count, dtype=np.uint64) if members.key is None else members.key
        # Mixed once more, so that the hashes of a member and a partition with the same number are independent.
        self._key = splitmix64(splitmix64(key))
        self._capacity = members.capacity

    def __call__(self, keys: KeyArray, who: IntArray) -> IntArray:
        best = np.empty(len(keys), np.int64)
        step = max(1, _BLOCK // len(who))
        capacity = self._capacity[who]
        equal = bool((capacity == capacity[0]).all())
        for first in range(0, len(keys), step):
            drawn = splitmix64(keys[first : first + step, None] ^ self._key[who])
            # With equal capacities the draws have the same order as the scores, and are exact.
            scores = drawn if equal else _weighted(drawn, capacity)
            best[first : first + step] = scores.argmax(axis=1)
        return who[best]


def _weighted(drawn: KeyArray, capacity: FloatArray) -> FloatArray:
    uniform = ((drawn >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return np.asarray(-capacity / np.log(uniform))


strategy = Rendezvous()
