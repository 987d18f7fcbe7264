"""Leads groups: campaigns for each known group, runs the work of each term won, and hands groups over.

One task per known group campaigns or leads; while it waits for the leader key it costs nothing. A failure affects one
group only: the term ends, and the task campaigns again after a backoff. What the work of a term is depends on the kind
of the group; a term ends when the group changes its kind.

Not promised: that work which ignores its cancellation stops. The term ends all the same, and its fence fails.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import anyio
import anyio.abc
import msgspec

from assigner.aio.backoff import Backoff
from assigner.aio.supervision import Supervisor
from assigner.aio.wakeup import Wakeup
from assigner.backend import Presence
from assigner.clock import Clock
from assigner.core.leader_spread import NO_SPREAD, Handover, LeaderSpread, SpreadSettings, campaign_delay, spread
from assigner.election import LeaderElector, Term
from assigner.errors import AssignerError
from assigner.logs import get_logger
from assigner.model.keys import Keys, decode_segment
from assigner.model.records import InstanceRecord
from assigner.storage.groups import kinds_of, known_groups
from assigner.storage.kinds import ASSIGNER
from assigner.storage.prefix_mirror import PrefixMirror
from assigner.store import Store

MAX_INSTANCES = 1_000
COALESCE = 0.02
"""Seconds between two reconciliations: the first of many changes is handled at once, the rest together."""
MAX_STARTS = 50
"""Campaigns started per reconciliation: a thousand new groups at once must not block the event loop."""

RunTerm = Callable[[Term, str], Awaitable[None]]
"""(term, kind of the group)"""

log = get_logger("assigner.leader.leadership")


class LeadershipSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an instance campaigns for groups and hands them over. Times in seconds."""

    spread: SpreadSettings = SpreadSettings()
    grace: float = 5.0
    """How long the work of a term may take to stop before the instance resigns regardless."""
    stop_within: float = 10.0
    """How long `stop` may take to resign from all groups."""
    crash_backoff: float = 1.0
    """The pause before campaigning again for a group whose work failed; doubles up to `crash_backoff_most`."""
    crash_backoff_most: float = 60.0


class LeadershipStatistics(msgspec.Struct, frozen=True, kw_only=True):
    groups: int
    led: int
    misplaced: int
    """Groups led here whose preferred leader is another instance."""
    instances: int
    terms_won: int
    terms_lost: int
    """Terms that ended because the lease or the leader key was lost."""
    handovers: int
    crashes: int


class _LedTerm:
    """A term that this instance holds, and the work done in it."""

    def __init__(self, term: Term, kind: str) -> None:
        self.term = term
        self.kind = kind
        self.work = anyio.CancelScope()
        self.work_ended = anyio.Event()
        """Set when the work has stopped, for any reason."""
        self.ending = anyio.Event()
        """Set when the term has to end, for `reason`."""
        self.reason = ""
        self.failed = False

    def end(self, reason: str) -> None:
        self.reason = self.reason or reason
        self.ending.set()


