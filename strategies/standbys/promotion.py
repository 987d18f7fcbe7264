"""Assigns units that change their owner to members that hold a standby of them, where that is as good otherwise.

Units that stay are never touched, so no unit moves that did not move before. Units of one row that change their owner
are exchanged, over as many members as needed; and where one member may have one unit more of the row, and another one
less, without either leaving the floor or the ceiling of its share or the loads becoming less even, the remainder goes
to the holder. Every step assigns one unit more to a holder, so this ends.

For one row without weights the result is the maximum: each promotion is a path from a unit to a holder, and a flow
without an augmenting path is maximal. Over several rows a step changes the loads of two members, and is made only if
they stay even or a unit of another row can go the other way; there a maximum is not promised. In a group where very
many units change owner at once, the search is abandoned after a while.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from assigner.strategies.problem.shares import EPSILON
from assigner.strategies.problem.units import Units
from assigner.strategies.standbys.demand import Numbers
from assigner.strategies.standbys.slots import ranks
from assigner.strategy import NONE, BoolArray, FloatArray, IntArray, Members

_BUDGET = 1_000_000
"""Units to examine on paths to holders; bounds the time."""
_ENDS = 64
"""Members to consider at either end when a remainder is shifted."""


def prefer_standby_holders(units: Units, members: Members, owner: IntArray, kind: IntArray | None = None) -> IntArray:
    """Improve the planned owners so that more of them are holders. `owner`: the planned owner of each unit;
    `units.owner` is the present one. Units of different `kind` (with replicas in other racks, for example) are not
    exchanged. The result is `owner` itself if nothing can be improved."""
    changing = (owner != units.owner) & (owner != NONE) & ~units.pinned
    if units.standbys is None or not changing.any():
        return owner
    row = np.repeat(np.arange(units.count, dtype=np.int32), units.partitions)
    who = np.flatnonzero(changing)
    holds = _may_hold(units, members, row, who)
    cold = (holds != NONE).any(axis=1) & ~(holds == owner[who, None]).any(axis=1)
    if not cold.any():
        return owner
    order = np.argsort(row[who], kind="stable")
    who, holds = who[order], holds[order]
    classes = _classes(units, row, who, kind)
    plan = _Plan(units, members, row, _in_bulk(owner, who, holds, classes, members.count))
    # By a remainder a member would get one more unit of any kind, maybe one without a replica near it.
    plan.counts_stay |= kind is not None
    rows = np.unique(row[who[cold[order]]])
    begins = np.searchsorted(row[who], rows)
    ends = np.searchsorted(row[who], rows, side="right")
    for number, begin, end in zip(rows.tolist(), begins.tolist(), ends.tolist(), strict=True):
        part = slice(begin, end)
        if (~_warm(plan.owner[who[part]], holds[part]) & (holds[part] != NONE).any(axis=1)).any():
            _PromotionRow(plan, number, who[part], holds[part], classes[part]).improve()
    return plan.owner


def _may_hold(units: Units, members: Members, row: IntArray, who: Numbers) -> IntArray:
    """Find the holders that may own each unit of `who`, as [unit of `who`, replica]; else NONE."""
    assert units.standbys is not None
    holds = units.standbys[who]
    may = units.wanted[row[who, None], holds] & ~members.hold[holds]
    return np.where((holds != NONE) & may, holds, np.int32(NONE))


def _classes(units: Units, row: IntArray, who: Numbers, kind: IntArray | None) -> IntArray:
    """Number units so that those with equal numbers may be exchanged: they have one row, one weight and one kind."""
    columns = [row[who].astype(np.float64)]
    if units.weight is not None:
        columns.append(units.weight[who])
    if kind is not None:
        columns.append(kind[who].astype(np.float64))
    if len(columns) == 1:
        return row[who]
    _, classes = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    return classes.reshape(-1).astype(np.int32)


def _warm(owner: IntArray, holds: IntArray) -> BoolArray:
    return np.asarray((holds == owner[:, None]).any(axis=1))


def _in_bulk(owner: IntArray, who: Numbers, holds: IntArray, classes: IntArray, members: int) -> IntArray:
    """Assign the places of each class, first come first served, to the class's units that have a standby there."""
    places = classes.astype(np.int64) * members + owner[who]
    kinds, place_of = np.unique(places, return_inverse=True)
    left = np.bincount(place_of, minlength=len(kinds))
    given = np.full(len(who), NONE, np.int64)
    for preferred in (np.where(_warm(owner[who], holds), owner[who], NONE), *holds.T, owner[who]):
        waiting = np.flatnonzero((given == NONE) & (preferred != NONE))
        keys = classes[waiting].astype(np.int64) * members + preferred[waiting]
        at = np.minimum(np.searchsorted(kinds, keys), len(kinds) - 1)
        there = kinds[at] == keys
        waiting, at = waiting[there], at[there]
        served = ranks(at) < left[at]
        given[waiting[served]] = preferred[waiting[served]]
        left -= np.bincount(at[served], minlength=len(kinds))
    over = np.flatnonzero(given == NONE)
    # Both are in the order of classes, so the remaining places match the remaining units.
    order = over[np.argsort(classes[over], kind="stable")]
    given[order] = np.repeat(kinds % members, left)
    result = owner.copy()
    result[who] = given
    return result


