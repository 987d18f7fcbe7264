"""Translates a group's state into a strategy's problem, names to numbers, and the solution back into targets.

Members and topics are taken in name order, so the result depends on nothing but the state. What must not move now is
pinned: partitions in flight to their new owner, those whose owner may still come back, those in cooldown or quarantine,
and all that have an owner during a rollout and after an outage of the service.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from assigner.core.group import GroupState
from assigner.core.liveness import SessionLiveness, SessionState
from assigner.core.loads.weights import GroupLoads
from assigner.core.planning.copartitions import BY_LIKENESS, copartition_sets, slots
from assigner.core.planning.rollout import Rollout, applied, plan_rollout
from assigner.core.standby_copies import holders
from assigner.model.keys import TopicPartition
from assigner.model.records import Consumer, Handoff, Step
from assigner.strategy import NONE, BoolArray, FloatArray, IntArray, Members, Problem, Solution, Topics, name_keys

Racks = tuple[str, ...]


class ReplicaRacks:
    """Numbers for racks: those of members and those of partitions' replicas share one numbering, in name order.

    Partitions are added in slices, as the problem is built. Many partitions share few sets of replica racks, so each
    set is translated once."""

    def __init__(self, by_topic: Mapping[str, tuple[Racks, ...]], partitions: int) -> None:
        """`by_topic`: the racks of each partition's replicas, as far as known. `partitions`: how many in all topics."""
        self._by_topic = {topic: racks for topic, racks in by_topic.items() if any(map(any, racks))}
        self._kinds: dict[Racks, int] = {(): 0}
        self._kind = np.zeros(partitions if self._by_topic else 0, np.int32)
        """Per flat partition."""
        self._done = 0

    @property
    def known(self) -> bool:
        """Whether any replica's rack is known; if not, nothing need be added."""
        return bool(self._by_topic)

    def add(self, tps: Sequence[TopicPartition]) -> None:
        """Add the next partitions in the order of the flat arrays."""
        kinds, number = [self._of(tp) for tp in tps], self._kinds
        self._kind[self._done : self._done + len(tps)] = [number.setdefault(kind, len(number)) for kind in kinds]
        self._done += len(tps)

    def _of(self, tp: TopicPartition) -> Racks:
        racks = self._by_topic.get(tp.topic, ())
        return racks[tp.partition] if tp.partition < len(racks) else ()

    def numbered(self, others: Iterable[str]) -> tuple[dict[str, int], tuple[IntArray, IntArray] | None]:
        """Number these racks and the `others`, and return the replicas' racks as `Topics.replica_racks`."""
        names = sorted({rack for kind in (*self._kinds, tuple(others)) for rack in kind if rack})
        numbers = {rack: number for number, rack in enumerate(names)}
        return numbers, self._arrays(numbers) if self.known else None

    def _arrays(self, numbers: Mapping[str, int]) -> tuple[IntArray, IntArray]:
        kinds = [sorted({numbers[rack] for rack in kind if rack}) for kind in self._kinds]
        width = max(map(len, kinds))
        table = np.asarray([kind + [NONE] * (width - len(kind)) for kind in kinds], np.int32).reshape(-1, width)
        rows = table[self._kind]
        starts = np.concatenate((np.zeros(1, np.int32), np.cumsum((rows != NONE).sum(axis=1), dtype=np.int32)))
        return starts, rows[rows != NONE]


class _TopicRow(msgspec.Struct, frozen=True, gc=False):
    name: str
    topic: int
    """Its place among the topics in name order."""
    count: int
    joined: int
    """The number of its set or NONE."""


