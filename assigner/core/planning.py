"""Where strings become integers and back: a group's state as a strategy's problem, and its solution as moves.

Members and topics are taken in name order, so the result depends on nothing but the state. What must not move now is
pinned: partitions in flight to their target, those whose owner may yet come back, those given up on for a while.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec
import numpy as np

from assigner.core.group import GroupState
from assigner.core.liveness import Fate, Liveness
from assigner.keys import TopicPartition
from assigner.records import Consumer, Step
from assigner.strategy import NONE, BoolArray, IntArray, Members, Problem, Solution, Topics, name_keys


@dataclass(frozen=True)
class Request:
    """A problem to solve, with the names behind its numbers."""

    strategy: str
    problem: Problem
    members: tuple[str, ...]
    partitions: tuple[TopicPartition, ...]
    lost: tuple[TopicPartition, ...]
    """Partitions in flight to a consumer that can't take them any more: they need an answer even if it is `stay`."""


class Target(msgspec.Struct, frozen=True, gc=False):
    tp: TopicPartition
    owner: str


def flat_partitions(state: GroupState) -> list[TopicPartition]:
    """Every partition of every readable topic, in the order of the strategy's flat arrays."""
    return [
        TopicPartition(topic, number)
        for topic in sorted(state.topics)
        for number in range(state.topics[topic].record.partition_count)
    ]


class Builder:
    """Turns the state into a problem, some partitions at a time, so that a large group keeps nobody waiting.

    What changes meanwhile may or may not be seen. That is fine: the plan is advisory, and each of its writes compares
    what it was decided on.
    """

    def __init__(
        self,
        state: GroupState,
        liveness: Liveness,
        now: float,
        *,
        stays: Callable[[TopicPartition], bool],
        partitions: list[TopicPartition],
    ) -> None:
        """`stays` says which partitions must not move whatever the plan."""
        self._state = state
        self._liveness = liveness
        self._now = now
        self._stays = stays
        self._partitions = partitions
        self._eligible = [name for name in sorted(state.consumers) if liveness.eligible(name)]
        self._index = {name: number for number, name in enumerate(self._eligible)}
        self._sessions = {name: state.consumers[name].record.session for name in self._eligible}
        self._holders: dict[str, int] = {}
        self._fates: dict[tuple[str, str], Fate] = {}
        self._owners: list[int] = []
        self._pinned: list[bool] = []
        self._lost: list[TopicPartition] = []
        # Taken now, because the arrays must fit each other whatever happens meanwhile.
        self._consumers = [state.consumers[name].record for name in self._eligible]
        self._topics = _topics(state)
        self._wanted = _subscriptions(state, self._consumers)

    def step(self, count: int) -> Request | None:
        """Take in the next partitions; the problem, once there are no more."""
        begin = len(self._owners)
        for tp in self._partitions[begin : begin + count]:
            self._add(tp)
        return self._request() if len(self._owners) == len(self._partitions) else None

    def _add(self, tp: TopicPartition) -> None:
        held, handoff = self._state.assignments.get(tp), self._state.handoffs.get(tp)
        if handoff:
            record = handoff.record
            if record.at is Step.COMPLETE:
                # Flipped already; only the old owner's letting go is awaited, and that is not a matter of planning.
                self._put(self._index.get(held.record.owner, NONE) if held else NONE, pinned=True)
                return
            if self._sessions.get(record.new_owner) == record.new_session:
                self._put(self._index[record.new_owner], pinned=True)
                return
            if self._liveness.awaited(record.new_owner, record.new_session, self._now):
                self._put(self._holder(record.new_owner), pinned=True)
                return
            self._lost.append(tp)
        if held is None:
            self._put(NONE, pinned=self._stays(tp))
            return
        self._add_held(tp, held.record.owner, held.record.session)

    def _holder(self, name: str) -> int:
        """The number of somebody who keeps partitions and gets none."""
        return len(self._index) + self._holders.setdefault(name, len(self._holders))

    def _add_held(self, tp: TopicPartition, name: str, session: str) -> None:
        fate = self._fates.get((name, session))
        if fate is None:
            fate = self._fates[name, session] = self._liveness.fate(name, session, self._now)
        if fate is Fate.DOUBT:
            # If another session of the name is here, it will get what the old one has: count it as its own already.
            self._put(self._index[name] if name in self._index else self._holder(name), pinned=True)
        else:
            self._put(NONE if fate is Fate.DEAD else self._index.get(name, NONE), pinned=self._stays(tp))

    def _put(self, owner: int, *, pinned: bool) -> None:
        self._owners.append(owner)
        self._pinned.append(pinned)

    def _request(self) -> Request:
        options = self._state.options
        problem = Problem(
            members=_members(self._consumers, tuple(self._holders), self._wanted),
            topics=self._topics,
            owner=np.asarray(self._owners, np.int32),
            pinned=np.asarray(self._pinned, np.bool_),
            standbys=np.full((len(self._partitions), 0), NONE, np.int32),
            standby_count=options.standby_count,
            options=dict(options.strategy_options),
        )
        names = (*self._eligible, *self._holders)
        return Request(options.strategy, problem, names, tuple(self._partitions), tuple(self._lost))


def _members(consumers: list[Consumer], away: tuple[str, ...], wanted: BoolArray) -> Members:
    holders = len(away)
    racks = {rack: number for number, rack in enumerate(sorted({c.rack for c in consumers if c.rack}))}
    everything = np.ones((holders, wanted.shape[1]), np.bool_)
    return Members(
        capacity=np.asarray([c.capacity for c in consumers] + [1.0] * holders, np.float64),
        rack=np.asarray([racks.get(c.rack, NONE) for c in consumers] + [NONE] * holders, np.int32),
        subscription=np.concatenate((wanted, everything)),
        hold=np.asarray([False] * len(consumers) + [True] * holders, np.bool_),
        cap=np.full(len(consumers) + holders, NONE, np.int32),
        key=name_keys([*(c.consumer_name for c in consumers), *away]),
    )


def _subscriptions(state: GroupState, consumers: list[Consumer]) -> BoolArray:
    column = {topic: number for number, topic in enumerate(sorted(state.topics))}
    wanted = np.ones((len(consumers), len(column)), np.bool_)
    for row, consumer in enumerate(consumers):
        if consumer.topics:
            wanted[row] = False
            wanted[row, [column[topic] for topic in consumer.topics if topic in column]] = True
    return wanted


def _topics(state: GroupState) -> Topics:
    names = sorted(state.topics)
    counts = np.asarray([state.topics[name].record.partition_count for name in names], np.int32)
    return Topics(partitions=counts, copartition=_copartition(state, names), key=name_keys(names))


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
