"""`spread_first`: a topic's partitions go to distinct members and distinct racks before one is used again.

Losing a member or a rack then costs every topic as little as possible. In order: each topic even over members, even
over racks as far as that allows, the total even over members as far as both allow, few moves. Members that name no
rack count as one rack together.

How: each topic is cut into one part per rack (`strategies.rack_parts`), and each part is a topic of its own for
`sticky_balanced`, wanted by the members of that rack alone.

Not promised: the best total balance and the fewest moves over racks (gifts through a third rack are not looked for).
Capacities, weights and the replicas' racks do not count.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from assigner.explanation import Explanation
from assigner.strategy import NONE, IntArray, Members, Problem, Solution, Topics
from strategies.explain import must_move
from strategies.held import Held, held
from strategies.options import refuse_unknown
from strategies.rack_parts import rack_of_units
from strategies.shares import Indices
from strategies.standbys import place_standbys
from strategies.sticky_balanced import strategy as sticky_balanced
from strategies.units import Units, fold, unfold
from strategies.validity import check


class SpreadFirst:
    name = "spread_first"

    def assign(self, problem: Problem) -> Solution:
        check(problem)
        refuse_unknown(self.name, problem.options)
        owner = _settle(problem) if (problem.members.cap != NONE).any() else _spread(problem)
        return Solution(owner, place_standbys(problem, owner), Explanation(problem, owner, must_move(problem)))

    def place_standbys(self, problem: Problem, owner: IntArray) -> IntArray:
        return place_standbys(problem, owner)


def _spread(problem: Problem) -> IntArray:
    units = fold(problem)
    owner = np.full(len(units.owner), NONE, np.int32)
    if problem.members.count and len(owner):
        owner = _in_parts(units, problem.members, held(units, problem.members))
    return unfold(units, problem, owner)


def _settle(problem: Problem) -> IntArray:
    """With caps one pass is not always the last word: go on while the result gets better, by a measure that can't
    fall for ever."""
    present, worth = problem.owner, _unevenness(problem, problem.owner)
    while True:
        owner = _beyond_racks(problem, _spread(replace(problem, owner=present)))
        value = _unevenness(problem, owner)
        if value >= worth:
            return present
        present, worth = owner, value


def _unevenness(problem: Problem, owner: IntArray) -> tuple[int, int, int, int, int]:
    """(breaches of rules, unowned, squares per topic and member, per topic and rack, per member): less is better."""
    members, mine = problem.members, owner != NONE
    topic = np.repeat(np.arange(problem.topics.count), problem.topics.partitions)
    loose = mine & ~problem.pinned
    breaches = int((~members.subscription[owner[loose], topic[loose]]).sum())
    load = np.bincount(owner[mine], minlength=members.count)
    limit = np.maximum(members.cap, np.bincount(owner[mine & problem.pinned], minlength=members.count))
    breaches += int((load - limit)[members.cap != NONE].clip(min=0).sum())
    rack = np.searchsorted(np.unique(members.rack), members.rack)
    topic, who = topic[mine], owner[mine].astype(np.intp)
    return breaches, int((~mine).sum()), _squares(topic, who), _squares(topic, rack[who]), int((load**2).sum())


def _squares(topic: Indices, group: Indices) -> int:
    width = int(group.max(initial=0)) + 1
    return int((np.bincount(topic * width + group) ** 2).sum())


def _in_parts(units: Units, members: Members, now: Held) -> IntArray:
    rack, rack_of_unit = rack_of_units(units, members, now)
    racks = int(rack.max()) + 1
    part = now.row.astype(np.int64) * racks + rack_of_unit
    # Units in the order of their parts; a part of a set stands there once for every topic of the set.
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
    """The unit at each flat position of the problem in parts."""
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
    """What caps kept out of its rack goes to whoever has room."""
    alike = replace(problem.members, capacity=np.ones(problem.members.count))
    topics = replace(problem.topics, weight=None, replica_racks=None)
    pinned = problem.pinned | (owner != NONE)
    return sticky_balanced.assign(Problem(alike, topics, owner, pinned, options={"balance": "topic"})).owner


strategy = SpreadFirst()