class TopicRows:
    """Topics as the rows of a strategy's problem.

    A topic is one row, or two if it has more partitions than other topics of its co-partition set have yet: those that
    move as one with the others, and the rest, which move by themselves. So the topics of every set in the problem have
    equal partition counts, and the flat order of partitions is not affected."""

    def __init__(self, state: GroupState) -> None:
        sets = copartition_sets(state)
        self._by_likeness = state.options.strategy == BY_LIKENESS
        self._joined = {topic: number for number, topics in enumerate(sets) for topic in topics}
        self._slots = [slots(state, topics) for topics in sets]
        names = sorted(state.topics)
        counts = [state.topics[name].record.partition_count for name in names]
        self._rows = [row for place, name in enumerate(names) for row in self._of(place, name, counts[place])]
        self._split = len(self._rows) > len(names)

    def _of(self, place: int, name: str, count: int) -> list[_TopicRow]:
        number = self._joined.get(name, NONE)
        if number == NONE or count == self._slots[number]:
            return [_TopicRow(name, place, count, number)]
        together = self._slots[number]
        return [
            _TopicRow(name, place, together, number),
            _TopicRow(f"{name}+{together}", place, count - together, NONE),
        ]

    def topics(self) -> Topics:
        counts = np.asarray([row.count for row in self._rows], np.int32)
        return Topics(partitions=counts, copartition=self._sets(), key=name_keys([row.name for row in self._rows]))

    def columns(self, wanted: BoolArray) -> BoolArray:
        """Reorder the columns of [member, topic in name order] to [member, row]."""
        return wanted[:, [row.topic for row in self._rows]] if self._split else wanted

    def _sets(self) -> IntArray | None:
        """The number of the co-partition set per row; None: every topic moves by itself."""
        numbers = [row.joined for row in self._rows]
        if self._by_likeness:
            # The strategy would join topics outside a set by itself, by the members of the plan alone. Partitions
            # move as one by the sets given here, and the two must agree.
            alone = iter(range(len(self._slots), len(self._slots) + len(self._rows)))
            numbers = [next(alone) if number == NONE else number for number in numbers]
        return np.asarray(numbers, np.int32) if any(number != NONE for number in numbers) else None


@dataclass(frozen=True)
class Request:
    """A problem to solve, with the names behind its numbers."""

    strategy: str
    problem: Problem
    members: tuple[str, ...]
    partitions: tuple[TopicPartition, ...]
    lost: tuple[TopicPartition, ...]
    """Partitions in flight to a consumer that can't take them any more: the plan says where they go, or stay."""
    absent: int = 0
    """How many of the members, the last ones, are absent: they keep what they have and can be given nothing."""
    rollout: Rollout | None = None
    """The rolling deploy whose constraints are in the problem; `rollout.solve` knows when to relax them."""
    leaving: tuple[TopicPartition, ...] = ()
    """Partitions whose owner is registered and leaving: if no consumer can take them, they are released to nobody."""
    all_are_back: bool = True
    """Whether no absent consumer may come back and take partitions that no registered one can."""
    cold: tuple[int, ...] = ()
    """The members that hold no standby copies, because they have nothing to warm."""


class OwnerTarget(msgspec.Struct, frozen=True, gc=False):
    tp: TopicPartition
    owner: str
    """Empty: no consumer may own it."""


def flat_partitions(state: GroupState) -> list[TopicPartition]:
    """Every partition of every readable topic, in the order of the strategy's flat arrays."""
    return [
        TopicPartition(topic, number)
        for topic in sorted(state.topics)
        for number in range(state.topics[topic].record.partition_count)
    ]


