"""Assigns remainders round-robin to members that have none: every member gets one in each round.

A topic gets the next members in order, so no member gets two of a topic, and none is more than one ahead. Every round
orders the members anew: with the same order in each, the same members would share the same topics, and when some of
them leave, the others could not take over their units without giving up others.
"""

from __future__ import annotations

import math

import numpy as np

from assigner.strategies.problem.shares import Indices
from assigner.strategies.uniform.model import Counts
from assigner.strategy import IntArray


def assign_fresh(partitions: Counts, members: int) -> IntArray:
    """Assign units of which none has an owner, evenly per topic and over all. A member's floor of a topic is a
    range."""
    floor, remainders = np.divmod(partitions, members)
    line = round_robin(remainders, members)
    if not floor.any():
        return line
    of_large = np.repeat(floor > 0, remainders)
    large = np.flatnonzero(floor)
    row = np.repeat(np.arange(len(large)), remainders[large])
    count = np.bincount(row * members + line[of_large], minlength=len(large) * members)
    count += np.repeat(floor[large], members)
    shares = np.repeat(np.tile(np.arange(members, dtype=np.int32), len(large)), count)
    if len(large) == len(partitions):
        return shares
    owner = np.empty(int(partitions.sum()), np.int32)
    in_large = np.repeat(floor > 0, partitions)
    owner[in_large] = shares
    owner[~in_large] = line[~of_large]
    return owner


def round_robin(remainders: Counts, members: int) -> IntArray:
    """Choose the members that get each topic's remainders, topic after topic. A topic has fewer remainders than
    members."""
    total = int(remainders.sum())
    ends = np.cumsum(remainders)
    rounds = -(-total // members)
    line = np.empty(rounds * members, np.int32)
    shuffled = _Shuffled(members, rounds)
    for round_ in range(rounds):
        now = round_ * members
        # The last round may be cut short; its remainders then go to the first members.
        order = shuffled[0 if round_ == rounds - 1 else round_]
        topic = int(np.searchsorted(ends, now, side="right"))
        before = line[int(ends[topic] - remainders[topic]) : now]
        line[now : now + members] = _last(order, before) if len(before) else order
    return line[:total]


def _last(order: Indices, some: IntArray) -> Indices:
    """Move `some` members to the end: they have a remainder of the topic that continues from the round before."""
    marked = np.zeros(len(order), np.bool_)
    marked[some] = True
    late = marked[order]
    return np.concatenate((order[~late], order[late]))


class _Shuffled:
    """Pseudo-random orders of members, the first the given one: each is composed of two out of a few."""

    def __init__(self, members: int, rounds: int) -> None:
        self._few = math.isqrt(rounds) + 1
        # Up to three members, every order has the same sets of neighbours.
        count = self._few if members > 3 else 1
        numbers = _scatter(np.arange(count * members, dtype=np.uint32)).reshape(count, members)
        self._orders = np.argsort(numbers, axis=1, kind="stable")
        self._orders[0] = np.arange(members)

    def __getitem__(self, round_: int) -> Indices:
        if len(self._orders) == 1:
            return np.asarray(self._orders[0])
        return np.asarray(self._orders[round_ // self._few][self._orders[round_ % self._few]])


def _scatter(numbers: np.ndarray[tuple[int], np.dtype[np.uint32]]) -> np.ndarray[tuple[int], np.dtype[np.uint16]]:
    """Hash numbers to 16 pseudo-random bits."""
    mixed = numbers + np.uint32(1)
    for factor in (0x7FEB352D, 0x846CA68B):
        mixed ^= mixed >> np.uint32(16)
        mixed *= np.uint32(factor)
    return (mixed >> np.uint32(16)).astype(np.uint16)
