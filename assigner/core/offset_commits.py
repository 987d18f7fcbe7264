"""Offset commits: which are admitted, which share a transaction, and how much a group may write.

A commit is admitted while the assignment on record is the committer's own, by name, session and identity, under the
epoch that the commit names. It is written only if that very record still stands, so the store itself refuses an owner
that was replaced in between. The commits of any number of consumers share transactions; those of one partition are
written one after the other, in the order they arrived.

A further precondition of each commit is the offset it replaces. So at most one try of a commit takes effect, and none
does once another commit is on record, however late the store gets to it: a commit that was answered stays.

The members of a classic Kafka group commit without owning anything. Who may is decided where the group is led, and the
fences of its leader take the assignment's place: see `FencedCommit`. All else is the same for both.

A commit may lower the offset, as in Kafka: an owner may want to go back.
Not promised: an order between commits that reach the store through different instances at the same time.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence

import msgspec

from assigner.api import CommitRefusal, OffsetCommit, RefusedCommit
from assigner.errors import InvalidInput, LimitReached, UnreadableRecord
from assigner.model.keys import TopicPartition
from assigner.model.records import ANY_SESSION, Assignment, Offset, Stored, encode, stored
from assigner.store import (
    Absent,
    Compare,
    CreateRevisionIs,
    Found,
    GetResult,
    Limits,
    ModRevisionIs,
    Put,
    revision_of,
    unchanged,
)

MAX_WAITING = 200_000
"""Commits that wait for the store at one instance."""
MAX_REVISIONS = 200_000
"""Offsets whose revisions an instance remembers."""
FRESH = 2.0
"""Seconds for which every owner waits for a commit. A commit that finds another in its place within them is the later
one: its instance had not seen the other yet."""
COMPARES = 2
"""Preconditions of each commit: the assignment and the offset."""


class Committer(msgspec.Struct, frozen=True):
    group: str
    name: str
    session: str = ANY_SESSION
    """Of the owner, as it was registered; none only of owners that upstream's server wrote."""
    principal: str = ""
    """The identity behind the commit; empty: it is not known."""


class Admitted(msgspec.Struct, frozen=True, gc=False):
    """The commit is admitted as long as the assignment is at this revision."""

    revision: int
    topic_id: str


def admit(
    who: Committer, commit: OffsetCommit, held: Stored[Assignment] | None, *, exists: bool
) -> Admitted | RefusedCommit:
    """Admit or refuse a commit by the partition's assignment. `exists`: whether there is such a partition, where it
    has no assignment."""
    if held is None:
        return RefusedCommit(commit.tp, CommitRefusal.FENCED if exists else CommitRefusal.UNKNOWN_PARTITION)
    record = held.record
    ours = record.owner == who.name and record.session == who.session
    # The owner need not be registered any more, so its registration can't tell whose session it was.
    ours = ours and (not record.principal or record.principal == who.principal)
    if ours and record.epoch == commit.epoch:
        return Admitted(held.mod_revision, record.topic_id)
    return RefusedCommit(commit.tp, CommitRefusal.FENCED, record.epoch, record.owner)


class QueuedCommit:
    """An admitted commit that is not written yet. `replaces` is the revision of the offset it replaces (0: none)."""

    __slots__ = ("arrived", "doubtful", "ended", "key", "replaces", "tp", "value", "withdrawn")

    def __init__(self, key: str, tp: TopicPartition, value: bytes, arrived: float) -> None:
        """`arrived`: monotonic time."""
        self.arrived = arrived
        self.tp = tp
        self.key = key
        self.replaces = 0
        self.value = value
        self.doubtful = False
        """An attempt to write it may have succeeded."""
        self.ended = False
        self.withdrawn = False
        """The caller was cancelled: the commit is not retried."""

    @property
    def fences(self) -> tuple[Compare, ...]:
        """The preconditions that hold as long as it is admitted."""
        raise NotImplementedError

    def decide_again(self, found: Sequence[GetResult]) -> RefusedCommit | None:
        """Refuse it, or admit it by what was found at the keys of its fences."""
        raise NotImplementedError

    @property
    def unreplaced(self) -> Compare:
        """The precondition that the offset was neither committed nor reset since."""
        return unchanged(self.key, self.replaces)

    @property
    def put(self) -> Put:
        return Put(self.key, self.value)

    def is_written(self, found: GetResult) -> bool:
        """Whether the record was written by an earlier try whose outcome was unknown."""
        return self.doubtful and isinstance(found, Found) and found.entry.value == self.value

    def may_have_lost(self, found: GetResult, now: float) -> bool:
        """Whether the offset was replaced by a commit that may be the later one: while a try's outcome was unknown, or
        while this commit waited for so long that its owner may have turned to another instance."""
        held_up = now > self.arrived + FRESH
        return (self.doubtful or held_up) and revision_of(found) != self.replaces


