"""From a problem in units to a `Table`: what everybody gets at least, and how many extras are left to deal.

Per row, shares are in proportion to capacity among the members that may be given the row, around what can't move.
Members on hold are given nothing and keep what they have; a cap bends the shares of all where everyone subscribes to
the same, and is enforced afterwards where they do not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from assigner.strategy import NONE, BoolArray, FloatArray, IntArray, Members
from strategies.shares import EPSILON, fair_shares, floors, lowest
from strategies.table import Potential, Table
from strategies.units import Units


@dataclass(frozen=True)
class Held:
    """What stays possible of the present ownership."""

    owner: IntArray
    """Per unit: the owner if it may keep the unit, else NONE."""
    fixed: BoolArray
    """Per unit: can't move. A unit pinned to nobody is fixed too."""
    row: IntArray
    """Per unit: its row."""


def held(units: Units, members: Members) -> Held:
    row = np.repeat(np.arange(units.count, dtype=np.int32), units.partitions)
    live = units.owner != NONE
    allowed = live.copy()
    allowed[live] = units.wanted[row[live], units.owner[live]]
    owner = np.where(allowed | units.pinned, units.owner, np.int32(NONE))
    fixed = units.pinned.copy()
    if members.hold.any():
        kept = allowed.copy()
        kept[allowed] = members.hold[owner[allowed]]
        fixed |= kept
        _cap_holds(owner, fixed, units, members, units.size[row])
    return Held(owner, fixed, row)


def _cap_holds(owner: IntArray, fixed: BoolArray, units: Units, members: Members, size: IntArray) -> None:
    """A cap binds a member on hold as well: what is too much goes, the last units first."""
    for member in np.flatnonzero(members.hold & (members.cap != NONE)).tolist():
        mine = np.flatnonzero((owner == member) & ~units.pinned)
        pinned = int(size[(owner == member) & units.pinned].sum())
        excess = mine[pinned + np.cumsum(size[mine]) > members.cap[member]]
        owner[excess] = NONE
        fixed[excess] = False


@dataclass(frozen=True)
class Quotas:
    table: Table
    potential: Potential
    target: FloatArray | None
    """Partitions each member should end with, where all members may take the same rows."""


def quotas(units: Units, members: Members, now: Held) -> Quotas:
    weight = members.capacity / members.capacity.max()
    room = np.where(members.cap == NONE, np.inf, members.cap.astype(np.float64))
    counted, fixed = _count(units, members.count, now)
    taker = units.wanted & ~members.hold & (room > 0)
    anyone = np.asarray(taker.any(axis=0))
    uniform = bool((taker[:, anyone].all(axis=1) | ~taker.any(axis=1)).all())
    if not uniform:
        table = _table(units, now, counted, fixed, taker, weight, room)
        scale = members.capacity / members.capacity.mean()
        return Quotas(table, Potential(np.zeros(members.count), scale), None)
    goal = _goal(units, now, taker, weight, room)
    bent = np.where(goal > 0, goal, weight) if np.isfinite(room).any() else weight
    table = _table(units, now, counted, fixed, taker, bent, room)
    load = _load(units, now, members.count, np.ones(len(now.owner), np.bool_))
    target = _target(goal, load, anyone)
    return Quotas(table, Potential(goal, np.ones(members.count)), target)


def _count(units: Units, members: int, now: Held) -> tuple[IntArray, IntArray]:
    """[row, member]: units held, and those of them that are fixed."""
    shape = (units.count, members)
    mine = now.owner != NONE
    cell = now.row[mine].astype(np.int64) * members + now.owner[mine]
    counted = np.bincount(cell, minlength=units.count * members).astype(np.int32).reshape(shape)
    stuck = now.fixed[mine]
    if not stuck.any():
        return counted, np.broadcast_to(np.int32(0), shape)
    fixed = np.bincount(cell[stuck], minlength=units.count * members)
    return counted, fixed.astype(np.int32).reshape(shape)


