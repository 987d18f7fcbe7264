"""Solves a spec and reports the result in names: which partition moves where and why, and each member's share.

Partitions of a member that has left count as unowned, and are reported as moves from that member.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from assigner.core.planning.rollout import solve as under_rollout
from assigner.core.whatif.group_spec import GroupSpec, Interned, intern, rolled_out
from assigner.model.keys import TopicPartition
from assigner.strategy import NONE, IntArray, Problem, Solution, Strategy
from assigner.strategy.reasons import MoveReason

_replace = msgspec.structs.replace


class PlannedMove(msgspec.Struct, frozen=True, kw_only=True):
    partition: str
    old: str
    """Empty: it had no owner."""
    new: str
    """Empty: no member may own it."""
    reason: str
    why: str
    warm: bool
    """The new owner holds a standby copy."""


class MemberShare(msgspec.Struct, frozen=True, kw_only=True):
    """How many partitions a member has before and after the plan."""

    member: str
    before: int
    after: int
    gains: int
    loses: int
    standbys: int
    weight: float | None = None
    """Of what it has after, where partitions have weights."""


class WhatIfReport(msgspec.Struct, frozen=True, kw_only=True):
    strategy: str
    rollout: str | None
    """The deployment that takes over, if a rollout is on."""
    partitions: int
    moves: int
    """Partitions taken from a member that stays."""
    lower_bound: int
    unproved: bool
    """The strategy ended its search early: a more even plan, or one with fewer moves, may exist."""
    placed: int
    """Partitions that had no owner, or whose owner leaves, and have one now."""
    unowned: int
    imbalance: int
    imbalance_by_topic: dict[str, int]
    rack_mismatches: int
    cold_actives: int
    cold_starts: int
    """Unowned partitions that go to a member without a standby copy although another member has one."""
    shares: tuple[MemberShare, ...]
    planned: tuple[PlannedMove, ...]
    dropped: tuple[str, ...]


@dataclass(frozen=True)
class WhatIfPlan:
    """The solution that a strategy computed for a spec."""

    strategy: str
    interned: Interned
    solution: Solution
    rollout: str | None
    """The deployment that takes over, if a rollout is on. Nothing moves for balance then."""


def solve(spec: GroupSpec, strategy: Strategy) -> WhatIfPlan:
    interned, rollout = rolled_out(spec, intern(spec))
    solution = under_rollout(strategy, interned.problem, rollout)
    return WhatIfPlan(strategy.name, interned, solution, rollout.new if rollout else None)


def build_report(before: GroupSpec, solved: WhatIfPlan) -> WhatIfReport:
    """Report the solution as changes from `before`."""
    interned, solution = solved.interned, solved.solution
    builder = _ReportBuilder(solved, _owners(intern(before)))
    explanation = solution.explanation
    planned = builder.moves()
    return WhatIfReport(
        strategy=solved.strategy,
        rollout=solved.rollout,
        partitions=len(interned.partitions),
        moves=explanation.moves,
        lower_bound=explanation.lower_bound,
        unproved=explanation.unproved,
        placed=int(((interned.problem.owner == NONE) & (solution.owner != NONE)).sum()),
        unowned=int((solution.owner == NONE).sum()),
        imbalance=explanation.imbalance,
        imbalance_by_topic=_by_topic(interned, explanation.imbalance_by_topic),
        rack_mismatches=explanation.rack_mismatches,
        cold_actives=explanation.cold_actives,
        cold_starts=_cold_starts(interned.problem, solution.owner),
        shares=builder.shares(planned),
        planned=planned,
        dropped=interned.dropped,
    )


def spec_after(spec: GroupSpec, solved: WhatIfPlan) -> GroupSpec:
    """The spec of the group after the plan has been executed."""
    interned, solution = solved.interned, solved.solution
    owned: dict[str, dict[str, list[int]]] = {name: {} for name in interned.members}
    standbys: dict[str, dict[str, list[int]]] = {name: {} for name in interned.members}
    for tp, owner, copies in zip(interned.partitions, solution.owner.tolist(), solution.standbys.tolist(), strict=True):
        if owner != NONE:
            owned[interned.members[owner]].setdefault(tp.topic, []).append(tp.partition)
        for holder in copies:
            if holder != NONE:
                standbys[interned.members[holder]].setdefault(tp.topic, []).append(tp.partition)
    members = tuple(
        _replace(
            member,
            owned={topic: tuple(numbers) for topic, numbers in owned[member.name].items()},
            standbys={topic: tuple(numbers) for topic, numbers in standbys[member.name].items()},
        )
        for member in spec.members
    )
    return _replace(spec, members=members)


def _owners(interned: Interned) -> dict[TopicPartition, str]:
    owner = interned.problem.owner.tolist()
    return {tp: interned.members[who] for tp, who in zip(interned.partitions, owner, strict=True) if who != NONE}


def _by_topic(interned: Interned, imbalance: IntArray) -> dict[str, int]:
    names = sorted({tp.topic for tp in interned.partitions})
    counts = interned.problem.topics.partitions
    return dict(zip(names, imbalance[counts > 0].tolist(), strict=True))


def _cold_starts(problem: Problem, owner: IntArray) -> int:
    if not problem.standbys.size:
        return 0
    orphan = (problem.owner == NONE) & (owner != NONE) & (problem.standbys != NONE).any(axis=1)
    return int((orphan & ~(problem.standbys == owner[:, None]).any(axis=1)).sum())


class _ReportBuilder:
    """Translates a solution's numbers into names and reasons."""

    def __init__(self, solved: WhatIfPlan, old: dict[TopicPartition, str]) -> None:
        self._interned = solved.interned
        self._problem: Problem = solved.interned.problem
        self._solution = solved.solution
        self._old = old
        self._strategy = solved.strategy
        topics = self._problem.topics
        self._topic = np.repeat(np.arange(topics.count), topics.partitions)
        # Counted when the first move needs it.
        self._counts: dict[tuple[bool, int, int], int] = {}

    def moves(self) -> tuple[PlannedMove, ...]:
        reasons = self._solution.explanation.reasons
        return tuple(self._move(flat, MoveReason(reasons[flat])) for flat in np.flatnonzero(reasons).tolist())

    def shares(self, planned: tuple[PlannedMove, ...]) -> tuple[MemberShare, ...]:
        names = {*self._interned.members, *self._old.values()}
        before = _tally(self._old.values())
        after = _tally(self._interned.members[m] for m in self._solution.owner.tolist() if m != NONE)
        gains, loses = _tally(move.new for move in planned), _tally(move.old for move in planned)
        copies = _tally(self._interned.members[m] for m in self._solution.standbys.ravel().tolist() if m != NONE)
        weights = self._weights()
        return tuple(
            MemberShare(
                member=name,
                before=before.get(name, 0),
                after=after.get(name, 0),
                gains=gains.get(name, 0),
                loses=loses.get(name, 0),
                standbys=copies.get(name, 0),
                weight=None if weights is None else weights.get(name, 0.0),
            )
            for name in sorted(names)
        )

    def _weights(self) -> dict[str, float] | None:
        weight, owner = self._problem.topics.weight, self._solution.owner
        if weight is None:
            return None
        mine = owner != NONE
        loads = np.bincount(owner[mine], weight[mine], self._problem.members.count)
        return dict(zip(self._interned.members, loads.tolist(), strict=True))

    def _move(self, flat: int, reason: MoveReason) -> PlannedMove:
        tp = self._interned.partitions[flat]
        new = int(self._solution.owner[flat])
        copies = self._problem.standbys[flat].tolist() if self._problem.standbys.size else []
        return PlannedMove(
            partition=str(tp),
            old=self._old.get(tp, ""),
            new=self._interned.members[new] if new != NONE else "",
            reason=reason.name.lower(),
            why=self._why(flat, reason),
            warm=new != NONE and new in copies,
        )

    def _why(self, flat: int, reason: MoveReason) -> str:
        problem, members = self._problem, self._interned.members
        giver, taker = int(problem.owner[flat]), int(self._solution.owner[flat])
        tp = self._interned.partitions[flat]
        old = members[giver] if giver != NONE else ""
        new = members[taker] if taker != NONE else "nobody"
        match reason:
            case MoveReason.UNOWNED:
                gone = self._old.get(tp, "")
                return f"its owner {gone} is gone" if gone else "it had no owner"
            case MoveReason.NOT_WANTED:
                return f"{old} does not subscribe to {tp.topic}"
            case MoveReason.OVER_CAP:
                return f"{old} has more than its cap of {problem.members.cap[giver]}"
            case MoveReason.RULE:
                return f"{self._strategy} puts it there without regard to its owner"
            case MoveReason.SET:
                return "it joins the other topics of its set"
            case MoveReason.LOAD:
                return f"{old} carried {self._load(problem.owner, giver):g}, {new} carries {self._load_after(taker):g}"
            case MoveReason.TOPIC_SHARE:
                had, has = self._of_topic(flat, giver, taker)
                return f"{old} had {had} of {tp.topic}, {new} has {has}"
            case MoveReason.TOTAL_SHARE:
                had, has = self._in_all(giver, taker)
                return f"{old} had {had} in all, {new} has {has}"
            case MoveReason.RACK:
                return f"{new} is in a rack of its replicas, {old} is not"
            case _:
                return "it makes room for another move"

    def _load(self, owner: IntArray, member: int) -> float:
        weight = self._problem.topics.weight
        return float(weight[owner == member].sum()) if weight is not None else 0.0

    def _load_after(self, member: int) -> float:
        return self._load(self._solution.owner, member)

    def _of_topic(self, flat: int, giver: int, taker: int) -> tuple[int, int]:
        topic = int(self._topic[flat])
        return self._count(False, topic, giver), self._count(True, topic, taker)

    def _count(self, after: bool, topic: int, member: int) -> int:
        key = (after, topic, member)
        if key not in self._counts:
            owner = self._solution.owner if after else self._problem.owner
            begin, end = self._problem.offsets[topic], self._problem.offsets[topic + 1]
            self._counts[key] = int((owner[begin:end] == member).sum())
        return self._counts[key]

    def _in_all(self, giver: int, taker: int) -> tuple[int, int]:
        had, has = (False, -1, giver), (True, -1, taker)
        if had not in self._counts:
            self._counts[had] = int((self._problem.owner == giver).sum())
        if has not in self._counts:
            self._counts[has] = int((self._solution.owner == taker).sum())
        return self._counts[had], self._counts[has]


def _tally(names: Any) -> dict[str, int]:
    counted: dict[str, int] = {}
    for name in names:
        if name:
            counted[name] = counted.get(name, 0) + 1
    return counted
