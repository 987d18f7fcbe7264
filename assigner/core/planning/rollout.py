"""Rolling deploys: while two generations of consumers are registered, each partition moves once, to the new one.

A rollout is in progress while Ready consumers of the new generation and of another one are registered. Meanwhile
nothing moves for balance: members of other generations are on hold (they keep what they have and get nothing new),
members of the new one keep what they have too, and what leaving members leave goes to the new generation, up to a cap
per member. These constraints are soft. Before a partition is left without an owner, members on hold take it, then those
at their cap.

Not promised: that `auto` knows which generation is the new one if consumers of the old one register again meanwhile;
and one move per partition if members of the old generation go before there are as many of the new one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from assigner.model.records import Consumer, GroupOptions
from assigner.strategy import NONE, BoolArray, IntArray, Members, Problem, Solution, Strategy
from assigner.strategy.explanation import Explanation

AUTO = "auto"
_EPSILON = 1e-9
_MOST = 2**31 - 1


@dataclass(frozen=True)
class Rollout:
    """The constraints of a rollout on a problem's members, one row each."""

    new: str
    """The generation that takes over."""
    hold: BoolArray
    """Members of another generation than the new one that could be given partitions. Members on hold for another reason
    are not in it: they get nothing even when the rollout's constraints are relaxed."""
    cap: IntArray
    """Most partitions a member of the new generation should have, or NONE."""

    def reluctance(self, member: int, has: int) -> int:
        """How late a member with so many partitions is considered for one that needs an owner: 0 first, 2 last."""
        if self.hold[member]:
            return 1
        return 2 if self.cap[member] != NONE and has >= self.cap[member] else 0

    def of_all(self, count: int) -> Rollout:
        """Add rows for further members, without constraints."""
        more = count - len(self.hold)
        return Rollout(
            self.new,
            np.concatenate((self.hold, np.zeros(more, np.bool_))),
            np.concatenate((self.cap, np.full(more, NONE, np.int32))),
        )


def new_generation(consumers: Iterable[Consumer], wanted: str) -> str | None:
    """The generation that takes over among these consumers; None: no rollout is in progress.

    `wanted` is the group's option. With `auto` it is the one with the latest registration (of equals, the last by
    name). No generation at all, as of consumers that name none, is a generation like any other."""
    if not wanted:
        return None
    latest: dict[str, int] = {}
    for consumer in consumers:
        latest[consumer.generation] = max(
            consumer.registered_at, latest.get(consumer.generation, consumer.registered_at)
        )
    new = max(latest, key=lambda name: (latest[name], name), default="") if wanted == AUTO else wanted
    return new if new in latest and len(latest) > 1 else None


def plan_rollout(
    members: Sequence[Consumer],
    fleet: Iterable[Consumer],
    options: GroupOptions,
    partitions: Mapping[str, int],
    *,
    unit: int = 1,
) -> Rollout | None:
    """The rollout's constraints on `members`, which may own partitions. `fleet`: every registered consumer, also those
    that leave. `unit`: the most partitions that move as one, for which a fair share must have room."""
    new = new_generation(members, options.rollout)
    if new is None:
        return None
    hold = np.asarray([member.generation != new and not member.away for member in members], np.bool_)
    if options.rollout_cap:
        return Rollout(new, hold, np.where(hold, NONE, options.rollout_cap).astype(np.int32))
    rates = _rates(fleet, new, partitions)
    share = _Shares(rates)
    caps = [NONE if held else share.of(member) + unit - 1 for member, held in zip(members, hold, strict=True)]
    return Rollout(new, hold, np.asarray(caps, np.int64).clip(max=_MOST).astype(np.int32))


def _rates(fleet: Iterable[Consumer], new: str, partitions: Mapping[str, int]) -> dict[str, float]:
    """Compute the partitions per unit of capacity, by topic, in the expected fleet: the new generation will be as large
    as the old one still is, unless it is larger already."""
    capacities: dict[bool, defaultdict[tuple[str, ...], list[float]]] = {
        True: defaultdict(list),
        False: defaultdict(list),
    }
    for consumer in (one for one in fleet if one.topics or one.wants_every_topic):
        capacities[consumer.generation == new][consumer.topics].append(consumer.capacity)
    sides = [_by_topic(side, partitions) for side in capacities.values()]
    expected = {topic: max(side[topic] for side in sides) for topic in partitions}
    return {topic: count / expected[topic] for topic, count in partitions.items() if expected[topic]}


