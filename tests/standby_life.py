"""A group with standbys that lives through joins and deaths, and what the best plan could have done at each."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from assigner.strategy import NONE, IntArray, Problem, Solution, Strategy
from tests.problems import loads, problem


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
