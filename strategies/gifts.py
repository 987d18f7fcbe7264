"""Hand extras on from members that have too many to members that have too few, each within its topic.

A member has too many above the ceiling and too few below the floor. Of those in between, as many give or take one as
it takes, and no more: every gift lowers `needed` by one.
"""

from __future__ import annotations

import numpy as np

from assigner.strategy import BoolArray
from strategies.alike import Counts
from strategies.extras import HAS, LOCKED, Extras, Flags
from strategies.shares import Indices


def may_give(flags: Flags) -> BoolArray:
    return np.asarray((flags & (HAS | LOCKED)) == HAS)


def may_take(flags: Flags) -> BoolArray:
    return np.asarray((flags & HAS) == 0)


class Gifts:
    def __init__(self, extras: Extras) -> None:
        self.extras = extras
        self.floor = extras.floor
        above = extras.load - (self.floor + 1)
        self._above = int(above[above > 0].sum())
        self._below = int(-(above + 1)[above < -1].sum())

    @property
    def needed(self) -> int:
        return max(self._above, self._below)

    @property
    def settled_in_number(self) -> bool:
        """Whether as many members as should are above the floor, though perhaps not the right ones."""
        return self._above == self._below

    def too_few(self) -> BoolArray:
        """[member]: may be given one."""
        return np.asarray(self.extras.load < self.floor + (self._above > self._below))

    def too_many(self) -> BoolArray:
        """[member]: may be asked for one."""
        return np.asarray(self.extras.load > self.floor + (self._above >= self._below))

    def make(self, topics: Indices, most: Counts | None, giver: int | None = None, taker: int | None = None) -> int:
        """Gifts of these topics, at most so many of each, between cells with these flags (None: any that may)."""
        made = 0
        few, many = self.too_few(), self.too_many()
        for index, topic in enumerate(topics.tolist()):
            if not self.needed:
                break
            flags = self.extras.cells[topic, 1:]
            to = self._able(np.flatnonzero(few & (may_take(flags) if taker is None else flags == taker)), -1)
            if not len(to):
                continue
            by = self._able(np.flatnonzero(many & (may_give(flags) if giver is None else flags == giver))[::-1], 1)
            count = min(len(to), len(by), len(to) if most is None else int(most[index]))
            if count:
                self.extras.take(topic, by[:count])
                self.extras.give(topic, to[:count])
                self.note(by[:count], to[:count])
                made += count
        return made

    def note(self, givers: Indices, takers: Indices) -> None:
        """One extra has gone from each of these, by whatever way, to each of those."""
        load = self.extras.load
        self._above -= int(np.count_nonzero(load[givers] > self.floor))
        self._below -= int(np.count_nonzero(load[takers] <= self.floor))

    def _able(self, members: Indices, sign: int) -> Indices:
        """Those that still have too many (sign 1) or too few (-1), the worst first; and of those in between, as many
        as are needed."""
        beyond = sign * (self.extras.load[members] - self.floor) - (sign > 0)
        more = sign * (self._below - self._above)
        worst = members[beyond > 0]
        if len(worst) > 1:
            worst = worst[np.argsort(-beyond[beyond > 0], kind="stable")]
        if more <= 0:
            return worst
        return np.concatenate((worst, members[beyond == 0][:more]))
