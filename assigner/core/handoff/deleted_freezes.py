"""Finds partitions that routers still hold frozen although their handoff was deleted by somebody else.

That a handoff is gone means nothing to a router: it thaws by a higher epoch. The leader's own writes that end a frozen
handoff raise the epoch, or are followed by one that does. So a partition without a handoff whose owner still has the
epoch under which it was frozen is stuck, and its owner has to get another epoch.

The trace of a freeze is the deletion that this leader saw, or an ack that names no handoff any more, which a new leader
finds too. Not promised: the repair of a handoff that was deleted before any router had acked it, if the leader died
before it saw that. The partition then thaws with its next move, and a router's bounds end the wait before that.
"""

from __future__ import annotations

from assigner.core.group import Change, GroupState
from assigner.model.keys import HandoffKey, TopicPartition


class DeletedFreezes:
    def __init__(self, state: GroupState) -> None:
        self._state = state
        self._frozen: dict[TopicPartition, int] = {}
        """Partitions whose frozen handoff was deleted -> the epoch that its old owner had."""

    def observe(self, change: Change) -> None:
        """Take a change of a handoff's record."""
        assert isinstance(change.key, HandoffKey)
        if change.after is None and change.before is not None and change.before.record.freezes:
            self._frozen[change.key.tp] = change.before.record.old_epoch
        else:
            self._frozen.pop(change.key.tp, None)

    def is_stuck(self, tp: TopicPartition) -> bool:
        """Whether routers hold the partition back until its owner has another epoch, and nothing will give it one."""
        held = self._state.assignments.get(tp)
        epochs = [ack.record.epoch for ack in self._state.acks.get(tp, {}).values()]
        if tp in self._frozen:
            epochs.append(self._frozen[tp])
        stuck = bool(held and tp not in self._state.handoffs and epochs and held.record.epoch <= max(epochs))
        if not stuck:
            self._frozen.pop(tp, None)
        return stuck
