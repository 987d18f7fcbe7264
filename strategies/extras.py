"""Who has more than the floor of a topic: one byte per topic and member.

Where all members are to have the same, each gets the floor of every topic, and some get an extra. Only the extras are
a choice. An extra that its member has today costs nothing; every other one must be taken from somebody or is free.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from assigner.strategy import BoolArray
from strategies.alike import Counts
from strategies.shares import Indices

HAS = 1
"""The member is to have an extra."""
HAD = 2
"""It has one today, so that this one does not move."""
LOCKED = 4
"""It can't give it away: the unit is pinned."""

Flags = NDArray[np.uint8]


@dataclass
class Extras:
    cells: Flags
    """[topic, member + 1]: flags. The first column is for units that nobody has, and stays empty."""
    quota: Counts
    """[topic]: extras to deal."""
    taken: Counts
    """[topic]: extras dealt."""
    load: Counts
    """[member]: extras of all topics."""
    changed: BoolArray
    """[topic]: whether an extra of it was given or taken since it was counted."""

    @property
    def floor(self) -> int:
        """Extras that every member has at least, when all is even."""
        return int(self.quota.sum()) // len(self.load)

    @property
    def ceilings(self) -> int:
        """Members that have one more."""
        return int(self.quota.sum()) % len(self.load)

    def flags(self, topic: int, members: Indices) -> Flags:
        return np.asarray(self.cells[topic].take(members + 1))

    def give(self, topic: int, members: Indices) -> None:
        self.cells[topic, members + 1] |= HAS
        self.changed[topic] = True
        self.load[members] += 1
        self.taken[topic] += len(members)

    def take(self, topic: int, members: Indices) -> None:
        self.cells[topic, members + 1] &= 255 - HAS
        self.changed[topic] = True
        self.load[members] -= 1
        self.taken[topic] -= len(members)

    def lower_bound(self, per_topic_only: bool) -> int:
        """Of the extras members have today, how many some must lose: those above a topic's quota, or above what a
        member may have of all, whichever are more."""
        by_topic = int(np.maximum(self.taken - self.quota, 0).sum())
        if per_topic_only:
            return by_topic
        over = np.maximum(self.load - self.floor, 0)
        by_member = int(over.sum()) - min(self.ceilings, int(np.count_nonzero(over)))
        return max(by_topic, by_member)
