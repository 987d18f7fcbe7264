"""Makes the initial placement: existing copies stay as far as shares allow, and missing ones are added in turn.

A slot is a place for one copy on one member. Where a member may have one copy more or less, one slot of it may stand
empty; a dummy occupant holds it, so that every later change is an exchange of two slots and counts stay invariant.

Missing copies are placed so that the copies of what one member owns are spread over the others in proportion to their
room: members take turns, and units come owner by owner. Rules other than shares are left to
`assigner.strategies.standbys.exchange`.
"""

from __future__ import annotations

import numpy as np

from assigner.strategies.standbys.demand import Copies, Numbers
from assigner.strategies.standbys.shares import Pool, Room, fair, room
from assigner.strategy import NONE, BoolArray, IntArray

_GOLDEN = 0.6180339887498949
"""Any number of its multiples, modulo 1, is spread evenly."""


class Slots:
    """The unit in each slot. Units from `first_dummy` on are dummies."""

    def __init__(self, copies: Copies, member: Numbers, unit: Numbers) -> None:
        """`unit` is NONE for an empty slot."""
        self.first_dummy = len(copies.row)
        self.member = member.astype(np.int32)
        self.unit = unit.astype(np.int32)
        empty = np.flatnonzero(unit == NONE)
        self.unit[empty] = self.first_dummy + np.arange(len(empty), dtype=np.int32)
        self.count = self.first_dummy + len(empty)
        self._width = max(copies.width, 1)
        self.column = np.zeros(len(unit), np.int32)
        self.place = np.zeros((0, 0), np.int32)
        self.normalise()

    def normalise(self) -> None:
        """Put slots in the order of member and unit, so that later steps depend on the placement alone."""
        occupied = np.where(self.unit < self.first_dummy, self.unit, np.int32(self.first_dummy))
        order = np.lexsort((occupied, self.member))
        self.member, self.unit = self.member[order], self.unit[order]
        self.column = ranks(self.unit)
        self.place = np.full((self.count, self._width), NONE, np.int32)
        self.place[self.unit, self.column] = np.arange(len(self.unit), dtype=np.int32)

    def exchange(self, first: Numbers, second: Numbers) -> None:
        """Swap the units of slots `first` and `second`; no slot may occur twice."""
        self.unit[first], self.unit[second] = self.unit[second], self.unit[first]
        self.column[first], self.column[second] = self.column[second], self.column[first]
        for slots in (first, second):
            self.place[self.unit[slots], self.column[slots]] = slots


