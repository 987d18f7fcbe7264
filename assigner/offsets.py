"""How far consumers have got: offsets, committed under the owner's epoch and read back by whoever comes next.

A commit is admitted by what the group's mirror shows, which costs no read; where the mirror says no, the store itself
is asked, because the mirror may be behind what the consumer was told. Either way it is written only if the assignment
that admitted it still stands and nobody has replaced the offset since. Who committed need not be registered any more:
the assignment alone decides. Only a client that names no session must be, because its registration tells its session.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel

from assigner.api import FoundOffsets, OffsetCommit, Refusal, RefusedCommit, WantedOffsets
from assigner.clock import Clock
from assigner.core.commit_quota import CommitQuota
from assigner.core.offset_commits import Admitted, CommitQueue, Committer, OffsetRevisions, PendingCommit, judge
from assigner.errors import LimitReached, UnknownGroup
from assigner.keys import Keys
from assigner.metrics import Metrics
from assigner.mirror import GroupMirror, Mirrors
from assigner.offset_reading import OffsetReading
from assigner.offset_writing import CommitWriter, verdict_on
from assigner.reading_together import read_together
from assigner.records import ANY_SESSION
from assigner.registrations import registered
from assigner.store import Store
from assigner.supervision import Supervisor

TOGETHER = 500
"""Commits that are judged before others get their turn."""


class OffsetKeeping:
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
    async def running(self) -> AsyncIterator[OffsetKeeping]:
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
                    session = (await registered(self._store, mirror, name, session)).record.session
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
        found = await read_together(self._store, [mirror.state.keys.assignment(commit.tp) for commit in commits])
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
