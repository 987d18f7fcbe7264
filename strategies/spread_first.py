"""`spread_first`: a topic's partitions go to distinct members and distinct racks before one is used again.

Losing a member or a rack then costs every topic as little as possible. In order: each topic even over members, even
over racks as far as that allows, the total even over members as far as both allow, few moves. Members without a
rack count as one rack together.

How: each topic is split into one part per rack, and each part is a topic of its own for `sticky_balanced`, which only
the members of that rack want. Parts are sized so that members are even, and among these sizes, as even over racks as
possible. A remainder stays in its rack, unless moving it makes the racks' totals more even.

Not promised: the best total balance and the fewest moves over racks (paths through a third rack are not searched).
Capacities, weights and the replicas' racks do not count.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from assigner.strategies.problem.current_owners import CurrentOwners, held
from assigner.strategies.problem.options import must_move, refuse_unknown
from assigner.strategies.problem.shares import EPSILON, Indices, fair_shares, floors, lowest
from assigner.strategies.problem.units import Units, fold, unfold
from assigner.strategies.problem.validation import check
from assigner.strategies.standbys.placement import place_standbys
from assigner.strategies.sticky_balanced import strategy as sticky_balanced
from assigner.strategy import NONE, BoolArray, FloatArray, IntArray, Members, Problem, Solution, Topics
from assigner.strategy.explanation import Explanation


def rack_of_units(units: Units, members: Members, now: CurrentOwners) -> tuple[IntArray, IntArray]:
    """Find the rack of each member and of each unit, numbered from 0; members without a rack share one."""
    rack = np.searchsorted(np.unique(members.rack), members.rack).astype(np.int32)
    mine, sizes = part_sizes(units, members, now, rack)
    return rack, _fill(units, now, mine, sizes)


# --- sizes of parts ---------------------------------------------------------------------------------------------


@dataclass
class _Cut:
    """Counts of rows split by rack. Arrays are [row, rack]."""

    base: IntArray
    open: BoolArray
    """Racks that may get one unit more."""
    remainder: BoolArray
    sticky: BoolArray
    """Racks that have that one unit now."""


def part_sizes(units: Units, members: Members, now: CurrentOwners, rack: IntArray) -> tuple[IntArray, IntArray]:
    """Compute the present rack of each unit, or NONE, and the size of each part as [row, rack]."""
    racks = int(rack.max()) + 1
    eligible = units.wanted & ~members.hold & (members.cap != 0)
    takers = np.stack([eligible[:, rack == number].sum(axis=1) for number in range(racks)], axis=1)
    mine = np.where(now.owner == NONE, np.int32(NONE), rack[now.owner])
    # A unit that must stay unowned is put into the first part, where it changes nothing.
    mine = np.where(now.fixed & (mine == NONE), np.int32(0), mine)
    have, fixed = _count(units, now, mine, racks, mine != NONE), _count(units, now, mine, racks, now.fixed)
    cut = _cut(units, takers, have, fixed)
    load = (units.size @ (cut.base + cut.remainder)).astype(np.float64)
    _even_out(units, cut, load, np.maximum(takers.max(axis=0), 1).astype(np.float64))
    return mine, (cut.base + cut.remainder).astype(np.int32)


def _count(units: Units, now: CurrentOwners, mine: IntArray, racks: int, which: BoolArray) -> IntArray:
    cell = now.row[which].astype(np.int64) * racks + mine[which]
    return np.bincount(cell, minlength=units.count * racks).reshape(units.count, racks).astype(np.int32)


def _cut(units: Units, takers: IntArray, have: IntArray, fixed: IntArray) -> _Cut:
    shape = takers.shape
    base, open_ = fixed.copy(), np.zeros(shape, np.bool_)
    remainder, load = np.zeros(shape, np.bool_), np.zeros(shape[1])
    for row, total in enumerate(units.partitions.tolist()):
        served = int(takers[row].sum())
        if served:
            low = np.maximum(fixed[row], total // served * takers[row])
            high = np.maximum(low, -(-total // served) * takers[row])
            base[row], open_[row] = _floors_within(total, low, high, fixed[row])
            preference = load / np.maximum(takers[row], 1) - 1e9 * (have[row] > base[row])
            remainder[row, lowest(preference, open_[row], total - int(base[row].sum()))] = True
        load += units.size[row] * (base[row] + remainder[row])
    return _Cut(base, open_, remainder, (have > base) & open_)


def _floors_within(total: int, low: IntArray, high: IntArray, fixed: IntArray) -> tuple[IntArray, BoolArray]:
    """Split the total as evenly as the limits allow; fixed units may leave no room for the lower limits."""
    least = low if low.sum() <= total else fixed
    most = np.maximum(high, least).astype(np.float64)
    if most.sum() < total:
        most = np.where(high > 0, np.inf, least)
    share = fair_shares(float(total), np.ones(len(least)), least.astype(np.float64), most)
    base, open_ = floors(share, least.astype(np.float64))
    return base, open_ & (base < most)


def _even_out(units: Units, cut: _Cut, load: FloatArray, size: FloatArray) -> None:
    """Transfer remainders from fuller racks to emptier ones, those that cost no move first."""
    while True:
        transfer = _best_transfer(units, cut, load, size)
        if transfer is None:
            return
        row, giver, taker = transfer
        cut.remainder[row, giver], cut.remainder[row, taker] = False, True
        load[giver] -= units.size[row]
        load[taker] += units.size[row]


def _best_transfer(units: Units, cut: _Cut, load: FloatArray, size: FloatArray) -> tuple[int, int, int] | None:
    order = np.argsort(load / size, kind="stable")
    for giver in order[::-1].tolist():
        for taker in order.tolist():
            rows = np.flatnonzero(cut.remainder[:, giver] & cut.open[:, taker] & ~cut.remainder[:, taker])
            gain = _gain(units.size[rows].astype(np.float64), load[giver], size[giver], load[taker], size[taker])
            rows = rows[gain > EPSILON]
            if len(rows):
                cost = cut.sticky[rows, giver].astype(int) - cut.sticky[rows, taker]
                return int(rows[cost.argmin()]), giver, taker
    return None


def _gain(unit: FloatArray, full: float, many: float, empty: float, few: float) -> FloatArray:
    """Compute how much a transfer of `unit` partitions lowers the sum of load^2 / members."""
    return np.asarray((2 * full - unit) * unit / many - (2 * empty + unit) * unit / few)


# --- units of parts ---------------------------------------------------------------------------------------------


def _fill(units: Units, now: CurrentOwners, mine: IntArray, sizes: IntArray) -> IntArray:
    """Choose the rack of each unit: units stay in their rack up to the part's size, and the others fill the parts."""
    rack = np.empty(len(mine), np.int32)
    offsets = units.offsets.tolist()
    numbers = np.arange(sizes.shape[1], dtype=np.int32)
    for row in range(units.count):
        part = slice(offsets[row], offsets[row + 1])
        kept = _kept(now.owner[part], now.fixed[part], mine[part], sizes[row])
        rack[part] = np.where(kept, mine[part], np.int32(NONE))
        missing = sizes[row] - np.bincount(mine[part][kept], minlength=len(numbers))
        rest = np.flatnonzero(~kept)
        rack[part][rest] = np.resize(np.append(np.repeat(numbers, missing), 0), len(rest))
    return rack


