"""Computes a consumer's view of a partition, and the commands that lead from the view it was last sent to the present.

Commands are the difference between two views, never events. So a slow consumer skips what it missed, one that
reconnects starts from the empty view, and nothing has to be remembered for it but the views it was last sent.
"""

from __future__ import annotations

import msgspec

from assigner.core.group import GroupState
from assigner.core.standby_copies import holds_copy, is_standby
from assigner.model.commands import CancelWarm, Commands, Release, Warm
from assigner.model.keys import TopicPartition
from assigner.model.records import Step


class PartitionView(msgspec.Struct, frozen=True, gc=False):
    """What one partition means for one session of a consumer."""

    owned: bool = False
    epoch: int = 0
    target: str = ""
    """The handoff in which the consumer is the new owner, before the flip; empty: none."""
    warming: bool = False
    """The consumer has not acked that handoff yet."""
    release: str = ""
    """The handoff in which the consumer has to release; empty: none."""
    standby: bool = False
    """The consumer holds a copy without being the owner."""
    copy_of: str = ""
    """Identity of the topic the copy is of."""


EMPTY_VIEW = PartitionView()


def view_of(state: GroupState, name: str, session: str, tp: TopicPartition) -> PartitionView:
    ownership = _ownership(state, name, session, tp)
    if tp not in state.standbys or ownership.owned or not is_standby(state, tp, name):
        return ownership
    topic_id = state.standbys[tp].record.topic_id
    return msgspec.structs.replace(ownership, standby=True, copy_of=topic_id)


def _ownership(state: GroupState, name: str, session: str, tp: TopicPartition) -> PartitionView:
    assignment, handoff = state.assignments.get(tp), state.handoffs.get(tp)
    held = assignment.record if assignment else None
    owned = held is not None and held.owner == name and held.session == session
    if handoff is None:
        return PartitionView(True, held.epoch) if owned and held else EMPTY_VIEW
    record = handoff.record
    step = record.at
    ours_to_leave = record.old_owner == name and record.old_session == session
    ours_to_take = record.new_owner == name and record.new_session == session and step is not Step.COMPLETE
    if ours_to_leave and step is Step.RELEASED:
        # It has released already; the assignment names it until the leader's next write.
        owned = False
    return PartitionView(
        owned,
        held.epoch if owned and held else 0,
        record.identity if ours_to_take else "",
        ours_to_take and step is Step.WARMING and not _is_cold(state, name),
        record.identity if ours_to_leave and step in (Step.COMPLETE, Step.RELEASING) else "",
    )


def _is_cold(state: GroupState, name: str) -> bool:
    consumer = state.consumers.get(name)
    return consumer is not None and consumer.record.cold


class CommandBuilder:
    """Collects the commands for one consumer, partition by partition."""

    def __init__(self, state: GroupState, name: str = "") -> None:
        """`name`: of the consumer."""
        self._state = state
        self._name = name
        self._assigned: list[tuple[TopicPartition, int]] = []
        self._unassigned: list[tuple[TopicPartition, int]] = []
        self._cancels: list[CancelWarm] = []
        self._warms: list[Warm] = []
        self._releases: list[Release] = []
        self._standbys_removed: list[TopicPartition] = []
        self._standbys_added: list[TopicPartition] = []

    def add(self, tp: TopicPartition, before: PartitionView, after: PartitionView) -> None:
        if after.owned and (not before.owned or before.epoch != after.epoch):
            self._assigned.append((tp, after.epoch))
        elif before.owned and not after.owned and not (before.release or after.release):
            self._unassigned.append((tp, before.epoch))
        if before.target and before.target != after.target and not after.owned:
            self._cancels.append(CancelWarm(tp, before.target))
        if after.warming and before.target != after.target:
            self._warms.append(self._warm(tp))
        if after.release and after.release != before.release:
            self._releases.append(self._release(tp))
        self._add_standby(tp, before, after)

    def _add_standby(self, tp: TopicPartition, before: PartitionView, after: PartitionView) -> None:
        same = before.standby and after.standby and before.copy_of == after.copy_of
        # A standby that becomes the owner keeps its copy.
        if before.standby and not same and not after.owned:
            self._standbys_removed.append(tp)
        if after.standby and not same:
            self._standbys_added.append(tp)

    def _warm(self, tp: TopicPartition) -> Warm:
        handoff = self._state.handoffs[tp].record
        return Warm(tp, handoff.handoff_id, handoff.old_owner, handoff.cause, handoff.warm)

    def _release(self, tp: TopicPartition) -> Release:
        handoff = self._state.handoffs[tp].record
        keeps = holds_copy(self._state, tp, self._name)
        return Release(tp, handoff.old_epoch, handoff.handoff_id, handoff.new_owner, handoff.cause, keeps)

    def commands(self, *, full: bool = False) -> Commands | None:
        """The commands collected; None: there are none."""
        orders = self._cancels or self._warms or self._releases
        standbys = self._standbys_removed or self._standbys_added
        if not (full or self._assigned or self._unassigned or orders or standbys):
            return None
        return Commands(
            full=full,
            assigned=tuple(self._assigned),
            unassigned=tuple(self._unassigned),
            cancels=tuple(self._cancels),
            warms=tuple(self._warms),
            releases=tuple(self._releases),
            standbys_removed=tuple(self._standbys_removed),
            standbys_added=tuple(self._standbys_added),
            generation=self._state.plan.generation,
        )
