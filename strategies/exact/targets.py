"""Computes how much each member should have: targets over all rows, and quotas per row.

Members that may take the same rows have targets: their shares of these rows in proportion to capacity, around what
can't move, met up to rounding. Where members may take different rows, shares depend on each other; loads are then made
even relative to capacity, without a target. Members without a common row are separated, so that subscriptions of one
group change nothing for another.

`quotas` makes a `Table`: per row, shares in proportion to capacity among its takers, around what can't move; the
floor of each member, and how many remainders are left to assign. Members on hold get nothing and keep what they
have. A cap bends the shares of all where everyone subscribes to the same, and is enforced afterwards elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from assigner.strategies.exact.table import Potential, Table
from assigner.strategies.problem.components import labels
from assigner.strategies.problem.current_owners import CurrentOwners
from assigner.strategies.problem.shares import EPSILON, Indices, fair_shares, floors, lowest, relative
from assigner.strategies.problem.units import Units
from assigner.strategy import NONE, BoolArray, FloatArray, IntArray, Members

NO_TARGET = 1e15
"""More than any member will have."""


@dataclass(frozen=True)
class CountTargets:
    potential: Potential
    target: FloatArray
    """[member] partitions to end with, where there is a goal; else `NO_TARGET`."""
    weight: FloatArray
    """[member] the weight for shares of single rows: the capacity, reduced by caps."""

    def met(self, load: FloatArray) -> bool:
        """Whether a quick check shows that no loads could be more even, by any subscriptions."""
        goal, scale, free = self.potential.goal, self.potential.scale, self.target == NO_TARGET
        within = (load >= np.floor(goal + EPSILON)) & (load <= np.ceil(goal - EPSILON))
        others = load[free]
        even = not len(others) or (np.ptp(others) <= 1 and np.ptp(scale[free]) == 0)
        return bool(within[~free].all()) and bool(even)


def targets(units: Units, now: CurrentOwners, taker: BoolArray, weight: FloatArray, room: FloatArray) -> CountTargets:
    """Compute the targets. `weight` is relative capacity; `room` each member's maximum of partitions."""
    members = len(weight)
    of_row, of_member = _groups(units, taker)
    total = _totals(units, now, of_row, of_member)
    load = _load(units, now, members, np.ones(len(now.owner), np.bool_))
    goal, scale = _load(units, now, members, now.fixed), np.ones(members)
    target, bent = goal.copy(), weight.copy()
    capped = bool(np.isfinite(room).any())
    for group, who in _by_label(of_member):
        if not bool(taker[np.ix_(of_row == group, who)].all()):
            scale[who] = weight[who] / weight.mean()
            goal[who], target[who] = 0.0, NO_TARGET
            continue
        goal[who] = fair_shares(total[group], weight[who], goal[who], room[who] if capped else None)
        target[who] = _target(goal[who], load[who])
        if capped:
            bent[who] = np.where(goal[who] > 0, goal[who], weight[who])
    return CountTargets(Potential(goal, scale), target, bent)


def _groups(units: Units, taker: BoolArray) -> tuple[IntArray, IntArray]:
    """Label (rows, members): equal where a row connects them; NONE for rows without eligible members and vice versa."""
    filled = units.partitions > 0
    served, anyone = np.asarray(taker.any(axis=1)) & filled, np.asarray(taker[filled].any(axis=0))
    if bool(taker[np.ix_(served, anyone)].all()):
        first = np.int32(served.argmax()) if served.any() else np.int32(0)
        return np.where(served, first, np.int32(NONE)), np.where(anyone, first, np.int32(NONE))
    of_row, of_member = labels(taker & filled[:, None])
    return np.where(served, of_row, np.int32(NONE)), np.where(anyone, of_member, np.int32(NONE))


def _totals(units: Units, now: CurrentOwners, of_row: IntArray, of_member: IntArray) -> FloatArray:
    """Sum the partitions that each group's members share: those they may take, without those fixed to others, and with
    those fixed to them."""
    group = of_row[now.row]
    immovable = np.flatnonzero(now.fixed)
    holder = now.owner[immovable]
    group[immovable] = np.where(holder == NONE, np.int32(NONE), of_member[holder])
    some = group != NONE
    return np.bincount(group[some], units.size[now.row[some]], max(1, units.count)).astype(np.float64)


