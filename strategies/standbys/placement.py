"""Places standby copies: on other members than the owner, evenly, in other racks, and where they are if possible.

In this order:

1. **Valid.** Never on the owner, never twice on one member, only on members that subscribe to the topic, nothing new
   on members on hold. The topics of a co-partition slot have the same standbys.
2. **As many as asked**, where there are members for them.
3. **Even.** What a member owns and the copies it holds come to the floor or the ceiling of its share, in proportion
   to capacity; where members may have different topics, as evenly as transfers can make it.
4. **In other racks** than the owner's and each other's.
5. **Few copies to build.** Copies stay unless one of the above requires a change. A former owner has a copy.
6. **Ready.** After the death of any one member holders of copies can take over its partitions, without a cold
   start, as far as the above allows (`assigner.strategies.standbys.costs`): copies that are built anyway are placed
   where they can be promoted.

It ends because shares are fixed first (`assigner.strategies.standbys.shares`) and every exchange after that lowers a
whole number (`assigner.strategies.standbys.exchange`). It is idempotent: given its own result it returns the same.

Not promised: that 4 to 6 are optimal, since copies are exchanged two at a time only. Copies of unowned partitions are
left where they are.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from assigner.strategies.standbys.costs import Costs
from assigner.strategies.standbys.demand import Copies, Keys, Numbers, copies, unit_of_partition
from assigner.strategies.standbys.exchange import Exchange
from assigner.strategies.standbys.shares import Pool, is_even, pool, unevenness
from assigner.strategies.standbys.slots import Slots, initial_placement, ranks
from assigner.strategy import NONE, BoolArray, FloatArray, IntArray, Problem

_ATTEMPTS = 8
_SMALL = 400
_LARGE = 4000
"""Numbers of units: up to the first the result is improved until it stays the same; above the second, once."""


def place_standbys(problem: Problem, owner: IntArray) -> IntArray:
    """Place the standbys for new owners: [flat partition, replica], each row filled from the left, then NONE."""
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
    """Place the standbys of the units of one size: [unit, replica], NONE elsewhere."""
    here = pool(given, size, load)
    present = _present(here)
    if present is not None and _good_enough(here, present):
        return present
    table = _attempt(here)
    if present is not None and _worth(here, table) >= _worth(here, present):
        return present
    # The result may allow other shares than the ones it was computed from, so it is improved from itself.
    attempts = 1 if len(here.unit) > _LARGE else _ATTEMPTS
    for _ in range(0 if _is_stable(here, table) else attempts):
        here = pool(replace(given, held=_keys(given, table)), size, load)
        if _good_enough(here, table):
            break
        other = _attempt(here)
        if _worth(here, other) >= _worth(here, table):
            break
        table = other
    return table


def _attempt(here: Pool) -> IntArray:
    slots = initial_placement(here)
    exchange = Exchange(here, slots)
    exchange.run()
    occupied = slots.unit < slots.first_dummy
    occupied[exchange.wrong()] = False
    table = _table(here.copies, slots.unit[occupied], slots.member[occupied])
    _place_leftovers(here, table)
    return table


def _present(here: Pool) -> IntArray | None:
    """The present copies, if they are as many as wanted."""
    given = here.copies
    unit, member = given.split(given.held)
    mine = here.cohort[unit] != NONE
    unit, member = unit[mine], member[mine]
    if bool((np.bincount(unit, minlength=len(given.row))[here.unit] == given.demand[here.unit]).all()):
        return _table(given, unit, member)
    return None


def _good_enough(here: Pool, table: IntArray) -> bool:
    """Whether the placement has no fault for which a copy would be built."""
    missing, uneven, near = _worth(here, table)
    return not (missing or near or (uneven and len(here.wanted) == 1)) and is_even(here, _counted(here, table))


def _counted(here: Pool, table: IntArray) -> IntArray:
    """Count copies as [cohort, member]."""
    unit, column = np.nonzero(table != NONE)
    cell = here.cohort[unit].astype(np.int64) * len(here.load) + table[unit, column]
    return np.bincount(cell, minlength=here.most.size).reshape(here.most.shape).astype(np.int32)


def _is_stable(here: Pool, table: IntArray) -> bool:
    """Whether another attempt would have the same shares, which all members have, and search no cycles."""
    copied = np.bincount(table[table != NONE], minlength=len(here.load))
    same = len(here.wanted) == 1 and not here.copies.members.hold.any()
    return same and len(here.unit) > _SMALL and unevenness(here, copied) == 0


def _worth(here: Pool, table: IntArray) -> tuple[int, float, int]:
    """Rate a placement, less is better: (missing, unevenness, copies in one rack). Copies that can't be promoted do not
    count, because they are no reason to build others."""
    unit, column = np.nonzero(table != NONE)
    member = table[unit, column]
    slots = Slots(here.copies, member, unit)
    costs = Costs(here, slots)
    costs.count()
    missing = int(here.copies.demand[here.unit].sum()) - len(unit)
    return missing, unevenness(here, np.bincount(member, minlength=len(here.load))), costs.in_one_rack()


def _table(given: Copies, unit: Numbers, member: Numbers) -> IntArray:
    table = np.full((len(given.row), given.width), NONE, np.int32)
    order = np.lexsort((member, unit))
    unit, member = unit[order], member[order]
    table[unit, ranks(unit)] = member
    return table


def _keys(given: Copies, table: IntArray) -> Keys:
    unit, column = np.nonzero(table != NONE)
    return np.unique(given.key(unit, table[unit, column]))


def _orphans(given: Copies) -> IntArray:
    unit, member = given.split(given.held)
    mine = given.owner[unit] == NONE
    unit, member = unit[mine], member[mine]
    few = ranks(unit) < given.width
    return _table(given, unit[few], member[few])


def _copied(given: Copies, table: IntArray) -> FloatArray:
    """Sum the copies of each member, in partitions."""
    unit, column = np.nonzero(table != NONE)
    size = given.units.size[given.row[unit]]
    return np.bincount(table[unit, column], size, given.members.count).astype(np.float64)


def _place_leftovers(here: Pool, table: IntArray) -> None:
    """Place copies for which shares left no valid place on the emptiest member that may have them."""
    given, size = here.copies, here.size
    have = (table[here.unit] != NONE).sum(axis=1)
    short = here.unit[have < given.demand[here.unit]]
    if not len(short):
        return
    load = here.load + size * np.bincount(table[table != NONE], minlength=given.members.count)
    for unit in short.tolist():
        has = table[unit][table[unit] != NONE]
        may = _may_have(given, unit)
        may[has] = False
        who = np.flatnonzero(may)
        emptiest = np.argsort((load[who] + size) / given.members.capacity[who], kind="stable")
        who = who[emptiest][: given.demand[unit] - len(has)]
        table[unit, : len(has) + len(who)] = np.sort(np.concatenate((has, who)))
        load[who] += size


def _may_have(given: Copies, unit: int) -> BoolArray:
    """Whether each member may have a copy of the unit."""
    members = given.members
    may = given.units.wanted[given.row[unit]] & ~members.hold
    for keys, allowed in ((given.held, True), (given.barred, False)):
        begin, end = np.searchsorted(keys, (unit * members.count, (unit + 1) * members.count))
        may[keys[begin:end] % members.count] = allowed
    may[given.owner[unit]] = False
    return np.asarray(may)
