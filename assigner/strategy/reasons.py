"""Finds the reason for each move, from the problem and the result alone.

A reason is a comparison that anybody can check: the old owner had more of the topic than the new one has now, or more
in all, or was not near a replica while the new one is. A move that none of these explains made room for another one.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from assigner.strategy.interface import NONE, BoolArray, FloatArray, IntArray, Problem

ReasonArray = NDArray[np.int8]
Indices = NDArray[np.intp]

_SLACK = 1e-9


class MoveReason(IntEnum):
    STAYS = 0
    UNOWNED = 1
    """It had no owner: it is new, or its owner left."""
    NOT_WANTED = 2
    """Its owner does not subscribe to the topic."""
    OVER_CAP = 3
    """Its owner had more than its cap allows."""
    RULE = 4
    """The strategy follows a rule that does not look at present owners."""
    SET = 5
    """The co-partitioned topics of its slot had different owners."""
    LOAD = 6
    """Its owner carried more weight than the new one does now."""
    TOPIC_SHARE = 7
    """Its owner had more of the topic than the new one has now."""
    TOTAL_SHARE = 8
    """Its owner had more in all than the new one has now."""
    RACK = 9
    """A replica is in the new owner's rack, and none was in the old one's."""
    EXCHANGE = 10
    """It makes room for another move."""


def reasons(problem: Problem, owner: IntArray, *, by_rule: bool) -> ReasonArray:
    """Find one `MoveReason` per flat partition."""
    found = np.zeros(len(owner), np.int8)
    found[(problem.owner == NONE) & (owner != NONE)] = MoveReason.UNOWNED
    moved = np.flatnonzero((problem.owner != NONE) & (owner != problem.owner))
    if len(moved):
        found[moved] = _of_moves(problem, owner, moved, by_rule=by_rule)
    return found


def _of_moves(problem: Problem, owner: IntArray, moved: Indices, *, by_rule: bool) -> ReasonArray:
    members = problem.members
    topic = np.repeat(np.arange(problem.topics.count), problem.topics.partitions)
    giver, taker, of = problem.owner[moved], owner[moved], topic[moved]
    weight = problem.topics.weight
    cap = members.cap[giver]
    checks: list[tuple[MoveReason, BoolArray]] = [
        (MoveReason.NOT_WANTED, ~members.subscription[giver, of]),
        (MoveReason.OVER_CAP, (cap != NONE) & (_loads(problem, problem.owner, None)[giver] > cap)),
        (MoveReason.RULE, np.full(len(moved), by_rule)),
        (MoveReason.SET, _torn(problem, topic, moved)),
    ]
    if weight is not None:
        checks.append((MoveReason.LOAD, _relieves(problem, owner, giver, taker, weight)))
    checks += [
        (MoveReason.TOPIC_SHARE, _evens_topic(problem, owner, topic, moved)),
        (MoveReason.TOTAL_SHARE, _relieves(problem, owner, giver, taker, None)),
        (MoveReason.RACK, ~near(problem, giver, moved) & near(problem, taker, moved)),
    ]
    found = np.full(len(moved), MoveReason.EXCHANGE, np.int8)
    for reason, applies in reversed(checks):
        found[applies] = reason
    return found


def near(problem: Problem, owner: IntArray, partitions: Indices) -> BoolArray:
    """Whether each of these partitions has a replica in the rack of its `owner`."""
    result = np.zeros(len(partitions), np.bool_)
    if problem.topics.replica_racks is None:
        return result
    starts, racks = problem.topics.replica_racks
    length = np.diff(starts)[partitions]
    which = np.repeat(np.arange(len(partitions)), length)
    inside = np.arange(len(which)) - np.repeat(np.cumsum(length) - length, length)
    rack = np.where(owner == NONE, np.int32(NONE), problem.members.rack[owner])
    hit = racks[starts[partitions][which] + inside] == rack[which]
    result[which[hit]] = True
    return np.asarray(result & (rack != NONE))


def _loads(problem: Problem, owner: IntArray, weight: FloatArray | None) -> FloatArray:
    mine = owner != NONE
    weights = None if weight is None else weight[mine]
    return np.bincount(owner[mine], weights, problem.members.count).astype(np.float64)


def _relieves(
    problem: Problem, owner: IntArray, giver: IntArray, taker: IntArray, weight: FloatArray | None
) -> BoolArray:
    capacity = problem.members.capacity
    before, after = _loads(problem, problem.owner, weight) / capacity, _loads(problem, owner, weight) / capacity
    return np.asarray((taker != NONE) & (before[giver] > after[taker] + _SLACK))


def _evens_topic(problem: Problem, owner: IntArray, topic: Indices, moved: Indices) -> BoolArray:
    capacity = problem.members.capacity
    giver, taker = problem.owner[moved], owner[moved]
    before = _cells(problem, problem.owner, topic, topic[moved], giver) / capacity[giver]
    after = _cells(problem, owner, topic, topic[moved], taker) / capacity[taker]
    return np.asarray((taker != NONE) & (before > after + _SLACK))


def _cells(problem: Problem, owner: IntArray, topic: Indices, of: Indices, who: IntArray) -> IntArray:
    """Count the partitions of topic `of` that the member `who` has, pair by pair."""
    width = problem.members.count + 1
    asked, place = np.unique(of.astype(np.int64) * width + who, return_inverse=True)
    cell = topic.astype(np.int64) * width + owner
    index = np.searchsorted(asked, cell)
    index[index == len(asked)] = 0
    counts = np.bincount(index[asked[index] == cell], minlength=len(asked))
    return np.asarray(counts[place.reshape(-1)], np.int32)


def _torn(problem: Problem, topic: Indices, moved: Indices) -> BoolArray:
    """Whether the topics of the partition's slot had different owners."""
    sets = problem.topics.copartition
    if sets is None:
        return np.zeros(len(moved), np.bool_)
    number = np.arange(len(topic)) - problem.offsets[topic]
    together = sets[topic] != NONE
    slot = np.where(together, sets[topic].astype(np.int64) * (int(number.max()) + 1) + number, np.int64(NONE))
    order = np.lexsort((problem.owner, slot))
    same = (slot[order][1:] == slot[order][:-1]) & (problem.owner[order][1:] != problem.owner[order][:-1])
    torn = np.unique(slot[order][1:][same])
    return np.asarray(together[moved] & np.isin(slot[moved], torn))
