"""Carries a plan out: from what it wants to moves, and from moves to writes, no faster than the group allows.

The plan was made a moment ago and is advisory. Each move is checked again when it begins; one that makes no sense any
more is dropped, and another plan is asked for.
"""

from __future__ import annotations

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

# Moves that a plan wants and that have not begun, let through no faster than the group allows.
#
# A queue per target, because the limit that usually binds is how much one consumer warms at a time. Asking for the next
# moves costs as much as there are targets with something waiting, not as there are moves.


class PlannedMove(msgspec.Struct, frozen=True, gc=False):
    tps: tuple[TopicPartition, ...]
    """More than one where a co-partition set moves as one."""
    target: str
    cause: Cause


class MoveQueue:
    def __init__(self) -> None:
        self._by_target: dict[str, deque[PlannedMove]] = {}
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    def clear(self) -> None:
        self._by_target.clear()
        self._waiting = 0

    def add(self, move: PlannedMove) -> None:
        self._by_target.setdefault(move.target, deque()).append(move)
        self._waiting += 1

    def take(self, warming: Callable[[str], int], most: int, total: int) -> Iterator[PlannedMove]:
        """Moves to begin now, turn by turn over the targets: until `total` partitions are on their way, and as long as
        none of the targets warms more than `most`. What moves as one begins whatever its size where nothing else is
        warmed, because it never gets smaller."""
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


_BY_WEIGHT = (Cause.OPERATOR, Cause.JOINED, Cause.TOPIC_GREW, Cause.LOAD, Cause.DRAINING, Cause.LEFT)
"""Which of several causes a move made for balance is put down to."""


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
        """Topics that were owned when the plan was made: what is unowned of them is new."""
        self._new_generation: str | None = None
        """Of the rollout that was on when the plan was made."""
        self._targets: deque[request.OwnerTarget] = deque()
        """What the plan wants and has not yet been looked at."""
        self._joint: dict[tuple[str, str, int, tuple[str, str]], PlannedMove] = {}
        """Moves of partitions that move as one, being put together from the targets: those of one owner, because a
        handoff has one."""
        self._at_once: deque[PlannedMove] = deque()
        """Moves that wait for no room: nobody holds the partition, or it is in flight already."""
        self._queue = MoveQueue()
        self.placements = 0
        """Plans whose standbys are still being placed. Meanwhile no handoff begins: until it is on record whether the
        old owner keeps its copy, it would be told to drop it. Partitions without an owner do not wait."""

    # --- what there is to do -------------------------------------------------------------------------------------

    def begin(self, targets: Iterable[request.OwnerTarget], causes: set[Cause]) -> None:
        """A new plan, in place of what is left of the old one."""
        self.abandon()
        self._causes = causes
        self._begun = {topic for topic in self._state.topics if TopicPartition(topic, 0) in self._state.assignments}
        registered = (consumer.record for consumer in self._state.consumers.values())
        self._new_generation = new_generation(registered, self._state.options.rollout)
        self._targets = deque(targets)

    def abandon(self) -> None:
        """Leave what has not begun to the next plan."""
        self._queue.clear()
        self._at_once.clear()
        self._joint.clear()
        self._targets.clear()

    @property
    def urgent(self) -> bool:
        """There is something that can be decided at once."""
        return bool(self._targets or self._at_once)

    @property
    def finished(self) -> bool:
        return not (self.urgent or len(self._queue))

    @property
    def queued(self) -> int:
        return len(self._queue)

    # --- from targets to moves -----------------------------------------------------------------------------------

    def take_up(self, now: float, budget: int) -> None:
        """Turn what the plan wants into moves. Partitions that move as one wait for each other."""
        if not self._targets:
            return
        for _ in range(min(budget, len(self._targets))):
            target = self._targets.popleft()
            if not target.owner and not self._has_to_go(target.tp, now):
                continue
            move = PlannedMove((target.tp,), target.owner, self._cause(target.tp, now))
            unit = self._units.of(target.tp)
            if not unit:
                self._add(move, now)
                continue
            key = (unit, target.owner, target.tp.partition, self._holder(target.tp))
            joined = self._joint.get(key)
            self._joint[key] = PlannedMove((*joined.tps, target.tp), joined.target, joined.cause) if joined else move
        if not self._targets:
            for move in self._joint.values():
                self._add(move, now)
            self._joint.clear()

    def _add(self, move: PlannedMove, now: float) -> None:
        if any(self._must_stay(tp, now) for tp in move.tps):
            return
        in_flight = any(tp in self._state.handoffs for tp in move.tps)
        if self._is_free(move.tps[0], now) or in_flight or not move.target:
            self._at_once.append(move)
            return
        held = self._state.assignments[move.tps[0]].record
        if self._liveness.session_state(held.owner, held.session, now) is SessionState.ALIVE:
            self._queue.add(move)

    def _cause(self, tp: TopicPartition, now: float) -> Cause:
        held = self._state.assignments.get(tp)
        if held is None:
            grown = bool(self._state.assignments) and Cause.JOINED not in self._causes
            return Cause.TOPIC_GREW if grown or tp.topic in self._begun else Cause.JOINED
        if self._liveness.session_state(held.record.owner, held.record.session, now) is SessionState.DEAD:
            return Cause.LEFT
        owner = self._state.consumers.get(held.record.owner)
        if owner and owner.record.status is Status.DRAINING:
            replaced = self._new_generation is not None and owner.record.generation != self._new_generation
            return Cause.ROLLOUT if replaced else Cause.DRAINING
        return next((cause for cause in _BY_WEIGHT if cause in self._causes), Cause.JOINED)

    def _has_to_go(self, tp: TopicPartition, now: float) -> bool:
        """Whether a plan that names nobody asks for anything: an owner that wants the partition keeps it."""
        held = self._state.assignments.get(tp)
        void = tp in self._state.handoffs and self._is_free(tp, now)
        return void or bool(held and self._liveness.is_leaving(held.record))

    def _holder(self, tp: TopicPartition) -> tuple[str, str]:
        held = self._state.assignments.get(tp)
        return (held.record.owner, held.record.session) if held else ("", "")

    def _is_free(self, tp: TopicPartition, now: float) -> bool:
        """Nobody alive holds it, so it needs no handoff."""
        held = self._state.assignments.get(tp)
        return (
            held is None
            or self._liveness.session_state(held.record.owner, held.record.session, now) is SessionState.DEAD
        )

    # --- from moves to writes ------------------------------------------------------------------------------------

    def writes(self, now: float, wall: float, budget: int) -> Iterator[Write]:
        """At most `budget` writes that begin moves."""
        given = 0
        while self._at_once and given < budget:
            write = self._begin(self._at_once.popleft(), now, wall)
            if write:
                given += 1
                yield write
        for move in self._with_room(budget - given):
            write = self._begin(move, now, wall)
            if write:
                yield write

    def _with_room(self, budget: int) -> list[PlannedMove]:
        options = self._state.options
        if self.placements or not len(self._queue):
            return []
        room = min(options.max_concurrent_handoffs - len(self._in_flight), budget)
        return list(self._queue.take(self._in_flight.warming, options.warm_concurrency, room)) if room > 0 else []

    def _begin(self, move: PlannedMove, now: float, wall: float) -> Write | None:
        if not move.target:
            return self._let_go(move, now, wall)
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
        self._in_flight.begin(write, move.target)
        return write

    def _let_go(self, move: PlannedMove, now: float, wall: float) -> Write | None:
        """Nobody can take what its owner has to leave."""
        if any(tp in self._pending for tp in move.tps) or not all(self._has_to_go(tp, now) for tp in move.tps):
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
