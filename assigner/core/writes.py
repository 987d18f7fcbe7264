"""The unit of work of a leader: a write, how many writes fit in one transaction, and the writes in flight.

A `Write` is applied whole or not at all, and only if its preconditions hold: nothing it was decided on has changed.
Several may share a transaction for speed; `pack` says which, and nothing about their meaning changes by it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from enum import Enum

import msgspec

from assigner.model.keys import TopicPartition
from assigner.model.records import Cause
from assigner.store import Compare, Limits, Operation, Put


class Purpose(Enum):
    """Which decision a write carries out; one per method of `Transitions`, and the consumers' acks."""

    ASSIGN = "assign"
    BUMP_EPOCH = "bump_epoch"
    HANDOFF = "handoff"
    ADVANCE = "advance"
    FLIP = "flip"
    REASSERT_OWNER = "reassert_owner"
    FINISH = "finish"
    DROP_ACKS = "drop_acks"
    EVICT = "evict"
    PLAN = "plan"
    CONDITIONS = "conditions"
    FLOOR = "floor"
    REMOVE = "remove"
    STANDBYS = "standbys"
    ACK = "ack"


class PlanSubject(msgspec.Struct, frozen=True, gc=False):
    """The group's plan record."""


class ConsumerSubject(msgspec.Struct, frozen=True, gc=False):
    """A consumer's registration."""

    name: str


Subject = PlanSubject | ConsumerSubject
"""What a write is about where that is no partition. Two types, so that no name of a consumer is taken for the plan."""


class Moved(msgspec.Struct, frozen=True, gc=False):
    """A partition that has another owner once the write is in."""

    tp: TopicPartition
    old: str
    new: str
    cause: Cause
    epoch: int
    warm: bool = False
    """The new owner held a copy."""
    cold: bool = False
    """It did not, while a registered consumer did."""
    unacked: tuple[str, ...] = ()
    """Routers that had not acked the freeze."""


class Write(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Operations with their preconditions. Two writes are equal only if they are the same object."""

    purpose: Purpose
    compares: tuple[Compare, ...]
    operations: tuple[Operation, ...]
    partitions: tuple[TopicPartition, ...] = ()
    """Partitions that nothing else is decided about before the outcome is known."""
    moves: tuple[Moved, ...] = ()
    cleanup: tuple[Operation, ...] = ()
    """Deletions that are left out, from the end, if the transaction has no room: what stays does no harm."""
    subject: Subject | None = None
    """What else nothing is decided about before the outcome is known."""


class Packed(msgspec.Struct, frozen=True):
    writes: tuple[Write, ...]
    compares: tuple[Compare, ...]
    operations: tuple[Operation, ...]


def pack(waiting: Sequence[Write], limits: Limits, fence: Compare | None = None) -> Packed:
    """Pack the longest prefix of `waiting` that fits into one transaction; at least one write.

    It ends before a write that concerns a key already written, because a transaction may write a key once, and because
    the later write was decided on what the earlier one replaces.
    """
    compares: dict[Compare, None] = {fence: None} if fence else {}
    operations: list[Operation] = []
    keys: set[str] = set()
    size = 0
    taken: list[Write] = []
    for write in waiting:
        fresh = [compare for compare in write.compares if compare not in compares]
        wanted = [*write.operations, *write.cleanup[: max(0, limits.operations - len(write.operations))]]
        grown = size + sum(len(op.value) for op in wanted if isinstance(op, Put))
        if taken and (
            len(compares) + len(fresh) > limits.operations
            or len(operations) + len(wanted) > limits.operations
            or grown > limits.value_bytes
            or any(op.key in keys for op in wanted)
            or any(compare.key in keys for compare in fresh)
        ):
            break
        compares.update(dict.fromkeys(fresh))
        operations.extend(wanted)
        keys.update(op.key for op in wanted)
        size = grown
        taken.append(write)
    return Packed(tuple(taken), tuple(compares), tuple(operations))


class PendingWrites:
    """The writes in flight. Their subjects are left alone until the mirror shows how the writes ended."""

    def __init__(self) -> None:
        self._partitions: dict[TopicPartition, Write] = {}
        self._subjects: dict[Subject, Write] = {}
        self._committed: list[tuple[int, int, Write]] = []
        self._count = 0
        self._plan_writes = 0

    def __contains__(self, tp: TopicPartition) -> bool:
        return tp in self._partitions

    def __len__(self) -> int:
        return len(self._partitions) + len(self._subjects)

    @property
    def has_plan_writes(self) -> bool:
        """Whether a write of a plan is in flight."""
        return self._plan_writes > 0

    def concerns(self, subject: Subject) -> bool:
        """Whether a write about the subject is in flight."""
        return subject in self._subjects

    def purpose(self, subject: Subject) -> Purpose | None:
        """The purpose of the write about the subject that is in flight, if there is one."""
        write = self._subjects.get(subject)
        return write.purpose if write else None

    def add(self, write: Write) -> None:
        self._plan_writes += _is_plan(write)
        for tp in write.partitions:
            self._partitions[tp] = write
        if write.subject:
            self._subjects[write.subject] = write

    def committed(self, write: Write, revision: int) -> None:
        self._count += 1
        heapq.heappush(self._committed, (revision, self._count, write))

    def arrived(self, revision: int) -> Iterable[Write]:
        """Committed writes that a mirror at `revision` shows, each once."""
        while self._committed and self._committed[0][0] <= revision:
            yield heapq.heappop(self._committed)[2]

    def settle(self, write: Write) -> None:
        self._plan_writes -= _is_plan(write)
        for tp in write.partitions:
            if self._partitions.get(tp) is write:
                del self._partitions[tp]
        if write.subject and self._subjects.get(write.subject) is write:
            del self._subjects[write.subject]


def _is_plan(write: Write) -> bool:
    return write.purpose in (Purpose.ASSIGN, Purpose.HANDOFF)
