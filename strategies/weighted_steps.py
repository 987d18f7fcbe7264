"""The last touches: single moves and swaps, each of which brings two members closer to their goals.

A step takes weight `d` from a member that is further above its goal than another, by a gap of more than `d`. The
potential, the sum over members of (load - goal)^2, falls by 2 d (gap - d) with each step, by more than rounding could
hide, so no ownership comes twice and the search ends. When it ends, no single unit that could be moved would lower the
potential by as much as the margins ask, as far as one of the two members is outside its band; and no swap, as far as
`strategies.weighted_swaps` looks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from assigner.strategy import BoolArray, FloatArray
from strategies.shares import Indices
from strategies.weighted_holdings import Holdings
from strategies.weighted_parts import Part
from strategies.weighted_swaps import Swaps


@dataclass(frozen=True)
class Limits:
    """When a step is worth it."""

    band: FloatArray
    """[member] how far from its goal a member may be."""
    margin: FloatArray
    """[member] a step must leave the giver above where the taker was by more than both margins."""


class Steps:
    """Members outside the wide band with a step worth it by the wide limits are helped until they are inside the
    narrow band, or until no step is worth it by the narrow limits, which ask for less."""

    def __init__(self, part: Part, goal: FloatArray, wide: Limits, narrow: Limits) -> None:
        self._part = part
        self._wide, self._narrow = wide, narrow
        self._holdings = Holdings(part, goal)
        self._excess = self._holdings.excess
        self._swaps = Swaps(self._holdings)

    def any(self) -> bool:
        """Whether there is a step worth taking."""
        return bool(self._movable(self._wide).any()) or self._swap_outside(only_look=True)

    def run(self, first: BoolArray) -> None:
        """Help these members and all that need it, until no step is worth it."""
        helped = first.copy()
        while True:
            helped |= self._movable(self._wide)
            line = np.flatnonzero(helped & self._movable(self._narrow))
            for member in line[np.argsort(-np.abs(self._excess[line]), kind="stable")].tolist():
                while abs(self._excess[member]) > self._narrow.band[member] and self._move_for(member):
                    pass
            if not len(line) and not self._swap_outside() and not self._swap(helped, self._narrow):
                return

    def _swap_outside(self, only_look: bool = False) -> bool:
        return self._swap(np.ones(self._part.count, np.bool_), self._wide, only_look)

    def _swap(self, members: BoolArray, limits: Limits, only_look: bool = False) -> bool:
        return self._swaps.make(members, limits.band, limits.margin, only_look)

    def _movable(self, limits: Limits) -> BoolArray:
        """[member] whether it is outside its band and a single move can help it."""
        excess, movable = self._excess, np.zeros(self._part.count, np.bool_)
        over, under = excess > limits.band, excess < -limits.band
        if not over.any() and not under.any():
            return movable
        giving, taking = excess - limits.margin, excess + limits.margin
        for kind, lightest in enumerate(self._holdings.lightest()):
            able = self._holdings.able(kind)
            if able.any():
                left = giving - lightest
                movable |= over & (left > taking[able].min())
                movable |= under & able & (taking < left.max())
        return movable

    def _move_for(self, member: int) -> bool:
        above = bool(self._excess[member] > 0)
        other = self._taker_for(member) if above else self._giver_for(member)
        if other is None:
            return False
        giver, taker = (member, other) if above else (other, member)
        self._holdings.hand_over(self._choose(giver, taker, member), giver, taker)
        return True

    def _taker_for(self, giver: int) -> int | None:
        """The emptiest that can be given anything."""
        lightest = self._holdings.lightest()[:, giver]
        kinds = np.flatnonzero(np.isfinite(lightest))
        least = np.where(self._holdings.able(kinds), lightest[kinds][:, None], np.inf).min(axis=0, initial=np.inf)
        taking = self._excess + self._narrow.margin
        able = self._excess[giver] - self._narrow.margin[giver] - least > taking
        return int(np.where(able, taking, np.inf).argmin()) if able.any() else None

    def _giver_for(self, taker: int) -> int | None:
        """The fullest that can give anything."""
        kinds = np.flatnonzero(self._holdings.able(slice(None))[:, taker])
        least = self._holdings.lightest()[kinds].min(axis=0, initial=np.inf)
        giving = self._excess - self._narrow.margin
        able = giving - least > self._excess[taker] + self._narrow.margin[taker]
        return int(np.where(able, giving, -np.inf).argmax()) if able.any() else None

    def _choose(self, giver: int, taker: int, member: int) -> Indices:
        """Which units go: few heavy ones that bring `member` into its band. If not even one leaves the other there as
        well, then what leaves the two most alike."""
        part, band, excess = self._part, self._narrow.band, self._excess
        units = self._holdings.units(giver)
        if len(part.takes) > 1:
            units = units[self._holdings.able(slice(None))[part.kind[units], taker]]
        weight, gap = part.weight[units], excess[giver] - excess[taker]
        able = int(np.searchsorted(weight, gap - self._narrow.margin[giver] - self._narrow.margin[taker]))
        most = min(excess[giver] + band[giver], band[taker] - excess[taker])
        fits = int(np.searchsorted(weight[:able], most, "right"))
        one = fits - 1 if fits else int(np.abs(weight[:able] - gap / 2).argmin())
        # Several at once, as long as together they do no more than one might.
        line = np.cumsum(weight[: one + 1][::-1])
        needed = int(np.searchsorted(line, abs(excess[member]) - band[member])) + 1
        count = min(needed, int(np.searchsorted(line, min(most, gap / 2) if fits else gap / 2, "right")), len(line))
        if part.capped:
            sizes = np.cumsum(part.size[units[: one + 1]][::-1])
            count = min(count, int(np.searchsorted(sizes, part.room[taker], "right")))
        return units[one + 1 - max(count, 1) : one + 1]