def ranks(values: Numbers) -> IntArray:
    """Count, for each value, the equal values before it."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    rank = np.empty(len(values), np.int32)
    rank[order] = np.arange(len(values)) - np.searchsorted(ordered, ordered, side="left")
    return rank


def initial_placement(given: Pool) -> Slots:
    copies = given.copies
    unit, member = copies.split(copies.held)
    mine = given.cohort[unit] != NONE
    unit, member = unit[mine], member[mine]
    stays = _without_surplus(given, unit, member)
    unit, member = unit[stays], member[stays]
    cell = given.cohort[unit].astype(np.int64) * copies.members.count + member
    kept = np.bincount(cell, minlength=given.most.size).reshape(given.most.shape).astype(np.int32)
    shares = room(given, kept)
    most = _kept_at_most(shares, kept)
    stays = _within(given, unit, member, cell, most.reshape(-1))
    unit, member, cell = unit[stays], member[stays], cell[stays]
    kept = np.bincount(cell, minlength=given.most.size).reshape(given.most.shape).astype(np.int32)
    return _fill(given, unit, member, kept, shares, most)


def _without_surplus(given: Pool, unit: IntArray, member: IntArray) -> BoolArray:
    """Select the copies to keep of units that have too many: not those on the fullest members."""
    copies = given.copies
    count = np.bincount(unit, minlength=len(copies.row))
    stays = np.ones(len(unit), np.bool_)
    if not (count > copies.demand).any():
        return stays
    size = copies.members.count
    share = fair(given, np.bincount(member, minlength=size)[None, :].astype(np.int32))
    over = np.bincount(member, minlength=size) - share
    while True:
        loose = np.flatnonzero(stays & (count > copies.demand)[unit])
        if not len(loose):
            return stays
        # Of each unit the copy on the fullest member, of each member as many as it has too many.
        order = loose[np.lexsort((member[loose], -over[member[loose]], unit[loose]))]
        first = order[np.concatenate((np.ones(1, np.bool_), np.diff(unit[order]) != 0))]
        enough = ranks(member[first]) < np.maximum(np.ceil(over[member[first]]), 1)
        gone = first[enough]
        stays[gone] = False
        over -= np.bincount(member[gone], minlength=size)
        count -= np.bincount(unit[gone], minlength=len(count))


def _kept_at_most(shares: Room, kept: IntArray) -> IntArray:
    """Compute the most copies to keep as [cohort, member]. Of members with one more than the least, some keep it."""
    most = shares.least.copy()
    open_to_more = shares.open & (kept > most)
    if open_to_more.any():
        chosen = np.flatnonzero(open_to_more[0])[: shares.remainders]
        most[0, chosen] += 1
    return most


def _within(given: Pool, unit: IntArray, member: IntArray, cell: IntArray, most: IntArray) -> BoolArray:
    """Select the copies within `most`; dropped first are those in the owner's rack, then many for one owner, then high
    numbers."""
    count = np.bincount(cell, minlength=len(most))
    stays = np.ones(len(unit), np.bool_)
    over = np.flatnonzero((count > most)[cell])
    if not len(over):
        return stays
    owner, rack = given.copies.owner[unit[over]], given.copies.members.rack
    near = (owner != NONE) & (rack[owner] != NONE) & (rack[owner] == rack[member[over]])
    again = ranks((cell[over] * (given.copies.members.count + 1) + owner).astype(np.int64))
    order = over[np.lexsort((unit[over], again, near, cell[over]))]
    stays[order[ranks(cell[order]) >= most[cell[order]]]] = False
    return stays


def _fill(given: Pool, unit: IntArray, member: IntArray, kept: IntArray, shares: Room, most: IntArray) -> Slots:
    copies = given.copies
    target = np.maximum(most, kept)
    spare = shares.remainders - int((target > shares.least).sum()) if shares.open.any() else 0
    dummies = (
        np.flatnonzero(shares.open[0] & (target[0] <= shares.least[0])) if shares.open.any() else np.zeros(0, np.int64)
    )
    if spare > 0:
        # Members that own the least can be promoted most.
        emptiest = dummies[np.argsort(copies.active[dummies] / copies.members.capacity[dummies], kind="stable")]
        target[0, emptiest[:spare]] += 1
        dummies = np.sort(emptiest[spare:])
    missing = copies.demand - np.bincount(unit, minlength=len(copies.row))
    members: list[Numbers] = [member, dummies]
    units: list[Numbers] = [unit, np.full(len(dummies), NONE)]
    for kind in range(len(target)):
        turns = _turns(target[kind] - kept[kind])
        missing_units = _missing_copies(copies, given.unit[given.cohort[given.unit] == kind], missing)
        count = min(len(turns), len(missing_units))
        members.append(turns[:count])
        units.append(missing_units[:count])
    return Slots(copies, np.concatenate(members), np.concatenate(units))


def _turns(places: IntArray) -> IntArray:
    """List members as often as they have places, each spread over the list. It does not begin at the first member,
    because owners do."""
    member = np.repeat(np.arange(len(places)), np.maximum(places, 0))
    turn = (ranks(member) + 0.5) / np.maximum(places, 1)[member]
    return np.roll(member[np.lexsort((member, turn))], -1).astype(np.int32)


def _missing_copies(copies: Copies, unit: IntArray, missing: IntArray) -> IntArray:
    """List units as often as copies are missing, owner by owner. Copies of a unit are adjacent, so that turns place
    them on different members.

    Each owner's list begins at another unit. Otherwise a member would get the same topics of every owner: once promoted
    to some of them after one death, it could not be promoted to the rest after the next."""
    owner, first = copies.owner[unit], np.argsort(copies.owner[unit], kind="stable")
    turned = np.empty(len(unit), np.int64)
    count = np.bincount(owner, minlength=copies.members.count)[owner]
    turned[first] = ranks(owner[first])
    turned = (turned + (owner * _GOLDEN % 1.0 * count).astype(np.int64)) % np.maximum(count, 1)
    slots = np.repeat(unit, np.maximum(missing[unit], 0))
    turn = np.repeat(turned, np.maximum(missing[unit], 0))
    return slots[np.lexsort((slots, turn, copies.owner[slots]))]