class RequestBuilder:
    """Builds the problem in slices of partitions, so that a large group does not block the event loop.

    What changes meanwhile may or may not be seen. That is fine: the plan is advisory, and each of its writes has
    preconditions of its own.
    """

    def __init__(
        self,
        state: GroupState,
        liveness: SessionLiveness,
        now: float,
        *,
        must_stay: Callable[[TopicPartition], bool],
        partitions: list[TopicPartition],
        loads: GroupLoads | None = None,
        wall: float = 0.0,
        only_unowned: bool = False,
    ) -> None:
        """`must_stay`: whether no plan may move a partition now. `wall`: the time that loads are dated by.
        `only_unowned`: nothing moves for balance, because absent consumers may come back."""
        self._state = state
        self._liveness = liveness
        self._now = now
        self._must_stay = must_stay
        self._only_unowned = only_unowned
        self._partitions = partitions
        self._eligible = [name for name in sorted(state.consumers) if liveness.eligible(name)]
        self._index = {name: number for number, name in enumerate(self._eligible)}
        self._sessions = {name: state.consumers[name].record.session for name in self._eligible}
        self._absent: dict[str, int] = {}
        self._session_states: dict[tuple[str, str], SessionState] = {}
        self._owners: list[int] = []
        self._pins: list[bool] = []
        """Of the partitions added by the present step; the arrays have them afterwards."""
        self._done = 0
        self._owner = np.full(len(partitions), NONE, np.int32)
        self._pinned = np.zeros(len(partitions), np.bool_)
        self._lost: list[TopicPartition] = []
        self._leaving: list[TopicPartition] = []
        self._copies: list[IntArray] = []
        """(flat partition, replica, member that holds it), by step."""
        # Read once, because the arrays must have the same members even if a consumer joins meanwhile.
        self._consumers = [state.consumers[name].record for name in self._eligible]
        self._racks = ReplicaRacks(
            {topic: config.record.replica_racks for topic, config in state.topics.items()}, len(partitions)
        )
        rows = TopicRows(state)
        self._topics = rows.topics()
        self._wanted = rows.columns(_subscriptions(state, self._consumers))
        self._rollout = rollout_of(state, self._consumers)
        self._weights, self._busy = self._loads(loads, wall)

    def _loads(self, loads: GroupLoads | None, wall: float) -> tuple[FloatArray | None, FloatArray | None]:
        """Weights of partitions and loads of members, as far as they are known and the group uses them."""
        if loads is None or not self._state.options.use_loads:
            return None, None
        sizes = [(topic, self._state.topics[topic].record.partition_count) for topic in sorted(self._state.topics)]
        busy = np.asarray([loads.busy(name, wall) for name in self._eligible], np.float64)
        return loads.weights(sizes, wall), None if np.isnan(busy).all() else busy

    def step(self, count: int) -> Request | None:
        """Add the next `count` partitions. Returns the request once there are no more."""
        begin, end = self._done, min(self._done + count, len(self._partitions))
        tps = self._partitions[begin:end]
        for tp in tps:
            self._add(tp)
        if self._state.standbys:
            self._add_copies(tps)
        if self._racks.known:
            self._racks.add(tps)
        # Emptied at each step, so that no step has to turn a whole group's lists into arrays.
        self._owner[begin:end], self._pinned[begin:end] = self._owners, self._pins
        self._owners, self._pins, self._done = [], [], end
        return self._request() if end == len(self._partitions) else None

    def _add(self, tp: TopicPartition) -> None:
        held, handoff = self._state.assignments.get(tp), self._state.handoffs.get(tp)
        if handoff:
            record = handoff.record
            if record.at is Step.COMPLETE:
                # Cut over already: only the old owner's release is missing, which no plan can help with.
                self._put(self._index.get(held.record.owner, NONE) if held else NONE, pinned=True)
                return
            if record.to_nobody:
                self._put(NONE, pinned=True)
                return
            if self._is_target(record):
                self._put(self._index[record.new_owner], pinned=True)
                return
            if self._liveness.in_grace_period(record.new_owner, record.new_session, self._now):
                self._put(self._absent_member(record.new_owner), pinned=True)
                return
            self._lost.append(tp)
        if held is None:
            self._put(NONE, pinned=self._must_stay(tp))
            return
        self._add_held(tp, held.record.owner, held.record.session)

    def _is_target(self, handoff: Handoff) -> bool:
        number = self._index.get(handoff.new_owner)
        return (
            number is not None
            and self._sessions[handoff.new_owner] == handoff.new_session
            and self._consumers[number].wants(handoff.topic)
        )

    def _absent_member(self, name: str) -> int:
        """The number of an absent member, which keeps its partitions and gets none."""
        return len(self._index) + self._absent.setdefault(name, len(self._absent))

    def _add_held(self, tp: TopicPartition, name: str, session: str) -> None:
        session_state = self._session_states.get((name, session))
        if session_state is None:
            session_state = self._session_states[name, session] = self._liveness.session_state(name, session, self._now)
        if session_state is SessionState.UNKNOWN:
            # If another session of the consumer is registered, it will take this over: count it as its own already.
            self._put(self._index[name] if name in self._index else self._absent_member(name), pinned=True)
            return
        pinned = self._must_stay(tp)
        if session_state is SessionState.ALIVE and name not in self._index and not pinned:
            self._leaving.append(tp)
        self._put(NONE if session_state is SessionState.DEAD else self._index.get(name, NONE), pinned=pinned)

    def _put(self, owner: int, *, pinned: bool) -> None:
        self._owners.append(owner)
        self._pins.append(pinned or (self._only_unowned and owner != NONE))

    def _add_copies(self, tps: list[TopicPartition]) -> None:
        found: list[tuple[int, int, int]] = []
        for flat, (tp, owner) in enumerate(zip(tps, self._owners, strict=True), self._done):
            if tp in self._state.standbys:
                # A record may name the owner, which needs no copy besides.
                numbers = dict.fromkeys(self._holder(name) for name in holders(self._state, tp))
                present = (number for number in numbers if number not in (NONE, owner))
                found += [(flat, replica, holder) for replica, holder in enumerate(present)]
        self._copies.append(np.asarray(found, np.int32).reshape(-1, 3))

    def _holder(self, name: str) -> int:
        number = self._index.get(name, NONE)
        return NONE if number != NONE and self._consumers[number].cold else number

    def _request(self) -> Request:
        options = self._state.options
        racks, replica_racks = self._racks.numbered(consumer.rack for consumer in self._consumers)
        problem = Problem(
            members=self._members(racks),
            topics=replace(self._topics, weight=self._weights, replica_racks=replica_racks),
            owner=self._owner,
            pinned=self._pinned,
            standbys=_standbys(self._copies, len(self._partitions)),
            standby_count=options.standby_count,
            options=dict(options.strategy_options),
        )
        names = (*self._eligible, *self._absent)
        rollout = self._rollout.of_all(len(names)) if self._rollout else None
        if rollout:
            problem = applied(problem, rollout)
        return Request(
            options.strategy,
            problem,
            names,
            tuple(self._partitions),
            tuple(self._lost),
            len(self._absent),
            rollout,
            tuple(self._leaving),
            all_are_back=not self._only_unowned,
            cold=tuple(number for number, consumer in enumerate(self._consumers) if consumer.cold),
        )

    def _members(self, racks: dict[str, int]) -> Members:
        consumers, absent = self._consumers, len(self._absent)
        everything = np.ones((absent, self._wanted.shape[1]), np.bool_)
        return Members(
            capacity=np.asarray([*(c.capacity for c in consumers), *map(self._capacity, self._absent)], np.float64),
            rack=np.asarray([racks.get(c.rack, NONE) for c in consumers] + [NONE] * absent, np.int32),
            subscription=np.concatenate((self._wanted, everything)),
            # One that stepped out keeps its partitions for its next session, which can't warm anything before it is
            # there.
            hold=np.asarray([c.away for c in consumers] + [True] * absent, np.bool_),
            cap=np.full(len(consumers) + absent, NONE, np.int32),
            load=None if self._busy is None else np.concatenate((self._busy, np.full(absent, np.nan))),
            key=name_keys([*self._eligible, *self._absent]),
        )

    def _capacity(self, name: str) -> float:
        """The consumer's capacity; an absent consumer's is that of its last registration."""
        registered = self._state.consumers.get(name)
        last = registered.record if registered else self._state.departed.get(name)
        return last.capacity if last else 1.0


