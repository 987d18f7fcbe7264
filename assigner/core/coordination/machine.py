"""A group's coordinator as a passive state machine: events and the time in, writes and the next wake-up out.

It reads the mirror, decides, and says what to write; it never waits, never asks and never assumes that a write went
in: a partition with a write under way is left alone until the mirror shows the outcome. Losing it loses nothing:
everything but the deadlines and the moves not yet begun can be derived again from the store.

Handoffs under way are taken care of by `handoff_care`, plans are carried out by `plan_execution`; this is where events
come in, where the order of things is decided, and where plans are asked for and published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from assigner.core.agenda import RETRY, Agenda, Note, Timer
from assigner.core.conditions import OversizedWrites
from assigner.core.coordination.epoch_floor import EpochFloorKeeper
from assigner.core.group import Change, GroupState
from assigner.core.handoff.progress import Failures, HandoffProgress
from assigner.core.liveness import SessionLiveness, SessionState
from assigner.core.loads.trigger import LoadTrigger
from assigner.core.planning import request
from assigner.core.planning.copartitions import CopartitionUnits
from assigner.core.planning.execution import PlanExecution
from assigner.core.standbys import StandbyReconciler, StandbyTarget
from assigner.core.transitions import Transitions
from assigner.core.writes import Pending, PlanSubject, Purpose, Write
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
from assigner.model.records import Cause, Consumer, HandoffMode, Status, Step, Stored

LEASE_CHECK = 0.5
"""How often a lease whose end is awaited is asked about."""
TOO_LARGE_PAUSE = 30.0
"""Seconds before a write that was too large for the store is tried again, at the least."""
BUDGET = 100
"""Writes per decision, so that a large plan leaves others their turn."""


@dataclass
class Decisions:
    writes: list[Write] = field(default_factory=list)
    solve: request.Request | None = None
    check_leases: tuple[int, ...] = ()
    notes: list[Note] = field(default_factory=list)
    more: bool = False
    """There is more to decide at once; asked for in slices so that nobody is kept waiting."""
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
        self._ttl = ttl
        self._do = Transitions(state, self.liveness, offset_key, term)
        self._agenda = Agenda(state, now)
        self._pending = Pending()
        self._failures = Failures(state)
        self._oversized = OversizedWrites()
        self._units = CopartitionUnits(state)
        self._care = HandoffProgress(
            state,
            self.liveness,
            self._do,
            self._agenda,
            self._pending,
            self._failures,
            self._units,
            lambda tps: self._remove.update(tps),
        )
        self._execution = PlanExecution(
            state, self.liveness, self._do, self._agenda, self._pending, self._units, self._stays
        )
        self._standbys = StandbyReconciler(state, self.liveness, self._do, self._agenda, self._pending)
        self.loads = LoadTrigger(state, self._agenda)
        self._builder: request.Builder | None = None
        self._solving = False
        """From the decision to plan until what the plan wants is known."""
        self._placing = 0
        """Plans whose standbys are still being placed."""
        self._causes: set[Cause] = set()
        """Of the plan being made."""
        self._planned_around: set[Cause] | None = None
        """The causes of a plan that had to leave moves in flight as they were."""
        self._postponed: set[Cause] = set()
        """The causes of plans that left balance for later, because not everybody may be back yet."""
        self._floor = EpochFloorKeeper(state, self._agenda)
        self._publishing = self._unpublished = 0
        """The generation last asked to be written, and the one whose write failed, or may have."""
        self._remove: set[TopicPartition] = set()
        self._flat: list[TopicPartition] | None = None
        self._adopt(now)

    # --- what happened -------------------------------------------------------------------------------------------

    def _adopt(self, now: float) -> None:
        """Take over from whoever led before: everything stored counts, nothing moves for the change of leader."""
        for consumer in self.state.consumers.values():
            self.liveness.inherited(consumer)
        self._mark_all()
        if any(name not in self.state.consumers for name in self.state.involved()):
            self._agenda.timers.set(Timer.DOUBT, self.liveness.doubt_ends)
        if not self._anyone():
            self._agenda.timers.set(Timer.EMPTY, now + 2 * self._ttl)

    def observe(self, change: Change, now: float) -> None:
        """Something in the store changed, by whoever's hand."""
        match change.key:
            case HandoffKey(tp):
                self._execution.count_handoffs(change)
                self._execution.changed(tp, told=self._is_publishing)
                self._agenda.mark((tp,))
                self._standbys.touch((tp,))
            case AssignmentKey(tp) | AckKey(tp, _):
                self._execution.changed(tp, told=self._is_publishing)
                self._agenda.mark((tp,))
                self._standbys.touch((tp,))
            case ConsumerKey(name):
                self._consumer_changed(name, change, now)
            case TopicKey(topic):
                self._topic_changed(topic, now)
            case OptionsKey():
                self._options_changed(change, now)
            case RouterKey():
                self._agenda.mark(self.state.handoffs)
            case PlanKey():
                self._plan_changed(change, now)
            case _:
                pass

    def caught_up(self) -> None:
        """The mirror shows everything up to its revision."""
        for write in self._pending.arrived(self.state.revision):
            self._settle(write)

    def committed(self, write: Write, revision: int) -> None:
        self._execution.ended(write, applied=True)
        if self.state.revision >= revision:
            self._settle(write)
        else:
            self._pending.committed(write, revision)

    def _settle(self, write: Write) -> None:
        self._pending.settle(write)
        self._oversized.committed(write)
        self._agenda.mark(write.touches)
        self._settle_standbys(write)

    def _settle_standbys(self, write: Write, *, refused: bool = False) -> None:
        self._standbys.touch(write.touches)
        if write.purpose is Purpose.STANDBYS:
            self._standbys.settled(write, refused=refused)

    def refused(self, write: Write, now: float, *, unknown: bool = False) -> None:
        """A compare failed, or the outcome was `unknown` and has been read since: decide again."""
        self._execution.ended(write, applied=None if unknown else False)
        self._pending.settle(write)
        self._settle_standbys(write, refused=True)
        self._agenda.retry(write.touches, now)
        if write.subject == PlanSubject():
            self._agenda.timers.set(Timer.PLAN, now + RETRY)
        match write.purpose:
            case Purpose.PLAN:
                self._unpublished = self._publishing
            case Purpose.ASSIGN | Purpose.HANDOFF | Purpose.STANDBYS:
                self._agenda.want_plan(None, now, RETRY)
            case Purpose.REMOVE:
                # Not at once: whoever came back, the mirror does not show yet. If it came and went, it has its time.
                self._remove.difference_update(write.touches)
                if not self._anyone() and Timer.EMPTY not in self._agenda.timers:
                    self._agenda.timers.set(Timer.EMPTY, now + RETRY)
            case _:
                pass

    def too_large(self, write: Write, why: str, now: float) -> None:
        """The store takes no transaction of that size. Trying again at once would fail at once: it is tried again
        after a while, and until it goes in it is a condition of the group."""
        self._execution.ended(write, applied=False)
        self._pending.settle(write)
        self._settle_standbys(write)
        self._oversized.add(write, why)
        self._agenda.note(Note("write_too_large", write.touches[0] if write.touches else None, reason=why))
        pause = max(TOO_LARGE_PAUSE, self.state.options.balance_backoff)
        for tp in write.touches:
            self._agenda.stays.set(tp, now + pause)
        if write.subject == PlanSubject():
            self._agenda.timers.set(Timer.PLAN, now + pause)

    def solved(
        self,
        targets: Iterable[request.OwnerTarget],
        standbys: Iterable[StandbyTarget] = (),
        *,
        standbys_follow: bool = False,
    ) -> None:
        """The strategy has spoken. What changed since it was asked is left to the next plan. `standbys_follow`: they
        are still being placed, and `standbys_placed` will tell."""
        self._solving = False
        self._count_placing(int(standbys_follow))
        if not self.state.options.paused:
            self._execution.begin(targets, self._causes)
            self._standbys.begin(standbys)

    def standbys_placed(self, standbys: Iterable[StandbyTarget] | None) -> None:
        """Where owners are others by now, records wait for the next plan. None: another plan has come in between."""
        self._count_placing(-1)
        if standbys is not None and not self.state.options.paused:
            self._standbys.begin(standbys)

    def failed_to_place(self, now: float) -> None:
        self._count_placing(-1)
        self._agenda.want_plan(None, now, max(1.0, self.state.options.debounce))

    def _count_placing(self, change: int) -> None:
        self._placing += change
        self._execution.handoffs_wait = self._placing > 0

    def failed_to_solve(self, now: float) -> None:
        self._solving = False
        self._agenda.causes |= self._causes
        self._agenda.want_plan(None, now, max(1.0, self.state.options.debounce))

    def lease_checked(self, lease: int, *, over: bool, now: float) -> None:
        if over:
            self.liveness.lease_over(lease)
            self._mark_all()
            self._agenda.want_plan(Cause.LEFT, now)
        elif self.liveness.wanted:
            self._agenda.timers.sooner(Timer.LEASES, now + LEASE_CHECK)

    def reconcile(self, now: float) -> None:
        """Derive everything again: whatever was missed costs time, never correctness."""
        self.liveness.forget(self._held_sessions())
        self._failures.forget(lambda tp: tp not in self.state.handoffs and tp not in self._agenda.stays)
        self._mark_all()
        self._agenda.want_plan(None, now)

    # --- what to do ----------------------------------------------------------------------------------------------

    def decide(self, now: float, wall: float, budget: int = BUDGET) -> Decisions:
        out = Decisions()
        self._wake(now, wall)
        if not self.state.doubt:
            self._examine_dirty(out, now, wall, budget)
            self._remove_assignments(out, budget)
            self._execution.take_up(now, 5 * budget)
            for write, target in self._execution.writes(now, wall, budget - len(out.writes)):
                self._emit(out, write, target)
            for write in self._standbys.writes(now, budget - len(out.writes)):
                self._emit(out, write)
            self._maybe_publish(out)
            self._maybe_raise_floor(out, now)
            self._make_good(now)
            self._maybe_plan(out, now, wall)
            self._maybe_check_leases(out, now)
            full = len(out.writes) >= budget and not self._execution.finished
            urgent = self._execution.urgent or self._standbys.urgent
            out.more = out.more or full or bool(self._agenda.dirty) or urgent
        out.notes = self._agenda.take_notes()
        # In doubt, what is due stays due: only an event can change that.
        out.wake_at = now if out.more else None if self.state.doubt else self._next_wake()
        return out

    @property
    def settled(self) -> bool:
        """Nothing is under way and nothing waits to begin."""
        idle = self._execution.finished and not self._has_news
        busy = len(self._pending) or self.state.handoffs or self._placing or self._standbys.writing
        return idle and not busy

    @property
    def generation(self) -> int:
        """Of the plan being carried out: the next one until it is published."""
        return self.state.plan.generation + (self._has_news or self._is_publishing)

    @property
    def _is_publishing(self) -> bool:
        return self._pending.purpose(PlanSubject()) is Purpose.PLAN

    @property
    def _has_news(self) -> bool:
        """Something of the plan went in that no published generation tells of."""
        return self._execution.changes_something or self.state.plan.generation < self._unpublished

    def statistics(self) -> dict[str, int]:
        return {
            "dirty": len(self._agenda.dirty),
            "pending": len(self._pending),
            "queued_moves": self._execution.queued,
            "in_flight": self._execution.in_flight,
            "removing": len(self._remove),
            "standbys": self._standbys.waiting,
        }

    # --- examining partitions ------------------------------------------------------------------------------------

    def _examine_dirty(self, out: Decisions, now: float, wall: float, budget: int) -> None:
        examined = 0
        while self._agenda.dirty and len(out.writes) < budget and examined < 3 * budget:
            examined += 1
            write = self._examine(self._agenda.pop(), now, wall)
            if write:
                self._emit(out, write)

    def _examine(self, tp: TopicPartition, now: float, wall: float) -> Write | None:
        topic = self.state.topics.get(tp.topic)
        if tp in self._pending or tp in self.state.unreadable_partitions:
            return None
        if topic is None or tp.partition >= topic.record.partition_count:
            return None if self.state.is_left_alone(tp) else self._examine_gone(tp, now, wall)
        held, handoff = self.state.assignments.get(tp), self.state.handoffs.get(tp)
        if held and topic.record.topic_id and held.record.topic_id not in ("", topic.record.topic_id):
            return self._do.recreate((tp,))
        if handoff:
            return self._care.advance(tp, now, wall)
        self._care.deadlines.disarm(tp)
        return self._examine_owner(tp, now)

    def _examine_gone(self, tp: TopicPartition, now: float, wall: float) -> Write | None:
        """The partition does not exist any more: its records go. In an exclusive group whoever holds it lets go first,
        because it may exist again in a moment, with another owner."""
        held, handoff = self.state.assignments.get(tp), self.state.handoffs.get(tp)
        if held and self.state.options.handoff_mode is HandoffMode.EXCLUSIVE:
            if handoff and (handoff.record.to_nobody or handoff.record.at is Step.COMPLETE):
                return self._care.advance(tp, now, wall)
            fate = self.liveness.fate(held.record.owner, held.record.session, now)
            if fate is SessionState.DOUBT:
                self._care.await_doubt(held.record.owner, held.record.session, now)
                return None
            if fate is SessionState.ALIVE:
                evicted = self.state.consumers[held.record.owner].record.evicted
                return None if evicted else self._do.let_go((tp,), Cause.OPERATOR, int(wall))
        if held or handoff or tp in self.state.standbys:
            self._remove.add(tp)
        return None

    def _examine_owner(self, tp: TopicPartition, now: float) -> Write | None:
        held = self.state.assignments.get(tp)
        if held is None:
            if tp not in self._failures.quarantined:
                self._agenda.want_plan(Cause.TOPIC_GREW, now)
            return None
        match self.liveness.fate(held.record.owner, held.record.session, now):
            case SessionState.REPLACED:
                return self._do.restamp((tp,), self.state.consumers[held.record.owner])
            case SessionState.DEAD:
                # It was left in peace for its owner's sake.
                self._agenda.stays.clear(tp)
                self._agenda.want_plan(Cause.LEFT, now)
            case SessionState.DOUBT:
                self._care.await_doubt(held.record.owner, held.record.session, now)
            case SessionState.ALIVE:
                if self.state.consumers[held.record.owner].record.status is Status.DRAINING:
                    self._agenda.want_plan(Cause.DRAINING, now)
        return None

    # --- planning, publishing, removing --------------------------------------------------------------------------

    def _maybe_plan(self, out: Decisions, now: float, wall: float) -> None:
        if self._builder is None and not self._begin_plan(out, now, wall):
            return
        assert self._builder is not None
        out.solve = self._builder.step(5 * BUDGET)
        if out.solve:
            self._builder = None
        else:
            out.more = True

    def _begin_plan(self, out: Decisions, now: float, wall: float) -> bool:
        if self._solving or self.state.options.paused or not self._agenda.plan_is_due(now):
            return False
        if self._agenda.dirty or self._execution.urgent:
            # Restamps and answers come first: the plan must see who really is there.
            out.more = True
            return False
        self._causes = self._agenda.take_plan(now)
        if not self.state.topics or not any(map(self._has_a_part, self.state.consumers)):
            return False
        self._solving = True
        loads = self.loads.begin_plan(self._causes, now, wall)
        self._planned_around = set(self._causes) if self.state.handoffs else None
        not_all_back = self.liveness.after_an_outage(now)
        if not_all_back:
            self._postponed |= self._causes
            self._agenda.timers.sooner(Timer.DOUBT, self.liveness.doubt_ends)
        self._builder = request.Builder(
            self.state,
            self.liveness,
            now,
            stays=lambda tp: self._stays(tp, now),
            partitions=self._partitions(),
            loads=loads,
            wall=wall,
            only_unowned=not_all_back,
        )
        return True

    def _has_a_part(self, name: str) -> bool:
        """Whether a plan could give the consumer anything, or has to take something from it."""
        if self.liveness.eligible(name):
            return True
        return not self.state.consumers[name].record.evicted and name in self.state.owned

    def _make_good(self, now: float) -> None:
        """Plan again once nothing is in the way of balance any more."""
        if self._planned_around is not None and not self._solving and self.settled:
            self._agenda.causes |= self._planned_around
            self._planned_around = None
            self._agenda.want_plan(None, now)

    def _stays(self, tp: TopicPartition, now: float) -> bool:
        if tp in self._pending or tp in self.state.unreadable_partitions:
            return True
        held = self.state.assignments.get(tp)
        if held and self.liveness.is_leaving(held.record):
            # Left in peace for its owner's sake, or because others could not take it: neither keeps anybody here.
            return False
        return self._agenda.is_staying(tp, now) or tp in self._failures.quarantined

    def _maybe_publish(self, out: Decisions) -> None:
        """Raise the generation once all of the plan is out; it tells which plan is in force, nobody acts by it."""
        quarantine = self._failures.next_quarantine()
        self._tell_conditions(out)
        changed = self._has_news or quarantine != self.state.plan.quarantined
        under_way = not self._execution.finished or self._execution.writing or self._pending.publishing
        if not changed or under_way or self._plan_is_busy():
            return
        self._execution.changes_something = False
        self._publishing = self.state.plan.generation + 1
        plan = msgspec.structs.replace(
            self._floor.raised(self.state.plan),
            generation=self._publishing,
            quarantined=quarantine,
            forgiven=self.state.options.rebalance_requests,
        )
        self._emit(out, self._do.publish(plan, Purpose.PLAN))

    def _tell_conditions(self, out: Decisions) -> None:
        found = self._oversized.conditions()
        if found != self.state.plan.conditions and not self._plan_is_busy():
            told = msgspec.structs.replace(self.state.plan, conditions=found)
            self._emit(out, self._do.publish(told, Purpose.CONDITIONS))

    def _maybe_raise_floor(self, out: Decisions, now: float) -> None:
        if self._floor.is_due(now) and not self._plan_is_busy():
            self._emit(out, self._do.publish(self._floor.raised(self.state.plan), Purpose.FLOOR))

    def _remove_assignments(self, out: Decisions, budget: int) -> None:
        """Raise the floor to the highest epoch that goes, then let the records go."""
        tables = (self.state.assignments, self.state.handoffs, self.state.standbys)
        self._remove = {tp for tp in self._remove if any(tp in table for table in tables)}
        if not self._remove or self._plan_is_busy():
            return
        highest = max((held.record.epoch for tp in self._remove if (held := self.state.assignments.get(tp))), default=0)
        if self.state.plan.epoch_floor < highest:
            self._emit(out, self._do.publish(self._floor.raised(self.state.plan), Purpose.FLOOR))
            return
        for tp in [tp for tp in sorted(self._remove) if tp not in self._pending][: budget - len(out.writes)]:
            self._emit(out, self._do.remove((tp,)))

    def _plan_is_busy(self) -> bool:
        """It is being written, or was a moment ago by somebody else: the mirror will show it."""
        return self._pending.about(PlanSubject()) or Timer.PLAN in self._agenda.timers

    def _maybe_check_leases(self, out: Decisions, now: float) -> None:
        if self.liveness.wanted and Timer.LEASES not in self._agenda.timers:
            out.check_leases = tuple(sorted(self.liveness.wanted))
            self._agenda.timers.set(Timer.LEASES, now + LEASE_CHECK)

    def _emit(self, out: Decisions, write: Write, target: str = "") -> None:
        out.writes.append(write)
        self._pending.add(write, target if write.purpose is Purpose.HANDOFF else "")
        self._standbys.touch(write.touches)

    # --- what events mean ----------------------------------------------------------------------------------------

    def _consumer_changed(self, name: str, change: Change, now: float) -> None:
        before: Stored[Consumer] | None = change.before
        after: Stored[Consumer] | None = change.after
        if after:
            self.liveness.seen(after)
            self._keep_assignments()
        if before and after and _same_member(before.record, after.record):
            return
        self._agenda.mark(self.state.touching(name))
        self._units.consumers_changed()
        if not self._anyone():
            self._agenda.timers.sooner(Timer.EMPTY, now + 2 * self._ttl)
        if after is None or after.record.status is Status.DRAINING:
            self._agenda.want_plan(Cause.LEFT if after is None else Cause.DRAINING, now)
        else:
            self._agenda.want_plan(Cause.JOINED, now)

    def _keep_assignments(self) -> None:
        """Somebody is here: what was about to be forgotten stays."""
        self._agenda.timers.clear(Timer.EMPTY)
        if self._remove:
            self._agenda.mark(self._remove)
            self._remove.clear()

    def _plan_changed(self, change: Change, now: float) -> None:
        """What is not in quarantine any more may move again; only the record's change makes it so."""
        before = change.before.record.quarantined if change.before else ()
        after = change.after.record.quarantined if change.after else ()
        freed = {(one.topic, one.partition) for one in before} - {(one.topic, one.partition) for one in after}
        if freed:
            self._agenda.mark(TopicPartition(*one) for one in sorted(freed))
            self._agenda.want_plan(Cause.OPERATOR, now, 0.0)

    def _topic_changed(self, topic: str, now: float) -> None:
        self._flat = None
        self._sets_changed()
        if self._anyone():
            # What was about to be removed may exist again.
            self._remove = {tp for tp in self._remove if tp.topic != topic}
        for table in (self.state.assignments, self.state.handoffs, self.state.standbys):
            self._agenda.mark(tp for tp in table if tp.topic == topic)
        self._agenda.want_plan(Cause.TOPIC_GREW, now)

    def _options_changed(self, change: Change, now: float) -> None:
        self._sets_changed()
        asked_before = change.before.record.rebalance_requests if change.before else 0
        if self.state.options.rebalance_requests > asked_before:
            self._failures.forgive()
            self._agenda.forgive_stays()
            self._agenda.want_plan(Cause.OPERATOR, now, 0.0)
        else:
            self._agenda.want_plan(Cause.OPERATOR, now)
        self._agenda.mark(self.state.handoffs)
        if self.state.options.paused:
            self._execution.abandon()
            self._standbys.abandon()

    def _sets_changed(self) -> None:
        """What was too large to be written may be written otherwise now."""
        self._units.refresh()
        for tp in self._oversized.forget():
            self._agenda.stays.clear(tp)
            self._agenda.mark((tp,))

    def _wake(self, now: float, wall: float) -> None:
        self._agenda.mark(self._care.deadlines.pop_due(now))
        for timer in self._agenda.wake(now):
            match timer:
                case Timer.DOUBT:
                    self._mark_all()
                    self._agenda.causes |= self._postponed
                    self._postponed.clear()
                    self._agenda.want_plan(Cause.LEFT, now, 0.0)
                case Timer.LOADS:
                    self.loads.consider(now, wall)
                case Timer.EMPTY:
                    self._forget_if_empty()
                case Timer.LEASES | Timer.PLAN | Timer.FLOOR:
                    # Being awake is enough: what they held back is decided on in this turn.
                    pass

    def _forget_if_empty(self) -> None:
        if not self._anyone():
            self._remove.update(self.state.assignments, self.state.handoffs, self.state.standbys)

    def _next_wake(self) -> float | None:
        plans = not (self.state.options.paused or self._solving)
        times = [self._care.deadlines.next(), self._agenda.next_wake(plans=plans)]
        return min((at for at in times if at is not None), default=None)

    def _mark_all(self) -> None:
        for tps in (self._partitions(), self.state.assignments, self.state.handoffs, self.state.standbys):
            self._agenda.mark(tps)

    def _partitions(self) -> list[TopicPartition]:
        if self._flat is None:
            self._flat = request.flat_partitions(self.state)
        return self._flat

    def _anyone(self) -> bool:
        return bool(self.state.consumers or self.state.unreadable_consumers)

    def _held_sessions(self) -> set[tuple[str, str]]:
        held = {(a.record.owner, a.record.session) for a in self.state.assignments.values()}
        ends = (handoff.record for handoff in self.state.handoffs.values())
        return held | {(handoff.old_owner, handoff.old_session) for handoff in ends}


def _same_member(before: Consumer, after: Consumer) -> bool:
    """Whether nothing changed that ownership depends on."""
    return (
        before.session == after.session
        and before.status is after.status
        and before.capacity == after.capacity
        and before.rack == after.rack
        and before.topics == after.topics
        and before.generation == after.generation
        and before.evicted == after.evicted
    )
