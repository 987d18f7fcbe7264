"""A group with standbys that lives through joins and deaths, and what the best plan could have done at each."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from assigner.strategy import NONE, IntArray, Problem, Solution, Strategy
from tests.support.strategies.problems import loads, problem


@dataclass
class Event:
    orphans: int
    cold: int
    built: int
    """Standby copies that nobody had."""
    moves: int


class Life:
    """One topic. Members are numbered in the order of joining; numbers of those after a dead one move up."""

    def __init__(self, strategy: Strategy, partitions: int, members: int, standbys: int) -> None:
        self._strategy = strategy
        self._count = standbys
        self.members = members
        self.owner = np.full(partitions, NONE, np.int32)
        self.standbys = np.full((partitions, 0), NONE, np.int32)
        self.plan()

    @property
    def problem(self) -> Problem:
        given = problem([len(self.owner)], self.members, self.owner)
        return replace(given, standbys=self.standbys, standby_count=self._count)

    def plan(self) -> Event:
        given = self.problem
        solution = self._strategy.assign(given)
        event = Event(
            int((self.owner == NONE).sum()),
            solution.explanation.cold_actives,
            built(given, solution),
            solution.explanation.moves,
        )
        self.owner, self.standbys = solution.owner, solution.standbys
        return event

    def join(self, count: int = 1) -> Event:
        self.members += count
        return self.plan()

    def die(self, member: int) -> None:
        numbers = np.arange(self.members, dtype=np.int32)
        numbers = np.where(numbers > member, numbers - 1, numbers)
        numbers[member] = NONE
        # The last place is for NONE itself.
        moved = np.append(numbers, np.int32(NONE)).astype(np.int32)
        self.members -= 1
        self.owner, self.standbys = moved[self.owner], moved[self.standbys]


def built(given: Problem, solution: Solution) -> int:
    """Standbys where neither a standby nor the owner was."""
    had = solution.standbys == given.owner[:, None]
    for column in given.standbys.T if given.standbys.size else ():
        had |= solution.standbys == column[:, None]
    return int((~had & (solution.standbys != NONE)).sum())


def copies(members: int, owner: IntArray, standbys: IntArray) -> IntArray:
    """[member]: what it owns and the copies it holds."""
    return loads(members, owner) + loads(members, standbys.reshape(-1))


def most_promoted(given: Problem, planned: IntArray) -> int:
    """Of the partitions that change owner, the most that can go to a standby holder: one topic, all else as planned."""
    members, total = given.members.count, len(planned)
    stays = planned == given.owner
    changing = np.flatnonzero(~stays)
    if not len(changing):
        return 0
    kept = loads(members, planned[stays])
    warm = np.zeros((len(changing), members))
    for column in given.standbys[changing].T:
        held = np.flatnonzero(column != NONE)
        warm[held, column[held]] = -1
    each = np.kron(np.eye(len(changing)), np.ones(members))
    every = np.kron(np.ones(len(changing)), np.eye(members))
    least, most = total // members - kept, -(-total // members) - kept
    found = milp(
        warm.ravel(),
        constraints=[LinearConstraint(each, 1, 1), LinearConstraint(every, least, most)],
        integrality=np.ones(warm.size),
        bounds=Bounds(0, 1),
    )
    assert found.success, found.message
    return -round(float(found.fun))


def with_standbys(given: Problem, count: int, standbys: object = None, rack: object = None) -> Problem:
    total = len(given.owner)
    present = np.full((total, 0), NONE, np.int32) if standbys is None else np.asarray(standbys, np.int32)
    members = given.members if rack is None else replace(given.members, rack=np.asarray(rack, np.int32))
    return replace(given, members=members, standbys=present, standby_count=count)


def pairs(members: int, owner: IntArray, standbys: IntArray) -> IntArray:
    """[owner, holder]: copies."""
    table = np.zeros((members, members), np.int32)
    for column in standbys.T:
        there = column != NONE
        np.add.at(table, (owner[there], column[there]), 1)
    return table


def promotable(members: int, owner: IntArray, width: int) -> tuple[IntArray, IntArray, IntArray]:
    """([owner, holder]: copies that can be promoted for sure, and at most; [owner]: how many holders may have more than
    for sure). One topic, equal members."""
    own, total = loads(members, owner), len(owner)
    floor, ceiling = total // (members - 1), -(-total // (members - 1))
    sure, most = (np.tile(width * (share - own).clip(min=0), (members, 1)) for share in (floor, ceiling))
    taken = np.maximum(own, floor)
    remainders = width * (total - taken.sum() + taken).clip(min=0)
    return sure, most, remainders


def cold_pairs(members: int, owner: IntArray, standbys: IntArray) -> int:
    """Copies that could not all be promoted if their owner died, over all owners."""
    sure, most, remainders = promotable(members, owner, standbys.shape[1])
    count = pairs(members, owner, standbys)
    lucky = ((count > sure) & (most > sure)).sum(axis=1)
    return int(np.maximum(count - most, 0).sum() + np.maximum(lucky - remainders, 0).sum())
