"""From a problem in units to a `Table`: what everybody gets at least, and how many extras are left to deal.

Per row, shares are in proportion to capacity among the members that may be given the row, around what can't move.
Members on hold are given nothing and keep what they have; a cap bends the shares of all where everyone subscribes to
the same, and is enforced afterwards where they do not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from assigner.strategy import NONE, BoolArray, FloatArray, IntArray, Members
from strategies.goals import Goals, goals
from strategies.held import Held
from strategies.shares import fair_shares, floors, relative
from strategies.table import Table
from strategies.units import Units


@dataclass(frozen=True)
class Quotas:
    table: Table
    goals: Goals


def quotas(units: Units, members: Members, now: Held) -> Quotas:
    room = np.where(members.cap == NONE, np.inf, members.cap.astype(np.float64))
    counted, fixed = _count(units, members.count, now)
    taker = units.wanted & ~members.hold & (room > 0)
    wanted = goals(units, now, taker, relative(members.capacity), room)
    return Quotas(_table(units, now, counted, fixed, taker, wanted.weight, room), wanted)


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
