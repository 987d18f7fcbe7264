"""Where strings become integers and back: a group's state as a strategy's problem, and its solution as moves.

Members and topics are taken in name order, so the result depends on nothing but the state. What must not move now is
pinned: partitions in flight to their target, those whose owner may yet come back, those given up on for a while.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from assigner.core.group import GroupState
from assigner.core.liveness import Fate, Liveness
from assigner.keys import TopicPartition
from assigner.records import Consumer, Handoff, Step
from assigner.strategy import NONE, BoolArray, IntArray, Members, Problem, Solution, Topics


@dataclass(frozen=True)
class Request:
    """A problem to solve, with the names behind its numbers."""

    strategy: str
    problem: Problem
    members: tuple[str, ...]
    partitions: tuple[TopicPartition, ...]
    lost: tuple[TopicPartition, ...]
    """Partitions in flight to a consumer that can't take them any more: they need an answer even if it is `stay`."""


@dataclass(frozen=True)
class Target:
    tp: TopicPartition
    owner: str


def flat_partitions(state: GroupState) -> list[TopicPartition]:
    """Every partition of every readable topic, in the order of the strategy's flat arrays."""
    return [
        TopicPartition(topic, number)
        for topic in sorted(state.topics)
        for number in range(state.topics[topic].record.partition_count)
    ]


def build(
    state: GroupState,
    liveness: Liveness,
    now: float,
    *,
    stays: Callable[[TopicPartition], bool],
    partitions: list[TopicPartition],
) -> Request:
    """`stays` says which partitions must not move whatever the plan."""
    eligible = [name for name in sorted(state.consumers) if liveness.eligible(name)]
    index = {name: number for number, name in enumerate(eligible)}
    owners, pinned, lost, holders = _current(state, liveness, now, stays, partitions, index)
    names = (*eligible, *holders)
    problem = Problem(
        members=_members(state, eligible, len(holders)),
        topics=_topics(state),
        owner=np.asarray(owners, np.int32),
        pinned=np.asarray(pinned, np.bool_),
        standbys=np.full((len(partitions), 0), NONE, np.int32),
        standby_count=state.options.standby_count,
        options=dict(state.options.strategy_options),
    )
    return Request(state.options.strategy, problem, names, tuple(partitions), tuple(lost))


def _current(
    state: GroupState,
    liveness: Liveness,
    now: float,
    stays: Callable[[TopicPartition], bool],
    partitions: Iterable[TopicPartition],
    index: dict[str, int],
) -> tuple[list[int], list[bool], list[TopicPartition], list[str]]:
    """Owner and pin of each partition; what lost its target; owners that hold without being eligible."""
    fates: dict[tuple[str, str], Fate] = {}
    holders: dict[str, int] = {}
    owners: list[int] = []
    pinned: list[bool] = []
    lost: list[TopicPartition] = []
    for tp in partitions:
        held, handoff = state.assignments.get(tp), state.handoffs.get(tp)
        if handoff and handoff.record.at is Step.COMPLETE:
            # Flipped already; only the old owner's letting go is awaited, and that is not a matter of planning.
            owners.append(index.get(held.record.owner, NONE) if held else NONE)
            pinned.append(True)
            continue
        if handoff and handoff.record.new_owner in index and _same_session(state, handoff.record):
            owners.append(index[handoff.record.new_owner])
            pinned.append(True)
            continue
        if handoff:
            lost.append(tp)
        if held is None:
            owners.append(NONE)
            pinned.append(stays(tp))
            continue
        name, session = held.record.owner, held.record.session
        fate = fates.get((name, session))
        if fate is None:
            fate = fates[name, session] = liveness.fate(name, session, now)
        if fate is Fate.DOUBT:
            owners.append(len(index) + holders.setdefault(name, len(holders)))
            pinned.append(True)
        else:
            owners.append(index.get(name, NONE) if fate is not Fate.DEAD else NONE)
            pinned.append(stays(tp))
    return owners, pinned, lost, list(holders)


def _same_session(state: GroupState, handoff: Handoff) -> bool:
    return state.consumers[handoff.new_owner].record.session == handoff.new_session


def _members(state: GroupState, eligible: list[str], holders: int) -> Members:
    consumers = [state.consumers[name].record for name in eligible]
    racks = {rack: number for number, rack in enumerate(sorted({c.rack for c in consumers if c.rack}))}
    count = len(consumers) + holders
    return Members(
        capacity=np.asarray([c.capacity for c in consumers] + [1.0] * holders, np.float64),
        rack=np.asarray([racks.get(c.rack, NONE) for c in consumers] + [NONE] * holders, np.int32),
        subscription=_subscriptions(state, consumers, holders),
        hold=np.asarray([False] * len(consumers) + [True] * holders, np.bool_),
        cap=np.full(count, NONE, np.int32),
    )


def _subscriptions(state: GroupState, consumers: list[Consumer], holders: int) -> BoolArray:
    column = {topic: number for number, topic in enumerate(sorted(state.topics))}
    wanted = np.ones((len(consumers) + holders, len(column)), np.bool_)
    for row, consumer in enumerate(consumers):
        if consumer.topics:
            wanted[row] = False
            wanted[row, [column[topic] for topic in consumer.topics if topic in column]] = True
    return wanted


def _topics(state: GroupState) -> Topics:
    names = sorted(state.topics)
    counts = np.asarray([state.topics[name].record.partition_count for name in names], np.int32)
    return Topics(partitions=counts, copartition=_copartition(state, names))


def _copartition(state: GroupState, names: list[str]) -> IntArray | None:
    """Set number per topic. Topics of one set with unequal counts can't move as one: they count as single."""
    sets = copartition_sets(state)
    if not sets:
        return None
    numbers = {topic: number for number, topics in enumerate(sets) for topic in topics}
    return np.asarray([numbers.get(name, NONE) for name in names], np.int32)


def copartition_sets(state: GroupState) -> list[tuple[str, ...]]:
    sets: list[tuple[str, ...]] = []
    for topics in state.options.copartitioned:
        known = tuple(sorted({topic for topic in topics if topic in state.topics}))
        counts = {state.topics[topic].record.partition_count for topic in known}
        if len(known) > 1 and len(counts) == 1:
            sets.append(known)
    return sets


def companions_by_topic(state: GroupState) -> Mapping[str, tuple[str, ...]]:
    return {topic: topics for topics in copartition_sets(state) for topic in topics}


def targets(request: Request, solution: Solution) -> list[Target]:
    """What the solution changes, and what it says of partitions that lost their target."""
    changed = np.nonzero(solution.owner != request.problem.owner)[0]
    result = [_target(request, solution, int(number)) for number in changed]
    if request.lost:
        where = {tp: number for number, tp in enumerate(request.partitions)}
        said = {target.tp for target in result}
        result += [_target(request, solution, where[tp]) for tp in request.lost if tp not in said]
    return [target for target in result if target.owner]


def _target(request: Request, solution: Solution, number: int) -> Target:
    owner = int(solution.owner[number])
    return Target(request.partitions[number], request.members[owner] if owner != NONE else "")
