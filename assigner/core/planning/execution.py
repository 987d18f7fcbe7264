"""Carries a plan out: turns its targets into moves, and moves into writes, no faster than the group's limits allow.

The plan was made a moment ago and is advisory. Each move is checked again when it begins; one that does not apply any
more is dropped, and another plan is asked for.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator

import msgspec

from assigner.core.leader_context import LeaderContext
from assigner.core.liveness import SessionState
from assigner.core.planning import request
from assigner.core.planning.copartitions import CopartitionUnits
from assigner.core.planning.in_flight import HandoffsInFlight
from assigner.core.planning.rollout import new_generation
from assigner.core.work_queue import Note
from assigner.core.writes import Write
from assigner.model.keys import TopicPartition
from assigner.model.records import Cause, Status, Step


class QueuedMove(msgspec.Struct, frozen=True, gc=False):
    tps: tuple[TopicPartition, ...]
    """More than one where a co-partition set moves as one."""
    target: str
    cause: Cause


class MoveQueue:
    """Moves that wait for room under the limits.

    One queue per target, because the limit that usually binds is how much one consumer warms at a time. Taking the next
    moves costs as much as there are targets with moves waiting, not as there are moves."""

    def __init__(self) -> None:
        self._by_target: dict[str, deque[QueuedMove]] = {}
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    def clear(self) -> None:
        self._by_target.clear()
        self._waiting = 0

    def add(self, move: QueuedMove) -> None:
        self._by_target.setdefault(move.target, deque()).append(move)
        self._waiting += 1

    def take(self, warming: Callable[[str], int], most: int, total: int) -> Iterator[QueuedMove]:
        """Moves to begin now, round-robin over the targets: until `total` partitions are in flight, and as long as no
        target warms more than `most`. A co-partition set larger than `most` begins where nothing else is warmed,
        because it never gets smaller."""
        busy = {target: warming(target) for target in self._by_target}
        while total > 0 and busy:
            for target in list(busy):
                queue = self._by_target.get(target)
                if not queue or total <= 0 or 0 < busy[target] > most - len(queue[0].tps):
                    del busy[target]
                    continue
                move = queue.popleft()
                if not queue:
                    del self._by_target[target]
                self._waiting -= 1
                busy[target] += len(move.tps)
                total -= len(move.tps)
                yield move


_CAUSES_OF_BALANCE = (Cause.OPERATOR, Cause.JOINED, Cause.TOPIC_GREW, Cause.LOAD, Cause.DRAINING, Cause.LEFT)
"""Which of a plan's causes a move for balance is attributed to: the first that applies."""


