"""Decides when a plan is made and for which causes: wanted, built in slices, being solved, solved or failed.

A cause is in one place at a time: in the work queue while a plan is wanted for it, here while that plan is made, and
with `PlanExecution` once it is carried out. A plan that fails gives its causes back to the work queue. So do plans that
could not do all there was to do: one made while moves were in flight is repeated when they have arrived, and one made
after an outage of the service is repeated when the grace period is over.
"""

from __future__ import annotations

from collections.abc import Callable

from assigner.core.handoff.warm_failures import WarmFailures
from assigner.core.leader_context import LeaderContext
from assigner.core.loads.trigger import LoadTrigger
from assigner.core.planning.request import Request, RequestBuilder
from assigner.core.work_queue import Timer
from assigner.model.keys import TopicPartition
from assigner.model.records import Cause

PARTITIONS_PER_STEP = 500
"""Partitions that one step examines, so that a large group does not block the event loop."""
_PAUSE_AFTER_FAILURE = 1.0
"""Seconds, at the least, before a plan that failed is made again."""


class PlanCycle:
    def __init__(
        self,
        context: LeaderContext,
        failures: WarmFailures,
        loads: LoadTrigger,
        partitions: Callable[[], list[TopicPartition]],
    ) -> None:
        """`partitions`: every partition of every readable topic, in the order of `flat_partitions`."""
        self._state = context.state
        self._liveness = context.liveness
        self._work = context.work
        self._pending = context.pending
        self._failures = failures
        self._loads = loads
        self._partitions = partitions
        self._builder: RequestBuilder | None = None
        self._causes: set[Cause] = set()
        """Causes of the plan being made."""
        self._replan_causes: set[Cause] | None = None
        """Causes of the last plan, if moves were in flight when it was made; None: none were."""
        self._postponed: set[Cause] = set()
        """Causes of plans that postponed balance, because absent consumers may still come back."""
        self.is_solving = False
        """From the decision to plan until the plan is known."""

    # --- making a plan -------------------------------------------------------------------------------------------

    def is_due(self, now: float) -> bool:
        """Whether there is a plan to begin or to go on building."""
        if self._builder:
            return True
        return not (self.is_solving or self._state.options.paused) and self._work.plan_is_due(now)

    def step(self, now: float, wall: float) -> Request | None:
        """Build the next slice of the problem. Returns the problem when it is complete, for the driver to solve."""
        if self._builder is None and not self._begin(now, wall):
            return None
        assert self._builder is not None
        request = self._builder.step(PARTITIONS_PER_STEP)
        if request:
            self._builder = None
        return request

    @property
    def is_building(self) -> bool:
        return self._builder is not None

    def _begin(self, now: float, wall: float) -> bool:
        causes = self._work.take_plan(now)
        if not self._state.topics or not any(map(self._matters, self._state.consumers)):
            return False
        self._causes, self.is_solving = causes, True
        loads = self._loads.begin_plan(self._causes, now, wall)
        self._replan_causes = set(self._causes) if self._state.handoffs else None
        not_all_back = self._liveness.after_an_outage(now)
        if not_all_back:
            self._postponed |= self._causes
            self._work.timers.sooner(Timer.GRACE_PERIOD, self._liveness.grace_period_ends)
        self._builder = RequestBuilder(
            self._state,
            self._liveness,
            now,
            must_stay=lambda tp: self.must_stay(tp, now),
            partitions=self._partitions(),
            loads=loads,
            wall=wall,
            only_unowned=not_all_back,
        )
        return True

    def _matters(self, name: str) -> bool:
        """Whether a plan could assign partitions to the consumer, or has to move partitions away from it."""
        if self._liveness.eligible(name):
            return True
        return not self._state.consumers[name].record.evicted and name in self._state.owned

    def must_stay(self, tp: TopicPartition, now: float) -> bool:
        """Whether no plan may move the partition now."""
        if tp in self._pending or tp in self._state.unreadable_partitions:
            return True
        held = self._state.assignments.get(tp)
        if held and self._liveness.is_leaving(held.record):
            # A cooldown spares the owner, a quarantine those who failed to warm it: neither keeps a leaving owner.
            return False
        return self._work.is_cooling_down(tp, now) or tp in self._failures.quarantined

    # --- how it ended --------------------------------------------------------------------------------------------

    def solved(self) -> set[Cause]:
        """Record that the plan was made. Returns its causes, for its execution."""
        self.is_solving = False
        causes, self._causes = self._causes, set()
        return causes

    def failed(self, now: float) -> None:
        self.is_solving = False
        causes, self._causes = self._causes, set()
        self._work.want_plan_again(causes, now, self._pause())

    def placement_failed(self, now: float) -> None:
        """Record that standbys of a plan could not be placed; the moves of its owners continue."""
        self._work.want_plan(None, now, self._pause())

    def _pause(self) -> float:
        return max(_PAUSE_AFTER_FAILURE, self._state.options.debounce)

    # --- plans that are made again -------------------------------------------------------------------------------

    @property
    def waits_for_moves(self) -> bool:
        """Whether another plan is to follow as soon as nothing is in flight any more."""
        return self._replan_causes is not None and not self.is_solving

    def replan_after_moves(self, now: float) -> None:
        causes, self._replan_causes = self._replan_causes, None
        self._work.want_plan_again(causes or (), now)

    def replan_after_grace_period(self, now: float) -> None:
        """Plan after the grace period, without the consumers that are still absent."""
        postponed, self._postponed = self._postponed, set()
        self._work.want_plan_again({*postponed, Cause.LEFT}, now, 0.0)
