"""A group's coordinator as a passive state machine: events and the time in, writes and the next wake-up out.

It reads the mirror, decides, and returns what to write. It never waits, and never assumes that a write was committed: a
partition with a write in flight is left alone until the mirror shows the outcome. A new leader needs none of its
memory: everything but the deadlines and the moves not yet begun is derived again from the store.

This is where events come in and where the order of decisions is fixed (`Coordination.decide`). What each decision is
made of is in the modules beside this one, in `core.handoff`, `core.planning` and `core.standbys`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import assert_never

from assigner.core.conditions import OversizedWrites
from assigner.core.coordination.lease_checks import LeaseChecks
from assigner.core.coordination.partitions import PartitionReconciler
from assigner.core.coordination.plan_cycle import PlanCycle
from assigner.core.coordination.publishing import PlanPublisher
from assigner.core.coordination.removal import OwnershipRemoval
from assigner.core.group import Change, GroupState
from assigner.core.handoff.deleted_freezes import DeletedFreezes
from assigner.core.handoff.progress import HandoffProgress
from assigner.core.handoff.warm_failures import WarmFailures
from assigner.core.leader_context import LeaderContext
from assigner.core.liveness import SessionLiveness, is_same_member
from assigner.core.loads.trigger import LoadTrigger
from assigner.core.planning import request
from assigner.core.planning.copartitions import CopartitionUnits
from assigner.core.planning.execution import PlanExecution
from assigner.core.planning.in_flight import HandoffsInFlight
from assigner.core.standbys import StandbyReconciler, StandbyTarget
from assigner.core.transitions import Transitions
from assigner.core.work_queue import RETRY, Note, Timer, WorkQueue
from assigner.core.writes import ConsumerSubject, PendingWrites, PlanSubject, Purpose, Write
from assigner.model.keys import (
    AckKey,
    AssignmentKey,
    ConsumerKey,
    HandoffKey,
    OptionsKey,
    PlanKey,
    RouterKey,
    TopicKey,
    TopicPartition,
)
from assigner.model.records import Cause, Consumer, Status, Stored

TOO_LARGE_PAUSE = 30.0
"""Seconds before a write that was too large for the store is tried again, at the least."""
BUDGET = 100
"""Writes per decision, so that a large plan does not block other groups."""


@dataclass
class Decisions:
    writes: list[Write] = field(default_factory=list)
    solve: request.Request | None = None
    check_leases: tuple[int, ...] = ()
    notes: list[Note] = field(default_factory=list)
    more: bool = False
    """There is more to decide at once; decisions are cut into slices so that they do not block the event loop."""
    wake_at: float | None = None


class Coordination:
    def __init__(
        self,
        state: GroupState,
        *,
        term: int,
        ttl: float,
        now: float,
        offset_key: Callable[[TopicPartition], str],
    ) -> None:
        self.state = state
        self.liveness = SessionLiveness(state, ttl=ttl, term_started=now)
        self._transitions = Transitions(state, self.liveness, offset_key, term)
        self._work = WorkQueue(state, now)
        self._pending = PendingWrites()
        context = LeaderContext(state, self.liveness, self._transitions, self._work, self._pending, ttl)
        self._failures = WarmFailures(state)
        self._oversized = OversizedWrites()
        self._units = CopartitionUnits(state)
        self._in_flight = HandoffsInFlight(state)
        self._publisher = PlanPublisher(context, self._failures, self._oversized)
        self._removal = OwnershipRemoval(context, self._publisher)
        self._lease_checks = LeaseChecks(self.liveness, self._work)
        self._progress = HandoffProgress(context, self._failures, self._units, self._removal.add)
        self._freezes = DeletedFreezes(state)
        self._reconciler = PartitionReconciler(context, self._progress, self._failures, self._removal, self._freezes)
        self.loads = LoadTrigger(state, self._work)
        self._plans = PlanCycle(context, self._failures, self.loads, self._partitions)
        self._execution = PlanExecution(context, self._units, self._in_flight, self._plans.must_stay)
        self._standbys = StandbyReconciler(context, self._in_flight)
        self._flat: list[TopicPartition] | None = None
        self._adopt(now)

    def _adopt(self, now: float) -> None:
        """Take over from the previous leader: stored records count, and the change of leader moves nothing."""
        for consumer in self.state.consumers.values():
            self.liveness.inherited(consumer)
        self._resync()
        if any(name not in self.state.consumers for name in self.state.involved()):
            self._work.timers.set(Timer.GRACE_PERIOD, self.liveness.grace_period_ends)
        self._removal.watch_if_empty(now)

    # --- outcomes of writes --------------------------------------------------------------------------------------

    def caught_up(self) -> None:
        """Record that the mirror shows everything up to its revision."""
        for write in self._pending.arrived(self.state.revision):
            self._mirrored(write)

    def committed(self, write: Write, revision: int) -> None:
        self._publisher.ended(write, applied=True)
        if self.state.revision >= revision:
            self._mirrored(write)
        else:
            self._pending.committed(write, revision)

    def _mirrored(self, write: Write) -> None:
        self._settle(write)
        self._oversized.committed(write)
        self._work.enqueue(write.partitions)

    def refused(self, write: Write, now: float, *, unknown: bool = False) -> None:
        """Decide again after a precondition failed, or the outcome was `unknown` and the mirror was read since."""
        self._publisher.ended(write, applied=None if unknown else False)
        self._settle(write, refused=True)
        self._work.retry(write.partitions, now)
        match write.purpose:
            case Purpose.ASSIGN | Purpose.HANDOFF | Purpose.STANDBYS:
                self._work.want_plan(None, now, RETRY)
            case Purpose.REMOVE:
                self._removal.refused(write, now)
            case Purpose.PLAN | Purpose.CONDITIONS | Purpose.FLOOR:
                self._publisher.refused(write, now)
            case Purpose.BUMP_EPOCH | Purpose.ADVANCE | Purpose.FLIP | Purpose.REASSERT_OWNER | Purpose.FINISH:
                pass  # Examined again by the retry above.
            case Purpose.DROP_ACKS:
                pass  # As well.
            case Purpose.EVICT | Purpose.ACK:
                pass  # The handoff's deadline brings the eviction up again; acks are not the leader's.
            case _:
                assert_never(write.purpose)

    def too_large(self, write: Write, why: str, now: float) -> None:
        """Record that the store refused a transaction for its size, as it would again. It is retried after a while, and
        is a condition of the group until it is committed."""
        self._publisher.ended(write, applied=False)
        self._settle(write)
        self._oversized.add(write, why)
        self._work.note(Note("write_too_large", write.partitions[0] if write.partitions else None, reason=why))
        pause = max(TOO_LARGE_PAUSE, self.state.options.balance_backoff)
        for tp in write.partitions:
            self._work.cooldowns.set(tp, now + pause)
        match write.subject:
            case PlanSubject():
                self._work.timers.set(Timer.PLAN, now + pause)
            case ConsumerSubject() | None:
                pass
            case _:
                assert_never(write.subject)

    def _settle(self, write: Write, *, refused: bool = False) -> None:
        self._pending.settle(write)
        self._in_flight.settle(write)
        self._standbys.enqueue(write.partitions)
        if write.purpose is Purpose.STANDBYS:
            self._standbys.settled(write, refused=refused)

    # --- answers of the driver -----------------------------------------------------------------------------------

    def solved(
        self,
        targets: Iterable[request.OwnerTarget],
        standbys: Iterable[StandbyTarget] = (),
        *,
        standbys_follow: bool = False,
    ) -> None:
        """Take the strategy's plan. What changed since it was requested is left to the next plan. `standbys_follow`:
        standbys are still being placed, and `standbys_placed` or `failed_to_place` is called for them."""
        causes = self._plans.solved()
        self._execution.placements += standbys_follow
        if not self.state.options.paused:
            self._execution.begin(targets, causes)
            self._standbys.begin(standbys)

    def standbys_placed(self, standbys: Iterable[StandbyTarget] | None) -> None:
        """Take the plan's standbys; None: another plan replaced this one. Where the owner changed since, the record
        waits for the next plan."""
        self._execution.placements -= 1
        if standbys is not None and not self.state.options.paused:
            self._standbys.begin(standbys)

    def failed_to_place(self, now: float) -> None:
        self._execution.placements -= 1
        self._plans.placement_failed(now)

    def failed_to_solve(self, now: float) -> None:
        self._plans.failed(now)

    def lease_checked(self, lease: int, *, over: bool, now: float) -> None:
        self._lease_checks.answered(lease, over=over, now=now)
        if over:
            self._resync()
            self._work.want_plan(Cause.LEFT, now)

    def reconcile(self, now: float) -> None:
        """Derive everything again: a missed event costs time, never correctness."""
        self.liveness.forget_idle_sessions()
        self._failures.forget(lambda tp: tp not in self.state.handoffs and tp not in self._work.cooldowns)
        self._resync()
        self._work.want_plan(None, now)

    # --- decisions -----------------------------------------------------------------------------------------------

    def decide(self, now: float, wall: float, budget: int = BUDGET) -> Decisions:
        out = Decisions()
        self._wake(now, wall)
        if not self.state.blocked:
            self._reconcile_partitions(out, now, wall, budget)
            self._emit(out, self._removal.writes(budget - len(out.writes)))
            self._execution.queue_moves(now, 5 * budget)
            for write in self._execution.writes(now, wall, budget - len(out.writes)):
                self._publisher.begun(write)
                self._emit(out, (write,))
            self._emit(out, self._standbys.writes(now, budget - len(out.writes)))
            self._emit(out, self._publisher.writes(now, plan_is_out=self._execution.finished))
            if self._plans.waits_for_moves and self.settled:
                self._plans.replan_after_moves(now)
            self._plan(out, now, wall)
            out.check_leases = self._lease_checks.due(now)
            full = len(out.writes) >= budget and not self._execution.finished
            urgent = self._execution.urgent or self._standbys.urgent
            out.more = out.more or full or bool(self._work.dirty) or urgent
        out.notes = self._work.take_notes()
        # As long as an essential record can't be read, what is due stays due: only an event can change that.
        out.wake_at = now if out.more else None if self.state.blocked else self._next_wake()
        return out

    def _reconcile_partitions(self, out: Decisions, now: float, wall: float, budget: int) -> None:
        examined = 0
        while self._work.dirty and len(out.writes) < budget and examined < 3 * budget:
            examined += 1
            write = self._reconciler.reconcile(self._work.pop(), now, wall)
            if write:
                self._emit(out, (write,))

    def _plan(self, out: Decisions, now: float, wall: float) -> None:
        if not self._plans.is_due(now):
            return
        if not self._plans.is_building and (self._work.dirty or self._execution.urgent):
            # New sessions and acks come first: the plan must see who really is there.
            out.more = True
            return
        out.solve = self._plans.step(now, wall)
        out.more = out.more or self._plans.is_building

    def _emit(self, out: Decisions, writes: Iterable[Write]) -> None:
        """Pass writes to the driver; each counts as in flight before the next one is decided."""
        for write in writes:
            out.writes.append(write)
            self._pending.add(write)
            self._standbys.enqueue(write.partitions)

    def _wake(self, now: float, wall: float) -> None:
        self._work.enqueue(self._progress.deadlines.pop_due(now))
        for timer in self._work.wake(now):
            match timer:
                case Timer.GRACE_PERIOD:
                    self._resync()
                    self._plans.replan_after_grace_period(now)
                case Timer.LOADS:
                    self.loads.consider(now, wall)
                case Timer.EMPTY:
                    self._removal.remove_all_if_empty()
                case Timer.LEASES | Timer.PLAN | Timer.FLOOR:
                    # These timers only wake the machine: what they held back is decided in this same call.
                    pass
                case _:
                    assert_never(timer)

    def _next_wake(self) -> float | None:
        plans = not (self.state.options.paused or self._plans.is_solving)
        times = [self._progress.deadlines.next(), self._work.next_wake(plans=plans)]
        return min((at for at in times if at is not None), default=None)

    @property
    def settled(self) -> bool:
        """Whether nothing is in flight and nothing waits to begin."""
        idle = self._execution.finished and not self._publisher.has_unpublished
        busy = len(self._pending) or self.state.handoffs or self._execution.placements or self._standbys.writing
        return idle and not busy

    @property
    def generation(self) -> int:
        """The generation of the plan being executed: the next one until it is published."""
        return self._publisher.generation

    def statistics(self) -> dict[str, int]:
        return {
            "dirty": len(self._work.dirty),
            "pending": len(self._pending),
            "queued_moves": self._execution.queued,
            "in_flight": len(self._in_flight),
            "removing": len(self._removal),
            "standbys": self._standbys.waiting,
        }

    # --- events --------------------------------------------------------------------------------------------------

    def observe(self, change: Change, now: float) -> None:
        """Take a change of a record in the store, by any writer."""
        match change.key:
            case HandoffKey(tp):
                self._in_flight.observe(change)
                self._freezes.observe(change)
                self._partition_changed(tp)
            case AssignmentKey(tp) | AckKey(tp, _):
                self._partition_changed(tp)
            case ConsumerKey(name):
                self._consumer_changed(name, change, now)
            case TopicKey(topic):
                self._topic_changed(topic, now)
            case OptionsKey():
                self._options_changed(change, now)
            case RouterKey():
                self._work.enqueue(self.state.handoffs)
            case PlanKey():
                self._plan_changed(change, now)
            case _:
                pass

    def _partition_changed(self, tp: TopicPartition) -> None:
        self._publisher.observe(tp)
        self._work.enqueue((tp,))
        self._standbys.enqueue((tp,))

    def _consumer_changed(self, name: str, change: Change, now: float) -> None:
        before: Stored[Consumer] | None = change.before
        after: Stored[Consumer] | None = change.after
        if after:
            self.liveness.seen(after)
            self._removal.cancel()
        if before and after and is_same_member(before.record, after.record):
            return
        self._work.enqueue(self.state.touching(name))
        self._units.consumers_changed()
        self._removal.watch_if_empty(now)
        if after is None or after.record.status is Status.DRAINING:
            self._work.want_plan(Cause.LEFT if after is None else Cause.DRAINING, now)
        else:
            self._work.want_plan(Cause.JOINED, now)

    def _plan_changed(self, change: Change, now: float) -> None:
        """Let partitions that left the quarantine move again: they left it by a change of the plan record."""
        before = change.before.record.quarantined if change.before else ()
        after = change.after.record.quarantined if change.after else ()
        freed = {(one.topic, one.partition) for one in before} - {(one.topic, one.partition) for one in after}
        if freed:
            self._work.enqueue(TopicPartition(*one) for one in sorted(freed))
            self._work.want_plan(Cause.OPERATOR, now, 0.0)

    def _topic_changed(self, topic: str, now: float) -> None:
        self._flat = None
        self._sets_changed()
        self._removal.cancel_topic(topic)
        for table in (self.state.assignments, self.state.handoffs, self.state.standbys):
            self._work.enqueue(tp for tp in table if tp.topic == topic)
        self._work.want_plan(Cause.TOPIC_GREW, now)

    def _options_changed(self, change: Change, now: float) -> None:
        self._sets_changed()
        asked_before = change.before.record.rebalance_requests if change.before else 0
        if self.state.options.rebalance_requests > asked_before:
            self._failures.clear()
            self._work.clear_cooldowns()
            self._work.want_plan(Cause.OPERATOR, now, 0.0)
        else:
            self._work.want_plan(Cause.OPERATOR, now)
        self._work.enqueue(self.state.handoffs)
        if self.state.options.paused:
            self._execution.abandon()
            self._standbys.abandon()

    def _sets_changed(self) -> None:
        """Retry writes that were too large: the co-partition sets may have changed, so they may fit."""
        self._units.refresh()
        for tp in self._oversized.forget():
            self._work.cooldowns.clear(tp)
            self._work.enqueue((tp,))

    def _resync(self) -> None:
        """Examine every partition again."""
        for tps in (self._partitions(), self.state.assignments, self.state.handoffs, self.state.standbys):
            self._work.enqueue(tps)

    def _partitions(self) -> list[TopicPartition]:
        """Every partition of every readable topic, listed again when a topic has changed."""
        if self._flat is None:
            self._flat = request.flat_partitions(self.state)
        return self._flat
