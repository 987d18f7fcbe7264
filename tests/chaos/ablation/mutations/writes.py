"""Switch off rules about records and writes: epochs, compares, fences, offsets and what a transaction holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from assigner.admin.deletion import GroupDeletion
from assigner.core import writes
from assigner.core.coordination.publishing import EpochFloorKeeper
from assigner.core.coordination.removal import OwnershipRemoval
from assigner.core.handoff import acks
from assigner.core.offset_commits import Committer, PendingCommit, admit
from assigner.core.transitions import Transitions
from assigner.core.writes import Packed, Write
from assigner.leader.coordinator import Coordinator
from assigner.model.keys import TopicPartition
from assigner.storage.batch_writer import BatchWriter, Done
from assigner.store import Absent, Compare, Delete, Exists, Limits
from tests.chaos.ablation.mutations import Patch


def _with_epoch(patch: Patch, method: str, epoch: Callable[[Transitions, TopicPartition], int]) -> None:
    """Have one kind of write make its epochs differently."""
    original = getattr(Transitions, method)

    def changed(self: Any, *args: Any, **kwargs: Any) -> Write:
        self.next_epoch = lambda tp: epoch(self, tp)
        try:
            write: Write = original(self, *args, **kwargs)
        finally:
            del self.next_epoch
        return write

    patch.setattr(Transitions, method, changed)


def _epoch_now(do: Transitions, tp: TopicPartition) -> int:
    held = do._state.assignments.get(tp)
    return max(1, held.record.epoch if held else 0)


def _without(patch: Patch, method: str, unwanted: Callable[[Compare], bool]) -> None:
    """Have one kind of write leave out some compares."""
    original = getattr(Transitions, method)

    def changed(self: Any, *args: Any, **kwargs: Any) -> Write:
        write: Write = original(self, *args, **kwargs)
        kept = tuple(compare for compare in write.compares if not unwanted(compare))
        return msgspec.structs.replace(write, compares=kept)

    patch.setattr(Transitions, method, changed)


def reassigned_with_the_same_epoch(patch: Patch) -> None:
    _with_epoch(patch, "assign", _epoch_now)


def takeovers_keep_the_epoch(patch: Patch) -> None:
    _with_epoch(patch, "bump_epoch", _epoch_now)


def the_floor_does_not_count(patch: Patch) -> None:
    def changed(self: Transitions, tp: TopicPartition) -> int:
        held = self._state.assignments.get(tp)
        return (held.record.epoch if held else 0) + 1

    patch.setattr(Transitions, "next_epoch", changed)


def the_floor_does_not_follow(patch: Patch) -> None:
    patch.setattr(EpochFloorKeeper, "is_due", lambda self, now: False)
    patch.setattr(EpochFloorKeeper, "raised", lambda self, plan: plan)


def removal_leaves_the_floor(patch: Patch) -> None:
    def changed(self: OwnershipRemoval, budget: int) -> Iterator[Write]:
        for tp in [tp for tp in self._partitions if tp in self._state.assignments and tp not in self._pending]:
            yield self._transitions.remove((tp,))
        self._partitions.clear()

    patch.setattr(OwnershipRemoval, "writes", changed)


def deleted_groups_leave_the_floor(patch: Patch) -> None:
    async def unraised(*_: Any) -> None:
        pass

    patch.setattr(GroupDeletion, "_raise_floor", unraised)


def a_recreated_topic_begins_anew(patch: Patch) -> None:
    _with_epoch(patch, "recreate", lambda do, tp: 1)


def a_recreated_topic_keeps_its_offsets(patch: Patch) -> None:
    original = Transitions.recreate

    def changed(self: Transitions, tps: Sequence[TopicPartition]) -> Write:
        write = original(self, tps)
        kept = tuple(op for op in write.operations if not (isinstance(op, Delete) and "~offsets" in op.key))
        return msgspec.structs.replace(write, operations=kept)

    patch.setattr(Transitions, "recreate", changed)


def clean_up_does_not_look_who_is_back(patch: Patch) -> None:
    patch.setattr(Transitions, "_parties_unchanged", lambda self, tp: [])


def the_dead_are_not_looked_at_again(patch: Patch) -> None:
    patch.setattr(Transitions, "_owner_unchanged", lambda self, tp: [])


def flips_do_not_look_at_the_target(patch: Patch) -> None:
    _without(patch, "flip", lambda compare: "/consumers/" in compare.key)


def the_mode_is_not_looked_at_again(patch: Patch) -> None:
    patch.setattr(Transitions, "_mode_unchanged", lambda self: [])


def giving_up_only_deletes_the_handoff(patch: Patch) -> None:
    patch.setattr(Transitions, "reassert_owner", lambda self, tps: self.finish(tps))


def any_handoff_id_will_do(patch: Patch) -> None:
    patch.setattr(acks, "_names", lambda ack, handoff: True)


def acks_compare_nothing(patch: Patch) -> None:
    original = acks._write

    def changed(*args: Any) -> Write:
        return msgspec.structs.replace(original(*args), compares=())

    patch.setattr(acks, "_write", changed)


def leaders_write_unfenced(patch: Patch) -> None:
    original = BatchWriter.__init__

    def changed(self: BatchWriter, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **{**kwargs, "fence": None})

    patch.setattr(BatchWriter, "__init__", changed)


def unknown_outcomes_are_not_read_again(patch: Patch) -> None:
    async def changed(self: Coordinator, write: Write, error: Exception) -> None:
        pass

    patch.setattr(Coordinator, "_read_again", changed)


def transactions_hold_whatever_there_is(patch: Patch) -> None:
    original = writes.pack
    generous = Limits(operations=100, value_bytes=10_000_000)

    def changed(waiting: Sequence[Write], limits: Limits, fence: Compare | None = None) -> Packed:
        return original(waiting, generous, fence)

    patch.setattr("assigner.storage.batch_writer.pack", changed)


def any_number_of_writes_may_wait(patch: Patch) -> None:
    def changed(self: BatchWriter, write: Write, done: Done) -> None:
        self._waiting.append((write, done))

    patch.setattr(BatchWriter, "submit", changed)


def commits_compare_nothing(patch: Patch) -> None:
    patch.setattr(PendingCommit, "fence", property(lambda self: Exists(self.assignment_key)))


def commits_do_not_compare_what_they_replace(patch: Patch) -> None:
    patch.setattr(PendingCommit, "unreplaced", property(lambda self: Exists(self.assignment_key)))


def set_offsets_compare_nothing(patch: Patch) -> None:
    patch.setattr("assigner.offsets.reset.unchanged", lambda key, _: Absent(key + "~nothing"))


def committers_are_names(patch: Patch) -> None:
    def changed(who: Committer, *args: Any, **kwargs: Any) -> Any:
        held = args[1]
        return admit(Committer(who.group, who.name, held.record.session if held else ""), *args, **kwargs)

    patch.setattr("assigner.offsets.commit.admit", changed)
