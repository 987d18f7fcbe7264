"""Folds a problem into units, which move as one: a partition, or one slot of a co-partition set.

Strategies assign units, so that a slot never has two owners: the topics of a set are folded into one row whose
partitions each stand for as many partitions as the set has topics. Only a member that subscribes to the whole
set may own a slot. Without sets, units are the partitions themselves.

Where the topics of a slot have different owners (the set was just formed), the slot belongs to the owner of the pinned
partition, else to the owner of most of them. A pinned partition stays where it is even if its slot goes elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from assigner.errors import InvalidInput
from assigner.strategy import NONE, BoolArray, FloatArray, IntArray, KeyArray, Problem

_NO_STRIDES = (0, 0)
"""The strides of an array that repeats one value."""


@dataclass(frozen=True)
class Units:
    """A problem folded to units. Rows are single topics and whole sets, in the order of their first topic."""

    rows: tuple[IntArray, ...] | None
    """Topics of each row; None: every topic is a row of its own."""
    partitions: IntArray
    size: IntArray
    """Partitions that one unit of the row stands for."""
    key: KeyArray
    wanted: BoolArray
    """[row, member]: whether the member may own units of the row."""
    owner: IntArray
    pinned: BoolArray
    weight: FloatArray | None = None
    """Per unit: the weights of its partitions added up; None: all partitions are equal."""
    standbys: IntArray | None = None
    """[unit, replica]: the holders of copies of the whole unit, or NONE; None: there are no copies."""

    @property
    def count(self) -> int:
        return len(self.partitions)

    @cached_property
    def wanted_by_all(self) -> BoolArray | None:
        """[row]: whether every member wants it, if no member wants the other rows; None: members want different
        rows."""
        if self.wanted.strides == _NO_STRIDES:
            return np.ones(self.count, np.bool_)
        by_all = np.asarray(self.wanted.all(axis=1))
        return by_all if bool((by_all == self.wanted.any(axis=1)).all()) else None

    @property
    def offsets(self) -> IntArray:
        return np.concatenate((np.zeros(1, np.int32), np.cumsum(self.partitions, dtype=np.int32)))


def fold(problem: Problem) -> Units:
    """Fold the problem. Raises `InvalidInput` for a set whose topics have different partition counts."""
    topics = problem.topics
    key = topics.key if topics.key is not None else np.arange(topics.count, dtype=np.uint64)
    wanted = _wanted(problem.members.subscription)
    rows = _rows(problem)
    if rows is None:
        size = np.ones(topics.count, np.int32)
        standbys = problem.standbys if problem.standbys.size else None
        return Units(None, topics.partitions, size, key, wanted, problem.owner, problem.pinned, topics.weight, standbys)
    first = np.array([row[0] for row in rows], dtype=np.int64)
    slots = [_slots(problem, row) for row in rows]
    owner = [_slot_owner(problem, slot) for slot in slots]
    return Units(
        rows,
        topics.partitions[first],
        np.array([len(row) for row in rows], np.int32),
        key[first],
        np.array([wanted[row].all(axis=0) for row in rows]),
        np.concatenate(owner).astype(np.int32),
        np.concatenate([problem.pinned[slot].any(axis=0) for slot in slots]),
        None if topics.weight is None else np.concatenate([topics.weight[slot].sum(axis=0) for slot in slots]),
        np.concatenate([_slot_standbys(problem, slot) for slot in slots]) if problem.standbys.size else None,
    )


def _wanted(subscription: BoolArray) -> BoolArray:
    # Transposing ten million entries takes longer than planning a group whose members want everything.
    if subscription.size and subscription.all():
        return np.broadcast_to(np.True_, subscription.shape[::-1])
    return np.ascontiguousarray(subscription.T)


def unfold(units: Units, problem: Problem, owner: IntArray) -> IntArray:
    """Translate the owner of every unit to the owner of every partition."""
    if units.rows is None:
        return owner
    flat = np.full(len(problem.owner), NONE, np.int32)
    offsets = units.offsets
    for index, row in enumerate(units.rows):
        flat[_slots(problem, row)] = owner[offsets[index] : offsets[index + 1]]
    return np.where(problem.pinned, problem.owner, flat)


def unit_of_partitions(units: Units, problem: Problem) -> IntArray:
    """Find the unit of each flat partition."""
    if units.rows is None:
        return np.arange(len(problem.owner), dtype=np.int32)
    unit = np.empty(len(problem.owner), np.int32)
    offsets = units.offsets
    for index, row in enumerate(units.rows):
        unit[_slots(problem, row)] = np.arange(offsets[index], offsets[index + 1])
    return unit


def split_slots(units: Units, problem: Problem) -> bool:
    """Whether topics of one slot have different owners."""
    if units.rows is None:
        return False
    return bool((units.owner[unit_of_partitions(units, problem)] != problem.owner).any())


def _rows(problem: Problem) -> tuple[IntArray, ...] | None:
    sets = problem.topics.copartition
    if sets is None or len(np.unique(sets[sets != NONE])) == int((sets != NONE).sum()):
        return None
    members: dict[tuple[str, int], list[int]] = {}
    for topic, number in enumerate(sets.tolist()):
        members.setdefault(("topic", topic) if number == NONE else ("set", number), []).append(topic)
    rows = tuple(np.array(topics, dtype=np.int32) for topics in members.values())
    for row in rows:
        counts = problem.topics.partitions[row]
        if bool(np.any(counts != counts[0])):
            raise InvalidInput(
                f"co-partitioned topics {row.tolist()} have {counts.tolist()} partitions; "
                "make the counts equal or take them out of the set"
            )
    return rows


def _slots(problem: Problem, row: IntArray) -> IntArray:
    """The flat partitions of a row as [topic, slot]."""
    starts = problem.offsets[row]
    return np.asarray(starts[:, None] + np.arange(problem.topics.partitions[row[0]], dtype=np.int32))


def _slot_owner(problem: Problem, slots: IntArray) -> IntArray:
    owners = problem.owner[slots]
    decided: IntArray = owners[0].copy()
    split = np.flatnonzero((owners != owners[0]).any(axis=0))
    for slot in split.tolist():
        decided[slot] = _majority_owner(owners[:, slot], problem.pinned[slots[:, slot]])
    return decided


def _slot_standbys(problem: Problem, slots: IntArray) -> IntArray:
    """Find the holders that have a copy of every topic of the slot."""
    first = problem.standbys[slots[0]]
    everywhere = np.ones(first.shape, np.bool_)
    for topic in slots[1:]:
        everywhere &= (problem.standbys[topic][:, None, :] == first[:, :, None]).any(axis=2)
    return np.where(everywhere, first, np.int32(NONE))


def _majority_owner(owners: IntArray, pinned: BoolArray) -> int:
    """Choose the owner of most of the slot's partitions, of pinned ones only if there are any; ties: the lower
    member."""
    voters = owners[pinned] if pinned.any() else owners[owners != NONE]
    candidates, votes = np.unique(voters, return_counts=True)
    return int(candidates[votes.argmax()])
