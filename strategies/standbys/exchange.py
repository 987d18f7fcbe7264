"""Improves a placement of copies by exchanging copies, two at a time.

An exchange is made only if it lowers the weighted cost (`assigner.strategies.standbys.costs`), a whole number never
below zero, so this ends. Counts are invariant, since both members end with as many copies as before. In a small group
cycles of transfers among more than two slots are searched as well (`ring`, by Bellman-Ford).

Not promised: the optimum. In a large group the search for the last improvements is bounded; a later plan continues it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from assigner.strategies.standbys.costs import RACK, Costs
from assigner.strategies.standbys.demand import Copies, Keys, Numbers, contains
from assigner.strategies.standbys.shares import Pool
from assigner.strategies.standbys.slots import Slots, ranks
from assigner.strategy import NONE, BoolArray, IntArray

Matrix = NDArray[np.int64]


def ring(cost: Matrix) -> list[int]:
    """Find a cycle of slots that lowers the cost, in the order of giving. `cost[i, j]`: the change if the copy in slot
    i moves to slot j."""
    count = len(cost)
    reached = np.zeros(count, np.int64)
    came = np.full(count, -1)
    for _ in range(count):
        costs = reached[:, None] + cost
        best = costs.argmin(axis=0)
        cheapest = costs[best, np.arange(count)]
        better = cheapest < reached
        if not better.any():
            return []
        reached = np.where(better, cheapest, reached)
        came = np.where(better, best, came)
        found = _cycle(came.tolist())
        if found:
            return found
    return []


def _cycle(came: list[int]) -> list[int]:
    """Find a cycle among predecessors, in the direction of the steps."""
    visited = [0] * len(came)
    for start in range(len(came)):
        slot = start
        while slot >= 0 and not visited[slot]:
            visited[slot] = start + 1
            slot = came[slot]
        if slot >= 0 and visited[slot] == start + 1:
            found = [slot]
            while came[found[-1]] != slot:
                found.append(came[found[-1]])
            return found[::-1]
    return []


_ROUNDS = 64
_BARREN_ROUNDS = 4
"""Rounds of exchanges in bulk, and how many in a row may improve next to nothing."""
_BUDGET = 300_000
"""Pairs of slots to examine, plus `_EACH` for every slot; bounds the time."""
_EACH = 2
_PARTNERS = 1024
"""The number of other slots that a slot is compared with one by one."""
_FAILURES = 30
"""Slots in a row without an improvement after which the rest is skipped."""
_CYCLES = 400
"""The number of slots up to which exchanges among more than two are searched."""
_GOLDEN = 0.6180339887498949
_MIXER = np.uint32(2654435761)

_KeyOf = Callable[[Numbers, Numbers], Keys]
_SpareOf = Callable[[Numbers, Numbers], IntArray]


@dataclass(frozen=True)
class Trial:
    """Possible exchanges of slots `first` and `second`, and the change of cost of each."""

    first: Numbers
    second: Numbers
    change: Keys


class Exchange:
    def __init__(self, given: Pool, slots: Slots) -> None:
        self._copies: Copies = given.copies
        self._slots = slots
        self._costs = Costs(given, slots)
        self._budget = _BUDGET + _EACH * len(slots.unit)

    def run(self) -> None:
        changed = len(self._slots.unit) > 1
        while changed and self._budget > 0:
            self._slots.normalise()
            self._costs.count()
            changed = self._in_bulk()
            changed |= self._one_by_one()
            changed |= self._reuse_existing()
            changed = changed or self._in_cycles()

    def wrong(self) -> Numbers:
        """Find the slots of copies that must not be where they are."""
        return np.flatnonzero(self._costs.now >= self._costs.wrong)

    def _bad(self) -> Numbers:
        """Find the slots that an exchange may improve. A copy that exists is not dropped for one that can be
        promoted."""
        return np.flatnonzero((self._costs.now >= RACK) | (self._costs.avoidable() & self._costs.built()))

    # --- many at once --------------------------------------------------------------------------------------------

    def _in_bulk(self) -> bool:
        """Exchange forbidden copies first, then all bad ones: with another such slot, which may improve both; then with
        any slot; then with those whose copies have to be built anyway."""
        everyone = np.arange(len(self._slots.unit))
        changed = self._rounds(self.wrong(), _BARREN_ROUNDS)
        changed |= self._rounds(self.wrong(), 4 * _BARREN_ROUNDS, everyone)
        changed |= self._rounds(self._bad(), _BARREN_ROUNDS)
        changed |= self._rounds(self._bad(), _BARREN_ROUNDS, everyone)
        return self._rounds(self._bad(), _BARREN_ROUNDS, np.flatnonzero(self._costs.built())) or changed

    def _rounds(self, bad: Numbers, barren_rounds: int, others: Numbers | None = None) -> bool:
        """Exchange bad slots with `others` in rounds; None: with each other."""
        changed, left = False, barren_rounds
        for round_ in range(1, _ROUNDS):
            among = bad if others is None else others
            if not len(bad) or not len(among) or not left or self._budget <= 0:
                break
            self._budget -= len(bad)
            trial = self._weigh(bad, _partners(bad, among, round_))
            made = self._independent(trial)
            left = barren_rounds if 50 * len(made) > len(bad) else left - 1
            if len(made):
                self._costs.exchange(trial.first[made], trial.second[made])
                bad = bad[self._costs.bad(bad)]
                changed = True
        return changed

    def _weigh(self, first: Numbers, second: Numbers) -> Trial:
        slots, costs = self._slots, self._costs
        unit, other = slots.unit[first], slots.unit[second]
        here, there = slots.member[first], slots.member[second]
        change = costs.alone(unit, slots.column[first], there) + costs.alone(other, slots.column[second], here)
        change -= costs.now[first] + costs.now[second]
        stays = costs.owner[unit] == costs.owner[other]
        change += np.where(stays, 0, costs.moved(unit, here, there) + costs.moved(other, there, here))
        if costs.by_row:
            stays = stays & (costs.row[unit] == costs.row[other])
            change += np.where(stays, 0, costs.row_moved(unit, here, there) + costs.row_moved(other, there, here))
        return Trial(first, second, np.where((unit == other) | (here == there), 0, change))

    def _independent(self, trial: Trial) -> Numbers:
        """Select exchanges that lower the cost and are independent, so that their changes add up."""
        good = np.flatnonzero(trial.change < 0)
        # In a pseudo-random order of slots, so that of neighbouring exchanges about every other one is made.
        good = good[np.argsort(good.astype(np.uint32) * _MIXER, kind="stable")]
        slots = self._slots
        both = np.stack((trial.first[good], trial.second[good]), axis=1)
        once = (ranks(slots.unit[both].reshape(-1)) == 0).reshape(-1, 2).all(axis=1)
        good, both = good[once], both[once]
        fits = self._fits(both, self._costs.pair, self._costs.spare) & self._within_remainders(both)
        if self._costs.by_row:
            fits &= self._fits(both, self._costs.row_pair, self._costs.row_spare)
        return np.asarray(good[fits])

    def _fits(self, both: Numbers, key: _KeyOf, spare: _SpareOf) -> BoolArray:
        """Select exchanges so that no more join a pair than it has room for, and no more leave one than are too
        many."""
        slots = self._slots
        unit = slots.unit[both].reshape(-1)
        here, there = slots.member[both].reshape(-1), slots.member[both[:, ::-1]].reshape(-1)
        joins = ranks(key(unit, there)) < np.maximum(spare(unit, there), 1)
        too_many = -spare(unit, here)
        leaves = (too_many <= 0) | (ranks(key(unit, here)) < too_many)
        return np.asarray((joins & leaves).reshape(-1, 2).all(axis=1))

    def _within_remainders(self, both: Numbers) -> BoolArray:
        """Select exchanges so that no more need an owner's remainders than there are, and no more cease to need them
        than are too many."""
        slots, costs = self._slots, self._costs
        unit = slots.unit[both].reshape(-1)
        here, there = slots.member[both].reshape(-1), slots.member[both[:, ::-1]].reshape(-1)
        needed_more = costs.remainders_needed(unit, here, there)
        owner = costs.owner[unit].astype(np.int64)
        fits = (needed_more == 0) | (ranks(3 * owner + needed_more) < np.maximum(np.abs(costs.beyond[owner]), 1))
        return np.asarray(fits.reshape(-1, 2).all(axis=1))

    # --- one at a time -------------------------------------------------------------------------------------------

    def _one_by_one(self) -> bool:
        """Exchange each bad slot with the best other one; in a large group, of a sample and of those to be built."""
        changed, failures = False, 0
        total = len(self._slots.unit)
        others = np.arange(min(total, _PARTNERS)) * max(1, total // _PARTNERS)
        new = np.flatnonzero(self._costs.built())[:_PARTNERS] if total > _PARTNERS else np.zeros(0, np.int64)
        bad = self._bad()
        # The worst first; forbidden ones do not count as failures, because they must be corrected.
        for slot in bad[np.argsort(-self._costs.now[bad], kind="stable")].tolist():
            if self._budget <= 0 or failures > _FAILURES:
                break
            if self._best(slot, np.concatenate(((slot + others) % total, new))):
                changed, failures = True, 0
            elif self._costs.now[slot] < self._costs.wrong:
                failures += 1
        return changed

    def _best(self, slot: int, among: Numbers) -> bool:
        self._budget -= len(among)
        if not len(among):
            return False
        trial = self._weigh(np.full(len(among), slot), among)
        best = int(trial.change.argmin())
        if trial.change[best] >= 0:
            return False
        self._costs.exchange(trial.first[best : best + 1], trial.second[best : best + 1])
        return True

    def _in_cycles(self) -> bool:
        """Exchange copies among more than two slots, if that lowers the cost."""
        slots, costs = self._slots, self._costs
        if len(slots.unit) > _CYCLES or not (len(self._bad()) or len(self._unused()[0])):
            return False
        found = ring(costs.transfers())
        self._budget -= len(slots.unit) ** 2
        before = costs.total()
        steps = [(np.array(found[:1]), np.array([slot])) for slot in found[1:]]
        for first, second in steps:
            costs.exchange(first, second)
        if costs.total() < before:
            return True
        # The cost of each transfer was computed alone; together they may not lower it.
        for first, second in reversed(steps):
            costs.exchange(first, second)
        return False

    def _unused(self) -> tuple[Numbers, Numbers]:
        """Find copies to be built although the unit has an unused one: (slot, member that has it)."""
        slots, copies = self._slots, self._copies
        occupied = np.flatnonzero(slots.unit < slots.first_dummy)
        keys = copies.key(slots.unit[occupied], slots.member[occupied])
        building = occupied[~contains(copies.held, keys)]
        unit, member = copies.split(copies.held[~contains(np.sort(keys), copies.held)])
        slot_of = np.full((slots.count, slots.place.shape[1]), NONE, np.int32)
        slot_of[slots.unit[building], slots.column[building]] = building
        which, column = np.nonzero(slot_of[unit] != NONE)
        return slot_of[unit[which], column], member[which]

    def _reusable(self) -> tuple[Numbers, Numbers]:
        """Select of these the ones whose member has to build another copy, or could exchange with the slot's member."""
        slots, costs = self._slots, self._costs
        slot, member = self._unused()
        alone = costs.alone(slots.unit[slot], slots.column[slot], member)
        builds = np.zeros(self._copies.members.count, np.bool_)
        builds[slots.member[costs.built()]] = True
        helps = (alone < RACK) & (builds[member] | self._swaps(slot, member))
        return slot[helps], member[helps]

    def _swaps(self, slot: Numbers, member: Numbers) -> BoolArray:
        """Whether another of these pairs is the reverse of each."""
        count = self._copies.members.count
        here = self._slots.member[slot].astype(np.int64)
        return contains(np.unique(here * count + member), member.astype(np.int64) * count + here)

    def _reuse_existing(self) -> bool:
        """Exchange slots so that existing copies are used instead of new ones."""
        slots, changed = self._slots, False
        for slot, member in np.stack(self._reusable(), axis=1).tolist():
            if self._budget <= 0:
                break
            begin, end = np.searchsorted(slots.member, (member, member + 1))
            self._budget -= 100
            changed |= self._best(slot, np.arange(begin, end))
        return changed


def _partners(bad: Numbers, others: Numbers, round_: int) -> Numbers:
    """Choose for each bad slot one of the others, at a distance that differs from round to round."""
    total = len(others)
    distance = 1 + int((round_ * _GOLDEN) % 1.0 * (total - 1))
    place = np.arange(len(bad)) if others is bad else np.searchsorted(others, bad)
    return np.asarray(others[(place + distance) % total])
