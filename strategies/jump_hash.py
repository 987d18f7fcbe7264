"""`jump_hash`: the owner follows from the partition and the list of members alone, by jump consistent hashing.

The algorithm is Lamping and Veach's ("A Fast, Minimal Memory, Consistent Hash Algorithm", arXiv 1406.2294): when a
member is added at the end of the list, only what goes to it moves. Members are taken in name order among those that
subscribe to the topic. Pinned partitions stay; members on hold keep what they have, get nothing new and are no part
of the list; what would pass a member's cap is hashed again over the members that have room.

Not promised: balance (at 1,000 partitions on 100 members the fullest has about twice the mean), proportion to
capacity, or few moves when a member in the middle of the list goes: those after it are renumbered. For these, use
`sticky_balanced`. Present owners are otherwise ignored, and so are weights, racks and standbys (present ones are kept).
"""

from __future__ import annotations

import numpy as np

from assigner.explanation import Explanation
from assigner.strategy import NONE, BoolArray, IntArray, KeyArray, Members, Problem, Solution
from strategies.explain import keep_standbys, must_move
from strategies.quotas import Held, held
from strategies.units import Units, fold, unfold
from strategies.validity import check

_MULTIPLIER = np.uint64(2862933555777941757)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class JumpHash:
    name = "jump_hash"

    def assign(self, problem: Problem) -> Solution:
        check(problem)
        units = fold(problem)
        now = held(units, problem.members)
        owner = unfold(units, problem, _assign(units, problem.members, now))
        explanation = Explanation(problem, owner, must_move(problem))
        return Solution(owner, keep_standbys(problem, owner), explanation)


def jump(keys: KeyArray, buckets: int) -> IntArray:
    """The bucket (0 to `buckets` - 1) of each key."""
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


def partition_keys(units: Units) -> KeyArray:
    """A key per unit from the topic's number and the partition's, mixed (splitmix64) so that neighbours differ."""
    number = np.arange(len(units.owner)) - np.repeat(units.offsets[:-1], units.partitions)
    key = np.repeat(units.key, units.partitions) + (number.astype(np.uint64) + np.uint64(1)) * _GOLDEN
    key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(key ^ (key >> np.uint64(31)))


def _assign(units: Units, members: Members, now: Held) -> IntArray:
    owner = np.where(now.fixed, now.owner, np.int32(NONE))
    keys = partition_keys(units)
    free = ~now.fixed
    eligible = units.wanted & ~members.hold
    if (members.cap != NONE).any():
        return _within_caps(units, members, now, owner, keys, eligible)
    for who, rows in _cohorts(eligible):
        mine = np.flatnonzero(free & rows[now.row])
        owner[mine] = who[jump(keys[mine], len(who))]
    return owner


def _cohorts(eligible: BoolArray) -> list[tuple[IntArray, BoolArray]]:
    """(members, rows) for each set of members that some rows have in common; rows nobody may take are left out."""
    if not eligible.size:
        return []
    _, first, kind = np.unique(np.packbits(eligible, axis=1), axis=0, return_index=True, return_inverse=True)
    kind = kind.reshape(-1)
    cohorts = ((np.flatnonzero(eligible[row]).astype(np.int32), kind == n) for n, row in enumerate(first))
    return [(who, rows) for who, rows in cohorts if len(who)]


def _within_caps(
    units: Units,
    members: Members,
    now: Held,
    owner: IntArray,
    keys: KeyArray,
    eligible: BoolArray,
) -> IntArray:
    """Round by round: a member takes what fits, in order, and is off the list once something did not fit. Each
    round but the last takes someone off, so this ends."""
    size = units.size[now.row]
    room = np.where(members.cap == NONE, np.iinfo(np.int32).max, members.cap).astype(np.int64)
    stuck = owner != NONE
    room -= np.bincount(owner[stuck], size[stuck], members.count).astype(np.int64)
    listed = eligible & (room > 0)
    while True:
        full = np.zeros(members.count, np.bool_)
        for who, rows in _cohorts(listed):
            mine = np.flatnonzero((owner == NONE) & ~now.fixed & rows[now.row])
            wish = who[jump(keys[mine], len(who))]
            for member in np.unique(wish).tolist():
                wanted = mine[wish == member]
                fits = np.cumsum(size[wanted]) <= room[member]
                owner[wanted[fits]] = member
                room[member] -= int(size[wanted[fits]].sum())
                full[member] |= not fits.all()
        if not full.any():
            return owner
        listed = listed & ~full


strategy = JumpHash()