class _Plan:
    """The planned owners, and the resulting loads of all members."""

    def __init__(self, units: Units, members: Members, row: IntArray, owner: IntArray) -> None:
        self.units = units
        self.owner = owner
        self.row = row
        self.budget = _BUDGET
        self.counts_stay = units.weight is not None
        owned = owner != NONE
        self.load: FloatArray = np.bincount(owner[owned], units.size[row[owned]], members.count).astype(np.float64)
        self._members = members
        self._changing = (owner != units.owner) & owned & ~units.pinned
        self._taker = ~members.hold & (members.cap != 0)
        self._uniform = bool((units.wanted == units.wanted[:1]).all())
        goal = self.load.copy()
        who = self._taker & units.wanted.any(axis=0)
        goal[who] = self.load[who].sum() * members.capacity[who] / members.capacity[who].sum()
        self._least, self._most = np.floor(goal + EPSILON), np.ceil(goal - EPSILON)
        self._cells: dict[int, tuple[IntArray, IntArray, IntArray]] = {}

    def cells(self, row: int) -> tuple[IntArray, IntArray, IntArray]:
        """Count the units of the row per member, with the floor and the ceiling of its share."""
        if row not in self._cells:
            begin, end = self.units.offsets[row : row + 2]
            mine = self.owner[begin:end]
            count = np.bincount(mine[mine != NONE], minlength=len(self.load)).astype(np.int32)
            who = self._taker & self.units.wanted[row]
            capacity = self._members.capacity
            share = count.astype(np.float64)
            if who.any():
                share[who] = count[who].sum() * capacity[who] / capacity[who].sum()
            least, most = np.floor(share + EPSILON), np.ceil(share - EPSILON)
            self._cells[row] = count, least.astype(np.int32), most.astype(np.int32)
        return self._cells[row]

    def give(self, unit: int, member: int) -> None:
        row, giver = int(self.row[unit]), int(self.owner[unit])
        count, size = self.cells(row)[0], self.units.size[row]
        count[giver] -= 1
        count[member] += 1
        self.load[giver] -= size
        self.load[member] += size
        self.owner[unit] = member

    def even(self, giver: int, taker: int, size: float) -> bool:
        """Whether the loads stay as even if `size` partitions move from `giver` to `taker`."""
        load, capacity, cap = self.load, self._members.capacity, self._members.cap[taker]
        if cap != NONE and load[taker] + size > cap:
            return False
        if self._uniform and load[taker] + size <= self._most[taker] and load[giver] - size >= self._least[giver]:
            return True
        raised = (2 * load[taker] + size) / capacity[taker] - (2 * load[giver] - size) / capacity[giver]
        return bool(raised <= EPSILON)

    def counterweight(self, row: int, giver: int, taker: int) -> int | None:
        """Find a unit of another row to move the other way: of the same size, one that changes owner anyway, of which
        the giver holds no standby, and whose row stays even."""
        units = self.units
        mine = np.flatnonzero(self._changing & (self.owner == giver))
        assert units.standbys is not None
        mine = mine[(self.row[mine] != row) & (units.size[self.row[mine]] == units.size[row])]
        mine = mine[units.wanted[self.row[mine], taker] & ~(units.standbys[mine] == giver).any(axis=1)]
        self.budget -= len(mine) + 1
        for unit in mine.tolist():
            count, least, most = self.cells(int(self.row[unit]))
            if count[giver] > least[giver] and count[taker] < most[taker]:
                return int(unit)
        return None


