"""Leads the groups this instance should lead: campaigns, runs a term's work, hands groups over, lets go at the end.

One task per known group campaigns or leads; parked on the leader key it costs nothing. A group's trouble stays its
own: work that fails gives the term up, backs off and campaigns again.

Not promised: that work which ignores its cancellation stops. The term is given up all the same, and its fence with it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import MappingProxyType

import anyio
import anyio.abc
import msgspec

from assigner.aio.backoff import Backoff
from assigner.aio.supervision import Supervisor
from assigner.backend import Presence
from assigner.clock import Clock
from assigner.core.leader_spread import NOWHERE, Handover, LeaderSpread, SpreadSettings, campaign_delay, spread
from assigner.election import LeaderElector, Term
from assigner.errors import AssignerError
from assigner.logs import get_logger
from assigner.model.keys import Keys, decode_segment
from assigner.model.records import InstanceRecord
from assigner.storage.groups import ASSIGNER, known_groups, names_of
from assigner.storage.prefix_mirror import PrefixMirror
from assigner.store import Store

MAX_INSTANCES = 1_000
COALESCE = 0.02
"""Seconds between two looks at everything: the first of many changes is acted upon at once, the rest together."""
STARTS = 50
"""Campaigns begun per look: a thousand groups known at once must not hold up the loop."""

log = get_logger("assigner.leader.leadership")


class LeadershipSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Times in seconds."""

    spread: SpreadSettings = SpreadSettings()
    grace: float = 5.0
    """How long the work of a term may take to stop before its group is given up regardless."""
    stop_within: float = 10.0
    """How long letting go of everything may take at the end."""
    crash_backoff: float = 1.0
    """Before campaigning again for a group whose work failed; doubles up to `crash_backoff_most`."""
    crash_backoff_most: float = 60.0
    kind: str = ASSIGNER
    """Only groups of this kind are led."""


class LeadershipStatistics(msgspec.Struct, frozen=True, kw_only=True):
    groups: int
    led: int
    misplaced: int
    """Led here, but another instance should."""
    instances: int
    terms_won: int
    terms_lost: int
    """Ended against our will: lease or leader key lost."""
    handovers: int
    crashes: int


class _Leading:
    """One term at work."""

    def __init__(self, term: Term) -> None:
        self.term = term
        self.work = anyio.CancelScope()
        self.worked = anyio.Event()
        """The work has ended, by itself or not."""
        self.leave = anyio.Event()
        """Somebody wants the group given up; `why` says the reason."""
        self.why = ""
        self.failed = False

    def give_up(self, why: str) -> None:
        self.why = self.why or why
        self.leave.set()


