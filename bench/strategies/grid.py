"""The problems that strategies are measured on: groups of many shapes, and what may happen to them.

A shape says how large a group is, how partitions spread over topics, who wants what and whether racks are known. An
operation says what happened since the last plan; the group has the shape's members *after* it, and those that join or
leave are the last in name order. Everything follows from the shape, so two runs see the same problems.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import product

import numpy as np

from assigner.strategy import NONE, BoolArray, IntArray, Members, Problem, Topics

BUCKETS = 5
RACKS = 3
REPLICAS = 2


class Sizes(StrEnum):
    EQUAL = "equal"
    SKEWED = "skewed"
    """Two thirds of the topics have one partition; each further tier has a third of the topics, twice as large."""


class Subscriptions(StrEnum):
    ONE = "one"
    DISJOINT = "disjoint"
    """Five kinds of members, each with a fifth of the topics for itself."""
    NESTED = "nested"
    """Five kinds of members; each wants what the one before it wants, and a fifth of the topics more."""


class Operation(StrEnum):
    FULL = "FULL"
    STABLE = "STABLE"
    JOIN_ONE = "JOIN_ONE"
    LEAVE_ONE = "LEAVE_ONE"
    JOIN_MANY = "JOIN_MANY"
    LEAVE_MANY = "LEAVE_MANY"
    PARTITIONS_ADDED = "PARTITIONS_ADDED"


MEANING = {
    Operation.FULL: "nobody owns anything yet",
    Operation.STABLE: "nothing has changed",
    Operation.JOIN_ONE: "one member is new",
    Operation.LEAVE_ONE: "one member is gone",
    Operation.JOIN_MANY: "a tenth of the members is new",
    Operation.LEAVE_MANY: "a tenth as many as there are is gone",
    Operation.PARTITIONS_ADDED: "a tenth of the topics has one partition more",
}


@dataclass(frozen=True)
class Shape:
    members: int
    topics: int
    partitions: int
    sizes: Sizes = Sizes.EQUAL
    subscriptions: Subscriptions = Subscriptions.ONE
    racks: bool = False

    def __str__(self) -> str:
        words = [f"{self.members:,} members, {self.topics:,} topics, {self.partitions:,} partitions"]
        words += ["skewed"] if self.sizes is Sizes.SKEWED else []
        words += [f"{self.subscriptions}"] if self.subscriptions is not Subscriptions.ONE else []
        words += ["racks"] if self.racks else []
        return ", ".join(words)

    @property
    def cells(self) -> int:
        return self.members * self.topics

    def nonsense(self) -> str | None:
        """Why nobody would measure this, if so."""
        if self.partitions < self.topics:
            return "fewer partitions than topics"
        if self.subscriptions is not Subscriptions.ONE and min(self.members, self.topics) < 2 * BUCKETS:
            return f"too small for {BUCKETS} kinds of members"
        if self.sizes is Sizes.SKEWED and self.topics < 10:
            return "too few topics to be skewed"
        return None


def members_before(shape: Shape, operation: Operation) -> int:
    many = -(-shape.members // 10)
    change = {
        Operation.JOIN_ONE: -1,
        Operation.JOIN_MANY: -many,
        Operation.LEAVE_ONE: 1,
        Operation.LEAVE_MANY: many,
    }
    return shape.members + change.get(operation, 0)


def fresh(shape: Shape, members: int | None = None) -> Problem:
    """The group with nothing owned."""
    return _problem(shape, members or shape.members, topic_sizes(shape), None)


def changed(shape: Shape, operation: Operation, before: IntArray) -> Problem:
    """The group after the operation; `before` is who owned what in `fresh(shape, members_before(...))`."""
    owner = before.copy()
    owner[owner >= shape.members] = NONE
    sizes = topic_sizes(shape)
    if operation is not Operation.PARTITIONS_ADDED:
        return _problem(shape, shape.members, sizes, owner)
    grown = np.arange(0, shape.topics, 10)
    ends = np.cumsum(sizes)[grown]
    sizes[grown] += 1
    return _problem(shape, shape.members, sizes, np.insert(owner, ends, NONE).astype(np.int32))


def dealt(shape: Shape, operation: Operation) -> IntArray:
    """Who owned what before: dealt one by one, so that no plan has to be made for it."""
    members = members_before(shape, operation)
    before = fresh(shape, members)
    if shape.subscriptions is Subscriptions.ONE:
        return (np.arange(len(before.owner)) % members).astype(np.int32)
    offsets = before.offsets
    owner = before.owner.copy()
    for topic in range(shape.topics):
        who = np.flatnonzero(before.members.subscription[:, topic])
        mine = np.arange(offsets[topic], offsets[topic + 1])
        owner[mine] = who[mine % len(who)]
    return owner


def topic_sizes(shape: Shape) -> IntArray:
    """Partitions per topic, the largest first, which add up to the shape's."""
    if shape.sizes is Sizes.EQUAL:
        return _equal(shape.partitions, shape.topics)
    tiers = _tiers(shape.topics)
    weight = np.concatenate([np.full(count, float(2**tier)) for tier, count in enumerate(tiers[1:])])
    left = shape.partitions - tiers[0] - len(weight)
    share = np.floor(weight * left / weight.sum()).astype(np.int32)
    share[: left - int(share.sum())] += 1
    return np.concatenate((np.sort(share + 1)[::-1], np.ones(tiers[0], np.int32))).astype(np.int32)