def _kept(owner: IntArray, fixed: BoolArray, mine: IntArray, sizes: IntArray) -> BoolArray:
    """Choose the units that stay in their rack: fixed ones, then one of each owner, then a second one of each, and so
    on, so that a part that shrinks takes from the members that have most of it."""
    round_ = np.where(fixed, -1, _rank(owner))
    order = np.lexsort((np.arange(len(owner)), round_, mine))
    place = np.empty(len(owner), np.int64)
    place[order] = np.arange(len(owner))
    first = np.searchsorted(mine[order], mine, side="left")
    return np.asarray((mine != NONE) & (place - first < sizes[mine]))


def _rank(owner: IntArray) -> IntArray:
    """Number each owner's units from 0."""
    order = np.argsort(owner, kind="stable")
    ordered = owner[order]
    rank = np.empty(len(owner), np.int64)
    rank[order] = np.arange(len(owner)) - np.searchsorted(ordered, ordered, side="left")
    return rank.astype(np.int32)


class SpreadFirst:
    name = "spread_first"

    def assign(self, problem: Problem) -> Solution:
        check(problem)
        refuse_unknown(self.name, problem.options)
        owner = _until_stable(problem) if (problem.members.cap != NONE).any() else _spread(problem)
        return Solution(owner, place_standbys(problem, owner), Explanation(problem, owner, must_move(problem)))

    def place_standbys(self, problem: Problem, owner: IntArray) -> IntArray:
        return place_standbys(problem, owner)