class PlanExecution:
    def __init__(
        self,
        context: LeaderContext,
        units: CopartitionUnits,
        in_flight: HandoffsInFlight,
        must_stay: Callable[[TopicPartition, float], bool],
    ) -> None:
        """`must_stay`: whether no plan may move a partition now."""
        self._state = context.state
        self._liveness = context.liveness
        self._transitions = context.transitions
        self._work = context.work
        self._pending = context.pending
        self._units = units
        self._in_flight = in_flight
        self._must_stay = must_stay
        self._causes: set[Cause] = set()
        self._begun: set[str] = set()
        """Topics that had an owner when the plan was made: their partitions without one are new."""
        self._new_generation: str | None = None
        """The generation that takes over, if a rollout was in progress when the plan was made."""
        self._targets: deque[request.OwnerTarget] = deque()
        """Targets of the plan that are not yet turned into moves."""
        self._joint: dict[tuple[str, str, int, tuple[str, str]], QueuedMove] = {}
        """Moves of co-partition sets, being put together from the targets: per owner, because a handoff has one."""
        self._immediate: deque[QueuedMove] = deque()
        """Moves that no limit applies to: the partition has no owner, or is in flight already."""
        self._queue = MoveQueue()
        self.placements = 0
        """Plans whose standbys are still being placed. Meanwhile no handoff begins: until it is on record whether the
        old owner keeps its copy, it would be asked to drop it. Partitions without an owner do not wait."""

    # --- the plan -------------------------------------------------------------------------------------

    def begin(self, targets: Iterable[request.OwnerTarget], causes: set[Cause]) -> None:
        """Carry out a new plan, in place of what is left of the old one."""
        self.abandon()
        self._causes = causes
        self._begun = {topic for topic in self._state.topics if TopicPartition(topic, 0) in self._state.assignments}
        registered = (consumer.record for consumer in self._state.consumers.values())
        self._new_generation = new_generation(registered, self._state.options.rollout)
        self._targets = deque(targets)

    def abandon(self) -> None:
        """Drop the moves that have not begun; the next plan decides about them."""
        self._queue.clear()
        self._immediate.clear()
        self._joint.clear()
        self._targets.clear()

    @property
    def urgent(self) -> bool:
        """Whether there are moves to decide that no limit holds back."""
        return bool(self._targets or self._immediate)

    @property
    def finished(self) -> bool:
        return not (self.urgent or len(self._queue))

    @property
    def queued(self) -> int:
        return len(self._queue)

    # --- from targets to moves -----------------------------------------------------------------------------------

    def queue_moves(self, now: float, budget: int) -> None:
        """Turn at most `budget` targets into moves. The moves of a co-partition set wait until all targets are
        known."""
        if not self._targets:
            return
        for _ in range(min(budget, len(self._targets))):
            target = self._targets.popleft()
            if not target.owner and not self._must_leave(target.tp, now):
                continue
            move = QueuedMove((target.tp,), target.owner, self._cause(target.tp, now))
            unit = self._units.of(target.tp)
            if not unit:
                self._add(move, now)
                continue
            key = (unit, target.owner, target.tp.partition, self._holder(target.tp))
            joined = self._joint.get(key)
            self._joint[key] = QueuedMove((*joined.tps, target.tp), joined.target, joined.cause) if joined else move
        if not self._targets:
            for move in self._joint.values():
                self._add(move, now)
            self._joint.clear()

    def _add(self, move: QueuedMove, now: float) -> None:
        if any(self._must_stay(tp, now) for tp in move.tps):
            return
        in_flight = any(tp in self._state.handoffs for tp in move.tps)
        if self._is_free(move.tps[0], now) or in_flight or not move.target:
            self._immediate.append(move)
            return
        held = self._state.assignments[move.tps[0]].record
        if self._liveness.owner_state(held, now) is SessionState.ALIVE:
            self._queue.add(move)

    def _cause(self, tp: TopicPartition, now: float) -> Cause:
        held = self._state.assignments.get(tp)
        if held is None:
            grown = bool(self._state.assignments) and Cause.JOINED not in self._causes
            return Cause.TOPIC_GREW if grown or tp.topic in self._begun else Cause.JOINED
        if self._liveness.owner_state(held.record, now) is SessionState.DEAD:
            return Cause.LEFT
        owner = self._state.consumers.get(held.record.owner)
        if owner and owner.record.status is Status.DRAINING:
            replaced = self._new_generation is not None and owner.record.generation != self._new_generation
            return Cause.ROLLOUT if replaced else Cause.DRAINING
        return next((cause for cause in _CAUSES_OF_BALANCE if cause in self._causes), Cause.JOINED)

    def _must_leave(self, tp: TopicPartition, now: float) -> bool:
        """Whether a partition that the plan leaves unowned has to be released; only a leaving owner has to."""
        held = self._state.assignments.get(tp)
        void = tp in self._state.handoffs and self._is_free(tp, now)
        return void or bool(held and self._liveness.is_leaving(held.record))

    def _holder(self, tp: TopicPartition) -> tuple[str, str]:
        held = self._state.assignments.get(tp)
        return (held.record.owner, held.record.session) if held else ("", "")

    def _is_free(self, tp: TopicPartition, now: float) -> bool:
        """Whether no living session owns the partition, so that it needs no handoff."""
        held = self._state.assignments.get(tp)
        return held is None or self._liveness.owner_state(held.record, now) is SessionState.DEAD

    # --- from moves to writes ------------------------------------------------------------------------------------

    def writes(self, now: float, wall: float, budget: int) -> Iterator[Write]:
        """Begin moves, by at most `budget` writes."""
        given = 0
        while self._immediate and given < budget:
            write = self._begin(self._immediate.popleft(), now, wall)
            if write:
                given += 1
                yield write
        for move in self._with_room(budget - given):
            write = self._begin(move, now, wall)
            if write:
                yield write

    def _with_room(self, budget: int) -> list[QueuedMove]:
        options = self._state.options
        if self.placements or not len(self._queue):
            return []
        room = min(options.max_concurrent_handoffs - len(self._in_flight), budget)
        return list(self._queue.take(self._warming, options.warm_concurrency, room)) if room > 0 else []

    def _warming(self, name: str) -> int:
        """How many partitions the consumer warms; of one that has nothing to warm, fewer than count for any limit."""
        target = self._state.consumers.get(name)
        return -sys.maxsize if target and target.record.cold else self._in_flight.warming(name)

    def _begin(self, move: QueuedMove, now: float, wall: float) -> Write | None:
        if not move.target:
            return self._release(move, now, wall)
        target = self._liveness.eligible(move.target)
        if target is None or any(tp in self._pending for tp in move.tps):
            self._work.want_plan(None, now)
            return None
        if all(self._is_free(tp, now) for tp in move.tps):
            return self._transitions.assign(move.tps, target, move.cause)
        held = [self._state.assignments.get(tp) for tp in move.tps]
        if {a.record.owner if a else "" for a in held} == {move.target}:
            in_flight = [tp for tp in move.tps if tp in self._state.handoffs]
            return self._transitions.reassert_owner(in_flight) if in_flight else None
        if not all(held):
            return None
        write = self._transitions.start(move.tps, target, move.cause, int(wall))
        self._in_flight.begin(write, "" if target.record.cold else move.target)
        return write

    def _release(self, move: QueuedMove, now: float, wall: float) -> Write | None:
        """Have the owner release a partition that it has to leave and that no consumer can take over."""
        if any(tp in self._pending for tp in move.tps) or not all(self._must_leave(tp, now) for tp in move.tps):
            self._work.want_plan(None, now)
            return None
        if all(self._is_free(tp, now) for tp in move.tps):
            return self._transitions.finish(move.tps)
        current = [handoff.record for tp in move.tps if (handoff := self._state.handoffs.get(tp))]
        if any(handoff.to_nobody or handoff.at is Step.COMPLETE for handoff in current):
            return None
        owner = self._state.assignments[move.tps[0]].record.owner
        self._work.note(Note("partition_orphaned", move.tps[0], owner, "nobody can take over"))
        return self._transitions.release_to_nobody(move.tps, move.cause, int(wall))