class _PromotionRow:
    """Promotes standbys among the units of one row that change their owner."""

    def __init__(self, plan: _Plan, row: int, who: Numbers, holds: IntArray, kinds: IntArray) -> None:
        self._plan = plan
        self._row = row
        self._size = float(plan.units.size[row])
        self._holders = {u: [m for m in h if m != NONE] for u, h in zip(who.tolist(), holds.tolist(), strict=True)}
        self._kind = dict(zip(who.tolist(), kinds.tolist(), strict=True))
        self._cold: dict[tuple[int, int], set[int]] = defaultdict(set)
        self._warm: dict[tuple[int, int], set[int]] = defaultdict(set)
        """(kind, member): units planned for the member, without and with a standby there."""
        self._copies: dict[tuple[int, int], list[int]] = defaultdict(list)
        """(kind, member): units that the member has a standby of."""
        for unit, holders in self._holders.items():
            self._put(unit, int(plan.owner[unit]))
            for holder in holders:
                self._copies[self._kind[unit], holder].append(unit)

    def improve(self) -> None:
        gained = True
        while gained:
            self._exchange_all()
            gained = not self._plan.counts_stay and self._shift_all()

    def _put(self, unit: int, member: int) -> None:
        side = self._warm if member in self._holders[unit] else self._cold
        side[self._kind[unit], member].add(unit)

    def _give(self, unit: int, member: int) -> None:
        before = int(self._plan.owner[unit])
        side = self._warm if before in self._holders[unit] else self._cold
        side[self._kind[unit], before].remove(unit)
        self._plan.give(unit, member)
        self._put(unit, member)

    def _candidates(self) -> list[int]:
        """List units planned for a member without a standby although another member holds one."""
        return sorted(u for units in self._cold.values() for u in units if self._holders[u])

    # --- exchanging units ------------------------------------------------------------------------------------------

    def _exchange_all(self) -> None:
        """Exchange units in rounds, each of which visits a member once. If a round finds nothing, the members that it
        visited lead to no holder from any unit."""
        gained = True
        while gained and self._plan.budget > 0:
            gained = False
            closed: dict[int, set[int]] = defaultdict(set)
            for unit in self._candidates():
                kind = self._kind[unit]
                if unit not in self._warm[kind, int(self._plan.owner[unit])]:
                    gained |= self._exchange(unit, closed[kind])

    def _exchange(self, unit: int, closed: set[int]) -> bool:
        kind, planned = self._kind[unit], int(self._plan.owner[unit])
        came, end = self._reach(unit, closed, stop=True)
        closed |= came.keys() - {end}
        if end == NONE:
            return False
        # If the path ends at its start, the unit found there is `unit` itself, and no other unit takes its place.
        other = NONE if end == planned else min(self._cold[kind, end])
        self._augment(end, came)
        if other != NONE:
            self._give(other, planned)
        return True

    def _reach(self, unit: int, closed: set[int], *, stop: bool) -> tuple[dict[int, tuple[int, int]], int]:
        """Find the members reachable along holders, as member -> (unit that moves there, member that it leaves, or
        NONE); and the first of them that has a unit without a standby, or NONE. With `stop` the search ends there."""
        kind = self._kind[unit]
        came: dict[int, tuple[int, int]] = {}
        frontier = [(unit, NONE)]
        for going, source in frontier:
            self._plan.budget -= 1
            for member in sorted(self._holders[going]):
                if member in came or member in closed:
                    continue
                came[member] = (going, source)
                if stop and self._cold[kind, member]:
                    return came, member
                frontier += [(other, member) for other in sorted(self._warm[kind, member])]
        return came, NONE

    def _augment(self, end: int, came: dict[int, tuple[int, int]]) -> None:
        while end != NONE:
            going, source = came[end]
            self._give(going, end)
            end = source

    # --- shifting remainders -------------------------------------------------------------------------------------

    def _shift_all(self) -> bool:
        gained = False
        for unit in self._candidates():
            if self._plan.budget <= 0:
                break
            if unit not in self._warm[self._kind[unit], int(self._plan.owner[unit])]:
                gained |= self._shift(unit)
        return gained

    def _shift(self, unit: int) -> bool:
        """Move the unit to a holder that may have one more of the row, at the expense of a member that may have one
        less."""
        count, least, most = self._plan.cells(self._row)
        came, _ = self._reach(unit, set(), stop=False)
        takers = [member for member in came if count[member] < most[member]][:_ENDS]
        if not takers:
            return False
        left = self._leave(unit)
        givers = [member for member in left if count[member] > least[member]][:_ENDS]
        self._plan.budget -= len(takers) * len(givers)
        for taker in takers:
            for giver in givers:
                if self._plan.even(giver, taker, self._size):
                    self._apply(unit, taker, giver, came, left)
                    return True
        return any(self._shift_balanced(unit, taker, giver, came, left) for taker in takers for giver in givers)

    def _shift_balanced(
        self,
        unit: int,
        taker: int,
        giver: int,
        came: dict[int, tuple[int, int]],
        left: dict[int, tuple[int, int]],
    ) -> bool:
        if self._plan.budget <= 0:
            return False
        other = self._plan.counterweight(self._row, taker, giver)
        if other is None:
            return False
        self._apply(unit, taker, giver, came, left)
        self._plan.give(other, giver)
        return True

    def _leave(self, unit: int) -> dict[int, tuple[int, int]]:
        """Find the members that could have one unit less, along holders, as member -> (unit that leaves it, member it
        moves to). The first ones have a unit that can replace `unit`, which then leaves for NONE."""
        kind, planned = self._kind[unit], int(self._plan.owner[unit])
        count, least, _ = self._plan.cells(self._row)
        came: dict[int, tuple[int, int]] = {planned: (unit, NONE)}
        for (other_kind, member), units in sorted(self._cold.items()):
            if other_kind == kind and units and member != planned:
                came[member] = (min(units), NONE)
        frontier, ends = list(came), sum(bool(count[member] > least[member]) for member in came)
        for member in frontier:
            if ends >= _ENDS:
                break
            self._plan.budget -= len(self._copies[kind, member])
            for other in self._copies[kind, member]:
                source = int(self._plan.owner[other])
                if source not in came and other in self._warm[kind, source]:
                    came[source] = (other, member)
                    ends += bool(count[source] > least[source])
                    frontier.append(source)
        return came

    def _apply(
        self,
        unit: int,
        taker: int,
        giver: int,
        came: dict[int, tuple[int, int]],
        left: dict[int, tuple[int, int]],
    ) -> None:
        planned = int(self._plan.owner[unit])
        short: list[tuple[int, int]] = []
        while giver != NONE:
            leaving, target = left[giver]
            short.append((leaving, target))
            giver = target
        self._augment(taker, came)
        for leaving, target in reversed(short):
            if target != NONE:
                self._give(leaving, target)
            elif leaving != unit:
                self._give(leaving, planned)