def _spread(problem: Problem) -> IntArray:
    units = fold(problem)
    owner = np.full(len(units.owner), NONE, np.int32)
    if problem.members.count and len(owner):
        owner = _in_parts(units, problem.members, held(units, problem.members))
    return unfold(units, problem, owner)


def _until_stable(problem: Problem) -> IntArray:
    """Repeat while the result improves: with caps one pass may not be enough. The measure can't fall for ever."""
    present, worth = problem.owner, _unevenness(problem, problem.owner)
    while True:
        owner = _beyond_racks(problem, _spread(replace(problem, owner=present)))
        value = _unevenness(problem, owner)
        if value >= worth:
            return present
        present, worth = owner, value


def _unevenness(problem: Problem, owner: IntArray) -> tuple[int, int, int, int, int]:
    """Rate owners, less is better: (violations, unowned, squares per topic and member, per topic and rack, per
    member)."""
    members, mine = problem.members, owner != NONE
    topic = np.repeat(np.arange(problem.topics.count), problem.topics.partitions)
    loose = mine & ~problem.pinned
    violations = int((~members.subscription[owner[loose], topic[loose]]).sum())
    load = np.bincount(owner[mine], minlength=members.count)
    limit = np.maximum(members.cap, np.bincount(owner[mine & problem.pinned], minlength=members.count))
    violations += int((load - limit)[members.cap != NONE].clip(min=0).sum())
    rack = np.searchsorted(np.unique(members.rack), members.rack)
    topic, who = topic[mine], owner[mine].astype(np.intp)
    return violations, int((~mine).sum()), _squares(topic, who), _squares(topic, rack[who]), int((load**2).sum())


def _squares(topic: Indices, group: Indices) -> int:
    width = int(group.max(initial=0)) + 1
    return int((np.bincount(topic * width + group) ** 2).sum())


def _in_parts(units: Units, members: Members, now: CurrentOwners) -> IntArray:
    rack, rack_of_unit = rack_of_units(units, members, now)
    racks = int(rack.max()) + 1
    part = now.row.astype(np.int64) * racks + rack_of_unit
    # Units in the order of their parts; a part of a set is repeated for every topic of the set.
    order = np.argsort(part, kind="stable")
    length = np.bincount(part, minlength=units.count * racks)
    parts = np.flatnonzero(length)
    copies = units.size[parts // racks]
    part_of_topic = np.repeat(parts, copies)
    where = _positions(length[parts], copies, order)
    solution = sticky_balanced.assign(
        Problem(
            _members(units, members, rack, racks, part_of_topic),
            Topics(length[part_of_topic].astype(np.int32), copartition=part_of_topic.astype(np.int32)),
            owner=now.owner[where],
            pinned=now.fixed[where],
            options={"balance": "topic"},
        )
    )
    owner = np.empty(len(units.owner), np.int32)
    owner[where] = solution.owner
    return owner


def _positions(length: Indices, copies: IntArray, order: Indices) -> Indices:
    """Find the unit at each flat position of the problem in parts."""
    if bool((copies == 1).all()):
        return order
    pieces = np.split(order, np.cumsum(length)[:-1])
    return np.concatenate([np.tile(piece, count) for piece, count in zip(pieces, copies.tolist(), strict=True)])


def _members(units: Units, members: Members, rack: IntArray, racks: int, part_of_topic: Indices) -> Members:
    wanted = units.wanted[part_of_topic // racks] & (rack == (part_of_topic % racks)[:, None])
    return Members(
        capacity=np.ones(members.count),
        rack=np.full(members.count, NONE, np.int32),
        subscription=np.ascontiguousarray(wanted.T),
        hold=members.hold,
        cap=members.cap,
        load=members.load,
    )


def _beyond_racks(problem: Problem, owner: IntArray) -> IntArray:
    """Assign units that caps keep out of their rack to any member that has room."""
    uniform_problem = replace(problem.members, capacity=np.ones(problem.members.count))
    topics = replace(problem.topics, weight=None, replica_racks=None)
    pinned = problem.pinned | (owner != NONE)
    return sticky_balanced.assign(Problem(uniform_problem, topics, owner, pinned, options={"balance": "topic"})).owner


strategy = SpreadFirst()