def _by_label(of_member: IntArray) -> list[tuple[int, Indices]]:
    order = np.argsort(of_member, kind="stable")
    order = order[of_member[order] != NONE]
    if not len(order):
        return []
    begins = np.flatnonzero(np.diff(of_member[order], prepend=NONE))
    return [(int(of_member[part[0]]), part) for part in np.split(order, begins[1:])]


def _load(units: Units, now: CurrentOwners, members: int, which: BoolArray) -> FloatArray:
    """Sum the partitions per member over the units `which` (per unit) that have an owner."""
    some = which & (now.owner != NONE)
    return np.bincount(now.owner[some], units.size[now.row[some]], members).astype(np.float64)


def _target(goal: FloatArray, load: FloatArray) -> FloatArray:
    """Round the goal to whole partitions: remainders go to members that have more than the floor already, then to the
    largest fractions."""
    floor = np.floor(goal + EPSILON)
    rest = round(float((goal - floor).sum()))
    preference = -2.0 * (load > floor) - np.round(goal - floor, 9)
    floor[lowest(preference, goal - floor > EPSILON, rest) if rest > 0 else []] += 1
    return np.asarray(floor)


# --- quotas -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Quotas:
    table: Table
    targets: CountTargets


def quotas(units: Units, members: Members, now: CurrentOwners) -> Quotas:
    room = np.where(members.cap == NONE, np.inf, members.cap.astype(np.float64))
    counted, fixed = _count(units, members.count, now)
    taker = units.wanted & ~members.hold & (room > 0)
    wanted = targets(units, now, taker, relative(members.capacity), room)
    return Quotas(_table(units, now, counted, fixed, taker, wanted.weight, room), wanted)


def _count(units: Units, members: int, now: CurrentOwners) -> tuple[IntArray, IntArray]:
    """Count units held as [row, member], and those of them that are fixed."""
    shape = (units.count, members)
    mine = now.owner != NONE
    cell = now.row[mine].astype(np.int64) * members + now.owner[mine]
    counted = np.bincount(cell, minlength=units.count * members).astype(np.int32).reshape(shape)
    immovable = now.fixed[mine]
    if not immovable.any():
        return counted, np.broadcast_to(np.int32(0), shape)
    fixed = np.bincount(cell[immovable], minlength=units.count * members)
    return counted, fixed.astype(np.int32).reshape(shape)


def _table(
    units: Units,
    now: CurrentOwners,
    counted: IntArray,
    fixed: IntArray,
    taker: BoolArray,
    weight: FloatArray,
    room: FloatArray,
) -> Table:
    shape = counted.shape
    base, open_ = fixed.copy(), np.zeros(shape, np.bool_)
    remainders, unplaced = np.zeros(shape[0], np.int32), np.zeros(shape[0], np.int32)
    totals = _to_place(units, now, fixed, taker)
    bent = np.asarray(fixed.any(axis=1))
    known: dict[tuple[int, bytes], tuple[IntArray, BoolArray, int]] = {}
    everyone = np.packbits(taker, axis=1)
    for row, total in enumerate(totals.tolist()):
        who = taker[row]
        if not who.any():
            unplaced[row] = total
            continue
        # Many rows have equal sizes and eligible members; compute each kind once.
        kind = (total, everyone[row].tobytes())
        found = None if bent[row] else known.get(kind)
        if found is None:
            found = _split(total, who, weight, fixed[row])
            if not bent[row]:
                known[kind] = found
        base[row], open_[row], remainders[row] = found
    load = (units.size @ base).astype(np.float64)
    remainder = np.zeros(shape, np.bool_)
    sticky = (counted > base) & open_
    return Table(units.size, counted, fixed, base, open_, remainder, remainders, taker, load, room, unplaced, sticky)


def _to_place(units: Units, now: CurrentOwners, fixed: IntArray, taker: BoolArray) -> IntArray:
    """Count the units of each row that eligible members are to have, with those fixed to them."""
    unowned = np.bincount(now.row[now.fixed & (now.owner == NONE)], minlength=units.count)
    total = units.partitions - unowned
    if fixed.any():
        total = total - np.where(taker, 0, fixed).sum(axis=1)
    return total.astype(np.int32)


def _split(total: int, who: BoolArray, weight: FloatArray, fixed: IntArray) -> tuple[IntArray, BoolArray, int]:
    base, open_ = fixed.copy(), np.zeros(len(who), np.bool_)
    low = fixed[who].astype(np.float64)
    base[who], open_[who] = floors(fair_shares(total, weight[who], low), low)
    return base, open_, total - int(base[who].sum())
