"""Turns the next action of a handoff in flight into the write that carries it out.

`lifecycle.next_action` says what a handoff needs; here that becomes a call of `Transitions`, together with what goes
with it: a deadline armed, a failure counted, a cooldown set, a plan asked for. At most one write per call and handoff.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from assigner.core.handoff.lifecycle import Deadlines, HandoffAction, next_action, slowest, timeout
from assigner.core.handoff.warm_failures import WarmFailures
from assigner.core.leader_context import LeaderContext
from assigner.core.liveness import SessionState
from assigner.core.planning.copartitions import CopartitionUnits
from assigner.core.planning.request import rollout_of
from assigner.core.routers.quorum import abridged, listed, missing_of_all
from assigner.core.standby_copies import holders
from assigner.core.work_queue import Note, Timer
from assigner.core.writes import ConsumerSubject, Write
from assigner.model.keys import TopicPartition
from assigner.model.records import Cause, Consumer, Handoff, Step, Stored

Partitions = tuple[TopicPartition, ...]


_ENDS_OF_FREEZES = frozenset(
    {HandoffAction.RELEASE, HandoffAction.FLIP, HandoffAction.REASSERT_OWNER, HandoffAction.EVICT}
)


class HandoffProgress:
    def __init__(
        self,
        context: LeaderContext,
        failures: WarmFailures,
        units: CopartitionUnits,
        remove: Callable[[Partitions], None],
    ) -> None:
        """`remove`: called with partitions that no consumer holds, to have their ownership removed."""
        self._context = context
        self._state = context.state
        self._liveness = context.liveness
        self._transitions = context.transitions
        self._work = context.work
        self._pending = context.pending
        self._failures = failures
        self._units = units
        self._remove = remove
        self.deadlines = Deadlines()

    def advance(self, tp: TopicPartition, now: float, wall: float) -> Write | None:
        """The write that advances the partition's handoff; None: it has to wait."""
        handoff = self._state.handoffs[tp].record
        tps = self._units.in_flight(tp, handoff.handoff_id)
        if any(other in self._pending for other in tps):
            return None
        step = slowest([self._state.handoffs[other].record.at for other in tps])
        self.deadlines.arm(tp, handoff.handoff_id, step, timeout(self._state, handoff, step), now)
        overdue = self.deadlines.overdue(tp)
        action = next_action(self._state, self._liveness, tps, overdue=overdue, now=now)
        silent = self._silent_routers(tps, step) if overdue and action in _ENDS_OF_FREEZES else ()
        if silent:
            self._work.note(Note("freeze_overdue", tps[0], handoff.old_owner, _unacked(silent)))
        return self._carry_out(action, tps, handoff, silent, now, wall)

    def _silent_routers(self, tps: Partitions, step: Step) -> tuple[str, ...]:
        return tuple(missing_of_all(self._state, tps)) if step is Step.FREEZING else ()

    def _carry_out(
        self,
        action: HandoffAction,
        tps: Partitions,
        handoff: Handoff,
        silent: tuple[str, ...],
        now: float,
        wall: float,
    ) -> Write | None:
        """`silent`: routers that have not acked an overdue freeze, which ends now."""
        target = self._state.consumers.get(handoff.new_owner)
        match action:
            case HandoffAction.WAIT:
                return self._wait(tps, handoff, now)
            case HandoffAction.SKIP_WARMING:
                return self._transitions.advance(tps, Step.READY)
            case HandoffAction.FREEZE:
                return self._transitions.advance(tps, Step.FREEZING)
            case HandoffAction.RELEASE:
                return self._transitions.advance(tps, Step.RELEASING, abridged(silent))
            case HandoffAction.FLIP | HandoffAction.FLIP_RELEASED:
                released = action is HandoffAction.FLIP_RELEASED
                return (
                    self._transitions.flip(tps, target, released=released, unacked=abridged(silent)) if target else None
                )
            case HandoffAction.ASSIGN:
                return self._transitions.assign(tps, target, handoff.cause) if target else None
            case HandoffAction.BUMP_EPOCH:
                return self._transitions.bump_epoch(tps, self._state.consumers[handoff.old_owner])
            case HandoffAction.RETARGET:
                return self._transitions.start(tps, target, handoff.cause, int(wall)) if target else None
            case HandoffAction.FIND_TARGET:
                return self._find_target(tps, handoff, now)
            case HandoffAction.RETRY_ELSEWHERE:
                return self._retry_elsewhere(tps, handoff, now, wall)
            case HandoffAction.REASSERT_OWNER:
                return self._abandon(tps, handoff, now, wall, silent)
            case HandoffAction.EVICT:
                return self._evict(tps[0], handoff, now, silent)
            case HandoffAction.REMOVE:
                self._remove(tps)
                return None
            case HandoffAction.FINISH | HandoffAction.SUPERSEDED:
                return self._transitions.finish(tps)
            case _:
                assert_never(action)

    def _wait(self, tps: Partitions, handoff: Handoff, now: float) -> Write | None:
        for tp in tps if handoff.at is Step.COMPLETE else ():
            held = self._state.assignments.get(tp)
            if held and self._liveness.owner_state(held.record, now) is SessionState.REPLACED:
                return self._transitions.bump_epoch((tp,), self._state.consumers[held.record.owner])
        self._context.recheck_session(handoff.old_owner, handoff.old_session, now)
        if self._liveness.in_grace_period(handoff.new_owner, handoff.new_session, now):
            self._work.timers.sooner(Timer.GRACE_PERIOD, self._liveness.grace_period_ends)
        return None

    def _old_session_state(self, handoff: Handoff, now: float) -> SessionState:
        return self._liveness.session_state(handoff.old_owner, handoff.old_session, now)

    def _find_target(self, tps: Partitions, handoff: Handoff, now: float) -> Write | None:
        """Have the next plan choose another target; if none will be made, the old owner keeps the partition."""
        old = self._old_session_state(handoff, now)
        no_plan = self._state.options.paused or not any(map(self._liveness.eligible, self._state.consumers))
        if no_plan and old is SessionState.ALIVE:
            return self._transitions.reassert_owner(tps)
        if old is SessionState.DEAD and any(tp in self._failures.quarantined for tp in tps):
            # No plan moves a quarantined partition. Left in flight, it would take the room of handoffs that the next
            # plan waits for, and only that plan can lift the quarantine.
            return self._transitions.finish(tps)
        self._work.want_plan(Cause.LEFT, now)
        return None

    def _retry_elsewhere(self, tps: Partitions, handoff: Handoff, now: float, wall: float) -> Write | None:
        reason = next((r for tp in tps if (r := self._state.handoffs[tp].record.failure)), "no reason given")
        self._work.note(Note("warm_failed", tps[0], handoff.new_owner, reason))
        # Counted for every partition of the set: a set half in quarantine would be torn apart.
        enough = [self._failures.add(tp, handoff.new_owner, reason) for tp in tps]
        if any(enough):
            self._work.note(Note("partition_quarantined", tps[0], handoff.new_owner, reason))
            return self._abandon(tps, handoff, now, wall)
        target = self._next_target(tps[0], handoff)
        if target is None:
            return self._abandon(tps, handoff, now, wall)
        if self._old_session_state(handoff, now) is SessionState.DEAD:
            return self._transitions.assign(tps, target, handoff.cause)
        return self._transitions.start(tps, target, handoff.cause, int(wall))

    def _next_target(self, tp: TopicPartition, handoff: Handoff) -> Stored[Consumer] | None:
        """The least loaded consumer that subscribes to the topic and has not failed to warm the partition; one with a
        copy, if there is one. During a rollout, consumers that it holds back come last."""
        failed, named = self._failures.of(tp), holders(self._state, tp)
        eligible = [found for name in self._state.consumers if (found := self._liveness.eligible(name))]
        rollout = rollout_of(self._state, [consumer.record for consumer in eligible])

        def order(number: int) -> tuple[int, bool, tuple[float, str]]:
            name = eligible[number].record.consumer_name
            reluctance = rollout.reluctance(number, len(self._state.touching(name))) if rollout else 0
            return reluctance, name not in named, self._load(eligible[number])

        candidates = [
            number
            for number, consumer in enumerate(eligible)
            if consumer.record.consumer_name not in failed and consumer.record.consumer_name != handoff.old_owner
            if consumer.record.wants(tp.topic) and not consumer.record.away
        ]
        return eligible[min(candidates, key=order)] if candidates else None

    def _load(self, consumer: Stored[Consumer]) -> tuple[float, str]:
        name = consumer.record.consumer_name
        return len(self._state.touching(name)) / consumer.record.capacity, name

    def _abandon(
        self, tps: Partitions, handoff: Handoff, now: float, wall: float, silent: tuple[str, ...] = ()
    ) -> Write:
        """Abandon the move: the old owner keeps the partition, then in cooldown, or releases it if it is leaving."""
        if handoff.at is Step.COMPLETE:
            self._work.want_plan(Cause.LEFT, now)
            return self._transitions.reassert_owner(tps)
        if all(self._liveness.is_leaving(self._state.assignments[tp].record) for tp in tps):
            self._work.note(Note("partition_orphaned", tps[0], handoff.old_owner, "nobody could take over"))
            return self._transitions.release_to_nobody(tps, handoff.cause, int(wall))
        reason = _unacked(silent) if silent else handoff.failure or "deadline"
        self._work.note(Note("move_abandoned", tps[0], handoff.new_owner, reason))
        for tp in tps:
            self._work.cooldowns.set(tp, now + self._state.options.balance_backoff)
        if self._old_session_state(handoff, now) is SessionState.DEAD:
            return self._transitions.finish(tps)
        return self._transitions.reassert_owner(tps)

    def _evict(self, tp: TopicPartition, handoff: Handoff, now: float, silent: tuple[str, ...] = ()) -> Write | None:
        consumer = self._state.consumers[handoff.old_owner]
        self.deadlines.restart(tp, timeout(self._state, handoff, handoff.at), now)
        if self._pending.concerns(ConsumerSubject(handoff.old_owner)):
            return None
        reason = f"could not hand {tp} over: {_unacked(silent)}" if silent else f"did not release {tp} in time"
        self._work.note(Note("consumer_evicted", tp, handoff.old_owner, reason))
        return self._transitions.evict(consumer, reason)


def _unacked(silent: tuple[str, ...]) -> str:
    return f"routers have not acknowledged the freeze in time: {listed(silent)}"
