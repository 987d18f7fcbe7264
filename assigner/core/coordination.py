"""A group's coordinator as a passive state machine: events and the time in, writes and the next wake-up out.

It reads the mirror, decides, and says what to write; it never waits, never asks and never assumes that a write went
in: a partition with a write under way is left alone until the mirror shows the outcome. Losing it loses nothing:
everything but the deadlines and the moves not yet begun can be derived again from the store.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from assigner.core import planning
from assigner.core.deadlines import Deadlines
from assigner.core.failures import Failures
from assigner.core.group import Change, GroupState
from assigner.core.handoffs import Verdict, judge, slowest, timeout
from assigner.core.liveness import Fate, Liveness
from assigner.core.moves import Move, MoveQueue
from assigner.core.pending import Pending
from assigner.core.schedule import Schedule
from assigner.core.transitions import Transitions
from assigner.core.writes import Purpose, Write
from assigner.keys import (
    AckKey,
    AssignmentKey,
    ConsumerKey,
    HandoffKey,
    OptionsKey,
    RouterKey,
    TopicKey,
    TopicPartition,
)
from assigner.records import (
    Cause,
    Consumer,
    Handoff,
    Status,
    Step,
    Stored,
)

RETRY = 0.05
"""After a conflict: long enough for the mirror to show what it conflicted with."""
LEASE_CHECK = 0.5
"""How often a lease whose end is awaited is asked about."""


@dataclass
class Decisions:
    writes: list[Write] = field(default_factory=list)
    solve: planning.Request | None = None
    check_leases: tuple[int, ...] = ()
    notes: list[Note] = field(default_factory=list)
    more: bool = False
    """There is more to decide at once; asked for in slices so that nobody is kept waiting."""
    wake_at: float | None = None


@dataclass(frozen=True)
class Note:
    """Something a person should be able to read in the log."""

    event: str
    tp: TopicPartition | None = None
    consumer: str = ""
    reason: str = ""


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
        self.liveness = Liveness(state, ttl=ttl, term_started=now)
        self._do = Transitions(state, self.liveness, offset_key)
        self._term = term
        self._ttl = ttl
        self._handoffs_begun = 0
        self._dirty: dict[TopicPartition, None] = {}
        self._deadlines = Deadlines()
        self._retries: Schedule[TopicPartition] = Schedule()
        self._timers: Schedule[str] = Schedule()
        self._stay: Schedule[TopicPartition] = Schedule()
        """Partitions whose move was given up, until they may be moved again."""
        self._pending = Pending()
        self._failures = Failures(state)
        self._warming: Counter[str] = Counter()
        self._moves = MoveQueue()
        self._at_once: deque[Move] = deque()
        """Moves that wait for no room: nobody holds the partition, or it is in flight already."""
        self._plan_due: float | None = now
        self._causes: set[Cause] = set()
        self._causes_being_planned: set[Cause] = set()
        self._builder: planning.Builder | None = None
        self._solving = False
        """From the decision to plan until what the plan wants is known."""
        self._targets: deque[planning.Target] = deque()
        """What the plan wants and has not yet been looked at."""
        self._units: dict[tuple[str, str, int, bool], Move] = {}
        """Moves of partitions that move as one, being put together from the targets."""
        self._publish = False
        """A plan is out whose generation is not yet written."""
        self._remove: set[TopicPartition] = set()
        self._notes: list[Note] = []
        self._companions = planning.companions_by_topic(state)
        self._flat: list[TopicPartition] | None = None
        self._adopt(now)

    # --- what happened -------------------------------------------------------------------------------------------

    def _adopt(self, now: float) -> None:
        """Take over from whoever led before: everything stored counts, nothing moves for the change of leader."""
        for consumer in self.state.consumers.values():
            self.liveness.seen(consumer)
        for handoff in self.state.handoffs.values():
            if handoff.record.at is Step.WARMING:
                self._warming[handoff.record.new_owner] += 1
        self._mark_all()
        if any(self._absent(name) for name in self.state.owned if self.state.owned[name]):
            self._timers.set("doubt", self.liveness.doubt_ends)
        if not self._anyone():
            self._timers.set("empty", now + 2 * self._ttl)

    def observe(self, change: Change, now: float) -> None:
        """Something in the store changed, by whoever's hand."""
        match change.key:
            case HandoffKey(tp):
                self._count_warming(change)
                self._mark(tp)
            case AssignmentKey(tp) | AckKey(tp, _):
                self._mark(tp)
            case ConsumerKey(name):
                self._consumer_changed(name, change, now)
            case TopicKey(topic):
                self._topic_changed(topic, now)
            case OptionsKey():
                self._options_changed(change, now)
            case RouterKey():
                self._mark_many(self.state.handoffs)
            case _:
                pass

    def caught_up(self) -> None:
        """The mirror shows everything up to its revision."""
        for write in self._pending.arrived(self.state.revision):
            self._settle(write)

    def committed(self, write: Write, revision: int) -> None:
        if self.state.revision >= revision:
            self._settle(write)
        else:
            self._pending.committed(write, revision)

    def refused(self, write: Write, now: float) -> None:
        """A compare failed, or the outcome was unknown and has been read since: decide again."""
        self._pending.settle(write)
        for tp in write.touches:
            self._retries.set(tp, now + RETRY)
        match write.purpose:
            case Purpose.PLAN:
                self._publish = True
            case Purpose.ASSIGN | Purpose.HANDOFF:
                self._want_plan(None, now, RETRY)
            case _:
                pass

    def solved(self, targets: Iterable[planning.Target]) -> None:
        """The strategy has spoken. What changed since it was asked is left to the next plan."""
        self._solving = False
        self._moves.clear()
        self._at_once.clear()
        self._units.clear()
        self._targets = deque(targets)

    def failed_to_solve(self, now: float) -> None:
        self._solving = False
        self._causes |= self._causes_being_planned
        self._want_plan(None, now, max(1.0, self.state.options.debounce))

    def lease_checked(self, lease: int, *, over: bool, now: float) -> None:
        if over:
            self.liveness.lease_over(lease)
            self._mark_all()
            self._want_plan(Cause.LEFT, now)
        elif self.liveness.wanted:
            self._timers.sooner("leases", now + LEASE_CHECK)

    def reconcile(self, now: float) -> None:
        """Derive everything again: whatever was missed costs time, never correctness."""
        self.liveness.forget(self._held_sessions())
        self._failures.forget(lambda tp: tp not in self.state.handoffs and tp not in self._stay)
        self._mark_all()
        self._want_plan(None, now)

    # --- what to do ----------------------------------------------------------------------------------------------

    def decide(self, now: float, wall: float, budget: int = 200) -> Decisions:
        out = Decisions()
        self._wake(now)
        if self.state.doubt:
            out.wake_at = self._next_wake()
            return out
        self._examine_dirty(out, now, wall, budget)
        self._remove_assignments(out, budget)
        self._take_up_targets(now, 5 * budget)
        self._move_at_once(out, now, wall, budget)
        self._start_moves(out, now, wall, budget)
        self._maybe_publish(out)
        self._maybe_plan(out, now)
        if self.liveness.wanted and "leases" not in self._timers:
            out.check_leases = tuple(sorted(self.liveness.wanted))
            self._timers.set("leases", now + LEASE_CHECK)
        out.notes, self._notes = self._notes, []
        out.more = out.more or bool(self._dirty or self._at_once or self._targets)
        out.wake_at = now if out.more else self._next_wake()
        return out

    @property
    def in_flight(self) -> int:
        return len(self.state.handoffs) + sum(tp not in self.state.handoffs for tp in self._pending.starting)

    @property
    def settled(self) -> bool:
        """Nothing is under way and nothing waits to begin."""
        waiting = self._targets or self._at_once or len(self._moves) or self._publish
        return not (waiting or len(self._pending) or self.state.handoffs)

    @property
    def generation(self) -> int:
        """Of the plan being carried out: the next one until it is published."""
        return self.state.plan.generation + (self._publish or self._pending.about("plan"))

    def statistics(self) -> dict[str, int]:
        return {
            "dirty": len(self._dirty),
            "pending": len(self._pending),
            "queued_moves": len(self._moves),
            "at_once": len(self._at_once),
            "targets": len(self._targets),
            "in_flight": self.in_flight,
            "removing": len(self._remove),
        }

    # --- examining partitions ------------------------------------------------------------------------------------

    def _examine_dirty(self, out: Decisions, now: float, wall: float, budget: int) -> None:
        examined = 0
        while self._dirty and len(out.writes) < budget and examined < 3 * budget:
            tp = next(iter(self._dirty))
            del self._dirty[tp]
            examined += 1
            write = self._examine(tp, now, wall)
            if write:
                self._emit(out, write)

    def _examine(self, tp: TopicPartition, now: float, wall: float) -> Write | None:
        if tp in self._pending or tp in self.state.unreadable_partitions:
            return None
        topic = self.state.topics.get(tp.topic)
        held, handoff = self.state.assignments.get(tp), self.state.handoffs.get(tp)
        if topic is None:
            return None
        if tp.partition >= topic.record.partition_count:
            if held or handoff:
                self._remove.add(tp)
            return None
        if held and topic.record.topic_id and held.record.topic_id not in ("", topic.record.topic_id):
            return self._do.recreate((tp,))
        if handoff:
            return self._advance_handoff(tp, handoff, now, wall)
        self._deadlines.disarm(tp)
        return self._examine_owner(tp, now)

    def _examine_owner(self, tp: TopicPartition, now: float) -> Write | None:
        held = self.state.assignments.get(tp)
        if held is None:
            self._want_plan(Cause.TOPIC_GREW, now)
            return None
        match self.liveness.fate(held.record.owner, held.record.session, now):
            case Fate.REPLACED:
                return self._do.restamp((tp,), self.state.consumers[held.record.owner])
            case Fate.DEAD:
                self._want_plan(Cause.LEFT, now)
            case Fate.DOUBT:
                self._await_doubt(held.record.owner, held.record.session, now)
            case Fate.ALIVE:
                if self.state.consumers[held.record.owner].record.status is Status.DRAINING:
                    self._want_plan(Cause.DRAINING, now)
        return None

    def _advance_handoff(self, tp: TopicPartition, handoff: Stored[Handoff], now: float, wall: float) -> Write | None:
        tps = self._companions_in_flight(tp, handoff.record.handoff_id)
        if any(other in self._pending for other in tps):
            return None
        step = slowest([self.state.handoffs[other].record.at for other in tps])
        self._deadlines.arm(tp, handoff.record.handoff_id, step, timeout(self.state, step), now)
        verdict = judge(self.state, self.liveness, tps, overdue=self._deadlines.overdue(tp), now=now)
        return self._carry_out(verdict, tps, handoff.record, now, wall)

    def _carry_out(
        self, verdict: Verdict, tps: tuple[TopicPartition, ...], handoff: Handoff, now: float, wall: float
    ) -> Write | None:
        target = self.state.consumers.get(handoff.new_owner)
        match verdict:
            case Verdict.WAIT:
                return self._while_waiting(tps, handoff, now)
            case Verdict.FREEZE:
                return self._do.advance(tps, Step.FREEZING)
            case Verdict.RELEASE:
                return self._do.advance(tps, Step.RELEASING)
            case Verdict.FLIP | Verdict.FLIP_RELEASED if target:
                return self._do.flip(tps, target, released=verdict is Verdict.FLIP_RELEASED)
            case Verdict.ASSIGN if target:
                return self._do.assign(tps, target, handoff.cause)
            case Verdict.RESTAMP:
                return self._do.restamp(tps, self.state.consumers[handoff.old_owner])
            case Verdict.RETARGET if target:
                return self._start(tps, target, handoff.cause, wall)
            case Verdict.FIND_TARGET:
                return self._find_target(tps, handoff, now)
            case Verdict.TRY_ELSEWHERE:
                return self._try_elsewhere(tps, handoff, now, wall)
            case Verdict.REAFFIRM:
                return self._give_up(tps, handoff, now)
            case Verdict.EVICT:
                return self._evict(tps[0], handoff, now)
            case Verdict.FINISH | Verdict.SUPERSEDED:
                return self._do.finish(tps)
            case _:
                return None

    def _while_waiting(self, tps: tuple[TopicPartition, ...], handoff: Handoff, now: float) -> Write | None:
        for tp in tps:
            held = self.state.assignments.get(tp)
            if held and handoff.at is Step.COMPLETE:
                fate = self.liveness.fate(held.record.owner, held.record.session, now)
                if fate is Fate.REPLACED:
                    return self._do.restamp((tp,), self.state.consumers[held.record.owner])
        self._await_doubt(handoff.old_owner, handoff.old_session, now)
        return None

    def _find_target(self, tps: tuple[TopicPartition, ...], handoff: Handoff, now: float) -> Write | None:
        """The plan names the next target. Where no plan will be made, the owner stays the owner."""
        if self.state.options.paused and self.liveness.fate(handoff.old_owner, handoff.old_session, now) is Fate.ALIVE:
            return self._do.reaffirm(tps)
        self._want_plan(Cause.LEFT, now)
        return None

    def _try_elsewhere(
        self, tps: tuple[TopicPartition, ...], handoff: Handoff, now: float, wall: float
    ) -> Write | None:
        reason = next((r for tp in tps if (r := self.state.handoffs[tp].record.failure)), "no reason given")
        self._notes.append(Note("warm_failed", tps[0], handoff.new_owner, reason))
        if self._failures.add(tps[0], handoff.new_owner, reason):
            self._notes.append(Note("quarantined", tps[0], handoff.new_owner, reason))
            self._publish = True
            return self._give_up(tps, handoff, now)
        target = self._elsewhere(tps[0], handoff)
        if target is None:
            return self._give_up(tps, handoff, now)
        return self._start(tps, target, handoff.cause, wall)

    def _elsewhere(self, tp: TopicPartition, handoff: Handoff) -> Stored[Consumer] | None:
        """The least loaded consumer that wants the topic and has not failed at it."""
        failed = self._failures.of(tp)
        candidates = [
            consumer
            for name in self.state.consumers
            if name not in failed and name != handoff.old_owner
            if (consumer := self.liveness.eligible(name))
            if not consumer.record.topics or tp.topic in consumer.record.topics
        ]
        return min(candidates, key=self._load, default=None)

    def _load(self, consumer: Stored[Consumer]) -> tuple[float, str]:
        name = consumer.record.consumer_name
        return len(self.state.touching(name)) / consumer.record.capacity, name

    def _give_up(self, tps: tuple[TopicPartition, ...], handoff: Handoff, now: float) -> Write:
        if handoff.at is not Step.COMPLETE:
            self._notes.append(Note("move_given_up", tps[0], handoff.new_owner, handoff.failure or "deadline"))
            for tp in tps:
                self._stay.set(tp, now + self.state.options.balance_backoff)
        else:
            self._want_plan(Cause.LEFT, now)
        return self._do.reaffirm(tps)

    def _evict(self, tp: TopicPartition, handoff: Handoff, now: float) -> Write | None:
        consumer = self.state.consumers[handoff.old_owner]
        self._deadlines.restart(tp, timeout(self.state, handoff.at), now)
        if self._pending.about(handoff.old_owner):
            return None
        reason = f"did not let go of {tp} in time"
        self._notes.append(Note("evicted", tp, handoff.old_owner, reason))
        return self._do.evict(consumer, reason)

    # --- beginning moves -----------------------------------------------------------------------------------------

    def _take_up_targets(self, now: float, budget: int) -> None:
        """Turn what the plan wants into moves. Partitions that move as one wait for each other."""
        if not self._targets:
            return
        for _ in range(min(budget, len(self._targets))):
            target = self._targets.popleft()
            move = Move((target.tp,), target.owner, self._cause(target.tp, now))
            topics = self._companions.get(target.tp.topic)
            if topics is None:
                self._take_up(move, now)
                continue
            key = (topics[0], target.owner, target.tp.partition, self._is_free(target.tp, now))
            joined = self._units.get(key)
            self._units[key] = Move((*joined.tps, target.tp), joined.target, joined.cause) if joined else move
        if not self._targets:
            for move in self._units.values():
                self._take_up(move, now)
            self._units.clear()

    def _cause(self, tp: TopicPartition, now: float) -> Cause:
        causes = self._causes_being_planned
        held = self.state.assignments.get(tp)
        if held is None:
            return Cause.TOPIC_GREW if self.state.assignments and Cause.JOINED not in causes else Cause.JOINED
        fate = self.liveness.fate(held.record.owner, held.record.session, now)
        if fate is Fate.DEAD:
            return Cause.LEFT
        owner = self.state.consumers.get(held.record.owner)
        if owner and owner.record.status is Status.DRAINING:
            return Cause.DRAINING
        for cause in (Cause.OPERATOR, Cause.JOINED, Cause.TOPIC_GREW, Cause.LOAD, Cause.DRAINING, Cause.LEFT):
            if cause in causes:
                return cause
        return Cause.JOINED

    def _is_free(self, tp: TopicPartition, now: float) -> bool:
        """Nobody alive holds it, so it needs no handoff."""
        held = self.state.assignments.get(tp)
        return held is None or self.liveness.fate(held.record.owner, held.record.session, now) is Fate.DEAD

    def _take_up(self, move: Move, now: float) -> None:
        if any(self._stays(tp, now) for tp in move.tps):
            return
        if self._is_free(move.tps[0], now) or any(tp in self.state.handoffs for tp in move.tps):
            self._at_once.append(move)
            self._publish = True
            return
        held = self.state.assignments[move.tps[0]].record
        if self.liveness.fate(held.owner, held.session, now) is Fate.ALIVE:
            self._moves.add(move)
            self._publish = True

    def _move_at_once(self, out: Decisions, now: float, wall: float, budget: int) -> None:
        while self._at_once and len(out.writes) < budget:
            move = self._at_once.popleft()
            write = self._begin(move, now, wall)
            if write:
                self._emit(out, write, move.target)

    def _start_moves(self, out: Decisions, now: float, wall: float, budget: int) -> None:
        options = self.state.options
        room = min(options.max_concurrent_handoffs - self.in_flight, budget - len(out.writes))
        if room <= 0 or not len(self._moves):
            return
        starting = self._pending.starting_by_target()
        limit = options.warm_concurrency
        for move in list(self._moves.take(lambda name: limit - self._warming[name] - starting[name], room)):
            write = self._begin(move, now, wall)
            if write:
                self._emit(out, write, move.target)
        out.more = out.more or (len(self._moves) > 0 and len(out.writes) >= budget)

    def _begin(self, move: Move, now: float, wall: float) -> Write | None:
        """Begin a move if it still makes sense: the plan was made a moment ago."""
        target = self.liveness.eligible(move.target)
        if target is None or any(tp in self._pending for tp in move.tps):
            self._want_plan(None, now)
            return None
        if all(self._is_free(tp, now) for tp in move.tps):
            return self._do.assign(move.tps, target, move.cause)
        held = [self.state.assignments.get(tp) for tp in move.tps]
        if {a.record.owner if a else "" for a in held} == {move.target}:
            in_flight = [tp for tp in move.tps if tp in self.state.handoffs]
            return self._do.reaffirm(in_flight) if in_flight else None
        if not all(held):
            return None
        return self._start(move.tps, target, move.cause, wall)

    def _start(self, tps: tuple[TopicPartition, ...], target: Stored[Consumer], cause: Cause, wall: float) -> Write:
        self._handoffs_begun += 1
        return self._do.start(tps, target, cause, f"{self._term:x}-{self._handoffs_begun:x}", int(wall))

    # --- planning, publishing, removing --------------------------------------------------------------------------

    def _maybe_plan(self, out: Decisions, now: float) -> None:
        if self._builder is None and not self._begin_plan(out, now):
            return
        assert self._builder is not None
        out.solve = self._builder.step(1000)
        if out.solve:
            self._builder = None
        else:
            out.more = True

    def _begin_plan(self, out: Decisions, now: float) -> bool:
        if self._plan_due is None or now < self._plan_due or self._solving or self.state.options.paused:
            return False
        if self._dirty or self._at_once or self._targets:
            # Restamps and answers come first: the plan must see who really is there.
            out.more = True
            return False
        self._plan_due = None
        self._causes_being_planned, self._causes = self._causes, set()
        if not self.state.topics or not any(self.liveness.eligible(name) for name in self.state.consumers):
            return False
        self._solving = True
        self._builder = planning.Builder(
            self.state, self.liveness, now, stays=lambda tp: self._stays(tp, now), partitions=self._partitions()
        )
        return True

    def _stays(self, tp: TopicPartition, now: float) -> bool:
        return (
            (tp in self._stay and not self._stay.passed(tp, now))
            or tp in self._pending
            or tp in self.state.unreadable_partitions
            or tp in self._failures.quarantined
        )

    def _maybe_publish(self, out: Decisions) -> None:
        """Raise the generation once all of the plan is out; it tells which plan is in force, nobody acts by it."""
        under_way = self._targets or self._at_once or len(self._moves) or self._pending.publishing
        if not self._publish or under_way or self._pending.about("plan"):
            return
        self._publish = False
        plan = msgspec.structs.replace(
            self.state.plan,
            generation=self.state.plan.generation + 1,
            quarantined=self._failures.next_quarantine(),
            forgiven=self.state.options.rebalance_requests,
        )
        self._emit(out, self._do.publish(plan, Purpose.PLAN))

    def _remove_assignments(self, out: Decisions, budget: int) -> None:
        """Raise the floor to the highest epoch that goes, then let the records go."""
        self._remove = {tp for tp in self._remove if tp in self.state.assignments or tp in self.state.handoffs}
        if not self._remove or self._pending.about("plan"):
            return
        highest = max((held.record.epoch for tp in self._remove if (held := self.state.assignments.get(tp))), default=0)
        if self.state.plan.epoch_floor < highest:
            raised = msgspec.structs.replace(self.state.plan, epoch_floor=highest)
            self._emit(out, self._do.publish(raised, Purpose.REMOVE))
            return
        for tp in [tp for tp in sorted(self._remove) if tp not in self._pending][: budget - len(out.writes)]:
            self._emit(out, self._do.remove((tp,)))

    # --- bookkeeping ---------------------------------------------------------------------------------------------

    def _consumer_changed(self, name: str, change: Change, now: float) -> None:
        before: Stored[Consumer] | None = change.before
        after: Stored[Consumer] | None = change.after
        if after:
            self.liveness.seen(after)
            self._keep_assignments()
        if before and after and _same_member(before.record, after.record):
            return
        self._mark_many(self.state.touching(name))
        if not self._anyone():
            self._timers.sooner("empty", now + 2 * self._ttl)
        if after is None or after.record.status is Status.DRAINING:
            self._want_plan(Cause.LEFT if after is None else Cause.DRAINING, now)
        else:
            self._want_plan(Cause.JOINED, now)

    def _topic_changed(self, topic: str, now: float) -> None:
        self._flat = None
        self._companions = planning.companions_by_topic(self.state)
        self._mark_many(tp for tp in self.state.assignments if tp.topic == topic)
        self._want_plan(Cause.TOPIC_GREW, now)

    def _options_changed(self, change: Change, now: float) -> None:
        self._companions = planning.companions_by_topic(self.state)
        options = self.state.options
        asked_before = change.before.record.rebalance_requests if change.before else 0
        if options.rebalance_requests > asked_before:
            self._failures.forgive()
            self._stay = Schedule()
            self._publish = self._publish or bool(self.state.plan.quarantined)
            self._want_plan(Cause.OPERATOR, now, 0.0)
        else:
            self._want_plan(Cause.OPERATOR, now)
        self._mark_many(self.state.handoffs)

    def _count_warming(self, change: Change) -> None:
        for record, step in ((change.before, -1), (change.after, 1)):
            if record and record.record.at is Step.WARMING:
                self._warming[record.record.new_owner] += step

    def _keep_assignments(self) -> None:
        """Somebody is here: what was about to be forgotten stays."""
        self._timers.clear("empty")
        if self._remove:
            self._mark_many(self._remove)
            self._remove.clear()

    def _want_plan(self, cause: Cause | None, now: float, delay: float | None = None) -> None:
        """Open the debounce window, or leave it as it is if it is open."""
        if cause:
            self._causes.add(cause)
        at = now + (self.state.options.debounce if delay is None else delay)
        self._plan_due = at if self._plan_due is None else min(at, self._plan_due)

    def _wake(self, now: float) -> None:
        self._mark_many(self._deadlines.pop_due(now))
        self._mark_many(self._retries.pop_due(now))
        for tp in self._stay.pop_due(now):
            self._want_plan(None, now)
            self._mark(tp)
        for timer in self._timers.pop_due(now):
            if timer == "doubt":
                self._mark_all()
                self._want_plan(Cause.LEFT, now, 0.0)
            elif timer == "empty" and not self._anyone():
                self._remove.update(self.state.assignments, self.state.handoffs)

    def _next_wake(self) -> float | None:
        plan = None if self.state.options.paused or self._solving else self._plan_due
        times = [plan, self._deadlines.next(), self._retries.next(), self._stay.next(), self._timers.next()]
        return min((at for at in times if at is not None), default=None)

    def _await_doubt(self, name: str, session: str, now: float) -> None:
        if self.liveness.fate(name, session, now) is Fate.DOUBT:
            until = self.liveness.doubt_until(name, session, now)
            if until is not None:
                self._timers.sooner("doubt", until)

    def _companions_in_flight(self, tp: TopicPartition, handoff_id: str) -> tuple[TopicPartition, ...]:
        topics = self._companions.get(tp.topic)
        if not topics or not handoff_id:
            return (tp,)
        others = (TopicPartition(topic, tp.partition) for topic in topics)
        return tuple(
            other
            for other in others
            if (handoff := self.state.handoffs.get(other)) and handoff.record.handoff_id == handoff_id
        )

    def _emit(self, out: Decisions, write: Write, target: str = "") -> None:
        out.writes.append(write)
        self._pending.add(write, target if write.purpose is Purpose.HANDOFF else "")

    def _settle(self, write: Write) -> None:
        self._pending.settle(write)
        self._mark_many(write.touches)

    def _mark(self, tp: TopicPartition) -> None:
        self._dirty[tp] = None

    def _mark_many(self, tps: Iterable[TopicPartition]) -> None:
        self._dirty.update(dict.fromkeys(tps))

    def _mark_all(self) -> None:
        self._mark_many(self._partitions())
        self._mark_many(self.state.assignments)
        self._mark_many(self.state.handoffs)

    def _partitions(self) -> list[TopicPartition]:
        if self._flat is None:
            self._flat = planning.flat_partitions(self.state)
        return self._flat

    def _anyone(self) -> bool:
        return bool(self.state.consumers or self.state.unreadable_consumers)

    def _absent(self, name: str) -> bool:
        return name not in self.state.consumers

    def _held_sessions(self) -> set[tuple[str, str]]:
        held = {(a.record.owner, a.record.session) for a in self.state.assignments.values()}
        for handoff in self.state.handoffs.values():
            held.add((handoff.record.old_owner, handoff.record.old_session))
        return held


def _same_member(before: Consumer, after: Consumer) -> bool:
    """Whether nothing changed that ownership depends on."""
    return (
        before.session == after.session
        and before.status is after.status
        and before.capacity == after.capacity
        and before.rack == after.rack
        and before.topics == after.topics
        and before.evicted == after.evicted
    )
