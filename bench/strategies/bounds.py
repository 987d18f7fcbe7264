"""How few moves a group could do with: bounds made from the problem alone, by other means than the strategies use.

For one subscription: members keep their floors of every topic, and a maximum flow says how many of the remainders can
stay where they are when nobody may have more remainders than its share. For overlapping subscriptions: loads are as
even as they can be (found by looking for the most crowded members first), and a maximum flow says how much can stay
under these loads. No solution that is as balanced moves fewer. A solution that meets a bound is the best there is; one
that does not may be too, because a flow does not see everything: what is left may not fit the places left. Linear
programs (`bench.strategies.linear_programs`) do, up to some size. A bound is loose where they are not asked: evenness
per topic and racks, in large groups. Capacities, caps, holds, pins and weights are not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components, maximum_flow

from assigner.strategy import NONE, BoolArray, IntArray, Problem
from bench.strategies.grid import kinds_of
from bench.strategies.linear_programs import Counts, Loads, kept_alike, kept_both, kept_near, kept_over_all
from bench.strategies.racks import near_of

MOST_CELLS = 1_000_000
"""Members x topics up to which a bound is worked out."""
MOST_COLUMNS = 60_000
"""Of linear programs."""
MOST_COLUMNS_ALIKE = 600_000
"""Of that for one subscription, which is simple: 5 s for 500,000."""
MOST_KINDS = 12
"""Different subscriptions; every set of them is looked at."""


class Balance(StrEnum):
    BOTH = "both"
    GLOBAL = "global"


@dataclass(frozen=True)
class Tier:
    """Members that share some topics evenly, and to whom the rest of the group is no help."""

    members: BoolArray
    topics: BoolArray
    floor: int
    """Partitions each has at least; some have one more."""
    extras: int


@dataclass(frozen=True)
class Bound:
    moves: int
    loose: bool
    """More may be needed: the bound leaves something out that was asked for."""


def fewest_moves(problem: Problem, balance: Balance, *, closely: bool = False) -> Bound:
    """No solution that is as balanced moves fewer. `closely`: by linear programs, where they are not too large."""
    racks = problem.topics.replica_racks is not None
    if closely and racks and problem.members.subscription.all():
        near = near_of(problem)
        if 2 * near.held.size + problem.members.subscription.size <= MOST_COLUMNS:
            stays = kept_near(near, problem.topics.partitions, topics_too=balance is Balance.BOTH)
            return Bound(int(near.held.sum()) - stays, loose=False)
    held = _held(problem)
    lost = int((problem.owner != NONE).sum() - held.sum())
    found = [_fewest(problem, held, part, balance, closely=closely) for part in _parts(problem)]
    return Bound(lost + sum(bound.moves for bound in found), racks or any(bound.loose for bound in found))


def imbalance(problem: Problem, owner: IntArray) -> int:
    """Most minus fewest partitions among members that could even it out; 1 at most in a balanced solution."""
    load = np.bincount(owner[owner != NONE], minlength=problem.members.count)
    found = [tier for part in _parts(problem) for tier in _tiers(problem, part)]
    return max((int(np.ptp(load[tier.members])) for tier in found), default=0)


# --- parts of a group that have nothing to do with each other -------------------------------------------------------


@dataclass(frozen=True)
class _Part:
    members: BoolArray
    topics: BoolArray
    alike: bool
    """All members want the same."""


def _parts(problem: Problem) -> list[_Part]:
    wanted = problem.members.subscription
    if wanted.all():
        everyone, all_topics = np.ones(wanted.shape[0], np.bool_), np.ones(wanted.shape[1], np.bool_)
        return [_Part(everyone, all_topics, alike=True)] if wanted.size else []
    kinds, kind = kinds_of(wanted)
    count, label = connected_components((kinds.astype(np.int32) @ kinds.T.astype(np.int32)) > 0, directed=False)
    parts = []
    for number in range(count):
        mine = label == number
        topics = np.asarray(kinds[mine].any(axis=0))
        if topics.any():
            parts.append(_Part(mine[kind], topics, alike=int(mine.sum()) == 1))
    return parts


def _tiers(problem: Problem, part: _Part) -> list[Tier]:
    """The most crowded members first: those of the set that has the most partitions for itself per member."""
    sizes = problem.topics.partitions
    if part.alike:
        floor, extras = divmod(int(sizes[part.topics].sum()), int(part.members.sum()))
        return [Tier(part.members, part.topics, floor, extras)]
    kinds, kind = kinds_of(problem.members.subscription[part.members])
    if len(kinds) > MOST_KINDS:
        raise ValueError(f"{len(kinds)} subscriptions overlap; the bound is made for {MOST_KINDS} at most")
    counts = np.bincount(kind)
    where = np.flatnonzero(part.members)
    tiers, left, topics = [], list(range(len(kinds))), part.topics.copy()
    while left:
        crowd, theirs = _most_crowded(kinds, counts, sizes, left, topics)
        members = np.zeros(problem.members.count, np.bool_)
        members[where[np.isin(kind, crowd)]] = True
        floor, extras = divmod(int(sizes[theirs].sum()), int(members.sum()))
        tiers.append(Tier(members, theirs, floor, extras))
        left = [number for number in left if number not in crowd]
        topics = topics & ~theirs
    return tiers


def _most_crowded(
    kinds: BoolArray, counts: Counts, sizes: IntArray, left: list[int], topics: BoolArray
) -> tuple[list[int], BoolArray]:
    best: tuple[float, int, list[int], BoolArray] | None = None
    for crowd in _subsets(left):
        others = [number for number in left if number not in crowd]
        theirs = topics & kinds[crowd].any(axis=0) & ~kinds[others].any(axis=0)
        value = (float(sizes[theirs].sum()) / float(counts[crowd].sum()), len(crowd), crowd, theirs)
        if best is None or value[:2] > best[:2]:
            best = value
    assert best is not None
    return best[2], best[3]


def _subsets(numbers: list[int]) -> Iterator[list[int]]:
    for size in range(1, len(numbers) + 1):
        yield from (list(chosen) for chosen in combinations(numbers, size))


# --- moves -----------------------------------------------------------------------------------------------------------


def _held(problem: Problem) -> Counts:
    """[member, topic]: partitions that are owned by one who wants them."""
    members, topics = problem.members.count, problem.topics.count
    topic = np.repeat(np.arange(topics), problem.topics.partitions)
    mine = problem.owner != NONE
    cell = problem.owner[mine].astype(np.int64) * topics + topic[mine]
    counted = np.bincount(cell, minlength=members * topics).reshape(members, topics)
    return np.where(problem.members.subscription, counted, 0)


def _fewest(problem: Problem, held: Counts, part: _Part, balance: Balance, *, closely: bool) -> Bound:
    mine = held[np.ix_(part.members, part.topics)]
    sizes = problem.topics.partitions[part.topics]
    if part.alike and balance is Balance.BOTH:
        closely = closely and mine.size <= MOST_COLUMNS_ALIKE
        return Bound(_above_floors(mine, sizes, closely=closely), loose=not closely)
    if part.alike:
        (tier,) = _tiers(problem, part)
        load = mine.sum(axis=1)
        over = int((load - tier.floor).clip(min=0).sum() - min(tier.extras, int((load > tier.floor).sum())))
        return Bound(over, loose=False)
    loads = _loads(_tiers(problem, part), part)
    wanted = problem.members.subscription[np.ix_(part.members, part.topics)]
    stays, loose = _can_stay(mine, wanted, sizes, loads, balance, closely=closely)
    return Bound(int(mine.sum()) - stays, loose)


def _above_floors(held: Counts, sizes: IntArray, *, closely: bool) -> int:
    """One subscription, even per topic and over all."""
    members = held.shape[0]
    floor, extras = sizes // members, sizes % members
    over = (held - floor).clip(min=0)
    if closely:
        return int(over.sum()) - kept_alike(over > 0, extras)
    low, more = divmod(int(extras.sum()), members)
    rows, columns = np.nonzero(over)
    flow = _Flow(members, held.shape[1])
    flow.topics_give(extras)
    flow.may_stay(rows, columns, np.ones(len(rows), np.int64))
    flow.members_have(Loads(np.full(members, low), np.zeros(members, np.int64), np.array([more])))
    return int(over.sum()) - flow.value()


def _loads(tiers: list[Tier], part: _Part) -> Loads:
    """Tiers with the same floor may exchange their extras."""
    floors = sorted({tier.floor for tier in tiers})
    members = int(part.members.sum())
    loads = Loads(np.zeros(members, np.int64), np.zeros(members, np.int64), np.zeros(len(floors), np.int64))
    for tier in tiers:
        mine = tier.members[part.members]
        loads.floor[mine], loads.level[mine] = tier.floor, floors.index(tier.floor)
        loads.extras[floors.index(tier.floor)] += tier.extras
    return loads


def _can_stay(
    held: Counts, wanted: BoolArray, sizes: IntArray, loads: Loads, balance: Balance, *, closely: bool
) -> tuple[int, bool]:
    """Overlapping subscriptions: what stays under loads that are as even as can be, and whether more was asked for."""
    if closely and balance is Balance.BOTH:
        stays = kept_both(held, wanted, sizes, loads, MOST_COLUMNS)
        if stays is not None:
            return stays, False
    if closely and int((held > 0).sum()) <= MOST_COLUMNS:
        kinds, kind = kinds_of(wanted)
        return kept_over_all(held, kind, kinds, sizes, loads), balance is Balance.BOTH
    rows, columns = np.nonzero(held)
    flow = _Flow(*held.shape)
    flow.topics_give(held.sum(axis=0))
    flow.may_stay(rows, columns, held[rows, columns])
    flow.members_have(loads)
    return flow.value(), True


class _Flow:
    """Source -> topic -> member -> sink, where a member's last partition goes by way of its level."""

    def __init__(self, members: int, topics: int) -> None:
        self._topic = 1
        self._member = 1 + topics
        self._level = 1 + topics + members
        self._arcs: list[tuple[Counts, Counts, Counts]] = []
        self._topics, self._members = np.arange(topics), np.arange(members)
        self._nodes = self._level

    def topics_give(self, most: NDArray[np.integer]) -> None:
        self._add(np.zeros(len(most), np.int64), self._topic + self._topics, most)

    def may_stay(self, member: NDArray[np.integer], topic: NDArray[np.integer], most: NDArray[np.integer]) -> None:
        self._add(self._topic + topic, self._member + member, most)

    def members_have(self, loads: Loads) -> None:
        sink = self._level + len(loads.extras)
        self._nodes = sink + 1
        members = self._member + self._members
        self._add(members, np.full(len(members), sink), loads.floor)
        self._add(members, self._level + loads.level, np.ones(len(members), np.int64))
        levels = np.arange(len(loads.extras))
        self._add(self._level + levels, np.full(len(levels), sink), loads.extras)

    def value(self) -> int:
        start, end, most = (np.concatenate(column) for column in zip(*self._arcs, strict=True))
        some = most > 0
        shape = (self._nodes, self._nodes)
        graph = csr_array((most[some].astype(np.int32), (start[some], end[some])), shape=shape)
        return int(maximum_flow(graph, 0, self._nodes - 1).flow_value)

    def _add(self, start: NDArray[np.integer], end: NDArray[np.integer], most: NDArray[np.integer]) -> None:
        self._arcs.append((start.astype(np.int64), end.astype(np.int64), np.asarray(most, np.int64)))
