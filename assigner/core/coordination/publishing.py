"""Everything the leader writes to the group's plan record: the generation, conditions, quarantine and epoch floor.

The generation says which plan is in force. It is raised once every write of a plan is known to be committed, so a
reader that sees it also finds the assignments and handoffs of that plan. No ownership depends on it.

The epoch floor follows the epochs, so that no epoch is granted twice after others deleted or rewrote assignments. A
plan that is published takes the floor along. Between two plans epochs rise too, by flips, takeovers and reasserted
owners; for these the floor follows in one write, at most `LAG` behind. Not promised: epochs granted in the last moment
before a leader died, or was replaced by a service without epochs, are not covered until there is a leader again. If all
assignments are deleted or rewritten by others before that, those epochs may be granted once more.

At most one write of the plan record is in flight at a time.
"""

from __future__ import annotations

import msgspec

from assigner.core.conditions import OversizedWrites
from assigner.core.group import GroupState
from assigner.core.handoff.warm_failures import WarmFailures
from assigner.core.leader_context import LeaderContext
from assigner.core.work_queue import RETRY, Timer, WorkQueue
from assigner.core.writes import PlanSubject, Purpose, Write
from assigner.model.keys import TopicPartition
from assigner.model.records import Plan

LAG = 1.0
"""Seconds from an epoch above the floor to the write that raises it: one write for all that rises meanwhile."""


class EpochFloorKeeper:
    def __init__(self, state: GroupState, work: WorkQueue) -> None:
        self._state = state
        self._work = work
        self._due: float | None = None

    @property
    def _is_behind(self) -> bool:
        return self._state.plan.epoch_floor < self._state.highest_epoch

    def raised(self, plan: Plan) -> Plan:
        """Raise the plan's epoch floor to the highest epoch there is."""
        return msgspec.structs.replace(plan, epoch_floor=max(plan.epoch_floor, self._state.highest_epoch))

    def is_due(self, now: float) -> bool:
        """Whether the floor is to be raised by a write of its own."""
        if not self._is_behind:
            self._due = None
        elif self._due is None:
            self._due = now + LAG
            self._work.timers.set(Timer.FLOOR, self._due)
        return self._due is not None and now >= self._due


class PlanPublisher:
    def __init__(self, context: LeaderContext, failures: WarmFailures, oversized: OversizedWrites) -> None:
        self._state = context.state
        self._transitions = context.transitions
        self._work = context.work
        self._pending = context.pending
        self._failures = failures
        self._oversized = oversized
        self._floor = EpochFloorKeeper(context.state, context.work)
        self._begun: set[Write] = set()
        """Writes that began moves of the plan and whose outcome is not known."""
        self._late: set[TopicPartition] = set()
        """Partitions of writes that were not in when their unknown outcome was read, and may still arrive."""
        self._changed = False
        """At least one write of a plan went in that no generation was published for."""
        self._last = self._failed = 0
        """The generation last asked to be written, and the one whose write failed, or may have."""

    # --- what happened to the writes of a plan -------------------------------------------------------------------

    def begun(self, write: Write) -> None:
        """Count a write of the plan being executed as in flight."""
        self._begun.add(write)

    def ended(self, write: Write, *, applied: bool | None) -> None:
        """Record the end of a write. `applied`: whether it went in; None: unknown, and the mirror was read since."""
        if write not in self._begun:
            return
        self._begun.remove(write)
        if applied or (applied is None and not self._transitions.is_current(write)):
            self._changed = True
        elif applied is None:
            self._late.update(write.partitions)

    def observe(self, tp: TopicPartition) -> None:
        """Record that the partition's record changed, maybe by a write of unknown outcome that arrived late. A
        generation that is being published already comes after it in the store."""
        if tp in self._late:
            self._late.discard(tp)
            self._changed |= not self.is_publishing

    def refused(self, write: Write, now: float) -> None:
        """Record that a write of the plan record failed, or that its outcome was unknown."""
        self._work.timers.set(Timer.PLAN, now + RETRY)
        if write.purpose is Purpose.PLAN:
            self._failed = self._last

    # --- what readers of the plan record see ---------------------------------------------------------------------

    @property
    def generation(self) -> int:
        """The generation of the plan being executed: the next one until it is published."""
        return self._state.plan.generation + (self.has_unpublished or self.is_publishing)

    @property
    def has_unpublished(self) -> bool:
        """Whether a write of the plan was committed that no published generation covers."""
        return self._changed or self._state.plan.generation < self._failed

    @property
    def is_publishing(self) -> bool:
        return self._pending.purpose(PlanSubject()) is Purpose.PLAN

    @property
    def waits(self) -> bool:
        """Whether the outcome of some of the plan's writes is not known."""
        return bool(self._begun)

    @property
    def is_busy(self) -> bool:
        """Whether a write of the plan record is in flight, or another writer's is not in the mirror yet."""
        return self._pending.concerns(PlanSubject()) or Timer.PLAN in self._work.timers

    # --- the next write of the plan record -----------------------------------------------------------------------

    def writes(self, now: float, *, plan_is_out: bool) -> list[Write]:
        """The next write of the plan record, if one is due. `plan_is_out`: all moves of the plan have begun."""
        floor_is_due = self._floor.is_due(now)
        if self.is_busy:
            return []
        write = self._conditions() or self._next_plan(plan_is_out) or (self.raise_floor() if floor_is_due else None)
        return [write] if write else []

    def raise_floor(self) -> Write:
        return self._transitions.publish(self._floor.raised(self._state.plan), Purpose.FLOOR)

    def _conditions(self) -> Write | None:
        found = self._oversized.conditions()
        if found == self._state.plan.conditions:
            return None
        return self._transitions.publish(
            msgspec.structs.replace(self._state.plan, conditions=found), Purpose.CONDITIONS
        )

    def _next_plan(self, plan_is_out: bool) -> Write | None:
        quarantine = self._failures.next_quarantine()
        if not self.has_unpublished and quarantine == self._state.plan.quarantined:
            return None
        if not plan_is_out or self.waits or self._pending.has_plan_writes:
            return None
        self._changed = False
        self._last = self._state.plan.generation + 1
        plan = msgspec.structs.replace(
            self._floor.raised(self._state.plan),
            generation=self._last,
            quarantined=quarantine,
            forgiven=self._state.options.rebalance_requests,
        )
        return self._transitions.publish(plan, Purpose.PLAN)
