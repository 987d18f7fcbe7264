"""Makes remainders even, per topic and over all members, with as few moves as possible.

Topics with too many remainders drop those whose members have the most; topics with too few assign theirs to members
with the least. Then members above the ceiling transfer remainders to members below the floor, each within its topic:
first along zero-cost augmenting paths, over as many members as needed, and at last, directly, transfers that cost a
move.

A transfer costs nothing if the remainder is new to its giver, or if its taker has the unit today. Augmenting paths are
searched breadth first, from all members above the ceiling at once. Where the number of members at the ceiling is right,
a path may also lift one member to the ceiling and continue from another that leaves it.

Why the moves are minimal: before any transfer that costs a move, remainders are at the least cost that their topics
allow, and a transfer costs 0 or 1. When no zero-cost path is left, every further transfer costs one move in any plan.
Such a transfer always exists, pins aside: of two members, the one with more remainders has one of a topic of which the
other has none. It ends, because every path and every transfer lowers `Transfers.needed`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from assigner.strategies.problem.shares import Indices
from assigner.strategies.uniform.model import HAD, HAS, LOCKED, Counts, Flags, Remainders
from assigner.strategies.uniform.round_robin import round_robin
from assigner.strategy import BoolArray


def may_give(flags: Flags) -> BoolArray:
    return np.asarray((flags & (HAS | LOCKED)) == HAS)


def may_take(flags: Flags) -> BoolArray:
    return np.asarray((flags & HAS) == 0)


class Transfers:
    """Moves remainders between members, within their topics, and counts how many transfers are still needed.

    Members between floor and ceiling give or take one only if needed: every transfer lowers `needed` by one.
    """

    def __init__(self, remainders: Remainders) -> None:
        self.remainders = remainders
        self.floor = remainders.floor
        above = remainders.load - (self.floor + 1)
        self._above = int(above[above > 0].sum())
        self._below = int(-(above + 1)[above < -1].sum())

    @property
    def needed(self) -> int:
        return max(self._above, self._below)

    @property
    def has_right_ceilings(self) -> bool:
        """Whether the right number of members is above the floor, though perhaps not the right members."""
        return self._above == self._below

    def too_few(self) -> BoolArray:
        """[member]: whether it may get a remainder."""
        return np.asarray(self.remainders.load < self.floor + (self._above > self._below))

    def too_many(self) -> BoolArray:
        """[member]: whether it may lose a remainder."""
        return np.asarray(self.remainders.load > self.floor + (self._above >= self._below))

    def make(self, topics: Indices, most: Counts | None, giver: int | None = None, taker: int | None = None) -> int:
        """Transfer remainders of these topics, at most `most` of each, between cells with these flags (None: any)."""
        made = 0
        few, many = self.too_few(), self.too_many()
        for index, topic in enumerate(topics.tolist()):
            if not self.needed:
                break
            flags = self.remainders.cells[topic, 1:]
            to = self._able(np.flatnonzero(few & (may_take(flags) if taker is None else flags == taker)), -1)
            if not len(to):
                continue
            by = self._able(np.flatnonzero(many & (may_give(flags) if giver is None else flags == giver))[::-1], 1)
            count = min(len(to), len(by), len(to) if most is None else int(most[index]))
            if count:
                self.remainders.take(topic, by[:count])
                self.remainders.give(topic, to[:count])
                self.record(by[:count], to[:count])
                made += count
        return made

    def record(self, givers: Indices, takers: Indices) -> None:
        """Count one remainder from each giver to each taker, by any path."""
        load = self.remainders.load
        self._above -= int(np.count_nonzero(load[givers] > self.floor))
        self._below -= int(np.count_nonzero(load[takers] <= self.floor))

    def _able(self, members: Indices, sign: int) -> Indices:
        """Order the members that still have too many (sign 1) or too few (-1), the furthest off first; then as many of
        those in between as are needed."""
        beyond = sign * (self.remainders.load[members] - self.floor) - (sign > 0)
        more = sign * (self._below - self._above)
        worst = members[beyond > 0]
        if len(worst) > 1:
            worst = worst[np.argsort(-beyond[beyond > 0], kind="stable")]
        if more <= 0:
            return worst
        return np.concatenate((worst, members[beyond == 0][:more]))


_EFFORT = 500_000_000
"""Visited cells after which the search is abandoned; some tenths of a second."""

_SOURCE, _SWAP = -1, -2
"""In place of a topic: the path starts here; or it continues from another member at the ceiling."""


def augment(transfers: Transfers, filled: Indices, dropped: Indices) -> bool:
    """Apply all zero-cost augmenting paths through topics that were filled or dropped; False: the effort ran out."""
    effort = 0
    while transfers.needed and (len(filled) or len(dropped)):
        search = _Search(transfers, filled, dropped)
        if not search.run():
            return True
        effort += search.effort
        if effort > _EFFORT:
            return False
    return True


class _Search:
    def __init__(self, transfers: Transfers, filled: Indices, dropped: Indices) -> None:
        self._transfers = transfers
        self._remainders = transfers.remainders
        self._waiting = [(topic, True) for topic in filled.tolist()] + [(topic, False) for topic in dropped.tolist()]
        self._ends = transfers.too_few()
        self._reached = transfers.too_many()
        self._came_by = np.where(self._reached, _SOURCE, 0)
        self._came_from = np.zeros(len(self._reached), np.int64)
        self._may_swap = transfers.has_right_ceilings
        self.effort = 0

    def run(self) -> int:
        """Apply all disjoint paths of the shortest length that has any; returns how many."""
        if not self._ends.any() or not self._reached.any():
            return 0
        grown = True
        while grown:
            found = np.flatnonzero(self._ends & self._reached)
            if len(found):
                return sum(self._make(end) for end in found.tolist())
            grown = self._swap() | self._step()
        return 0

    def _step(self) -> bool:
        """Reach the members to which those reached so far can transfer a remainder."""
        before, waiting, grown = self._reached.copy(), [], False
        for topic, is_filled in self._waiting:
            flags = self._remainders.cells[topic, 1:]
            givers = np.flatnonzero(before & _gives(flags, is_filled))
            self.effort += 2 * len(flags)
            if not len(givers):
                waiting.append((topic, is_filled))
                continue
            new = np.flatnonzero(_takes(flags, is_filled) & ~self._reached)
            # Different givers, so that paths through this topic can be disjoint.
            self._reach(new, topic, np.resize(givers, len(new)))
            grown = grown or len(new) > 0
        self._waiting = waiting
        return grown

    def _swap(self) -> bool:
        if not self._may_swap:
            return False
        load = self._remainders.load
        at_floor = np.flatnonzero(self._reached & (load == self._transfers.floor))
        if not len(at_floor):
            return False
        self._may_swap = False
        new = np.flatnonzero(~self._reached & (load == self._transfers.floor + 1))
        self._reach(new, _SWAP, np.resize(at_floor, len(new)))
        return len(new) > 0

    def _reach(self, members: Indices, topic: int, givers: Indices) -> None:
        self._reached[members] = True
        self._came_by[members] = topic
        self._came_from[members] = givers

    def _make(self, end: int) -> int:
        """Apply the path to this end, unless a path applied before it has broken it."""
        steps: list[tuple[int, int, int]] = []
        taker = end
        while self._came_by[taker] != _SOURCE:
            giver = int(self._came_from[taker])
            steps.append((int(self._came_by[taker]), giver, taker))
            taker = giver
        if not self._is_intact(steps, taker, end):
            return 0
        for topic, giver, to in steps:
            if topic != _SWAP:
                self._remainders.take(topic, np.array([giver]))
                self._remainders.give(topic, np.array([to]))
        self._transfers.record(np.array([taker]), np.array([end]))
        return 1

    def _is_intact(self, steps: list[tuple[int, int, int]], start: int, end: int) -> bool:
        if not self._transfers.needed or not self._transfers.too_many()[start] or not self._transfers.too_few()[end]:
            return False
        return all(self._is_valid(*step) for step in steps)

    def _is_valid(self, topic: int, giver: int, taker: int) -> bool:
        if topic == _SWAP:
            load, floor = self._remainders.load, self._transfers.floor
            return bool(load[giver] == floor and load[taker] == floor + 1)
        flags = self._remainders.flags(topic, np.array([giver, taker]))
        is_new = flags[0] == HAS
        return bool(may_give(flags)[0] and may_take(flags)[1] and (is_new or flags[1] == HAD))


def _gives(flags: Flags, is_filled: bool) -> BoolArray:
    return np.asarray(flags == HAS) if is_filled else may_give(flags)


def _takes(flags: Flags, is_filled: bool) -> BoolArray:
    return may_take(flags) if is_filled else np.asarray(flags == HAD)


# --- the order of the steps ------------------------------------------------------------------------------------------


def balance_topics(remainders: Remainders) -> None:
    """Assign exactly the quota of remainders of every topic."""
    _drop(remainders, np.flatnonzero(remainders.taken > remainders.quota))
    if remainders.taken.any():
        _fill(remainders, np.flatnonzero(remainders.taken < remainders.quota))
    else:
        _assign_all(remainders)


@dataclass(frozen=True)
class BalanceOutcome:
    paid: int
    """Remainders that members had to lose so that loads are even, without those that topics had to lose."""
    exact: bool
    """Whether no plan moves fewer of both."""


def balance_all(remainders: Remainders) -> BalanceOutcome | None:
    """Make remainders even per topic and over members; None: pins prevent it."""
    dropped, filled = (
        np.flatnonzero(remainders.taken > remainders.quota),
        np.flatnonzero(remainders.taken < remainders.quota),
    )
    balance_topics(remainders)
    transfers = Transfers(remainders)
    transfers.make(filled, None, giver=HAS)
    transfers.make(dropped, None, taker=HAD)
    exact = augment(transfers, filled, dropped)
    paid = transfers.needed
    topics = np.flatnonzero(remainders.quota)
    # Start at another topic for every size of group, so that new members don't all get the same topics.
    start = int(len(topics) * (len(remainders.load) * 0.6180339887 % 1.0))
    topics = np.concatenate((topics[start:], topics[:start]))
    transfers.make(topics, _fair_part(remainders, paid)[topics])
    while transfers.needed:
        if not transfers.make(topics, None):
            return None
    return BalanceOutcome(paid, exact)


def _drop(remainders: Remainders, topics: Indices) -> None:
    for topic in topics.tolist():
        holders = np.flatnonzero(may_give(remainders.cells[topic, 1:]))[::-1]
        count = int(remainders.taken[topic] - remainders.quota[topic])
        remainders.take(topic, holders[_smallest(-remainders.load[holders], count)])


def _fill(remainders: Remainders, topics: Indices) -> None:
    line = _LeastLoaded(remainders)
    # Topics that most members have leave the least choice, so they come first.
    for topic in topics[np.argsort(-remainders.quota[topics], kind="stable")].tolist():
        able = may_take(remainders.cells[topic, 1:])
        remainders.give(topic, line.next(able, int(remainders.quota[topic] - remainders.taken[topic])))


class _LeastLoaded:
    """Picks the least loaded members. Most have one of two loads, so they need not be sorted every time."""

    def __init__(self, remainders: Remainders) -> None:
        self._load = remainders.load
        self._set_level(int(remainders.load.min()))

    def next(self, able: BoolArray, count: int) -> Indices:
        first = np.flatnonzero(able & self._behind)
        if len(first) < count:
            first = np.concatenate((first, np.flatnonzero(able & self._at_level)))
        if len(first) < count:
            others = np.flatnonzero(able)
            first = others[_smallest(self._load[others], count)]
            self._set_level(int(self._load[first].max()))
        first = first[:count]
        self._behind[first] = False
        self._at_level[first] = False
        return np.asarray(first)

    def _set_level(self, level: int) -> None:
        self._behind = self._load < level
        self._at_level = self._load == level


def _assign_all(remainders: Remainders) -> None:
    members = round_robin(remainders.quota, len(remainders.load))
    width = len(remainders.load) + 1
    remainders.cells.reshape(-1)[
        np.repeat(np.arange(len(remainders.quota)) * width + 1, remainders.quota) + members
    ] |= HAS
    remainders.changed |= remainders.quota > 0
    remainders.taken[:] = remainders.quota
    remainders.load[:] = np.bincount(members, minlength=len(remainders.load))


def _smallest(values: Counts, count: int) -> Indices:
    """Find the indices of the `count` smallest values; of equals, those that come first."""
    if count >= len(values):
        return np.arange(len(values))
    if count == 1:
        return np.array([values.argmin()])
    least = values.min()
    # Loads are small numbers, so that counting them is faster than sorting.
    limit = least + np.searchsorted(np.cumsum(np.bincount(values - least)), count)
    below = np.flatnonzero(values < limit)
    return np.concatenate((below, np.flatnonzero(values == limit)[: count - len(below)]))


def _fair_part(remainders: Remainders, count: int) -> Counts:
    """Compute each topic's part of `count` transfers, rounded up: taking all from a few topics would move these
    whole."""
    return np.asarray(-(-count * remainders.quota // max(1, int(remainders.quota.sum()))))
