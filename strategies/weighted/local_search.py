"""Searches locally: single moves and swaps, each of which brings two members closer to their goals.

A step takes weight `d` from a member that is further above its goal than another, by a gap of more than `d`. The
potential, the sum over members of (load - goal)^2, falls by 2 d (gap - d) with each step, by more than rounding errors,
so no assignment occurs twice and the search ends. When it ends, no move of a single unit lowers the potential by the
margins, if one of the two members is outside its band.

Swaps: two members exchange one unit each, where no single unit has the right weight. A swap is two moves, so it must be
worth twice as much: both what it shifts and what is left of the gap must pass twice the margins. For each member the
`_PARTNERS` members furthest on the other side are tried, up to `_PAIRS` pairs of units. After `_FAILURES` members in a
row without one the search stops, and it is not begun in parts of more than `_MEMBERS` members: beyond these sizes a
swap may be missed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from assigner.strategies.problem.shares import Indices
from assigner.strategies.weighted.parts import Part, by_number
from assigner.strategy import NONE, BoolArray, FloatArray


class MemberHoldings:
    """The units of each member, the lightest first, kept up to date while units move one by one."""

    def __init__(self, part: Part, goal: FloatArray) -> None:
        self.part = part
        self.excess = part.load - goal
        """[member] how far above its goal its load is."""
        self._goal = goal
        self._bounds: Indices | None = None
        self._sorted: Indices = np.zeros(0, np.int64)
        self._changed: dict[int, Indices] = {}
        self._lightest: FloatArray | None = None
        self._size = np.zeros(len(part.takes), np.int32)
        self._size[part.kind] = part.size

    def units(self, member: int) -> Indices:
        changed = self._changed.get(member)
        if changed is not None:
            return changed
        if self._bounds is None:
            owned = self.part.sort(self.part.owner != NONE)[::-1]
            self._sorted = owned[by_number(self.part.owner[owned], self.part.count)]
            self._bounds = np.searchsorted(self.part.owner[self._sorted], np.arange(self.part.count + 1))
        return self._sorted[self._bounds[member] : self._bounds[member + 1]]

    def lightest(self) -> FloatArray:
        """The weight of each member's lightest unit of each kind, as [kind, member]; infinite for none."""
        if self._lightest is None:
            part = self.part
            owned = part.owner != NONE
            cell = part.kind[owned].astype(np.int64) * part.count + part.owner[owned]
            lightest = np.full(len(part.takes) * part.count, np.inf)
            np.minimum.at(lightest, cell, part.weight[owned])
            self._lightest = lightest.reshape(part.takes.shape)
        return self._lightest

    def able(self, kinds: int | slice | Indices) -> BoolArray:
        """Whether each member may get one more unit of these kinds, as [kind, member]."""
        takes: BoolArray = self.part.takes[kinds]
        # With caps, all units of a kind are of one size.
        return takes & (self.part.room >= self._size[kinds][..., None]) if self.part.capped else takes

    def hand_over(self, units: Indices, giver: int, taker: int) -> None:
        part, weight = self.part, self.part.weight
        left, mine = self.units(giver), self.units(taker)
        left = left[left != units[0]] if len(units) == 1 else left[~np.isin(left, units)]
        mine = np.insert(mine, weight[mine].searchsorted(weight[units]), units)
        self._changed[giver], self._changed[taker] = left, mine
        for unit in units.tolist():
            part.give_one(unit, taker)
        kinds = {0} if len(part.takes) == 1 else set(part.kind[units].tolist())
        lightest = self.lightest()
        for member, has in ((giver, left), (taker, mine)):
            self.excess[member] = part.load[member] - self._goal[member]
            for kind in kinds:
                some = has if len(part.takes) == 1 else has[part.kind[has] == kind]
                lightest[kind, member] = weight[some[0]] if len(some) else np.inf


# --- swaps ------------------------------------------------------------------------------------------------------------

_PARTNERS = 32
_PAIRS = 100_000
_FAILURES = 256
_MEMBERS = 2048