def _equal(partitions: int, topics: int) -> IntArray:
    sizes = np.full(topics, partitions // topics, np.int32)
    sizes[: partitions % topics] += 1
    return sizes


def _tiers(topics: int) -> list[int]:
    """How many topics each tier has, the tier of the smallest first."""
    tiers, left, share = list[int](), topics, 2 / 3
    while left:
        tiers.append(min(left, max(1, round(topics * share))))
        left -= tiers[-1]
        share /= 3
    return tiers


def _problem(shape: Shape, members: int, sizes: IntArray, owner: IntArray | None) -> Problem:
    total = int(sizes.sum())
    rack = (np.arange(members) % RACKS).astype(np.int32) if shape.racks else np.full(members, NONE, np.int32)
    return Problem(
        Members(
            capacity=np.ones(members),
            rack=rack,
            subscription=_subscription(shape, members),
            hold=np.zeros(members, np.bool_),
            cap=np.full(members, NONE, np.int32),
        ),
        Topics(sizes, replica_racks=_replica_racks(sizes) if shape.racks else None),
        owner=np.full(total, NONE, np.int32) if owner is None else owner,
        pinned=np.zeros(total, np.bool_),
    )


def _subscription(shape: Shape, members: int) -> BoolArray:
    if shape.subscriptions is Subscriptions.ONE:
        return np.ones((members, shape.topics), np.bool_)
    kind = (np.arange(members) % BUCKETS)[:, None]
    part = (np.arange(shape.topics) * BUCKETS // shape.topics)[None, :]
    return np.asarray(part == kind if shape.subscriptions is Subscriptions.DISJOINT else part <= kind)


def kinds_of(wanted: BoolArray) -> tuple[BoolArray, IntArray]:
    """The different subscriptions, and which of them each member has."""
    if wanted.all():
        return wanted[:1], np.zeros(len(wanted), np.int32)
    packed = np.packbits(wanted, axis=1)
    _, first, kind = np.unique(packed, axis=0, return_index=True, return_inverse=True)
    return wanted[first], kind.reshape(-1).astype(np.int32)


def _replica_racks(sizes: IntArray) -> tuple[IntArray, IntArray]:
    number = np.concatenate([np.arange(size) for size in sizes.tolist()])
    racks = (number[:, None] + np.arange(REPLICAS)[None, :]) % RACKS
    starts = np.arange(len(number) + 1, dtype=np.int32) * REPLICAS
    return starts.astype(np.int32), racks.reshape(-1).astype(np.int32)


# --- which of them to run ------------------------------------------------------------------------------------------

QUICK = (
    Shape(50, 50, 5_000),
    Shape(50, 50, 5_000, Sizes.SKEWED),
    Shape(50, 50, 5_000, subscriptions=Subscriptions.DISJOINT),
    Shape(50, 50, 5_000, subscriptions=Subscriptions.NESTED),
    Shape(50, 50, 5_000, racks=True),
)

USUAL = (
    Shape(5, 5, 5_000),
    Shape(50, 50, 5_000),
    Shape(500, 50, 20_000),
    Shape(500, 1_000, 20_000),
    Shape(1_000, 100, 50_000),
    Shape(5_000, 100, 100_000),
    Shape(10_000, 10, 500_000),
    Shape(10_000, 100, 500_000),
    Shape(10_000, 1_000, 500_000),
    Shape(500, 50, 20_000, Sizes.SKEWED),
    Shape(5_000, 100, 100_000, Sizes.SKEWED),
    Shape(50, 50, 5_000, subscriptions=Subscriptions.DISJOINT),
    Shape(5_000, 100, 100_000, subscriptions=Subscriptions.DISJOINT),
    Shape(50, 50, 5_000, subscriptions=Subscriptions.NESTED),
    Shape(500, 50, 20_000, subscriptions=Subscriptions.NESTED),
    Shape(5_000, 100, 100_000, subscriptions=Subscriptions.NESTED),
    Shape(50, 50, 5_000, racks=True),
    Shape(500, 50, 20_000, racks=True),
    Shape(5_000, 100, 100_000, racks=True),
)


def everything() -> tuple[Shape, ...]:
    """The whole grid, nonsense included: who runs it says what was left out."""
    return tuple(
        Shape(*counts)
        for counts in product(
            (5, 50, 500, 1_000, 5_000, 10_000),
            (5, 50, 100, 1_000),
            (5_000, 20_000, 100_000, 500_000),
            Sizes,
            Subscriptions,
            (False, True),
        )
    )
