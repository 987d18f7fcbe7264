"""Carries admitted commits of offsets to the store: those of all callers together, several transactions at a time.

Each transaction compares the assignments its commits were admitted by and the offsets they replace; both are read when
it fails. So the owner that was replaced is told by whom, and the commits of others that shared its
transaction are written at the next try.

A transaction whose answer was lost is written again, comparing the same offsets: either the first one got through, and
the record says so, or the second one does, and then the first can't any more. If somebody else's commit is there
instead, nobody but the owner can tell which of the two is the later one, and it is told to commit again. The same if
the commit was held up here for longer than an owner waits.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel

from assigner.aio.supervision import Supervisor
from assigner.api import FoundOffsets, OffsetCommit, Refusal, RefusedCommit, WantedOffsets
from assigner.clock import Clock
from assigner.core.offset_commits import (
    Admitted,
    CommitQueue,
    CommitQuota,
    Committer,
    OffsetRevisions,
    PendingCommit,
    judge,
)
from assigner.errors import (
    LimitReached,
    OutcomeUnknown,
    StoreError,
    TransactionTooLarge,
    UnknownGroup,
    UnreadableRecord,
)
from assigner.logs import get_logger
from assigner.members.callers import authorized
from assigner.model.keys import Keys
from assigner.model.records import ANY_SESSION, Assignment, Stored, stored
from assigner.observability.metrics import Metrics
from assigner.offsets.fetch import OffsetReading
from assigner.storage.mirror import GroupMirror, Mirrors
from assigner.storage.multi_get import multi_get
from assigner.store import Committed, Conflict, Found, GetResult, Store, revision_of

TRIES = 4
IN_FLIGHT = 8
Ended = Callable[[RefusedCommit | None], None]

log = get_logger("assigner.offsets.commit")


class CommitWriter:
    """Carries admitted commits to the store, those of all callers together."""

    def __init__(self, store: Store, queue: CommitQueue, clock: Clock) -> None:
        self.queue = queue
        self.revisions = OffsetRevisions()
        self.transactions = 0
        self._store = store
        self._clock = clock
        self._callers: dict[PendingCommit, Ended] = {}
        self._arrived = anyio.Event()

    async def write(self, commits: Sequence[PendingCommit]) -> list[RefusedCommit]:
        """Those that were not written. Raises `LimitReached`. Who stops waiting takes back what has not left yet."""
        refused: list[RefusedCommit] = []
        left = len(commits)
        all_ended = anyio.Event()

        def ended(refusal: RefusedCommit | None) -> None:
            nonlocal left
            left -= 1
            if refusal:
                refused.append(refusal)
            if not left:
                all_ended.set()

        if not commits:
            return refused
        self.queue.add(commits)
        self._callers.update(dict.fromkeys(commits, ended))
        self._arrived.set()
        try:
            await all_ended.wait()
        finally:
            for pending in commits if left else ():
                pending.withdrawn = True
                self._callers.pop(pending, None)
        return refused

    async def run(self, supervisor: Supervisor) -> None:
        async with anyio.create_task_group() as tasks:
            for number in range(IN_FLIGHT):
                tasks.start_soon(supervisor.keep, "offset writer", self._work, name=f"offset writer {number}")

    async def _work(self) -> None:
        while True:
            # Commits that come in the same turn of the loop share a transaction.
            await anyio.lowlevel.checkpoint()
            batch = self.queue.take(self._store.limits)
            if batch:
                await self._write(batch)
            else:
                self._arrived = anyio.Event()
                await self._arrived.wait()

    async def _write(self, batch: list[PendingCommit]) -> None:
        try:
            for _ in range(TRIES):
                batch = self._still_wanted(await self._attempt(batch))
                if not batch:
                    return
            self._fail(batch, "the store did not say whether it was written; commit again")
        except TransactionTooLarge as error:
            # A store may take less than it says.
            batch = self._still_wanted(batch)
            middle = len(batch) // 2
            if not middle:
                self._fail(batch, str(error))
                return
            await self._write(batch[:middle])
            await self._write(batch[middle:])
        except StoreError as error:
            self._fail(batch, str(error))
        except Exception:
            # Whatever it is, the callers get an answer and the next ones their turn.
            log.exception("offset_commit_failed")
            self._fail(batch, "an internal error, which the service's log tells more about; commit again")

    def _still_wanted(self, batch: Iterable[PendingCommit]) -> list[PendingCommit]:
        """What nobody waits for any more is not tried again: it would only take effect late."""
        for pending in batch:
            if pending.withdrawn and not pending.ended:
                self._end(pending)
        return [pending for pending in batch if not pending.ended]

    async def _attempt(self, batch: list[PendingCommit]) -> list[PendingCommit]:
        """One transaction; what is left to be tried again."""
        self.transactions += 1
        for pending in batch:
            if not pending.doubtful:
                pending.replaces = self.revisions.get(pending.key)
        try:
            result = await self._store.transact(
                [compare for pending in batch for compare in (pending.fence, pending.unreplaced)],
                [pending.put for pending in batch],
            )
        except OutcomeUnknown:
            for pending in batch:
                pending.doubtful = True
            return batch
        match result:
            case Committed(revision):
                for pending in batch:
                    self.revisions.put(pending.key, revision)
                    self._end(pending)
                return []
            case Conflict():
                return await self._sort_out(batch)

    async def _sort_out(self, batch: Sequence[PendingCommit]) -> list[PendingCommit]:
        """Judge by the assignments and offsets as they are now; those that still count are tried again."""
        again: list[PendingCommit] = []
        # Not read by the transaction that failed: most succeed, and two reads for each commit make them half as fast.
        keys = [key for pending in batch for key in (pending.assignment_key, pending.key)]
        reads = await multi_get(self._store, keys)
        now = self._clock.now()
        for pending, assignment, offset in zip(batch, reads[::2], reads[1::2], strict=True):
            self.revisions.put(pending.key, revision_of(offset))
            verdict = verdict_on(pending.who, pending.commit, assignment, exists=True)
            if pending.is_written(offset):
                self._end(pending)
            elif not isinstance(verdict, Admitted):
                self._end(pending, verdict)
            elif pending.may_have_lost(offset, now):
                reason = "another commit of this partition got in between; commit again"
                self._end(pending, RefusedCommit(pending.tp, Refusal.FAILED, reason=reason))
            else:
                pending.revision = verdict.revision
                again.append(pending)
        return again

    def _fail(self, batch: Iterable[PendingCommit], reason: str) -> None:
        for pending in batch:
            if not pending.ended:
                self._end(pending, RefusedCommit(pending.tp, Refusal.FAILED, reason=reason))

    def _end(self, pending: PendingCommit, refusal: RefusedCommit | None = None) -> None:
        self.queue.ended(pending)
        ended = self._callers.pop(pending, None)
        if ended:
            ended(refusal)


def verdict_on(who: Committer, commit: OffsetCommit, found: GetResult, *, exists: bool) -> Admitted | RefusedCommit:
    """By the assignment as it was just read. One that can't be read admits nobody."""
    try:
        return judge(who, commit, _assignment(found), exists=exists)
    except UnreadableRecord as error:
        return RefusedCommit(commit.tp, Refusal.FAILED, reason=str(error))