def _load(units: Units, now: Held, members: int, which: BoolArray) -> FloatArray:
    """[member]: partitions of the units `which` (per unit) that have an owner."""
    some = which & (now.owner != NONE)
    return np.bincount(now.owner[some], units.size[now.row[some]], members).astype(np.float64)


def _goal(units: Units, now: Held, taker: BoolArray, weight: FloatArray, room: FloatArray) -> FloatArray:
    """[member]: the fair global load, as a real number."""
    who, served = np.asarray(taker.any(axis=0)), np.asarray(taker.any(axis=1))
    # Takers share the units they may take, less those stuck elsewhere; and what is stuck to them is their load too.
    theirs = served[now.row]
    stuck = np.flatnonzero(now.fixed)
    holder = now.owner[stuck]
    theirs[stuck] = (holder != NONE) & who[holder]
    total = float(units.size[now.row[theirs]].sum())
    goal = _load(units, now, len(weight), now.fixed)
    high = room[who] if np.isfinite(room).any() else None
    goal[who] = fair_shares(total, weight[who], goal[who], high)
    return goal


def _target(goal: FloatArray, load: FloatArray, who: BoolArray) -> FloatArray:
    """The goal in whole partitions: the remainders go to members that have more than the floor already,
    then to the largest fractions."""
    floor = np.floor(goal + EPSILON)
    ceil = who & (goal - floor > EPSILON)
    rest = round(float((goal - floor)[who].sum()))
    wish = -2.0 * (load > floor) - np.round(goal - floor, 9)
    floor[lowest(wish, ceil, rest) if rest > 0 else []] += 1
    return np.asarray(floor)


def _table(
    units: Units,
    now: Held,
    counted: IntArray,
    fixed: IntArray,
    taker: BoolArray,
    weight: FloatArray,
    room: FloatArray,
) -> Table:
    shape = counted.shape
    base, open_ = fixed.copy(), np.zeros(shape, np.bool_)
    extras, unplaced = np.zeros(shape[0], np.int32), np.zeros(shape[0], np.int32)
    totals = _to_place(units, now, fixed, taker)
    bent = np.asarray(fixed.any(axis=1))
    known: dict[tuple[int, bytes], tuple[IntArray, BoolArray, int]] = {}
    everyone = np.packbits(taker, axis=1)
    for row, total in enumerate(totals.tolist()):
        who = taker[row]
        if not who.any():
            unplaced[row] = total
            continue
        # Rows alike in size and takers are many; work each kind out once.
        kind = (total, everyone[row].tobytes())
        found = None if bent[row] else known.get(kind)
        if found is None:
            found = _split(total, who, weight, fixed[row])
            if not bent[row]:
                known[kind] = found
        base[row], open_[row], extras[row] = found
    load = (units.size @ base).astype(np.float64)
    extra = np.zeros(shape, np.bool_)
    sticky = (counted > base) & open_
    return Table(units.size, counted, fixed, base, open_, extra, extras, taker, load, room, unplaced, sticky)


def _to_place(units: Units, now: Held, fixed: IntArray, taker: BoolArray) -> IntArray:
    """[row]: units that takers are to have, those they can't give up included."""
    nobodys = np.bincount(now.row[now.fixed & (now.owner == NONE)], minlength=units.count)
    total = units.partitions - nobodys
    if fixed.any():
        total = total - np.where(taker, 0, fixed).sum(axis=1)
    return total.astype(np.int32)


def _split(total: int, who: BoolArray, weight: FloatArray, fixed: IntArray) -> tuple[IntArray, BoolArray, int]:
    base, open_ = fixed.copy(), np.zeros(len(who), np.bool_)
    low = fixed[who].astype(np.float64)
    base[who], open_[who] = floors(fair_shares(total, weight[who], low), low)
    return base, open_, total - int(base[who].sum())
