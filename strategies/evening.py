"""Make extras even, per topic and over all, and let as few as possible go.

Topics that have too many let those go whose holders have the most; topics that have too few give to those that have
the least. Then members with too many hand on to members with too few: first what costs no move, over as many members
as it takes (`strategies.chains` says why the moves are at their minimum then), and at last, directly, what does. Of
two members, the one with more extras has one of a topic the other has none of, so that is always possible, pins aside.
Every chain and every gift lowers the sum of the squares of the loads, so it ends.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from assigner.strategy import BoolArray
from strategies.alike import Counts
from strategies.chains import hand_along
from strategies.extras import HAD, HAS, Extras
from strategies.gifts import Gifts, may_give, may_take
from strategies.laps import deal
from strategies.shares import Indices


def even_topics(extras: Extras) -> None:
    """As many extras of every topic as there are to be."""
    _drop(extras, np.flatnonzero(extras.taken > extras.quota))
    if extras.taken.any():
        _fill(extras, np.flatnonzero(extras.taken < extras.quota))
    else:
        _deal_all(extras)


@dataclass(frozen=True)
class Outcome:
    paid: int
    """Extras that members had to lose so that the loads are even; those that topics had to lose not counted."""
    exact: bool
    """Whether no plan has less of both."""


def even_all(extras: Extras) -> Outcome | None:
    """As many extras of every topic, and for every member, give or take one; None: pins stand in the way."""
    dropped, filled = np.flatnonzero(extras.taken > extras.quota), np.flatnonzero(extras.taken < extras.quota)
    even_topics(extras)
    gifts = Gifts(extras)
    gifts.make(filled, None, giver=HAS)
    gifts.make(dropped, None, taker=HAD)
    exact = hand_along(gifts, filled, dropped)
    paid = gifts.needed
    topics = np.flatnonzero(extras.quota)
    # Start elsewhere for every size of group, so that newcomers don't all get the same topics.
    start = int(len(topics) * (len(extras.load) * 0.6180339887 % 1.0))
    topics = np.concatenate((topics[start:], topics[:start]))
    gifts.make(topics, _fair_part(extras, paid)[topics])
    while gifts.needed:
        if not gifts.make(topics, None):
            return None
    return Outcome(paid, exact)


def _drop(extras: Extras, topics: Indices) -> None:
    for topic in topics.tolist():
        holders = np.flatnonzero(may_give(extras.cells[topic, 1:]))[::-1]
        count = int(extras.taken[topic] - extras.quota[topic])
        extras.take(topic, holders[_smallest(-extras.load[holders], count)])


def _fill(extras: Extras, topics: Indices) -> None:
    line = _Line(extras)
    # Topics that most members have leave the least choice, so they come first.
    for topic in topics[np.argsort(-extras.quota[topics], kind="stable")].tolist():
        able = may_take(extras.cells[topic, 1:])
        extras.give(topic, line.next(able, int(extras.quota[topic] - extras.taken[topic])))


class _Line:
    """Members with the least first. Most of them have one of two loads, so that they need not be sorted every time."""

    def __init__(self, extras: Extras) -> None:
        self._load = extras.load
        self._stand(int(extras.load.min()))

    def next(self, able: BoolArray, count: int) -> Indices:
        first = np.flatnonzero(able & self._behind)
        if len(first) < count:
            first = np.concatenate((first, np.flatnonzero(able & self._level)))
        if len(first) < count:
            others = np.flatnonzero(able)
            first = others[_smallest(self._load[others], count)]
            self._stand(int(self._load[first].max()))
        first = first[:count]
        self._behind[first] = False
        self._level[first] = False
        return np.asarray(first)

    def _stand(self, level: int) -> None:
        self._behind = self._load < level
        self._level = self._load == level


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
