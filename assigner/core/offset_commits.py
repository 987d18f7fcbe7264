"""Which commits of offsets count, and which go into one transaction.

A commit counts while the assignment on record is the committer's own, under the epoch it worked by. What is decided
here from a record is written only if that very record still stands, so an owner that was replaced in between is
refused by the store itself. Commits of any number of consumers share transactions; those of one partition are written
one after the other, in the order they came.

A lower offset than the last one is a commit like any other: an owner may want to go back, and Kafka allows it too.
Not promised: an order between commits that reach the store by different instances at the same time.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable

import msgspec

from assigner.api import OffsetCommit, Refusal, RefusedCommit
from assigner.errors import LimitReached
from assigner.keys import TopicPartition
from assigner.records import ANY_SESSION, Assignment, Offset, Stored, encode
from assigner.store import Limits, ModRevisionIs, Put

MAX_WAITING = 200_000
"""Commits of partitions that wait for the store at one instance."""


class Committer(msgspec.Struct, frozen=True):
    group: str
    name: str
    session: str = ANY_SESSION
    """None: name and epoch say enough, because a takeover raises the epoch."""


class Admitted(msgspec.Struct, frozen=True, gc=False):
    """The commit counts as long as the assignment is of this revision."""

    revision: int
    topic_id: str


def judge(
    who: Committer, commit: OffsetCommit, held: Stored[Assignment] | None, *, exists: bool
) -> Admitted | RefusedCommit:
    """By the partition's assignment; `exists`: whether there is such a partition if nobody owns it."""
    if held is None:
        return RefusedCommit(commit.tp, Refusal.FENCED if exists else Refusal.UNKNOWN_PARTITION)
    record = held.record
    ours = record.owner == who.name and who.session in (ANY_SESSION, record.session)
    if ours and record.epoch == commit.epoch:
        return Admitted(held.mod_revision, record.topic_id)
    return RefusedCommit(commit.tp, Refusal.FENCED, record.epoch, record.owner)


class PendingCommit:
    """A commit on its way to the store. `revision` is that of the assignment it was admitted by."""

    __slots__ = ("assignment_key", "commit", "doubtful", "ended", "key", "revision", "value", "who", "withdrawn")

    def __init__(
        self, key: str, assignment_key: str, who: Committer, commit: OffsetCommit, admitted: Admitted, wall: float
    ) -> None:
        self.who = who
        self.commit = commit
        self.key = key
        self.assignment_key = assignment_key
        self.revision = admitted.revision
        self.value = encode(
            Offset(
                offset=commit.offset,
                epoch=commit.epoch,
                leader_epoch=commit.leader_epoch,
                metadata=commit.metadata,
                committed_at=int(wall),
                topic_id=admitted.topic_id,
            )
        )
        self.doubtful = False
        """An attempt to write it may have succeeded."""
        self.ended = False
        self.withdrawn = False
        """Nobody waits for it any more."""

    @property
    def tp(self) -> TopicPartition:
        return self.commit.tp

    @property
    def fence(self) -> ModRevisionIs:
        return ModRevisionIs(self.assignment_key, self.revision)

    @property
    def put(self) -> Put:
        return Put(self.key, self.value)


class CommitQueue:
    """Commits that wait. One per partition is under way at a time; the next one of it waits for its end."""

    def __init__(self, most: int = MAX_WAITING) -> None:
        self._most = most
        # A plain dict gets slow when its first items are taken out one by one.
        self._ready: OrderedDict[str, PendingCommit] = OrderedDict()
        self._behind: dict[str, deque[PendingCommit]] = {}
        self._under_way: set[str] = set()
        self._count = 0

    def __len__(self) -> int:
        """Commits that were neither written nor given up."""
        return self._count

    def add(self, commits: Iterable[PendingCommit]) -> None:
        """All of them or, by `LimitReached`, none."""
        added = list(commits)
        if self._count + len(added) > self._most:
            raise LimitReached(
                f"{self._count} offsets are waiting to be committed at this instance, which takes {self._most}; "
                "commit again later, and not as often"
            )
        self._count += len(added)
        for pending in added:
            if pending.key in self._ready or pending.key in self._under_way:
                self._behind.setdefault(pending.key, deque()).append(pending)
            else:
                self._ready[pending.key] = pending

    def take(self, limits: Limits) -> list[PendingCommit]:
        """The longest waiting ones, as many as fit into a transaction. Each must be ended."""
        taken: list[PendingCommit] = []
        size = 0
        while self._ready and len(taken) < limits.operations:
            key, pending = self._ready.popitem(last=False)
            if pending.withdrawn:
                self.ended(pending)
                continue
            size += len(pending.value)
            if taken and size > limits.value_bytes:
                self._ready[key] = pending
                self._ready.move_to_end(key, last=False)
                break
            self._under_way.add(key)
            taken.append(pending)
        return taken

    def ended(self, pending: PendingCommit) -> None:
        """It was written or given up: the partition's next one has its turn."""
        key = pending.key
        pending.ended = True
        self._count -= 1
        self._under_way.discard(key)
        if key in self._behind:
            behind = self._behind[key]
            self._ready[key] = behind.popleft()
            if not behind:
                del self._behind[key]