def _assignment(found: GetResult) -> Stored[Assignment] | None:
    return stored(Assignment, found.entry) if isinstance(found, Found) else None


# How far consumers have got: offsets, committed under the owner's epoch and read back by whoever comes next.
#
# A commit is admitted by what the group's mirror shows, which costs no read; where the mirror says no, the store itself
# is asked, because the mirror may be behind what the consumer was told. Either way it is written only if the assignment
# that admitted it still stands and nobody has replaced the offset since. Who committed need not be registered any more:
# the assignment alone decides. Only a client that names no session must be, because its registration tells its session.


TOGETHER = 500
"""Commits that are judged before others get their turn."""


class OffsetService:
    """See `assigner.api.Offsets`."""

    def __init__(
        self,
        store: Store,
        keys: Keys,
        mirrors: Mirrors,
        clock: Clock,
        metrics: Metrics,
        queue: CommitQueue | None = None,
        supervisor: Supervisor | None = None,
        quota: CommitQuota | None = None,
    ) -> None:
        """`quota`: what one group's commits may take of the store; none: all of it."""
        self._keys = keys
        self._store = store
        self._mirrors = mirrors
        self._clock = clock
        self._metrics = metrics
        self._supervisor = supervisor or Supervisor()
        self._quota = quota
        self._reading = OffsetReading(store, keys)
        self._writer = CommitWriter(store, CommitQueue() if queue is None else queue, clock)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[OffsetService]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._writer.run, self._supervisor, name="offset writers")
            yield self
            tasks.cancel_scope.cancel()

    @property
    def waiting(self) -> int:
        """Commits that are not on record yet."""
        return len(self._writer.queue)

    @property
    def transactions(self) -> int:
        return self._writer.transactions

    @property
    def revisions(self) -> OffsetRevisions:
        return self._writer.revisions

    async def fetch(self, group: str, wanted: WantedOffsets) -> FoundOffsets:
        return await self._reading.fetch(group, wanted)

    async def commit(self, group: str, name: str, session: str, commits: Sequence[OffsetCommit]) -> list[RefusedCommit]:
        try:
            async with self._mirrors.of(group) as mirror:
                if session == ANY_SESSION:
                    session = (await authorized(self._store, mirror, name, session)).record.session
                await self._keep_to_the_quota(group, commits)
                who = Committer(group, name, session)
                pending, refused = await self._admit(mirror, who, commits)
                refused += await self._writer.write(pending)
        except UnknownGroup:
            refused = [RefusedCommit(commit.tp, Refusal.UNKNOWN_PARTITION) for commit in commits]
        self._count(group, len(commits) - len(refused), refused)
        return refused

    async def _keep_to_the_quota(self, group: str, commits: Sequence[OffsetCommit]) -> None:
        if self._quota is None:
            return
        self._quota.check(commits)
        try:
            wait = self._quota.take(group, commits, self._clock.now())
        except LimitReached:
            self._metrics.refused("commit_rate")
            raise
        if wait:
            await anyio.sleep(wait)

    async def _admit(
        self, mirror: GroupMirror, who: Committer, commits: Sequence[OffsetCommit]
    ) -> tuple[list[PendingCommit], list[RefusedCommit]]:
        pending: list[PendingCommit] = []
        doubtful: list[OffsetCommit] = []
        times = self._clock.wall(), self._clock.now()
        for number, commit in enumerate(commits):
            if number % TOGETHER == TOGETHER - 1:
                await anyio.lowlevel.checkpoint()
            verdict = judge(who, commit, mirror.state.assignments.get(commit.tp), exists=True)
            if isinstance(verdict, Admitted):
                pending.append(self._pending(mirror, who, commit, verdict, times))
            else:
                doubtful.append(commit)
        refused: list[RefusedCommit] = []
        if doubtful:
            for commit, verdict in await self._look_again(mirror, who, doubtful):
                if isinstance(verdict, Admitted):
                    pending.append(self._pending(mirror, who, commit, verdict, times))
                else:
                    refused.append(verdict)
        return pending, refused

    def _pending(
        self, mirror: GroupMirror, who: Committer, commit: OffsetCommit, admitted: Admitted, times: tuple[float, float]
    ) -> PendingCommit:
        key, assignment_key = self._keys.offset(who.group, commit.tp), mirror.state.keys.assignment(commit.tp)
        return PendingCommit(key, assignment_key, who, commit, admitted, *times)

    async def _look_again(
        self, mirror: GroupMirror, who: Committer, commits: Sequence[OffsetCommit]
    ) -> list[tuple[OffsetCommit, Admitted | RefusedCommit]]:
        found = await multi_get(self._store, [mirror.state.keys.assignment(commit.tp) for commit in commits])
        return [
            (commit, verdict_on(who, commit, result, exists=_exists(mirror, commit)))
            for commit, result in zip(commits, found, strict=True)
        ]

    def _count(self, group: str, committed: int, refused: Iterable[RefusedCommit]) -> None:
        self._metrics.offsets_committed(group, "committed", committed)
        for one in refused:
            self._metrics.offsets_committed(group, one.why.value, 1)


def _exists(mirror: GroupMirror, commit: OffsetCommit) -> bool:
    topic = mirror.state.topics.get(commit.tp.topic)
    return topic is not None and commit.tp.partition < topic.record.partition_count
