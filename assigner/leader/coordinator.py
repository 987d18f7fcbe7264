"""Coordinates one group for one term: passes events to the core and carries out the core's decisions.

`assigner.core.coordination.machine` decides everything. This module waits, writes, runs the strategy, checks leases,
and stops at once when the term is no longer held. Every write carries the term's fence, so stopping late does no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import anyio
import anyio.abc
import anyio.lowlevel
import anyio.to_thread
import msgspec

from assigner.aio.supervision import Work, unending
from assigner.aio.wakeup import Wakeup
from assigner.clock import Clock
from assigner.core.coordination.machine import Coordination, Decisions
from assigner.core.group import Change, GroupState
from assigner.core.loads.weights import LoadSettings
from assigner.core.planning.request import OwnerTarget, Request
from assigner.core.planning.request import targets as targets_of
from assigner.core.planning.rollout import solve as solve_with
from assigner.core.standbys import StandbyTarget, placement_problem
from assigner.core.standbys import targets as standbys_of
from assigner.core.work_queue import Note
from assigner.core.writes import Moved, Purpose, Write
from assigner.election import Term
from assigner.errors import AssignerError, OutcomeUnknown, StoreError, TransactionTooLarge
from assigner.leader.history import HandoffTimes, HistoryWriter
from assigner.leader.load_watch import LoadWatch
from assigner.leader.ownership_log import EventRecording, NoRecording, Recording
from assigner.logs import get_logger
from assigner.model.keys import ConsumerKey, Keys
from assigner.observability.event_log import EventLog
from assigner.observability.metrics import Metrics
from assigner.storage.batch_writer import BatchWriter, Outcome
from assigner.storage.mirror import GroupMirror
from assigner.store import Committed, LeaseGone, Store
from assigner.strategy import PlacesStandbys, Solution
from assigner.strategy.registry import is_prepared, prepare

OFF_LOOP = 2_000
"""Groups with at least this many partitions are planned on a worker thread."""

IDLE_AFTER = 60.0
"""Seconds that a group has to be idle before its coordinator stops."""
IDLE = 10.0
"""The longest sleep of a coordinator, in seconds: at least this often it checks whether its term is still held."""
log = get_logger("assigner.leader.coordinator")


class CoordinatorSettings(msgspec.Struct, frozen=True, kw_only=True):
    consumer_ttl: float = 30.0
    reconcile_interval: float = 30.0
    loads: LoadSettings = LoadSettings()


class Coordinator:
    def __init__(
        self,
        store: Store,
        keys: Keys,
        mirror: GroupMirror,
        term: Term,
        clock: Clock,
        metrics: Metrics,
        settings: CoordinatorSettings,
        events: EventLog | None = None,
    ) -> None:
        self.group = term.group
        self._store = store
        self._mirror = mirror
        self._term = term
        self._clock = clock
        self._metrics = metrics
        self._reconcile_interval = settings.reconcile_interval
        self._log = log.bind(group=term.group, term=term.revision)
        self._writer = BatchWriter(store, fence=term.fence, may_write=term.held)
        self._loads = LoadWatch(store, keys.loads(term.group), mirror, settings.loads, self._loads_changed)
        self._history = HistoryWriter(store, keys.history(term.group), term.fence, clock)
        self._times = HandoffTimes(clock, metrics)
        self._recording: Recording = EventRecording(events, mirror, term, clock) if events else NoRecording()
        self._wake = Wakeup()
        self._one_placement = anyio.Lock()
        self._planned_last: Request | None = None
        self._tasks: anyio.abc.TaskGroup | None = None
        self._unreadable: set[str] = set()
        self._broken: Exception | None = None
        self._empty_since: float | None = None
        self._began: float | None = None
        """When the rebalance in progress began."""
        self.core = Coordination(
            mirror.state,
            term=term.revision,
            ttl=settings.consumer_ttl,
            now=clock.now(),
            offset_key=_offset_key(keys, term.group),
        )

    def observe_registered(self) -> None:
        """Treat the registered consumers as having joined now: this coordinator was started because of them."""
        now = self._clock.now()
        for name, consumer in self._mirror.state.consumers.items():
            self.core.observe(Change(ConsumerKey(name), None, consumer), now)

    async def run(self) -> None:
        self._log.info("coordination_started", generation=self._mirror.state.plan.generation)
        self._mirror.listen(self)
        self._recording.begin()
        self._report_unreadable()
        try:
            async with anyio.create_task_group() as self._tasks:
                for name, work in self._loops().items():
                    # A term whose loop failed ends as a whole: the next term starts from the stored records.
                    self._tasks.start_soon(unending, name, work, name=f"{name} of {self.group}")
                await self._loads.wait_listed()
                await self._decide_until_lost()
                self._tasks.cancel_scope.cancel()
        finally:
            self._recording.end()
            self._mirror.unlisten(self)

    def _loops(self) -> dict[str, Work]:
        return {
            "writer": self._writer.run,
            "history": self._history.run,
            "reconcile": self._reconcile,
            "loads": self._loads.run,
        }

    def changed(self, changes: Sequence[Change]) -> None:
        try:
            self._observe(changes)
        except Exception as error:  # noqa: BLE001
            # The mirror goes on, because streams use it; this term can't, because it missed a change.
            self._broken = error
        self._wake.notify()

    def _observe(self, changes: Sequence[Change]) -> None:
        now = self._clock.now()
        for change in changes:
            self._times.observe(change)
            self.core.observe(change, now)
        self.core.caught_up()
        self._report_unreadable()

    def _loads_changed(self) -> None:
        self.core.loads.changed(self._loads.loads, self._clock.now())
        self._wake.notify()

    def statistics(self) -> dict[str, int]:
        return {**self.core.statistics(), "writing": len(self._writer)}

    # --- deciding and doing --------------------------------------------------------------------------------------

    async def _decide_until_lost(self) -> None:
        while self._term.held() and not self._is_out_of_work():
            if self._broken:
                raise self._broken
            mark = self._wake.mark()
            decisions = self.core.decide(self._clock.now(), self._clock.wall())
            self._carry_out(decisions)
            self._time_rebalance()
            if decisions.more:
                await anyio.lowlevel.checkpoint()
            else:
                await self._sleep_until(decisions.wake_at, mark)
        if not self._term.held():
            self._log.warning("term_lost")

    def _is_out_of_work(self) -> bool:
        """Whether the group has been idle for `IDLE_AFTER`. Then nothing that only this coordinator knows is needed any
        more."""
        if not self._mirror.state.is_idle or not self.core.settled or len(self._writer):
            self._empty_since = None
            return False
        now = self._clock.now()
        if self._empty_since is None:
            self._empty_since = now
        return now - self._empty_since >= IDLE_AFTER

    async def _sleep_until(self, at: float | None, mark: int) -> None:
        pause = IDLE if at is None else min(IDLE, max(0.0, at - self._clock.now()))
        with anyio.move_on_after(pause):
            await self._wake.since(mark)

    def _carry_out(self, decisions: Decisions) -> None:
        assert self._tasks is not None
        for write in decisions.writes:
            self._recording.expect(write.moves)
            self._writer.submit(write, self._written)
        for note in decisions.notes:
            self._report_note(note)
        for lease in decisions.check_leases:
            self._tasks.start_soon(self._check_lease, lease)
        if decisions.solve:
            self._tasks.start_soon(self._solve, decisions.solve)

    def _written(self, write: Write, outcome: Outcome) -> None:
        now = self._clock.now()
        match outcome:
            case Committed(revision):
                self.core.committed(write, revision)
                self._report(write)
            case OutcomeUnknown():
                assert self._tasks is not None
                self._tasks.start_soon(self._read_again, write, outcome)
            case TransactionTooLarge():
                self.core.too_large(write, str(outcome), now)
            case StoreError():
                self._log.warning("write_failed", purpose=write.purpose.value, error=str(outcome))
                self.core.refused(write, now + 0.5)
            case _:
                self._log.debug("write_conflicted", purpose=write.purpose.value)
                self.core.refused(write, now)
        self._wake.notify()

    async def _read_again(self, write: Write, error: OutcomeUnknown) -> None:
        self._log.warning("write_outcome_unknown", purpose=write.purpose.value, error=str(error))
        await self._mirror.resync()
        self.core.refused(write, self._clock.now(), unknown=True)
        self._wake.notify()

    async def _solve(self, request: Request) -> None:
        began = self._clock.now()
        try:
            plan = await _solve(request, self._mirror.state)
        except AssignerError as error:
            self._log.error("plan_failed", strategy=request.strategy, error=str(error))
            self.core.failed_to_solve(self._clock.now())
            self._wake.notify()
            return
        seconds = self._clock.now() - began
        self._metrics.planned(seconds)
        explanation, targets, standbys = plan.solution.explanation, plan.targets, plan.standbys
        self.core.solved(targets, standbys, standbys_follow=plan.standbys_follow)
        if targets or standbys:
            self._began = began if self._began is None else self._began
            self._log.info(
                "plan_computed",
                strategy=request.strategy,
                members=len(request.members),
                partitions=len(request.partitions),
                changes=len(targets),
                standbys=len(standbys),
                moves=explanation.moves,
                lower_bound=explanation.lower_bound,
                unproved=explanation.unproved,
                imbalance=explanation.imbalance,
                seconds=round(seconds, 4),
            )
        self._wake.notify()
        self._planned_last = request
        if plan.standbys_follow:
            # One at a time, so that the last plan's standbys win; of the waiting requests only the last is placed.
            async with self._one_placement:
                await self._place_standbys(request, plan.solution)

    async def _place_standbys(self, request: Request, solution: Solution) -> None:
        """Place the plan's standbys, always on a worker thread, so that partitions without an owner get one
        meanwhile."""
        if request is not self._planned_last:
            self.core.standbys_placed(None)
            return
        began = self._clock.now()
        try:
            standbys = await anyio.to_thread.run_sync(_standbys, request, solution, self._mirror.state)
        except AssignerError as error:
            self._log.error("standby_plan_failed", strategy=request.strategy, error=str(error))
            self.core.failed_to_place(self._clock.now())
        else:
            self.core.standbys_placed(standbys)
            if standbys:
                seconds = round(self._clock.now() - began, 4)
                self._log.info(
                    "standby_plan_computed", strategy=request.strategy, standbys=len(standbys), seconds=seconds
                )
        self._wake.notify()

    async def _check_lease(self, lease: int) -> None:
        try:
            result = await self._store.remaining(lease)
        except StoreError as error:
            self._log.info("lease_check_failed", lease=lease, error=str(error))
            return
        self.core.lease_checked(lease, over=isinstance(result, LeaseGone), now=self._clock.now())
        self._wake.notify()

    async def _reconcile(self) -> None:
        """List the group again at an interval, so that a missed event delays a change and does not lose it."""
        while True:
            options = self._mirror.state.options
            limits = (options.warming_timeout, options.release_timeout)
            await anyio.sleep(min(self._reconcile_interval, *(limit / 2 for limit in limits)))
            state = self._mirror.state
            if state.consumers or state.assignments or state.handoffs:
                # An idle group has nothing to reconcile, and there may be thousands of them.
                await self._mirror.resync()
            self.core.reconcile(self._clock.now())
            self._wake.notify()

    # --- telling -------------------------------------------------------------------------------------------------

    def _report(self, write: Write) -> None:
        for move in write.moves:
            self._moved(move)
        if write.purpose is Purpose.PLAN:
            self._log.info("plan_published", generation=self.core.generation)

    def _moved(self, move: Moved) -> None:
        generation = self.core.generation
        self._metrics.moved(self.group, move.cause)
        self._metrics.took_over(self.group, warm=move.warm, cold=move.cold)
        self._history.add(move, generation)
        self._log.info(
            "partition_moved",
            topic=move.tp.topic,
            partition=move.tp.partition,
            old=move.old,
            new=move.new,
            cause=move.cause.value,
            epoch=move.epoch,
            generation=generation,
            warm=move.warm,
            unacked=list(move.unacked),
        )

    def _report_unreadable(self) -> None:
        """Log each unreadable record once. The record, and the partition or consumer it is about, are left alone."""
        unreadable = self._mirror.state.unreadable
        for key in unreadable.keys() - self._unreadable:
            self._metrics.unreadable(self.group)
            self._log.error("record_unreadable", key=key, error=unreadable[key])
        if self._unreadable != unreadable.keys():
            self._unreadable = set(unreadable)

    def _report_note(self, note: Note) -> None:
        if note.event == "consumer_evicted":
            self._metrics.evicted(self.group)
        elif note.event == "warm_failed":
            self._metrics.warm_failed(self.group)
        elif note.event == "freeze_overdue":
            self._metrics.freeze_overdue(self.group, self._mirror.state.options.freeze_overdue.value)
        self._log.warning(
            note.event, partition=str(note.tp) if note.tp else "", consumer=note.consumer, reason=note.reason
        )

    def _time_rebalance(self) -> None:
        if self._began is not None and self.core.settled:
            seconds = self._clock.now() - self._began
            self._began = None
            self._metrics.rebalanced(seconds)
            self._log.info(
                "rebalance_completed", seconds=round(seconds, 3), generation=self._mirror.state.plan.generation
            )


def _offset_key(keys: Keys, group: str) -> Callable[..., str]:
    return lambda tp: keys.offset(group, tp)


@dataclass(frozen=True)
class PlanRun:
    solution: Solution
    targets: list[OwnerTarget]
    standbys: list[StandbyTarget]
    standbys_follow: bool


async def _solve(request: Request, state: GroupState) -> PlanRun:
    """Compute a plan, on a worker thread if it is large, so that leases are renewed on time. The first plan with a
    strategy is computed there too, because the strategy has to be imported."""
    if len(request.partitions) < OFF_LOOP and is_prepared(request.strategy):
        return _solution(request, state)
    return await anyio.to_thread.run_sync(_solution, request, state)


def _solution(request: Request, state: GroupState) -> PlanRun:
    """Compute the owners, and leave standbys to a second step if the strategy can: a failover must not wait for
    them."""
    strategy, problem = prepare(request.strategy), request.problem
    if problem.standby_count and isinstance(strategy, PlacesStandbys):
        solution = solve_with(strategy, replace(problem, standby_count=0), request.rollout)
        return PlanRun(solution, targets_of(request, solution), [], standbys_follow=True)
    solution = solve_with(strategy, problem, request.rollout)
    return PlanRun(
        solution, targets_of(request, solution), standbys_of(request, solution, state), standbys_follow=False
    )


def _standbys(request: Request, solution: Solution, state: GroupState) -> list[StandbyTarget]:
    strategy = prepare(request.strategy)
    assert isinstance(strategy, PlacesStandbys)
    placed = replace(solution, standbys=strategy.place_standbys(placement_problem(request), solution.owner))
    return standbys_of(request, placed, state)
