"""`range`: of each topic, every member gets one run of neighbouring partitions, in name order, as Kafka's range.

The first members of a topic get one more where the count does not divide. Topics with the same count and the same
subscribers get equal ranges, so equal partition numbers are at one member.

Not promised: total balance (the first members get the remainders of every topic) or few moves. Capacities, weights and
racks are ignored, and present owners too: but pinned partitions stay, members on hold keep what they have and get
nothing new, and where a cap is reached the range ends and continues at the next member that has room.
"""

from __future__ import annotations

import numpy as np

from assigner.strategies.problem.current_owners import CurrentOwners, held
from assigner.strategies.problem.options import must_move, refuse_unknown
from assigner.strategies.problem.shares import Indices
from assigner.strategies.problem.units import Units, fold, unfold
from assigner.strategies.problem.validation import check
from assigner.strategies.standbys.placement import place_standbys
from assigner.strategy import NONE, BoolArray, IntArray, Members, Problem, Solution
from assigner.strategy.explanation import Explanation


class Range:
    name = "range"

    def assign(self, problem: Problem) -> Solution:
        check(problem)
        refuse_unknown(self.name, problem.options)
        units = fold(problem)
        owner = unfold(units, problem, _assign(units, problem.members, held(units, problem.members)))
        return Solution(
            owner, place_standbys(problem, owner), Explanation(problem, owner, must_move(problem), by_rule=True)
        )

    def place_standbys(self, problem: Problem, owner: IntArray) -> IntArray:
        return place_standbys(problem, owner)


def _assign(units: Units, members: Members, now: CurrentOwners) -> IntArray:
    owner = np.where(now.fixed, now.owner, np.int32(NONE))
    room = np.where(members.cap == NONE, np.iinfo(np.int32).max, members.cap).astype(np.int64)
    immovable = owner != NONE
    room -= np.bincount(owner[immovable], units.size[now.row[immovable]], members.count).astype(np.int64)
    capped = bool((members.cap != NONE).any())
    offsets = units.offsets.tolist()
    for row in range(units.count):
        who = np.flatnonzero(units.wanted[row] & ~members.hold)
        if len(who):
            part = slice(offsets[row], offsets[row + 1])
            runs = np.repeat(who, _lengths(int(units.partitions[row]), len(who))).astype(np.int32)
            owner[part] = np.where(now.fixed[part], owner[part], runs)
            if capped:
                _respect_caps(owner[part], now.fixed[part], who, room, int(units.size[row]))
    return owner


def _lengths(partitions: int, members: int) -> Indices:
    length = np.full(members, partitions // members)
    length[: partitions % members] += 1
    return length


def _respect_caps(owner: IntArray, fixed: BoolArray, who: Indices, room: Indices, size: int) -> None:
    """Move units above a member's cap, from the end of its range, to members that have room."""
    over: list[int] = []
    for member in who.tolist():
        mine = np.flatnonzero((owner == member) & ~fixed)
        kept = min(len(mine), max(0, int(room[member]) // size))
        room[member] -= kept * size
        over += mine[kept:].tolist()
    owner[over] = NONE
    rest = sorted(over)
    for member in who.tolist():
        taken = rest[: max(0, int(room[member]) // size)]
        owner[taken] = member
        room[member] -= len(taken) * size
        rest = rest[len(taken) :]


strategy = Range()