class PendingCommit(QueuedCommit):
    """A commit of a partition's owner. `revision` is that of the assignment that admitted it."""

    __slots__ = ("assignment_key", "commit", "revision", "who")

    def __init__(
        self,
        key: str,
        assignment_key: str,
        who: Committer,
        commit: OffsetCommit,
        admitted: Admitted,
        wall: float,
        arrived: float = 0.0,
    ) -> None:
        """`wall`: wall time, for people. `arrived`: monotonic time."""
        record = Offset(
            offset=commit.offset,
            epoch=commit.epoch,
            leader_epoch=commit.leader_epoch,
            metadata=commit.metadata,
            committed_at=int(wall),
            topic_id=admitted.topic_id,
        )
        super().__init__(key, commit.tp, encode(record), arrived)
        self.who = who
        self.commit = commit
        self.assignment_key = assignment_key
        self.revision = admitted.revision

    @property
    def fence(self) -> ModRevisionIs:
        return ModRevisionIs(self.assignment_key, self.revision)

    @property
    def fences(self) -> tuple[Compare, ...]:
        return (self.fence,)

    def decide_again(self, found: Sequence[GetResult]) -> RefusedCommit | None:
        verdict = admit_found(self.who, self.commit, found[0], exists=True)
        if isinstance(verdict, Admitted):
            # The assignment may have been written again for the same owner.
            self.revision = verdict.revision
            return None
        return verdict


class FencedCommit(QueuedCommit):
    """A commit that somebody else admitted, to be written while these fences hold and refused once they do not."""

    __slots__ = ("_fences",)

    def __init__(
        self, key: str, tp: TopicPartition, record: Offset, fences: tuple[Compare, ...], arrived: float
    ) -> None:
        super().__init__(key, tp, encode(record), arrived)
        self._fences = fences

    @property
    def fences(self) -> tuple[Compare, ...]:
        return self._fences

    def decide_again(self, found: Sequence[GetResult]) -> RefusedCommit | None:
        if all(map(_holds, self._fences, found)):
            return None
        return RefusedCommit(self.tp, CommitRefusal.FENCED)


def admit_found(who: Committer, commit: OffsetCommit, found: GetResult, *, exists: bool) -> Admitted | RefusedCommit:
    """Admit a commit by the assignment as it was read. An assignment that can't be read admits no commit."""
    try:
        held = stored(Assignment, found.entry) if isinstance(found, Found) else None
    except UnreadableRecord as error:
        return RefusedCommit(commit.tp, CommitRefusal.FAILED, reason=str(error))
    return admit(who, commit, held, exists=exists)


def _holds(fence: Compare, found: GetResult) -> bool:
    match fence:
        case ModRevisionIs(revision=revision):
            return revision_of(found) == revision
        case CreateRevisionIs(revision=revision):
            return isinstance(found, Found) and found.entry.create_revision == revision
        case Absent():
            return not isinstance(found, Found)
    raise TypeError(f"{fence!r} is no fence of a commit")


class OffsetRevisions:
    """A cache of the revisions of offsets, as far as this instance knows them.

    A stale one costs the commit that relies on it a second try, never more, so the least recently used is evicted."""

    def __init__(self, most: int = MAX_REVISIONS) -> None:
        self._most = most
        self._revisions: OrderedDict[str, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._revisions)

    def get(self, key: str) -> int:
        """The revision of the partition's offset; 0: there is no offset, or none is cached."""
        return self._revisions.get(key, 0)

    def put(self, key: str, revision: int) -> None:
        """Cache the revision of the partition's offset. 0: there is no offset."""
        if not revision:
            self._revisions.pop(key, None)
            return
        self._revisions[key] = revision
        self._revisions.move_to_end(key)
        if len(self._revisions) > self._most:
            self._revisions.popitem(last=False)


