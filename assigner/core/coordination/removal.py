"""Removes ownership records: of deleted partitions, of partitions released to nobody, and of a group without consumers.

Before an assignment is deleted, the epoch floor is raised to its epoch, so that the partition's next owner gets a
higher one. A group counts as abandoned when no consumer has been registered for two TTLs; a consumer that registers
before the records are deleted keeps them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from assigner.core.coordination.publishing import PlanPublisher
from assigner.core.leader_context import LeaderContext
from assigner.core.work_queue import RETRY, Timer
from assigner.core.writes import Write
from assigner.model.keys import TopicPartition

_ABANDONED_AFTER = 2
"""TTLs without a registered consumer."""


class OwnershipRemoval:
    def __init__(self, context: LeaderContext, publisher: PlanPublisher) -> None:
        self._context = context
        self._state = context.state
        self._transitions = context.transitions
        self._work = context.work
        self._pending = context.pending
        self._publisher = publisher
        self._partitions: set[TopicPartition] = set()

    def __len__(self) -> int:
        return len(self._partitions)

    def add(self, tps: Iterable[TopicPartition]) -> None:
        """Have the records of these partitions removed."""
        self._partitions.update(tps)

    # --- when records are kept after all -------------------------------------------------------------------------

    def cancel(self) -> None:
        """Keep what was about to be removed, and examine it again, because a consumer is registered."""
        self._work.timers.clear(Timer.EMPTY)
        if self._partitions:
            self._work.enqueue(self._partitions)
            self._partitions.clear()

    def cancel_topic(self, topic: str) -> None:
        """Keep the records of a topic that changed, unless the group is abandoned: its partitions may exist again."""
        if self._context.has_consumers:
            self._partitions = {tp for tp in self._partitions if tp.topic != topic}

    def refused(self, write: Write, now: float) -> None:
        """Record a failed precondition: a consumer registered that the mirror does not show yet. The removal is
        not retried at once, and the group's time without consumers starts again."""
        self._partitions.difference_update(write.partitions)
        if not self._context.has_consumers and Timer.EMPTY not in self._work.timers:
            self._work.timers.set(Timer.EMPTY, now + RETRY)

    # --- groups without consumers --------------------------------------------------------------------------------

    def watch_if_empty(self, now: float) -> None:
        """Start the timer after which a group without consumers is abandoned."""
        if not self._context.has_consumers:
            self._work.timers.sooner(Timer.EMPTY, now + _ABANDONED_AFTER * self._context.ttl)

    def remove_all_if_empty(self) -> None:
        """Remove the ownership of the whole group when the timer fires, if it still has no consumers."""
        if not self._context.has_consumers:
            for table in (self._state.assignments, self._state.handoffs, self._state.standbys):
                self._partitions.update(table)

    # --- writes --------------------------------------------------------------------------------------------------

    def writes(self, budget: int) -> Iterator[Write]:
        """The write that raises the floor to the highest epoch to be deleted; once that is committed, the deletions."""
        tables = (self._state.assignments, self._state.handoffs, self._state.standbys)
        self._partitions = {tp for tp in self._partitions if any(tp in table for table in tables)}
        if not self._partitions or self._publisher.is_busy:
            return
        if self._state.plan.epoch_floor < self._highest_epoch():
            yield self._publisher.raise_floor()
            return
        for tp in [tp for tp in sorted(self._partitions) if tp not in self._pending][:budget]:
            yield self._transitions.remove((tp,))

    def _highest_epoch(self) -> int:
        held = (self._state.assignments.get(tp) for tp in self._partitions)
        return max((one.record.epoch for one in held if one), default=0)
