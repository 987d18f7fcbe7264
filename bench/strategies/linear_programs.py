"""Fewest moves by linear programming: slow, and sees all there is to see.

Each of these is a flow with whole numbers as limits, so the best corner has whole numbers too. Given are tables
[member, topic] of what is held, and the tiers of members that share evenly (`bench.strategies.bounds`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import coo_array, vstack

from assigner.strategy import BoolArray, IntArray

Counts = NDArray[np.int64]

BEYOND = 12
"""How many more than its fair share a member may have of a topic where subscriptions overlap."""


@dataclass(frozen=True)
class Loads:
    """What each member has in the end: a floor, and one more for some of each level."""

    floor: Counts
    level: Counts
    extras: Counts
    """How many members of each level have one more."""


def kept_alike(over: BoolArray, extras: IntArray) -> int:
    """One subscription, even both ways: how many of the extras can be where one is already (`over`)."""
    members, topics = over.shape
    low, rest = divmod(int(extras.sum()), members)
    cell = np.arange(members * topics)
    ones = np.ones(len(cell))
    per_topic = coo_array((ones, (cell % topics, cell)), shape=(topics, len(cell)))
    per_member = coo_array((ones, (cell // topics, cell)), shape=(members, len(cell)))
    found = linprog(
        -over.reshape(-1).astype(np.float64),
        A_ub=vstack((per_member, -per_member)),
        b_ub=np.concatenate((np.full(members, low + (rest > 0)), np.full(members, -low))),
        A_eq=per_topic,
        b_eq=extras,
        bounds=(0, 1),
        method="highs",
    )
    return -round(float(found.fun))


@dataclass
class _Program:
    """Columns with a cost and a limit each, in rows that must come out as given."""

    rows: int
    cost: list[NDArray[np.float64]] = field(default_factory=list)
    most: list[NDArray[np.float64]] = field(default_factory=list)
    entries: list[tuple[Counts, Counts, NDArray[np.float64]]] = field(default_factory=list)
    columns: int = 0

    def add(
        self, cost: NDArray[np.float64], most: NDArray[np.float64], *places: tuple[NDArray[np.integer], float]
    ) -> None:
        """New columns; each place is (row of each column, factor)."""
        column = np.arange(self.columns, self.columns + len(cost))
        self.columns += len(cost)
        self.cost.append(cost)
        self.most.append(most)
        for row, factor in places:
            self.entries.append((row.astype(np.int64), column, np.full(len(cost), factor)))

    def least(self, right: Counts) -> float:
        row, column, factor = (np.concatenate(part) for part in zip(*self.entries, strict=True))
        matrix = coo_array((factor, (row, column)), shape=(self.rows, self.columns))
        most = np.concatenate(self.most)
        limits = np.stack((np.zeros(len(most)), most), axis=1)
        found = linprog(np.concatenate(self.cost), A_eq=matrix, b_eq=right, bounds=limits, method="highs")
        if found.fun is None:
            raise ValueError(f"no solution: {found.message}")
        return float(found.fun)


def kept_over_all(held: Counts, kind: IntArray, kinds: BoolArray, sizes: IntArray, loads: Loads) -> int:
    """Overlapping subscriptions, even over all: how much can stay. What moves goes by way of its taker's kind, because
    it does not matter which topics a member gets."""
    members, topics = held.shape
    to_member, to_kind, to_level = topics, topics + members, topics + members + len(kinds)
    program = _Program(to_level + len(loads.extras))
    who, topic = np.nonzero(held)
    program.add(-np.ones(len(who)), held[who, topic].astype(np.float64), (topic, 1.0), (to_member + who, 1.0))
    some, what = np.nonzero(kinds)
    program.add(np.zeros(len(some)), np.full(len(some), np.inf), (what, 1.0), (to_kind + some, 1.0))
    everyone = np.arange(members)
    program.add(np.zeros(members), np.full(members, np.inf), (to_kind + kind, -1.0), (to_member + everyone, 1.0))
    _one_more(program, loads, to_member, to_level)
    balanced = np.zeros(len(kinds), np.int64)
    return -round(program.least(np.concatenate((sizes.astype(np.int64), loads.floor, balanced, loads.extras))))


def kept_both(held: Counts, wanted: BoolArray, sizes: IntArray, loads: Loads, most_columns: int) -> int | None:
    """Overlapping subscriptions, even over all, then as near to the fair share of each topic as that allows (by the
    square of the distance): how much can stay. None if the program would be too large."""
    members, topics = held.shape
    to_member, to_level = topics, topics + members
    program = _Program(to_level + len(loads.extras))
    share = sizes / np.maximum(wanted.sum(axis=0), 1)
    who, topic = np.nonzero(wanted)
    floor, ceil = np.floor(share + 1e-9)[topic], np.ceil(share - 1e-9)[topic]
    high = np.minimum(np.maximum(ceil + BEYOND, held[who, topic]), sizes[topic]).astype(np.int64)
    if int(high.sum()) > most_columns:
        return None
    # The n-th unit of a cell has a price of its own, and prices rise, so units are bought in order.
    cell = np.repeat(np.arange(len(who)), high)
    unit = np.arange(len(cell)) - np.repeat(np.cumsum(high) - high, high)
    over, under = unit - ceil[cell], floor[cell] - unit
    price = np.where(over >= 0, 2 * over + 1, np.where(under > 0, 1 - 2 * under, 0.0))
    stays = unit < held[who, topic][cell]
    weight = int(held.sum()) + 1
    program.add(weight * price - stays, np.ones(len(cell)), (topic[cell], 1.0), (to_member + who[cell], 1.0))
    _one_more(program, loads, to_member, to_level)
    least = program.least(np.concatenate((sizes.astype(np.int64), loads.floor, loads.extras)))
    return -round(least) % weight


@dataclass(frozen=True)
class Near:
    """Partitions by topic and by the racks of their replicas: those with equal ones are alike."""

    topic: Counts
    """[class]"""
    size: Counts
    """[class]"""
    held: Counts
    """[class, member]"""
    far: BoolArray
    """[class, member]: none of the replicas is in the member's rack."""


