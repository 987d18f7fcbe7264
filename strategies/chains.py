"""Chains of gifts that cost no move, from a member with too many to one with too few.

A gift costs nothing if the extra is new to its giver, or if its taker has the unit today. Such gifts are searched
breadth first, from all members with too many at once. Where the number of members at the ceiling is right, a chain may
also make one more there and go on from another that leaves it.

Before any gift that costs a move, extras are at the least cost that their topics allow, and a gift costs 0 or 1. So
when no chain without cost is left, every further gift costs one move in any plan, and one such is always to be found
(pins aside): what is reached in this order is the minimum. Every chain lowers `Gifts.needed`, so the search ends.
"""

from __future__ import annotations

import numpy as np

from assigner.strategy import BoolArray
from strategies.extras import HAD, HAS, Flags
from strategies.gifts import Gifts, may_give, may_take
from strategies.shares import Indices

_EFFORT = 500_000_000
"""Cells looked at before giving up; some tenths of a second."""

_SOURCE, _SWAP = -1, -2
"""Instead of a topic: the chain starts here; or it goes on from another member at the ceiling."""


def hand_along(gifts: Gifts, filled: Indices, dropped: Indices) -> bool:
    """Make all chains there are of topics that got extras or lost some; False: gave up before."""
    effort = 0
    while gifts.needed and (len(filled) or len(dropped)):
        search = _Search(gifts, filled, dropped)
        if not search.run():
            return True
        effort += search.effort
        if effort > _EFFORT:
            return False
    return True


class _Search:
    def __init__(self, gifts: Gifts, filled: Indices, dropped: Indices) -> None:
        self._gifts = gifts
        self._extras = gifts.extras
        self._waiting = [(topic, True) for topic in filled.tolist()] + [(topic, False) for topic in dropped.tolist()]
        self._ends = gifts.too_few()
        self._reached = gifts.too_many()
        self._came_by = np.where(self._reached, _SOURCE, 0)
        self._came_from = np.zeros(len(self._reached), np.int64)
        self._may_swap = gifts.settled_in_number
        self.effort = 0

    def run(self) -> int:
        """Chains made: of those found at the first step at which there are any, all that don't cross."""
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
        """Whoever can be given something by those reached so far."""
        before, waiting, grown = self._reached.copy(), [], False
        for topic, is_filled in self._waiting:
            flags = self._extras.cells[topic, 1:]
            givers = np.flatnonzero(before & _gives(flags, is_filled))
            self.effort += 2 * len(flags)
            if not len(givers):
                waiting.append((topic, is_filled))
                continue
            new = np.flatnonzero(_takes(flags, is_filled) & ~self._reached)
            # Different givers, so that chains through this topic need not cross.
            self._mark(new, topic, np.resize(givers, len(new)))
            grown = grown or len(new) > 0
        self._waiting = waiting
        return grown

    def _swap(self) -> bool:
        if not self._may_swap:
            return False
        load = self._extras.load
        at_floor = np.flatnonzero(self._reached & (load == self._gifts.floor))
        if not len(at_floor):
            return False
        self._may_swap = False
        new = np.flatnonzero(~self._reached & (load == self._gifts.floor + 1))
        self._mark(new, _SWAP, np.resize(at_floor, len(new)))
        return len(new) > 0

    def _mark(self, members: Indices, topic: int, givers: Indices) -> None:
        self._reached[members] = True
        self._came_by[members] = topic
        self._came_from[members] = givers

    def _make(self, end: int) -> int:
        """Make the chain to this end, if those made before left it whole."""
        steps: list[tuple[int, int, int]] = []
        taker = end
        while self._came_by[taker] != _SOURCE:
            giver = int(self._came_from[taker])
            steps.append((int(self._came_by[taker]), giver, taker))
            taker = giver
        if not self._whole(steps, taker, end):
            return 0
        for topic, giver, to in steps:
            if topic != _SWAP:
                self._extras.take(topic, np.array([giver]))
                self._extras.give(topic, np.array([to]))
        self._gifts.note(np.array([taker]), np.array([end]))
        return 1

    def _whole(self, steps: list[tuple[int, int, int]], start: int, end: int) -> bool:
        if not self._gifts.needed or not self._gifts.too_many()[start] or not self._gifts.too_few()[end]:
            return False
        return all(self._stands(*step) for step in steps)

    def _stands(self, topic: int, giver: int, taker: int) -> bool:
        if topic == _SWAP:
            load, floor = self._extras.load, self._gifts.floor
            return bool(load[giver] == floor and load[taker] == floor + 1)
        flags = self._extras.flags(topic, np.array([giver, taker]))
        is_new = flags[0] == HAS
        return bool(may_give(flags)[0] and may_take(flags)[1] and (is_new or flags[1] == HAD))


def _gives(flags: Flags, is_filled: bool) -> BoolArray:
    return np.asarray(flags == HAS) if is_filled else may_give(flags)


def _takes(flags: Flags, is_filled: bool) -> BoolArray:
    return may_take(flags) if is_filled else np.asarray(flags == HAD)
