"""`jump_hash`: the owner follows from the partition and the list of members alone, by jump consistent hashing.

The algorithm is Lamping and Veach's ("A Fast, Minimal Memory, Consistent Hash Algorithm", arXiv 1406.2294): when a
member is added at the end of the list, partitions move to it only. Members are listed in name order among those that
subscribe to the topic.

Not promised: balance (at 1,000 partitions on 100 members the fullest has about twice the mean), proportion to
capacity, or few moves when a member in the middle of the list leaves: those after it are renumbered. For these, use
`rendezvous` or `sticky_balanced`. Present owners are otherwise ignored, and so are weights and racks.
"""

from __future__ import annotations

import numpy as np

from assigner.strategies.hashing import assign_by_hash
from assigner.strategies.problem.current_owners import held
from assigner.strategies.problem.options import must_move, refuse_unknown
from assigner.strategies.problem.units import fold, unfold
from assigner.strategies.problem.validation import check
from assigner.strategies.standbys.placement import place_standbys
from assigner.strategy import IntArray, KeyArray, Problem, Solution
from assigner.strategy.explanation import Explanation

_MULTIPLIER = np.uint64(2862933555777941757)


class JumpHash:
    name = "jump_hash"

    def assign(self, problem: Problem) -> Solution:
        check(problem)
        refuse_unknown(self.name, problem.options)
        units = fold(problem)
        now = held(units, problem.members)
        owner = unfold(units, problem, assign_by_hash(units, problem.members, now, _choose))
        return Solution(
            owner, place_standbys(problem, owner), Explanation(problem, owner, must_move(problem), by_rule=True)
        )

    def place_standbys(self, problem: Problem, owner: IntArray) -> IntArray:
        return place_standbys(problem, owner)


def jump(keys: KeyArray, buckets: int) -> IntArray:
    """Compute the bucket (0 to `buckets` - 1) of each key."""
    state = keys.astype(np.uint64)
    bucket = np.zeros(len(keys), np.int64)
    active = np.arange(len(keys))
    ahead = bucket.copy()
    while len(active):
        bucket[active] = ahead
        state = state * _MULTIPLIER + np.uint64(1)
        step = float(1 << 31) / ((state >> np.uint64(33)) + np.uint64(1)).astype(np.float64)
        ahead = ((ahead + 1) * step).astype(np.int64)
        going = ahead < buckets
        active, state, ahead = active[going], state[going], ahead[going]
    return bucket.astype(np.int32)


def _choose(keys: KeyArray, who: IntArray) -> IntArray:
    return who[jump(keys, len(who))]


strategy = JumpHash()