def kept_near(near: Near, sizes: IntArray, *, topics_too: bool) -> int:
    """One subscription, even over all (and in each topic if asked for), as few as can be far from their replicas: how
    much can stay."""
    classes, members = near.held.shape
    to_cell = classes
    cells = members * len(sizes) if topics_too else 0
    to_member = to_cell + cells
    program = _Program(to_member + members + 1)
    kind, who = (place.reshape(-1) for place in np.indices((classes, members)))
    into = to_cell + near.topic[kind] * members + who if topics_too else to_member + who
    price = (near.held.sum() + 1) * near.far.astype(np.float64).reshape(-1)
    held = near.held.astype(np.float64).reshape(-1)
    program.add(price - 1, held, (kind, 1.0), (into, 1.0))
    program.add(price, np.full(len(price), np.inf), (kind, 1.0), (into, 1.0))
    floor = sizes // members
    base = int(floor.sum()) if topics_too else 0
    if topics_too:
        cell = np.arange(cells)
        program.add(np.zeros(cells), np.ones(cells), (to_cell + cell, -1.0), (to_member + cell % members, 1.0))
    low, more = divmod(int(sizes.sum()) - base * members, members)
    loads = Loads(np.full(members, low), np.zeros(members, np.int64), np.array([more]))
    _one_more(program, loads, to_member, to_member + members)
    topic_floors = np.repeat(floor.astype(np.int64), members) if topics_too else np.empty(0, np.int64)
    least = program.least(np.concatenate((near.size, topic_floors, loads.floor, loads.extras)))
    return -round(least) % (int(near.held.sum()) + 1)


def _one_more(program: _Program, loads: Loads, to_member: int, to_level: int) -> None:
    members = len(loads.floor)
    places: Sequence[tuple[NDArray[np.integer], float]] = (
        (to_member + np.arange(members), -1.0),
        (to_level + loads.level, 1.0),
    )
    program.add(np.zeros(members), np.ones(members), *places)