def _standbys(copies: list[IntArray], partitions: int) -> IntArray:
    """The standbys on record as [flat partition, replica]; without columns where there are none."""
    flat, replica, holder = np.concatenate([np.empty((0, 3), np.int32), *copies]).T
    table = np.full((partitions, int(replica.max(initial=-1)) + 1), NONE, np.int32)
    table[flat, replica] = holder
    return table


def rollout_of(state: GroupState, consumers: Sequence[Consumer]) -> Rollout | None:
    """The constraints of a rollout in progress on these consumers, which may own partitions; None: there is none."""
    options = state.options
    if not options.rollout:
        return None
    partitions = {topic: config.record.partition_count for topic, config in state.topics.items()}
    fleet = (consumer.record for consumer in state.consumers.values())
    unit = max(map(len, copartition_sets(state)), default=1)
    return plan_rollout(consumers, fleet, options, partitions, unit=unit)


def _subscriptions(state: GroupState, consumers: list[Consumer]) -> BoolArray:
    column = {topic: number for number, topic in enumerate(sorted(state.topics))}
    wanted = np.ones((len(consumers), len(column)), np.bool_)
    for row, consumer in enumerate(consumers):
        if not consumer.wants_every_topic:
            wanted[row] = False
            wanted[row, [column[topic] for topic in consumer.topics if topic in column]] = True
    return wanted


def targets(request: Request, solution: Solution) -> list[OwnerTarget]:
    """The owners that the solution changes, and those of partitions that lost their new owner or whose owner leaves.
    Partitions that would go to an absent member wait for it where they are."""
    changed = np.nonzero(solution.owner != request.problem.owner)[0]
    result = [_target(request, solution, int(number)) for number in changed]
    undecided = dict.fromkeys((*request.lost, *request.leaving))
    if undecided:
        where = {tp: number for number, tp in enumerate(request.partitions)}
        decided = {target.tp for target in result if target}
        result += [_target(request, solution, where[tp]) for tp in undecided if tp not in decided]
    return [target for target in result if target and (target.owner or request.all_are_back)]


def _target(request: Request, solution: Solution, number: int) -> OwnerTarget | None:
    owner = int(solution.owner[number])
    if owner >= len(request.members) - request.absent:
        return None
    return OwnerTarget(request.partitions[number], request.members[owner] if owner != NONE else "")
