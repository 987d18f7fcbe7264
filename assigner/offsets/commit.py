"""Commits offsets: admits each commit by the partition's assignment, and writes it under that assignment.

`OffsetService` admits. It decides by the group's mirror, which costs no read, and where the mirror says no it reads the
store, because the mirror may lag behind what the owner was sent. The committer need not be registered any more: the
assignment alone decides. Only a client that names no session must be, because its registration names its session. While
a name is registered, only the identity that registered it commits for it.

`CommitWriter` writes, the commits of all callers together and several transactions at a time. The preconditions of a
transaction are, for each of its commits, the assignment that admitted the commit and the offset that it replaces. When
a transaction fails, both are read: a committer that lost the partition is refused and learns the new owner, and
the other commits of the transaction are written at the next try.

A transaction whose outcome is unknown is sent again with the same preconditions. Either the first took effect, and the
record shows it, or the second does, and then the first can't any more. If another commit is found there instead, only
the owner can tell which of the two is the later one, and is asked to commit again. The same goes for a commit that
waited here for longer than an owner waits.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel

from assigner.aio.idle_workers import IdleWorkers
from assigner.aio.supervision import Supervisor
from assigner.api import CommitRefusal, FoundOffsets, OffsetCommit, RefusedCommit, WantedOffsets
from assigner.clock import Clock
from assigner.core.offset_commits import (
    Admitted,
    CommitQueue,
    CommitQuota,
    Committer,
    FencedCommit,
    OffsetRevisions,
    PendingCommit,
    QueuedCommit,
    admit,
    admit_found,
)
from assigner.errors import (
    LimitReached,
    OutcomeUnknown,
    StoreError,
    TransactionTooLarge,
    UnknownGroup,
)
from assigner.logs import get_logger
from assigner.members.callers import authorized, check_principal
from assigner.model.keys import Keys
from assigner.model.records import ANY_SESSION, Offset
from assigner.observability.metrics import Metrics
from assigner.offsets.fetch import OffsetReader
from assigner.storage.mirror import GroupMirror, Mirrors
from assigner.storage.multi_get import multi_get
from assigner.store import Committed, Compare, Conflict, Store, revision_of

TRIES = 4
"""Transactions that a commit is part of before it fails."""
IN_FLIGHT = 8
"""Transactions at a time."""
ADMITTED_PER_TURN = 500
"""Commits that are admitted before other tasks get a turn."""
Ended = Callable[[RefusedCommit | None], None]

log = get_logger("assigner.offsets.commit")


class OffsetService:
    """Implements `assigner.api.Offsets`: commits, fetches and resets offsets."""

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
        """`quota`: how much the commits of one group may write; None: no limit."""
        self._keys = keys
        self._store = store
        self._mirrors = mirrors
        self._clock = clock
        self._metrics = metrics
        self._supervisor = supervisor or Supervisor()
        self._quota = quota
        self._reader = OffsetReader(store, keys)
        self._writer = CommitWriter(store, CommitQueue() if queue is None else queue, clock)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[OffsetService]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._writer.run, self._supervisor, name="offset writers")
            yield self
            tasks.cancel_scope.cancel()

    @property
    def waiting(self) -> int:
        """How many commits are admitted and not written yet."""
        return len(self._writer.queue)

    @property
    def transactions(self) -> int:
        return self._writer.transactions

    @property
    def revisions(self) -> OffsetRevisions:
        return self._writer.revisions

    async def fetch(self, group: str, wanted: WantedOffsets) -> FoundOffsets:
        return await self._reader.fetch(group, wanted)

    async def commit(
        self, group: str, name: str, session: str, commits: Sequence[OffsetCommit], *, principal: str = ""
    ) -> list[RefusedCommit]:
        try:
            async with self._mirrors.of(group) as mirror:
                if session == ANY_SESSION:
                    session = (await authorized(self._store, mirror, name, session, principal)).record.session
                else:
                    await check_principal(self._store, mirror, name, principal)
                await self._apply_quota(group, commits)
                who = Committer(group, name, session, principal)
                pending, refused = await self._admit(mirror, who, commits)
                refused += await self._writer.write(pending)
        except UnknownGroup:
            refused = [RefusedCommit(commit.tp, CommitRefusal.UNKNOWN_PARTITION) for commit in commits]
        self._count(group, len(commits) - len(refused), refused)
        return refused

    async def commit_fenced(
        self, group: str, commits: Sequence[OffsetCommit], fences: tuple[Compare, ...], *, generation: int = 0
    ) -> list[RefusedCommit]:
        """Commit offsets that somebody else has admitted, and return those that were refused: as fenced, where one of
        the fences did not hold. Raises `LimitReached`, and `InvalidInput` for metadata that is too long."""
        await self._apply_quota(group, commits)
        wall, now = int(self._clock.wall()), self._clock.now()
        pending = [
            FencedCommit(self._keys.offset(group, one.tp), one.tp, _unowned_offset(one, generation, wall), fences, now)
            for one in commits
        ]
        refused = await self._writer.write(pending)
        self._count(group, len(commits) - len(refused), refused)
        return refused

    @property
    def metadata_bytes(self) -> int:
        """The most metadata that is kept with an offset; 0: there is no limit."""
        return self._quota.metadata_bytes if self._quota else 0

    async def _apply_quota(self, group: str, commits: Sequence[OffsetCommit]) -> None:
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
        not_by_mirror: list[OffsetCommit] = []
        times = self._clock.wall(), self._clock.now()
        for number, commit in enumerate(commits):
            if number % ADMITTED_PER_TURN == ADMITTED_PER_TURN - 1:
                await anyio.lowlevel.checkpoint()
            verdict = admit(who, commit, mirror.state.assignments.get(commit.tp), exists=True)
            if isinstance(verdict, Admitted):
                pending.append(self._pending(mirror, who, commit, verdict, times))
            else:
                not_by_mirror.append(commit)
        refused: list[RefusedCommit] = []
        if not_by_mirror:
            for commit, verdict in await self._admit_fresh(mirror, who, not_by_mirror):
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

    async def _admit_fresh(
        self, mirror: GroupMirror, who: Committer, commits: Sequence[OffsetCommit]
    ) -> list[tuple[OffsetCommit, Admitted | RefusedCommit]]:
        """Admit commits by the assignments as the store has them."""
        found = await multi_get(self._store, [mirror.state.keys.assignment(commit.tp) for commit in commits])
        return [
            (commit, admit_found(who, commit, result, exists=_exists(mirror, commit)))
            for commit, result in zip(commits, found, strict=True)
        ]

    def _count(self, group: str, committed: int, refused: Iterable[RefusedCommit]) -> None:
        self._metrics.offsets_committed(group, "committed", committed)
        for one in refused:
            self._metrics.offsets_committed(group, one.why.value, 1)


class CommitWriter:
    """Writes admitted commits, those of all callers together. Each caller waits for its own."""

    def __init__(self, store: Store, queue: CommitQueue, clock: Clock) -> None:
        self.queue = queue
        self.revisions = OffsetRevisions()
        self.transactions = 0
        self._store = store
        self._clock = clock
        self._callers: dict[QueuedCommit, Ended] = {}
        self._workers = IdleWorkers(lambda: queue.has_ready)

    async def write(self, commits: Sequence[QueuedCommit]) -> list[RefusedCommit]:
        """Write the commits and return those that were not written. Raises `LimitReached`.

        A caller that stops waiting withdraws the commits that were not sent yet."""
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
        self._workers.notify()
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
            # Commits that arrive in the same turn of the event loop share a transaction.
            await self._write(await self._workers.next(self._take))

    def _take(self) -> list[QueuedCommit]:
        return self.queue.take(self._store.limits)

    async def _write(self, batch: list[QueuedCommit]) -> None:
        try:
            for _ in range(TRIES):
                batch = self._drop_withdrawn(await self._attempt(batch))
                if not batch:
                    return
            self._fail(batch, "the store did not say whether it was written; commit again")
        except TransactionTooLarge as error:
            # A store may accept less than its limits say.
            batch = self._drop_withdrawn(batch)
            middle = len(batch) // 2
            if not middle:
                self._fail(batch, str(error))
                return
            await self._write(batch[:middle])
            await self._write(batch[middle:])
        except StoreError as error:
            self._fail(batch, str(error))
        except Exception:
            # Any error is passed to the callers, and the worker goes on.
            log.exception("offset_commit_failed")
            self._fail(batch, "an internal error, which the service's log tells more about; commit again")

    def _drop_withdrawn(self, batch: Iterable[QueuedCommit]) -> list[QueuedCommit]:
        """Drop commits whose callers were cancelled, and return the others: a retry of one would only take effect
        late."""
        for pending in batch:
            if pending.withdrawn and not pending.ended:
                self._end(pending)
        return [pending for pending in batch if not pending.ended]

    async def _attempt(self, batch: list[QueuedCommit]) -> list[QueuedCommit]:
        """Send one transaction, and return the commits that have to be retried."""
        self.transactions += 1
        for pending in batch:
            if not pending.doubtful:
                pending.replaces = self.revisions.get(pending.key)
        try:
            # Each once: commits of one classic group have the same fences.
            fences = dict.fromkeys(fence for pending in batch for fence in pending.fences)
            result = await self._store.transact(
                [*fences, *(pending.unreplaced for pending in batch)], [pending.put for pending in batch]
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
                return await self._resolve_conflict(batch)

    async def _resolve_conflict(self, batch: Sequence[QueuedCommit]) -> list[QueuedCommit]:
        """Decide again by the fences' keys and the offsets in the store, and return the commits that have to be
        retried."""
        again: list[QueuedCommit] = []
        # Not read by the failed transaction itself: most succeed, and two reads per commit would halve their rate.
        keys = dict.fromkeys(fence.key for pending in batch for fence in pending.fences)
        keys.update(dict.fromkeys(pending.key for pending in batch))
        found = dict(zip(keys, await multi_get(self._store, list(keys)), strict=True))
        now = self._clock.now()
        for pending in batch:
            offset = found[pending.key]
            self.revisions.put(pending.key, revision_of(offset))
            refusal = pending.decide_again([found[fence.key] for fence in pending.fences])
            if pending.is_written(offset):
                self._end(pending)
            elif refusal is not None:
                self._end(pending, refusal)
            elif pending.may_have_lost(offset, now):
                reason = "another commit of this partition got in between; commit again"
                self._end(pending, RefusedCommit(pending.tp, CommitRefusal.FAILED, reason=reason))
            else:
                again.append(pending)
        return again

    def _fail(self, batch: Iterable[QueuedCommit], reason: str) -> None:
        for pending in batch:
            if not pending.ended:
                self._end(pending, RefusedCommit(pending.tp, CommitRefusal.FAILED, reason=reason))

    def _end(self, pending: QueuedCommit, refusal: RefusedCommit | None = None) -> None:
        self.queue.ended(pending)
        ended = self._callers.pop(pending, None)
        if ended:
            ended(refusal)


def _unowned_offset(commit: OffsetCommit, generation: int, wall: int) -> Offset:
    return Offset(
        offset=commit.offset,
        leader_epoch=commit.leader_epoch,
        metadata=commit.metadata,
        committed_at=wall,
        generation=generation,
    )


def _exists(mirror: GroupMirror, commit: OffsetCommit) -> bool:
    topic = mirror.state.topics.get(commit.tp.topic)
    return topic is not None and commit.tp.partition < topic.record.partition_count