class Leadership:
    def __init__(
        self,
        store: Store,
        keys: Keys,
        elector: LeaderElector,
        presence: Presence,
        clock: Clock,
        run_term: Callable[[Term], Awaitable[None]],
        settings: LeadershipSettings | None = None,
        supervisor: Supervisor | None = None,
    ) -> None:
        """`run_term` does a leader's work until it is cancelled."""
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
        """None: to be worked out anew when somebody asks."""
        self._known: frozenset[str] | None = None
        """Likewise."""
        self._changed = anyio.Event()
        self._instances_event = anyio.Event()
        self._tasks: dict[str, anyio.CancelScope] = {}
        """Per known group: its campaign or reign."""
        self._reigns: dict[str, _Leading] = {}
        self._led: dict[str, Term] = {}
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
        return MappingProxyType(self._led)

    @property
    def groups(self) -> frozenset[str]:
        """Every known group of the kind led here."""
        if self._known is None:
            self._known = names_of(self._groups, self._settings.kind)
        return self._known

    @property
    def instances(self) -> Mapping[str, InstanceRecord]:
        return {decode_segment(name): instance for name, instance in self._instances.records.items()}

    def statistics(self) -> LeadershipStatistics:
        wanted = self._wanted()
        return LeadershipStatistics(
            groups=len(self.groups),
            led=len(self._led),
            misplaced=sum(wanted.preferred(group) not in (None, self._me) for group in self._led),
            instances=len(self._instances.records),
            terms_won=self._won,
            terms_lost=self._lost,
            handovers=self._handovers,
            crashes=self._crashes,
        )

    # --- running ---------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Lead until stopped. Raises `Superseded` when another process took over this instance's name."""
        self._running = True
        try:
            with self._scope:
                async with anyio.create_task_group() as tasks:
                    keep = self._supervisor.keep
                    tasks.start_soon(keep, "known groups", self._groups.run, name="known groups")
                    tasks.start_soon(keep, "live instances", self._instances.run, name="live instances")
                    await self._groups.listed.wait()
                    await self._instances.listed.wait()
                    await keep("leadership", partial(self._conduct, tasks))
        finally:
            self._running = False
            self._stopped.set()
        if self._error is not None:
            raise self._error

    async def stop(self) -> None:
        """Abdicate: say so to the others, stop the work, free every group. Bounded, whatever the store does."""
        if self._stopped.is_set():
            return
        self._stopping = True
        with anyio.move_on_after(self._settings.stop_within, shield=True) as bound:
            await self._say_draining()
            for reign in tuple(self._reigns.values()):
                reign.give_up("this instance is stopping")
            for group in [group for group in self._tasks if group not in self._reigns]:
                self._tasks[group].cancel()
            while self._tasks:
                await self._changed.wait()
        if bound.cancelled_caught:
            log.warning("handover_timed_out", groups=sorted(self._led))
        self._scope.cancel()
        if self._running:
            with anyio.move_on_after(self._settings.grace + 1, shield=True):
                await self._stopped.wait()

    async def _say_draining(self) -> None:
        try:
            with anyio.move_on_after(self._settings.stop_within / 2):
                await self._elector.drain()
        except AssignerError as error:
            log.info("drain_announcement_failed", error=str(error))

    async def _conduct(self, tasks: anyio.abc.TaskGroup) -> None:
        """React to changes, and wake up by itself only while a handover is due."""
        while True:
            changed = self._changed
            complete = self._match_tasks(tasks)
            wake_at = self._hand_over()
            await anyio.sleep(COALESCE)
            if not complete:
                continue
            if wake_at is None:
                await changed.wait()
            else:
                with anyio.move_on_after(max(0.001, wake_at - self._clock.now())):
                    await changed.wait()

    def _match_tasks(self, tasks: anyio.abc.TaskGroup) -> bool:
        """One task for each known group; whether all of them have theirs."""
        if self._stopping:
            return True
        known = self.groups
        missing = sorted(known - self._tasks.keys())
        for group in missing[:STARTS]:
            self._tasks[group] = scope = anyio.CancelScope()
            tasks.start_soon(self._contend, group, scope, name=f"leadership of {group}")
        for group in sorted(self._tasks.keys() - known):
            if group in self._reigns:
                self._reigns[group].give_up("the group is gone")
            else:
                self._tasks[group].cancel()
        return len(missing) <= STARTS

    def _hand_over(self) -> float | None:
        if self._stopping:
            return None
        wanted = self._wanted()
        due, wake_at = self._handover.due(self._clock.now(), self._me, self._led, wanted)
        for group in due:
            self._handovers += 1
            self._reigns[group].give_up(f"handed over to {wanted.preferred(group)}")
        return wake_at

    # --- one group -------------------------------------------------------------------------------------------

    async def _contend(self, group: str, scope: anyio.CancelScope) -> None:
        """Campaign, lead, and again, for as long as the group is known."""
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
            # The elector tries again by itself: what it passes on is final.
            self._fail(error)
        finally:
            del self._tasks[group]
            self._notify()

    async def _campaign_and_lead(self, group: str, backoff: Backoff) -> None:
        while self._wants(group):
            term = await self._elector.campaign(group, give_way=lambda: self._give_way(group))
            await self._reign(term, backoff)

    def _wants(self, group: str) -> bool:
        return not self._stopping and group in self.groups

    def _fail(self, error: AssignerError) -> None:
        if self._error is None:
            log.error("leadership_failed", error=str(error))
            self._error = error
            self._scope.cancel()

    async def _give_way(self, group: str) -> None:
        """Let those go first that should lead the group, for as long as the set of instances says so."""
        since = self._clock.now()
        while True:
            changed = self._instances_event
            delay = campaign_delay(group, self._me, self._wanted(), self._settings.spread.courtesy)
            left = since + delay - self._clock.now()
            if left <= 0:
                return
            with anyio.move_on_after(left):
                await changed.wait()

    async def _reign(self, term: Term, backoff: Backoff) -> None:
        reign = _Leading(term)
        self._enthrone(reign)
        began = self._clock.now()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._work, reign, name=f"term of {term.group}")
                tasks.start_soon(self._notice_loss, reign, name=f"loss of {term.group}")
                await reign.leave.wait()
                await self._abdicate(reign)
                tasks.cancel_scope.cancel()
        finally:
            if term.held():
                # Cancelled from outside: the key would otherwise keep the group without a leader.
                with anyio.move_on_after(self._settings.grace, shield=True):
                    await term.resign()
            self._dethrone(reign)
        if self._clock.now() - began > self._settings.crash_backoff_most:
            backoff.reset()
        if reign.failed and self._wants(term.group):
            await backoff.pause()

    def _enthrone(self, reign: _Leading) -> None:
        term = reign.term
        self._won += 1
        self._reigns[term.group] = reign
        self._led[term.group] = term
        log.info("term_started", group=term.group, term=term.revision)
        if not self._wants(term.group):
            reign.give_up("no longer wanted")
        self._notify()

    def _dethrone(self, reign: _Leading) -> None:
        group = reign.term.group
        del self._reigns[group], self._led[group]
        log.info("term_ended", group=group, term=reign.term.revision, reason=reign.why or "cancelled")
        self._notify()

    async def _work(self, reign: _Leading) -> None:
        try:
            with reign.work:
                await self._run_term(reign.term)
        except Exception as error:
            self._crashes += 1
            reign.failed = True
            log.exception("term_failed", group=reign.term.group, term=reign.term.revision)
            reign.give_up(f"its work failed: {error!r}")
        else:
            if not reign.work.cancel_called:
                reign.failed = True
                reign.give_up("its work ended by itself")
        finally:
            reign.worked.set()

    async def _notice_loss(self, reign: _Leading) -> None:
        reason = await reign.term.wait_lost()
        if not reign.leave.is_set():
            self._lost += 1
            reign.give_up(reason)
        reign.work.cancel()

    async def _abdicate(self, reign: _Leading) -> None:
        """Stop the work, then free the group; work that does not stop in time is left to its fence."""
        reign.work.cancel()
        with anyio.move_on_after(self._settings.grace):
            await reign.worked.wait()
        await reign.term.resign()

    # --- who should lead what --------------------------------------------------------------------------------

    def _wanted(self) -> LeaderSpread:
        if self._spread is None:
            if not self._groups.listed.is_set() or not self._instances.listed.is_set():
                return NOWHERE
            names = (name for name, _ in self._eligible)
            self._spread = spread(self.groups, names, self._settings.spread.slack)
        return self._spread

    def _groups_changed(self) -> None:
        self._spread = self._known = None
        self._notify()

    def _instances_changed(self) -> None:
        eligible = frozenset(
            (name, instance.incarnation) for name, instance in self.instances.items() if not instance.draining
        )
        if eligible != self._eligible:
            self._eligible = eligible
            self._spread = None
            self._handover.instances_changed(self._clock.now())
            log.info("instances_changed", instances=sorted(name for name, _ in eligible))
            self._instances_event.set()
            self._instances_event = anyio.Event()
            self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
