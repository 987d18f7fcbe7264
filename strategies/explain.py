"""What a solution costs and achieves, counted from the problem and the result alone.

Nothing here trusts the strategy: moves, imbalance, mismatches and cold starts are counted from the arrays. Only the
lower bound is the strategy's own claim.
"""

from __future__ import annotations

import numpy as np

from assigner.strategy import NONE, Explanation, IntArray, Problem

_BLOCK_CELLS = 4_000_000
"""Cells of the topic x member count that are looked at in one go; bounds the memory."""


def explain(problem: Problem, owner: IntArray, lower_bound: int) -> Explanation:
    return Explanation(
        moves=moves(problem, owner),
        lower_bound=lower_bound,
        imbalance=_imbalance(problem, owner),
        imbalance_by_topic=_imbalance_by_topic(problem, owner),
        rack_mismatches=_rack_mismatches(problem, owner),
        cold_actives=_cold_actives(problem, owner),
    )


def moves(problem: Problem, owner: IntArray) -> int:
    """Partitions taken from their present owner."""
    return int(((problem.owner != NONE) & (problem.owner != owner)).sum())


def must_move(problem: Problem) -> int:
    """Partitions whose owner may not keep them: it does not subscribe to their topic."""
    topic = np.repeat(np.arange(problem.topics.count), problem.topics.partitions)
    loose = (problem.owner != NONE) & ~problem.pinned
    return int((~problem.members.subscription[problem.owner[loose], topic[loose]]).sum())


def keep_standbys(problem: Problem, owner: IntArray) -> IntArray:
    """The present standbys that are still sensible: at most as many as asked for, none on the owner itself."""
    kept = np.full((len(owner), problem.standby_count), NONE, np.int32)
    width = min(problem.standby_count, problem.standbys.shape[1])
    if width and problem.standbys.size:
        old = problem.standbys
        gone = (old == NONE) | (old == owner[:, None])
        order = np.argsort(gone, axis=1, kind="stable")
        sorted_ = np.take_along_axis(np.where(gone, np.int32(NONE), old), order, axis=1)
        kept[:, :width] = sorted_[:, :width]
    return kept


def _imbalance(problem: Problem, owner: IntArray) -> int:
    members = problem.members
    could = members.subscription.any(axis=1) & ~members.hold
    if not could.any():
        return 0
    load = np.bincount(owner[owner != NONE], minlength=members.count) / members.capacity
    return _whole(float(load[could].max() - load[could].min()))


def _imbalance_by_topic(problem: Problem, owner: IntArray) -> IntArray:
    members, count = problem.members, problem.topics.count
    spread = np.zeros(count, np.int32)
    if not members.count:
        return spread
    step = max(1, _BLOCK_CELLS // members.count)
    offsets = problem.offsets
    for first in range(0, count, step):
        last = min(first + step, count)
        part = owner[offsets[first] : offsets[last]]
        topic = np.repeat(np.arange(last - first), problem.topics.partitions[first:last])
        cell = topic[part != NONE] * members.count + part[part != NONE]
        counts = np.bincount(cell, minlength=(last - first) * members.count)
        load = counts.reshape(last - first, members.count) / members.capacity
        could = members.subscription[:, first:last].T & ~members.hold
        most = np.where(could, load, -np.inf).max(axis=1)
        fewest = np.where(could, load, np.inf).min(axis=1)
        some = could.any(axis=1)
        spread[first:last][some] = np.ceil(most[some] - fewest[some] - 1e-9)
    return spread


def _whole(difference: float) -> int:
    return int(np.ceil(difference - 1e-9))


def _rack_mismatches(problem: Problem, owner: IntArray) -> int:
    """Partitions whose owner says where it is, and none of the replicas is there."""
    if problem.topics.replica_racks is None or not problem.members.count:
        return 0
    starts, racks = problem.topics.replica_racks
    rack = np.where(owner == NONE, np.int32(NONE), problem.members.rack[owner])
    partition = np.repeat(np.arange(len(owner)), np.diff(starts))
    near = np.zeros(len(owner), np.bool_)
    near[partition[racks == rack[partition]]] = True
    known = np.diff(starts) > 0
    return int((known & (rack != NONE) & ~near).sum())


def _cold_actives(problem: Problem, owner: IntArray) -> int:
    given = (owner != NONE) & (owner != problem.owner)
    warm = problem.owner != NONE
    if problem.standbys.size:
        warm = warm | (problem.standbys != NONE).any(axis=1)
        given &= ~(problem.standbys == owner[:, None]).any(axis=1)
    return int((given & warm).sum())
