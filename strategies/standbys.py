"""Where standby copies live: on other members than the owner, evenly, in other racks, as they are as far as possible.

In this order:

1. **Valid.** Never on the owner, never twice on one member, only on members that subscribe to the topic, nothing new
   on members on hold. The topics of a co-partition slot have the same standbys.
2. **As many as asked**, where there are members for them.
3. **Even.** What a member owns and the copies it holds come to the floor or the ceiling of its share, in proportion
   to capacity; where members may have different topics, to as even a load as gifts can make.
4. **In other racks** than the owner's and each other's.
5. **Ready.** After the death of any one member its partitions can be promoted where copies are, without a cold start,
   so far as 3 and 4 leave room for it (`strategies.standby_limits`).
6. **Few copies to build.** Copies stay unless one of the above says otherwise. A former owner has a copy.

It ends because shares are settled first (`strategies.standby_shares`) and every exchange after that lowers a whole
number (`strategies.standby_exchange`). Given its own result it returns the same again.

Not promised: that 4 to 6 are at their very best, since copies are exchanged two at a time only. Copies of partitions
that nobody owns are left where they are.
"""

from __future__ import annotations

import numpy as np

from assigner.strategy import NONE, FloatArray, IntArray, Problem
from strategies.standby_copies import Copies, copies, unit_of_partition
from strategies.standby_exchange import Exchange
from strategies.standby_shares import pool
from strategies.standby_slots import ranks, seat


def place_standbys(problem: Problem, owner: IntArray) -> IntArray:
    """[flat partition, replica]: the standbys for new owners, each row filled from the left, then NONE."""
    width = max(0, min(problem.standby_count, problem.members.count - 1))
    if not width or not len(owner):
        return np.full((len(owner), width), NONE, np.int32)
    given = copies(problem, owner, width)
    table = _orphans(given)
    load = given.active + _copied(given, table)
    # Large units first: small ones fit in between.
    for size in np.unique(given.units.size[given.row])[::-1].tolist():
        placed = _place(given, size, load)
        load += size * np.bincount(placed[placed != NONE], minlength=len(load))
        table = np.where(placed != NONE, placed, table)
    return table[unit_of_partition(given.units, problem)]


def _place(given: Copies, size: int, load: FloatArray) -> IntArray:
    """[unit, replica]: standbys of the units of one size, NONE elsewhere."""
    here = pool(given, size, load)
    slots = seat(here)
    exchange = Exchange(here, slots)
    exchange.run()
    seated = np.ones(len(slots.unit), np.bool_)
    seated[exchange.wrong()] = False
    seated &= slots.unit < slots.ghosts
    table = _table(given, slots.unit[seated], slots.member[seated])
    _make_do(given, here.unit, size, load, table)
    return table


def _table(given: Copies, unit: IntArray, member: IntArray) -> IntArray:
    table = np.full((len(given.row), given.width), NONE, np.int32)
    order = np.lexsort((member, unit))
    unit, member = unit[order], member[order]
    table[unit, ranks(unit)] = member
    return table


def _orphans(given: Copies) -> IntArray:
    unit, member = given.split(given.held)
    mine = given.owner[unit] == NONE
    unit, member = unit[mine], member[mine]
    few = ranks(unit) < given.width
    return _table(given, unit[few], member[few])


def _copied(given: Copies, table: IntArray) -> FloatArray:
    """[member] partitions"""
    unit, column = np.nonzero(table != NONE)
    size = given.units.size[given.row[unit]]
    return np.bincount(table[unit, column], size, given.members.count).astype(np.float64)


def _make_do(given: Copies, units: IntArray, size: int, load: FloatArray, table: IntArray) -> None:
    """Copies for which shares left no valid place go to the emptiest member that may have them."""
    have = (table[units] != NONE).sum(axis=1)
    short = units[have < given.demand[units]]
    if not len(short):
        return
    members = given.members
    load = load + size * np.bincount(table[table != NONE], minlength=members.count)
    for unit in short.tolist():
        may = given.units.wanted[given.row[unit]] & ~members.hold
        begin, end = np.searchsorted(given.held, (unit * members.count, (unit + 1) * members.count))
        may[given.held[begin:end] % members.count] = True
        begin, end = np.searchsorted(given.barred, (unit * members.count, (unit + 1) * members.count))
        may[given.barred[begin:end] % members.count] = False
        may[given.owner[unit]] = False
        may[table[unit][table[unit] != NONE]] = False
        missing = given.demand[unit] - int((table[unit] != NONE).sum())
        who = np.flatnonzero(may)
        who = who[np.argsort((load[who] + size) / members.capacity[who], kind="stable")][:missing]
        row = np.sort(np.concatenate((table[unit][table[unit] != NONE], who)))
        table[unit, : len(row)] = row
        load[who] += size