def _by_topic(side: Mapping[tuple[str, ...], list[float]], topics: Iterable[str]) -> dict[str, float]:
    """Sum the capacity of each topic's subscribers. Exactly, so that the order of members does not matter."""
    everywhere = math.fsum(side.get((), ()))
    named: defaultdict[str, list[float]] = defaultdict(lambda: [everywhere])
    for wanted, capacities in side.items():
        total = math.fsum(capacities)
        for topic in wanted:
            named[topic].append(total)
    return {topic: math.fsum(named[topic]) if topic in named else everywhere for topic in topics}


class _Shares:
    """A member's fair share, in whole partitions, rounded up."""

    def __init__(self, rates: Mapping[str, float]) -> None:
        self._rates = rates
        self._known: dict[tuple[str, ...], float] = {(): math.fsum(rates.values())}

    def of(self, member: Consumer) -> int:
        if not (member.topics or member.wants_every_topic):
            return 0
        rate = self._known.get(member.topics)
        if rate is None:
            rate = math.fsum(self._rates.get(topic, 0.0) for topic in member.topics)
            self._known[member.topics] = rate
        return math.ceil(min(member.capacity * rate, _MOST) - _EPSILON)


# --- a plan under a rollout --------------------------------------------------------------------------------------


def applied(problem: Problem, rollout: Rollout) -> Problem:
    """Add the rollout's constraints to the problem. A cap never takes away what a member has."""
    members, owned = problem.members, problem.owner != NONE
    has = np.bincount(problem.owner[owned], minlength=members.count)
    cap = np.where(rollout.cap == NONE, members.cap, np.maximum(rollout.cap, has)).astype(np.int32)
    topic = np.repeat(np.arange(problem.topics.count, dtype=np.int32), problem.topics.partitions)
    fixed = problem.pinned.copy()
    fixed[owned] |= members.subscription[problem.owner[owned], topic[owned]]
    constrained = replace(members, hold=members.hold | rollout.hold, cap=cap)
    return replace(problem, members=constrained, pinned=fixed)


def solve(strategy: Strategy, problem: Problem, rollout: Rollout | None) -> Solution:
    """Solve the problem; under a rollout, what is left unowned is solved again with relaxed constraints.

    There are at most two such rounds."""
    if rollout and problem.pinned.all() and not problem.standby_count:
        # The usual case when a consumer joins: nothing has to be placed. A strategy would take a while to find that
        # out.
        no_standbys = np.full((len(problem.owner), 0), NONE, np.int32)
        return Solution(problem.owner, no_standbys, Explanation(problem, problem.owner, 0))
    solution = strategy.assign(problem)
    if rollout is None:
        return solution
    for who, members in _relaxed(problem.members, rollout):
        left = (solution.owner == NONE) & ~problem.pinned
        if _wanted_by(who, problem, left):
            rest = replace(problem, members=members, owner=solution.owner, pinned=~left)
            again = strategy.assign(rest)
            unproved = solution.explanation.unproved or again.explanation.unproved
            explanation = replace(solution.explanation, owner=again.owner, unproved=unproved)
            solution = replace(again, explanation=explanation)
    return solution


def _relaxed(members: Members, rollout: Rollout) -> Iterator[tuple[BoolArray, Members]]:
    """Yield the members freed, and all members, first without the rollout's holds, then without its caps too."""
    free = replace(members, hold=members.hold & ~rollout.hold)
    yield rollout.hold, free
    capped = rollout.cap != NONE
    yield capped, replace(free, cap=np.where(capped, NONE, members.cap).astype(np.int32))


def _wanted_by(who: BoolArray, problem: Problem, left: BoolArray) -> bool:
    if not left.any() or not who.any():
        return False
    ends = np.cumsum(problem.topics.partitions)
    topics = np.unique(np.searchsorted(ends, np.flatnonzero(left), side="right"))
    return bool(problem.members.subscription[np.ix_(who, topics)].any())
