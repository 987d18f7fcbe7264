"""Places units without an owner: the heaviest first, each on the member furthest below its goal.

`promote` comes first: a unit goes to a holder of its standby if the holder's load stays within the tolerance, so that
nothing has to move on afterwards; the heaviest first, and to the holder with the most room below its goal. Not
promised: the most promotions possible.

`place` is sequential, but many of its steps are known in advance: as long as the next member is emptier than the first
one becomes, members are served in order. Such runs are placed as arrays, the rest with a heap; the result is identical.
Where members may take different kinds, kinds with the fewest eligible members go first, and members are assumed to get
their share of the later ones. Where caps leave a unit without a taker, augmenting paths of units of the same size make
room for it.
"""

from __future__ import annotations

import heapq

import numpy as np

from assigner.strategies.problem.shares import Indices
from assigner.strategies.problem.units import Units
from assigner.strategies.weighted.goals import WeightGoals
from assigner.strategies.weighted.parts import Part
from assigner.strategy import NONE, FloatArray, IntArray

_SHORT_RUN = 48
"""Below this a heap is faster than arrays."""
_HEAP_RUN = 2048
"""Units that are placed with the heap before arrays are tried again."""


def place(part: Part, goal: WeightGoals) -> int:
    """Assign an owner to every unit that has an eligible member. Returns how many units got one."""
    unowned = part.owner == NONE
    if not unowned.any():
        return 0
    free = part.sort(unowned)
    order = np.argsort(part.takes.sum(axis=1), kind="stable").tolist()
    coming = _expected(part, goal, free)
    for kind in order:
        mine = free if len(part.takes) == 1 else free[part.kind[free] == kind]
        if len(mine):
            coming -= _share(part, goal, kind, mine)
            _place_kind(part, kind, mine, part.load + coming - goal.load)
    if part.capped and len(part.takes) > 1:
        _make_rooms(part)
    return int((part.owner[free] != NONE).sum())


def _expected(part: Part, goal: WeightGoals, free: Indices) -> FloatArray:
    """Estimate what each member will get of the kinds that are still to be placed."""
    coming = np.zeros(part.count)
    for kind in np.unique(part.kind[free]).tolist():
        coming += _share(part, goal, kind, free[part.kind[free] == kind])
    return coming


def _share(part: Part, goal: WeightGoals, kind: int, free: Indices) -> FloatArray:
    if len(part.takes) == 1:
        return np.zeros(part.count)
    whole = part.weight[part.kind == kind].sum()
    return np.asarray(goal.of_kind(kind) * (part.weight[free].sum() / whole))


def _place_kind(part: Part, kind: int, units: Indices, level: FloatArray) -> None:
    who = np.flatnonzero(part.takes[kind])
    # With caps, all units of a kind are of one size.
    rounds = np.floor(part.room[who] / part.size[units[0]]) if part.capped else np.full(len(who), np.inf)
    taker = place_greedily(level[who], rounds, part.weight[units])
    placed = taker != NONE
    part.give(units[placed], who[taker[placed]].astype(np.int32))


def place_greedily(level: FloatArray, room: FloatArray, weight: FloatArray) -> IntArray:
    """Choose the taker of each unit: the member at the lowest level, which then rises by the unit's weight; NONE if
    none has room. `weight` is descending, `room` is how many units each may take."""
    level, room = level.copy(), room.copy()
    taker = np.full(len(weight), NONE, np.int32)
    at = 0
    while at < len(weight):
        open_ = np.flatnonzero(room > 0)
        if not len(open_):
            break
        line = open_[np.argsort(level[open_], kind="stable")][: len(weight) - at]
        next_ = weight[at : at + len(line)]
        run = max(1, int((level[line] - next_ < level[line[0]]).sum()))
        if run < _SHORT_RUN and run < len(weight) - at:
            at = _place_one_by_one(level, room, weight, taker, at)
            continue
        line = line[:run]
        taker[at : at + run] = line
        level[line] += next_[:run]
        room[line] -= 1
        at += run
    return taker


def _place_one_by_one(level: FloatArray, room: FloatArray, weight: FloatArray, taker: IntArray, at: int) -> int:
    open_ = np.flatnonzero(room > 0).tolist()
    heap = list(zip(level[open_].tolist(), open_, strict=True))
    heapq.heapify(heap)
    limited, taken = bool(np.isfinite(room).any()), []
    for more in weight[at : at + max(_HEAP_RUN, len(open_))].tolist():
        if not heap:
            break
        now, member = heap[0]
        taken.append(member)
        if limited:
            room[member] -= 1
            if room[member] <= 0:
                heapq.heappop(heap)
                continue
        heapq.heapreplace(heap, (now + more, member))
    end = at + len(taken)
    taker[at:end] = taken
    np.add.at(level, taker[at:end], weight[at:end])
    return end


def _make_rooms(part: Part) -> None:
    """Make room for each unit without an owner, in turn. A kind is tried until it fails once: an augmenting path leaves
    all but its last member as full as before, so no later one would succeed."""
    units = part.sort(part.owner == NONE)
    for kind in np.unique(part.kind[units]).tolist():
        for unit in units[part.kind[units] == kind].tolist():
            if not _make_room(part, unit):
                break


def _make_room(part: Part, unit: int) -> bool:
    """Search breadth first for a path from the unit's eligible members to a member that has room."""
    size = part.size[unit]
    if not (part.room >= size).any():
        return False
    came: dict[int, tuple[int, int] | None] = dict.fromkeys(np.flatnonzero(part.takes[part.kind[unit]]).tolist())
    line = list(came)
    for giver in line:
        if part.room[giver] >= size:
            _augment(part, came, giver, unit)
            return True
        mine = np.flatnonzero((part.owner == giver) & (part.size == size))
        for kind in np.unique(part.kind[mine]).tolist():
            given = int(mine[part.kind[mine] == kind][0])
            for member in np.flatnonzero(part.takes[kind]).tolist():
                if member not in came:
                    came[member] = (given, giver)
                    line.append(member)
    return False


def _augment(part: Part, came: dict[int, tuple[int, int] | None], end: int, unit: int) -> None:
    step = came[end]
    while step is not None:
        given, giver = step
        part.give_one(given, end)
        end, step = giver, came[giver]
    part.give(np.array([unit]), end)


# --- promotion --------------------------------------------------------------------------------------------------------


def promote(part: Part, units: Units, goal: FloatArray, band: FloatArray) -> None:
    """Assign units without an owner to holders of their standbys. `goal` and `band`: each member's fair load, and the
    distance from it that is still even."""
    if units.standbys is None:
        return
    waiting = part.sort(part.owner == NONE)
    if not len(waiting):
        return
    local = np.full(int(part.members.max()) + 2, NONE, np.int32)
    local[part.members] = np.arange(part.count, dtype=np.int32)
    copies = units.standbys[part.units[waiting]]
    # Holders beyond the part's last member are not of this part; index -1 is NONE's own place.
    holders = local[np.where(copies < len(local) - 1, copies, NONE)]
    for unit, row in zip(waiting.tolist(), holders.tolist(), strict=True):
        able = [member for member in row if member != NONE and _fits(part, unit, member, goal, band)]
        if able:
            best = min(able, key=lambda member: (part.load[member] - goal[member], member))
            part.give(np.array([unit]), best)


def _fits(part: Part, unit: int, member: int, goal: FloatArray, band: FloatArray) -> bool:
    weight, room = part.weight[unit], part.room[member] >= part.size[unit]
    return bool(
        part.takes[part.kind[unit], member] and room and part.load[member] + weight <= goal[member] + band[member]
    )
