"""Make extras even, per topic first and then over all, and let as few as possible go.

Topics that have too many let those go whose holders have the most; topics that have too few give to those that have
the least; then members with too many hand on to members with too few, within a topic. Of two members, the one with
more extras has one of a topic the other has none of, so this always goes on until all are within one of each other
(what is pinned aside). Every such gift lowers the sum of the squares of the loads, so it ends.

Not promised: the minimum of moves. Gifts are made one at a time and chains of them are not searched for.
"""

from __future__ import annotations

import numpy as np

from strategies.alike import Counts
from strategies.extras import HAD, HAS, LOCKED, Extras
from strategies.laps import deal
from strategies.shares import Indices


def even_topics(extras: Extras) -> None:
    """As many extras of every topic as there are to be."""
    _drop(extras, np.flatnonzero(extras.taken > extras.quota))
    if extras.taken.any():
        _fill(extras, np.flatnonzero(extras.taken < extras.quota))
    else:
        _deal_all(extras)


def even_all(extras: Extras) -> bool:
    """As many extras of every topic, and for every member, give or take one; False: pins stand in the way."""
    dropped, filled = np.flatnonzero(extras.taken > extras.quota), np.flatnonzero(extras.taken < extras.quota)
    even_topics(extras)
    gifts = _Gifts(extras)
    # What is new to its holder, or belongs to the taker already, costs nothing.
    gifts.make(filled, None, giver=HAS)
    gifts.make(dropped, None, taker=HAD)
    topics = np.flatnonzero(extras.quota)
    # Start elsewhere for every size of group, so that newcomers don't all get the same topics.
    start = int(len(topics) * (len(extras.load) * 0.6180339887 % 1.0))
    topics = np.concatenate((topics[start:], topics[:start]))
    gifts.make(topics, _fair_part(extras, gifts.needed)[topics])
    while not gifts.done:
        if not gifts.make(topics, None):
            return False
    return True


def _drop(extras: Extras, topics: Indices) -> None:
    for topic in topics.tolist():
        holders = np.flatnonzero((extras.cells[topic, 1:] & (HAS | LOCKED)) == HAS)[::-1]
        count = int(extras.taken[topic] - extras.quota[topic])
        extras.take(topic, holders[_smallest(-extras.load[holders], count)])


def _fill(extras: Extras, topics: Indices) -> None:
    # Topics that most members have leave the least choice, so they come first.
    for topic in topics[np.argsort(-extras.quota[topics], kind="stable")].tolist():
        others = np.flatnonzero((extras.cells[topic, 1:] & HAS) == 0)
        extras.give(topic, others[_smallest(extras.load[others], int(extras.quota[topic] - extras.taken[topic]))])


def _deal_all(extras: Extras) -> None:
    members = deal(extras.quota, len(extras.load))
    width = len(extras.load) + 1
    extras.cells.reshape(-1)[np.repeat(np.arange(len(extras.quota)) * width + 1, extras.quota) + members] |= HAS
    extras.changed |= extras.quota > 0
    extras.taken[:] = extras.quota
    extras.load[:] = np.bincount(members, minlength=len(extras.load))


def _smallest(values: Counts, count: int) -> Indices:
    """Where the `count` smallest are; of equals, those that come first."""
    if count >= len(values):
        return np.arange(len(values))
    if count == 1:
        return np.array([values.argmin()])
    least = values.min()
    # Loads are small numbers, so that counting them is faster than sorting.
    limit = least + np.searchsorted(np.cumsum(np.bincount(values - least)), count)
    below = np.flatnonzero(values < limit)
    return np.concatenate((below, np.flatnonzero(values == limit)[: count - len(below)]))


def _fair_part(extras: Extras, gifts: int) -> Counts:
    """[topic]: its part of so many gifts, rounded up. Taking them all from a few topics would hand these over whole."""
    return np.asarray(-(-gifts * extras.quota // max(1, int(extras.quota.sum()))))


class _Gifts:
    """From members above the ceiling to members below the floor, and as few others as it takes."""

    def __init__(self, extras: Extras) -> None:
        self._extras = extras
        self._floor = extras.floor
        above = extras.load - (self._floor + 1)
        self._above = int(above[above > 0].sum())
        self._below = int(-(above + 1)[above < -1].sum())

    @property
    def done(self) -> bool:
        return self.needed == 0

    @property
    def needed(self) -> int:
        return max(self._above, self._below)

    def make(self, topics: Indices, most: Counts | None, giver: int | None = None, taker: int | None = None) -> int:
        """Gifts of these topics, at most so many of each, between cells with these flags (None: any that may)."""
        made = 0
        takers, givers = self._takers(), self._givers()
        for index, topic in enumerate(topics.tolist()):
            if self.done:
                break
            to = self._able(takers[self._may_take(topic, takers, taker)], -1)
            if not len(to):
                continue
            by = self._able(givers[self._may_give(topic, givers, giver)], 1)
            count = min(len(to), len(by), len(to) if most is None else int(most[index]))
            if count:
                self._hand_over(topic, by[:count], to[:count])
                made += count
        return made

    def _takers(self) -> Indices:
        load = self._extras.load
        return np.flatnonzero(load < self._floor + (1 if self._above > self._below else 0))

    def _givers(self) -> Indices:
        load = self._extras.load
        return np.flatnonzero(load > self._floor + (0 if self._below > self._above else 1))[::-1]

    def _may_take(self, topic: int, members: Indices, flags: int | None) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        have = self._extras.flags(topic, members)
        return np.asarray((have & HAS) == 0 if flags is None else have == flags)

    def _may_give(self, topic: int, members: Indices, flags: int | None) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        have = self._extras.flags(topic, members)
        return np.asarray((have & (HAS | LOCKED)) == HAS if flags is None else have == flags)

    def _able(self, members: Indices, sign: int) -> Indices:
        """Those that still have too many (sign 1) or too few (-1), the worst first; and of those that could go
        either way, as many as are needed."""
        beyond = sign * (self._extras.load[members] - self._floor) - (1 if sign > 0 else 0)
        more = sign * (self._below - self._above)
        worst = members[beyond > 0]
        if len(worst) > 1:
            worst = worst[np.argsort(-beyond[beyond > 0], kind="stable")]
        if more <= 0:
            return worst
        return np.concatenate((worst, members[beyond == 0][:more]))

    def _hand_over(self, topic: int, givers: Indices, takers: Indices) -> None:
        load = self._extras.load
        self._above -= int(np.count_nonzero(load[givers] > self._floor + 1))
        self._below -= int(np.count_nonzero(load[takers] < self._floor))
        self._extras.take(topic, givers)
        self._extras.give(topic, takers)