class Swaps:
    def __init__(self, holdings: MemberHoldings) -> None:
        self._holdings = holdings

    def make(self, members: BoolArray, band: FloatArray, margin: FloatArray, only_look: bool = False) -> bool:
        """Swap units for each of these members that is outside its band; whether any could. `only_look`: swap none."""
        excess = self._holdings.excess
        out = np.where(members, np.abs(excess) - band, 0.0)
        line = np.flatnonzero(out > 0) if len(excess) <= _MEMBERS else np.zeros(0, np.int64)
        found, failures = False, 0
        for member in line[np.argsort(-out[line], kind="stable")].tolist():
            pair = self._best(member, margin) if abs(excess[member]) > band[member] else None
            failures = 0 if pair else failures + 1
            if failures == _FAILURES:
                break
            if pair:
                found = True
                if only_look:
                    break
                self._swap(*pair)
        return found

    def _swap(self, heavy: int, light: int) -> None:
        owner = self._holdings.part.owner
        giver, taker = int(owner[heavy]), int(owner[light])
        self._holdings.hand_over(np.array([heavy]), giver, taker)
        self._holdings.hand_over(np.array([light]), taker, giver)

    def _best(self, member: int, margin: FloatArray) -> tuple[int, int] | None:
        """Find the two units whose exchange lowers the potential most, the heavy one first."""
        part, excess = self._holdings.part, self._holdings.excess
        mine = self._holdings.units(member)
        sign = 1.0 if excess[member] > 0 else -1.0
        theirs = np.concatenate([mine[:0], *map(self._holdings.units, self._partners(member, sign))])
        if not len(mine) or not len(theirs):
            return None
        who = part.owner[theirs]
        least = 2 * (margin[member] + margin[who])
        gap = sign * (excess[member] - excess[who])
        shift = sign * (part.weight[mine][:, None] - part.weight[theirs][None, :])
        worth = np.where((shift > least) & (gap - shift > least), shift * (gap - shift), 0.0)
        if len(part.takes) > 1:
            worth *= part.takes[part.kind[mine]][:, who] & part.takes[part.kind[theirs], member]
        if part.capped:
            more = part.size[mine][:, None] - part.size[theirs][None, :]
            worth *= (more <= part.room[who]) & (-more <= part.room[member])
        best = int(worth.argmax())
        if worth.flat[best] <= 0:
            return None
        own, other = int(mine[best // len(theirs)]), int(theirs[best % len(theirs)])
        return (own, other) if sign > 0 else (other, own)

    def _partners(self, member: int, sign: float) -> list[int]:
        """Choose the members to swap with, without regard to margins: partners with wide margins are also found with
        narrow ones."""
        gap = sign * (self._holdings.excess[member] - self._holdings.excess)
        line = np.flatnonzero(gap > 0)
        if len(line) > _PARTNERS:
            line = line[np.argpartition(-gap[line], _PARTNERS)[:_PARTNERS]]
        units, pairs = len(self._holdings.units(member)), 0
        chosen: list[int] = []
        for partner in line[np.lexsort((line, -gap[line]))].tolist():
            pairs += units * len(self._holdings.units(partner))
            if chosen and pairs > _PAIRS:
                break
            chosen.append(partner)
        return chosen


@dataclass(frozen=True)
class MoveLimits:
    """The limits beyond which a step is made."""

    band: FloatArray
    """[member] how far from its goal a member may be."""
    margin: FloatArray
    """[member] a step must leave the giver above where the taker was by more than both margins."""


class Steps:
    """Moves units for members outside the wide band that have a step within the wide limits, until they are inside the
    narrow band, or until no step is within the narrow limits, which require less."""

    def __init__(self, part: Part, goal: FloatArray, wide: MoveLimits, narrow: MoveLimits) -> None:
        self._part = part
        self._wide, self._narrow = wide, narrow
        self._holdings = MemberHoldings(part, goal)
        self._excess = self._holdings.excess
        self._swaps = Swaps(self._holdings)

    def any(self) -> bool:
        """Whether there is a step within the wide limits."""
        return bool(self._movable(self._wide).any()) or self._swap_outside(only_look=True)

    def run(self, first: BoolArray) -> None:
        """Move units for these members and all others outside the wide band, until no step is within the limits."""
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

    def _swap(self, members: BoolArray, limits: MoveLimits, only_look: bool = False) -> bool:
        return self._swaps.make(members, limits.band, limits.margin, only_look)

    def _movable(self, limits: MoveLimits) -> BoolArray:
        """Whether each member is outside its band and a single move brings it closer."""
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
        """Find the emptiest member that may get a unit of this one."""
        lightest = self._holdings.lightest()[:, giver]
        kinds = np.flatnonzero(np.isfinite(lightest))
        least = np.where(self._holdings.able(kinds), lightest[kinds][:, None], np.inf).min(axis=0, initial=np.inf)
        taking = self._excess + self._narrow.margin
        able = self._excess[giver] - self._narrow.margin[giver] - least > taking
        return int(np.where(able, taking, np.inf).argmin()) if able.any() else None

    def _giver_for(self, taker: int) -> int | None:
        """Find the fullest member that may give this one a unit."""
        kinds = np.flatnonzero(self._holdings.able(slice(None))[:, taker])
        least = self._holdings.lightest()[kinds].min(axis=0, initial=np.inf)
        giving = self._excess - self._narrow.margin
        able = giving - least > self._excess[taker] + self._narrow.margin[taker]
        return int(np.where(able, giving, -np.inf).argmax()) if able.any() else None

    def _choose(self, giver: int, taker: int, member: int) -> Indices:
        """Choose the units to move: few heavy ones that bring `member` into its band. If any unit takes the other one
        out of its band, the one that makes the two most equal."""
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