class Leadership:
    def __init__(
        self,
        store: Store,
        keys: Keys,
        elector: LeaderElector,
        presence: Presence,
        clock: Clock,
        run_term: RunTerm,
        settings: LeadershipSettings | None = None,
        supervisor: Supervisor | None = None,
    ) -> None:
        """`run_term` does a leader's work for a group of this kind until it is cancelled."""
        self._settings = settings or LeadershipSettings()
        self._supervisor = supervisor or Supervisor()
        self._elector = elector
        self._me = presence.name
        self._clock = clock
        self._run_term = run_term
        self._groups = known_groups(store, keys, self._groups_changed)
        self._instances = PrefixMirror(
            store, keys.instances, InstanceRecord, self._instances_changed, limit=MAX_INSTANCES
        )
        self._eligible: frozenset[tuple[str, str]] = frozenset()
        self._handover = Handover(self._settings.spread, clock.now())
        self._spread: LeaderSpread | None = None
        """Cached; None: to be computed at the next use."""
        self._kinds: dict[str, str] | None = None
        """Per known group; cached in the same way."""
        self._changed = Wakeup()
        self._eligible_changed = Wakeup()
        self._tasks: dict[str, anyio.CancelScope] = {}
        """Per known group: its campaign or its term."""
        self._terms: dict[str, _LedTerm] = {}
        self._scope = anyio.CancelScope()
        self._running = False
        self._stopping = False
        self._stopped = anyio.Event()
        self._error: AssignerError | None = None
        self._won = self._lost = self._handovers = self._crashes = 0

    # --- what others ask -------------------------------------------------------------------------------------

    @property
    def led(self) -> Mapping[str, Term]:
        """The groups led by this instance now, with their terms."""
        return {group: led.term for group, led in self._terms.items()}

    @property
    def groups(self) -> frozenset[str]:
        """Every known group of a kind that is led here."""
        return frozenset(self._known())

    def _known(self) -> Mapping[str, str]:
        """Known group -> its kind."""
        if self._kinds is None:
            self._kinds = kinds_of(self._groups)
        return self._kinds

    @property
    def instances(self) -> Mapping[str, InstanceRecord]:
        return {decode_segment(name): instance for name, instance in self._instances.records.items()}

    def statistics(self) -> LeadershipStatistics:
        leader_spread = self._leader_spread()
        return LeadershipStatistics(
            groups=len(self.groups),
            led=len(self._terms),
            misplaced=sum(leader_spread.preferred(group) not in (None, self._me) for group in self._terms),
            instances=len(self._instances.records),
            terms_won=self._won,
            terms_lost=self._lost,
            handovers=self._handovers,
            crashes=self._crashes,
        )

    # --- running ---------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Lead groups until stopped. Raises `Superseded` when another process took over this instance's name."""
        self._running = True
        try:
            with self._scope:
                async with anyio.create_task_group() as tasks:
                    keep = self._supervisor.keep
                    tasks.start_soon(keep, "known groups", self._groups.run, name="known groups")
                    tasks.start_soon(keep, "live instances", self._instances.run, name="live instances")
                    await self._groups.listed.wait()
                    await self._instances.listed.wait()
                    await keep("leadership", partial(self._reconcile, tasks))
        finally:
            self._running = False
            self._stopped.set()
        if self._error is not None:
            raise self._error

    async def stop(self) -> None:
        """Announce the drain to the other instances, stop the work, resign from every group. Ends in time even if the
        store hangs."""
        if self._stopped.is_set():
            return
        self._stopping = True
        with anyio.move_on_after(self._settings.stop_within, shield=True) as bound:
            await self._announce_draining()
            for led in tuple(self._terms.values()):
                led.end("this instance is stopping")
            for group in [group for group in self._tasks if group not in self._terms]:
                self._tasks[group].cancel()
            await self._changed.until(lambda: not self._tasks)
        if bound.cancelled_caught:
            log.warning("handover_timed_out", groups=sorted(self._terms))
        self._scope.cancel()
        if self._running:
            with anyio.move_on_after(self._settings.grace + 1, shield=True):
                await self._stopped.wait()

    async def _announce_draining(self) -> None:
        try:
            with anyio.move_on_after(self._settings.stop_within / 2):
                await self._elector.drain()
        except AssignerError as error:
            log.info("drain_announcement_failed", error=str(error))

    async def _reconcile(self, tasks: anyio.abc.TaskGroup) -> None:
        """Match tasks and handovers to every change; without changes, wake up only while a handover is due."""
        while True:
            mark = self._changed.mark()
            complete = self._match_tasks(tasks)
            wake_at = self._hand_over()
            await anyio.sleep(COALESCE)
            if not complete:
                continue
            if wake_at is None:
                await self._changed.since(mark)
            else:
                with anyio.move_on_after(max(0.001, wake_at - self._clock.now())):
                    await self._changed.since(mark)

    def _match_tasks(self, tasks: anyio.abc.TaskGroup) -> bool:
        """Start or end tasks so that each known group has one; whether all have one now."""
        if self._stopping:
            return True
        known = self._known()
        missing = sorted(known.keys() - self._tasks.keys())
        for group in missing[:MAX_STARTS]:
            self._tasks[group] = scope = anyio.CancelScope()
            tasks.start_soon(self._run_group, group, scope, name=f"leadership of {group}")
        for group in sorted(self._tasks.keys() - known.keys()):
            if group in self._terms:
                self._terms[group].end("the group is gone")
            else:
                self._tasks[group].cancel()
        for group, led in self._terms.items():
            if known.get(group, led.kind) != led.kind:
                led.end(f"the group is of kind {known[group]!r} now")
        return len(missing) <= MAX_STARTS

    def _hand_over(self) -> float | None:
        if self._stopping:
            return None
        leader_spread = self._leader_spread()
        due, wake_at = self._handover.due(self._clock.now(), self._me, self._terms, leader_spread)
        for group in due:
            self._handovers += 1
            self._terms[group].end(f"handed over to {leader_spread.preferred(group)}")
        return wake_at

    # --- one group -------------------------------------------------------------------------------------------

    async def _run_group(self, group: str, scope: anyio.CancelScope) -> None:
        """Campaign and lead in turn, for as long as the group is known."""
        backoff = Backoff(
            f"{self._me}/{group}", first=self._settings.crash_backoff, most=self._settings.crash_backoff_most
        )
        try:
            with scope:
                await self._supervisor.keep(
                    "campaign",
                    partial(self._campaign_and_lead, group, backoff),
                    may_end=True,
                    final=(AssignerError,),
                    group=group,
                )
        except AssignerError as error:
            # The elector retries by itself, so an error that it raises is final.
            self._fail(error)
        finally:
            del self._tasks[group]
            self._changed.notify()

    async def _campaign_and_lead(self, group: str, backoff: Backoff) -> None:
        while self._should_lead(group):
            term = await self._elector.campaign(group, stagger=lambda: self._stagger(group))
            await self._lead(term, backoff)

    def _should_lead(self, group: str) -> bool:
        return not self._stopping and group in self._known()

    def _fail(self, error: AssignerError) -> None:
        if self._error is None:
            log.error("leadership_failed", error=str(error))
            self._error = error
            self._scope.cancel()

    async def _stagger(self, group: str) -> None:
        """Delay the campaign while an instance that is preferred for the group may still win it."""
        since = self._clock.now()
        while True:
            mark = self._eligible_changed.mark()
            delay = campaign_delay(group, self._me, self._leader_spread(), self._settings.spread.stagger)
            left = since + delay - self._clock.now()
            if left <= 0:
                return
            with anyio.move_on_after(left):
                await self._eligible_changed.since(mark)

    async def _lead(self, term: Term, backoff: Backoff) -> None:
        led = _LedTerm(term, self._known().get(term.group, ASSIGNER))
        self._start_leading(led)
        began = self._clock.now()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._work, led, name=f"term of {term.group}")
                tasks.start_soon(self._notice_loss, led, name=f"loss of {term.group}")
                await led.ending.wait()
                await self._step_down(led)
                tasks.cancel_scope.cancel()
        finally:
            if term.held():
                # Cancelled from outside. A leader key left behind would keep the group without a leader.
                with anyio.move_on_after(self._settings.grace, shield=True):
                    await term.resign()
            self._stop_leading(led)
        if self._clock.now() - began > self._settings.crash_backoff_most:
            backoff.reset()
        if led.failed and self._should_lead(term.group):
            await backoff.pause()

    def _start_leading(self, led: _LedTerm) -> None:
        term = led.term
        self._won += 1
        self._terms[term.group] = led
        log.info("term_started", group=term.group, term=term.revision)
        if not self._should_lead(term.group):
            led.end("no longer wanted")
        self._changed.notify()

    def _stop_leading(self, led: _LedTerm) -> None:
        group = led.term.group
        del self._terms[group]
        log.info("term_ended", group=group, term=led.term.revision, reason=led.reason or "cancelled")
        self._changed.notify()

    async def _work(self, led: _LedTerm) -> None:
        try:
            with led.work:
                await self._run_term(led.term, led.kind)
        except Exception as error:
            self._crashes += 1
            led.failed = True
            log.exception("term_failed", group=led.term.group, term=led.term.revision)
            led.end(f"its work failed: {error!r}")
        else:
            if not led.work.cancel_called:
                led.failed = True
                led.end("its work ended by itself")
        finally:
            led.work_ended.set()

    async def _notice_loss(self, led: _LedTerm) -> None:
        reason = await led.term.wait_lost()
        if not led.ending.is_set():
            self._lost += 1
            led.end(reason)
        led.work.cancel()

    async def _step_down(self, led: _LedTerm) -> None:
        """Stop the work, then resign. Writes of work that does not stop in time fail by their fence."""
        led.work.cancel()
        with anyio.move_on_after(self._settings.grace):
            await led.work_ended.wait()
        await led.term.resign()

    # --- who should lead what --------------------------------------------------------------------------------

    def _leader_spread(self) -> LeaderSpread:
        if self._spread is None:
            if not self._groups.listed.is_set() or not self._instances.listed.is_set():
                return NO_SPREAD
            names = (name for name, _ in self._eligible)
            self._spread = spread(self.groups, names, self._settings.spread.slack)
        return self._spread

    def _groups_changed(self) -> None:
        self._spread = self._kinds = None
        self._changed.notify()

    def _instances_changed(self) -> None:
        eligible = frozenset(
            (name, instance.incarnation) for name, instance in self.instances.items() if not instance.draining
        )
        if eligible != self._eligible:
            self._eligible = eligible
            self._spread = None
            self._handover.instances_changed(self._clock.now())
            log.info("instances_changed", instances=sorted(name for name, _ in eligible))
            self._eligible_changed.notify()
            self._changed.notify()