class CommitQueue:
    """Commits that wait for a transaction. One commit per partition is in flight at a time; the next waits for it."""

    def __init__(self, most: int = MAX_WAITING) -> None:
        self._most = most
        # A plain dict gets slow when its first items are taken out one by one.
        self._ready: OrderedDict[str, QueuedCommit] = OrderedDict()
        self._behind: dict[str, deque[QueuedCommit]] = {}
        self._in_flight: set[str] = set()
        self._count = 0

    def __len__(self) -> int:
        """How many commits were neither written nor abandoned."""
        return self._count

    @property
    def has_ready(self) -> bool:
        """Whether there is something to take."""
        return bool(self._ready)

    def add(self, commits: Iterable[QueuedCommit]) -> None:
        """Add all of them, or none and raise `LimitReached`."""
        added = list(commits)
        if self._count + len(added) > self._most:
            raise LimitReached(
                f"{self._count} offsets are waiting to be committed at this instance, which takes {self._most}; "
                "commit again later, and not as often"
            )
        self._count += len(added)
        for pending in added:
            if pending.key in self._ready or pending.key in self._in_flight:
                self._behind.setdefault(pending.key, deque()).append(pending)
            else:
                self._ready[pending.key] = pending

    def take(self, limits: Limits) -> list[QueuedCommit]:
        """Take the longest waiting commits, as many as fit into a transaction. `ended` must be called for each."""
        taken: list[QueuedCommit] = []
        size, compares = 0, 0
        fences: set[tuple[Compare, ...]] = set()
        while self._ready and len(taken) < limits.operations:
            key, pending = self._ready.popitem(last=False)
            if pending.withdrawn:
                self.ended(pending)
                continue
            size += len(pending.value)
            # The members of a classic group have their fences in common.
            compares += 1 if pending.fences in fences else 1 + len(pending.fences)
            fences.add(pending.fences)
            if taken and (size > limits.value_bytes or compares > limits.operations):
                self._ready[key] = pending
                self._ready.move_to_end(key, last=False)
                break
            self._in_flight.add(key)
            taken.append(pending)
        return taken

    def ended(self, pending: QueuedCommit) -> None:
        """Record that the commit was written or abandoned: the partition's next one may be taken."""
        key = pending.key
        pending.ended = True
        self._count -= 1
        self._in_flight.discard(key)
        if key in self._behind:
            behind = self._behind[key]
            self._ready[key] = behind.popleft()
            if not behind:
                del self._behind[key]


BURST = 10.0
"""Seconds' worth of the rate that may be written at once."""
MAX_WAIT = 2.0
"""Seconds that a commit waits at most."""
RECORD_BYTES = 150
"""Bytes of an offset's record and key, without topic and metadata."""
MAX_GROUPS = 1_000
"""Groups that are remembered before those with their full burst available are forgotten."""


class CommitQuota:
    """How much the commits of one group may write: an even rate with a burst, and short metadata.

    A store keeps the history of every commit until it is compacted, so a group that commits without pause fills it for
    all. Commits past the rate wait a little, which slows their caller down; they are refused only if the wait would
    get long."""

    def __init__(self, rate: float, metadata_bytes: int) -> None:
        """`rate`: bytes per second and group."""
        self._rate = rate
        self.metadata_bytes = metadata_bytes
        self._paid_until: dict[str, float] = {}
        """When what a group wrote would be written at its even rate."""

    def check(self, commits: Iterable[OffsetCommit]) -> None:
        """Raise `InvalidInput` for metadata that is too long."""
        for commit in commits:
            size = len(commit.metadata.encode())
            if size > self.metadata_bytes:
                raise InvalidInput(
                    f"the metadata of {commit.tp} is {size} bytes long; {self.metadata_bytes} are kept: shorten it, "
                    "or raise quotas.metadata_bytes"
                )

    def take(self, group: str, commits: Sequence[OffsetCommit], now: float) -> float:
        """Count commits against the quota, and return the seconds to wait before they are written. Raises
        `LimitReached`, and then counts nothing."""
        size = sum(RECORD_BYTES + len(commit.tp.topic) + len(commit.metadata) for commit in commits)
        paid_until = max(self._paid_until.get(group, 0.0), now - BURST) + size / self._rate
        # With its full burst available, a group may write a commit of any size: it could never be written otherwise.
        wait = paid_until - now
        if wait > MAX_WAIT and self._paid_until.get(group, 0.0) > now - BURST:
            raise LimitReached(
                f"group {group!r} commits more than {self._rate:,.0f} bytes a second at this instance; commit less "
                "often, or raise quotas.commit_rate"
            )
        self._paid_until[group] = paid_until
        if len(self._paid_until) > MAX_GROUPS:
            self._paid_until = {name: at for name, at in self._paid_until.items() if at > now - BURST}
        return min(max(0.0, wait), MAX_WAIT)
