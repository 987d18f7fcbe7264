"""Elects leaders on any Store, by one leader key per group, all attached to the instance's lease.

The instance that creates the leader key leads. The key's create revision is the term, and comparing it fences the
leader's writes. The other instances watch the key, so a held group costs them nothing and a free one is taken at once.

Not promised: that two instances never both believe that they lead. An instance that was frozen may, until it reads its
clock; its writes fail all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

import anyio
import msgspec

from assigner.aio.backoff import Backoff
from assigner.aio.supervision import report_failure
from assigner.backend import Presence
from assigner.backends.election.instance_lease import Hold, InstanceLease, LeaseStatistics
from assigner.clock import Clock
from assigner.election import Leader, LeaderElector, Term
from assigner.errors import FailedPrecondition, LeaseNotFound, OutcomeUnknown, StoreError, UnreadableRecord, WatchEnded
from assigner.logs import get_logger
from assigner.model.keys import Keys
from assigner.model.records import LeaderRecord, decode, encode
from assigner.store import (
    Absent,
    Batch,
    Committed,
    CreateRevisionIs,
    Delete,
    DeleteEvent,
    Entry,
    Found,
    GetResult,
    Missing,
    Put,
    PutEvent,
    Store,
)

MAX_ATTEMPTS_IN_FLIGHT = 64
"""Transactions for leader keys in flight: when an instance dies, hundreds of groups are free at once."""
RESIGN_TRIES = 3

log = get_logger("assigner.election")
T = TypeVar("T")
Seen = GetResult | None
"""The leader key as a campaign last saw it; None: it has to be read."""


class ElectorStatistics(msgspec.Struct, frozen=True, kw_only=True):
    lease: LeaseStatistics
    led: int
    campaigning: int
    terms: int
    """Won since the elector was opened."""


class LeaseTerm(Term):
    def __init__(self, elector: LeaseElector, group: str, fence: CreateRevisionIs, hold: Hold) -> None:
        self.group = group
        self.fence = fence
        self._elector = elector
        self._hold = hold
        self._reason: str | None = None
        self._lost = anyio.Event()

    def held(self) -> bool:
        # The order matters: checking the lease may end this term.
        return self._hold.held() and self._reason is None

    async def wait_lost(self) -> str:
        await self._lost.wait()
        return self._reason or ""

    async def resign(self) -> None:
        if self.held():
            self.end("resigned")
            await self._elector.delete_key(self)

    def end(self, reason: str) -> None:
        if self._reason is None:
            self._reason = reason
            self._lost.set()
            self._hold.forget(self.end)
            self._elector.forget(self)


class LeaseElector(LeaderElector):
    """Campaigns for leader keys under the instance's lease. Opened by `open_elector`."""

    def __init__(self, store: Store, keys: Keys, presence: Presence, clock: Clock, incarnation: str) -> None:
        self._store = store
        self._keys = keys
        self._presence = presence
        self._lease = InstanceLease(store, keys, presence, clock, incarnation)
        self._terms: dict[str, LeaseTerm] = {}
        self._guards: dict[str, asyncio.Task[None]] = {}
        """Per led group: the watch on its leader key."""
        self._campaigns: dict[str, anyio.CancelScope] = {}
        self._attempts: dict[str, asyncio.Task[Any]] = {}
        """Per group: the attempt in flight, which outlives a cancelled campaign so that its outcome is known."""
        self._last_term: dict[str, int] = {}
        """Per group that was ever led: the newest term. A leader key of ours that is newer was never acted upon."""
        self._background: set[asyncio.Task[Any]] = set()
        self._in_flight = anyio.Semaphore(MAX_ATTEMPTS_IN_FLIGHT)
        self._won = 0
        self._lease.on_end(self._end_campaigns)

    async def start(self) -> None:
        await self._lease.start()

    async def leader(self, group: str) -> Leader | None:
        seen = await self._store.get(self._keys.group(group).leader)
        if isinstance(seen, Missing):
            return None
        record, _ = decode(LeaderRecord, seen.entry.value)
        return Leader(record.holder, record.address, seen.entry.create_revision)

    async def drain(self) -> None:
        await self._lease.drain()

    async def close(self) -> None:
        for term in tuple(self._terms.values()):
            term.end("the instance closed")
        for task in tuple(self._background):
            task.cancel()
        await self._lease.close()

    def healthy(self) -> bool:
        return self._lease.statistics().held

    def restarts(self) -> Mapping[str, int]:
        return self._lease.supervisor.restarts

    def problems(self) -> Sequence[str]:
        return self._lease.supervisor.problems()

    def statistics(self) -> ElectorStatistics:
        return ElectorStatistics(
            lease=self._lease.statistics(),
            led=len(self._terms),
            campaigning=len(self._campaigns),
            terms=self._won,
        )

    # --- campaigning -----------------------------------------------------------------------------------------

    async def campaign(self, group: str, *, stagger: Callable[[], Awaitable[None]] | None = None) -> Term:
        if group in self._campaigns:
            raise FailedPrecondition(f"this instance already campaigns for group {group!r}; once is enough")
        with anyio.CancelScope() as scope:
            self._campaigns[group] = scope
            try:
                return await self._campaign(group, stagger)
            finally:
                del self._campaigns[group]
        raise self._lease.error or FailedPrecondition(f"the campaign for group {group!r} was ended")

    def _end_campaigns(self) -> None:
        for scope in self._campaigns.values():
            scope.cancel()

    async def _campaign(self, group: str, stagger: Callable[[], Awaitable[None]] | None) -> LeaseTerm:
        if (earlier := self._attempts.get(group)) is not None:
            await asyncio.wait([earlier])
        if group in self._terms:
            raise FailedPrecondition(f"this instance already leads group {group!r}; resign before campaigning again")
        backoff = Backoff(f"{self._presence.name}/{group}")
        seen: LeaseTerm | Seen = None
        while not isinstance(seen, LeaseTerm):
            if isinstance(seen, Missing) and stagger is not None:
                await stagger()
            hold = await self._lease.wait_held()
            try:
                seen = await self._step(group, seen, hold)
            except StoreError as error:
                log.debug("campaign_interrupted", group=group, error=str(error), tries=backoff.tries + 1)
                await backoff.pause()
                seen = None
        return seen

    async def _step(self, group: str, seen: Seen, hold: Hold) -> LeaseTerm | Seen:
        match seen:
            case None:
                return await self._store.get(self._keys.group(group).leader)
            case Found(revision=revision, entry=entry) if not self._is_ours(entry, hold):
                return await self._until_free(entry.key, revision + 1)
            case _:
                return await self._attempt(group, seen, hold)

    async def _until_free(self, key: str, start_revision: int) -> Seen:
        async with self._store.watch(key, start_revision=start_revision) as items:
            async for item in items:
                seen = _last_seen(item, key) if isinstance(item, Batch) else None
                if isinstance(seen, Missing):
                    return seen
                hold = self._lease.hold
                # Ours, by a transaction whose answer was lost and that was applied later.
                if seen is not None and hold is not None and self._is_ours(seen.entry, hold):
                    return seen
        raise WatchEnded(f"the watch on {key!r} ended by itself; reading again")

    async def _attempt(self, group: str, seen: GetResult, hold: Hold) -> LeaseTerm | Seen:
        """Try once to create the leader key. Cancelling the campaign does not cancel the attempt: a key that it created
        must be deleted."""
        attempt = self._spawn_attempt(group, self._take(group, seen, hold))
        try:
            return await asyncio.shield(attempt)
        except asyncio.CancelledError:
            if not attempt.cancelled():
                self._spawn_attempt(group, self._resign_if_won(attempt)).add_done_callback(report_failure)
            elif not _being_cancelled():
                raise FailedPrecondition(f"the campaign for group {group!r} ended: the elector was closed") from None
            raise

    def _spawn_attempt(self, group: str, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = self._spawn(work, f"attempt for {group}")
        self._attempts[group] = task
        task.add_done_callback(lambda _: self._attempts.get(group) is task and self._attempts.pop(group))
        return task

    def _spawn(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        task = asyncio.create_task(work, name=name)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def _resign_if_won(self, attempt: asyncio.Task[Any]) -> None:
        await asyncio.wait([attempt])
        if not attempt.cancelled() and attempt.exception() is None and isinstance(attempt.result(), LeaseTerm):
            await attempt.result().resign()

    async def _take(self, group: str, seen: GetResult, hold: Hold) -> LeaseTerm | Seen:
        if isinstance(seen, Missing):
            async with self._in_flight:
                won = await self._create_key(group, hold)
            if isinstance(won, int):
                return self._begin(group, won, hold)
            seen = won
        if isinstance(seen, Found) and self._is_ours(seen.entry, hold):
            return await self._take_own(group, seen.entry, hold)
        return seen

    async def _create_key(self, group: str, hold: Hold) -> int | GetResult:
        """Create the leader key; return the term won, or the key that was found instead."""
        key = self._keys.group(group).leader
        record = LeaderRecord(holder=self._presence.name, lease_id=hold.lease, address=self._presence.address)
        put = Put(key, encode(record), hold.lease)
        try:
            result = await self._store.transact([Absent(key)], [put], otherwise=[key])
        except OutcomeUnknown:
            return await self._store.get(key)
        except LeaseNotFound:
            hold.lose("the instance's lease is gone")
            raise
        return result.revision if isinstance(result, Committed) else result.reads[0]

    async def _take_own(self, group: str, entry: Entry, hold: Hold) -> LeaseTerm | Seen:
        if entry.create_revision > self._last_term.get(group, 0):
            return self._begin(group, entry.create_revision, hold)
        # The key is from an earlier term. Writes of that term may still be in flight and must not pass the new term's
        # fence.
        fence = CreateRevisionIs(entry.key, entry.create_revision)
        result = await self._store.transact([fence], [Delete(entry.key)])
        return Missing(result.revision) if isinstance(result, Committed) else None

    def _begin(self, group: str, revision: int, hold: Hold) -> LeaseTerm | None:
        if not hold.held():
            return None
        fence = CreateRevisionIs(self._keys.group(group).leader, revision)
        term = LeaseTerm(self, group, fence, hold)
        hold.on_loss(term.end)
        self._terms[group] = term
        self._last_term[group] = revision
        guard = self._lease.supervisor.keep("leader key", partial(self._guard, term), may_end=True, group=group)
        self._guards[group] = self._spawn(guard, f"leader key of {group}")
        self._won += 1
        return term

    def _is_ours(self, entry: Entry, hold: Hold) -> bool:
        """Whether the leader key is ours. A key under another lease is not, even with our name: we wait until it is
        deleted."""
        if entry.lease != hold.lease:
            return False
        try:
            record, _ = decode(LeaderRecord, entry.value)
        except UnreadableRecord:
            return False
        return record.holder == self._presence.name and record.lease_id == hold.lease

    # --- leading ---------------------------------------------------------------------------------------------

    async def _guard(self, term: LeaseTerm) -> None:
        """End the term when its leader key is deleted or replaced."""
        backoff = Backoff(f"{self._presence.name}/{term.group}")
        start_revision = term.revision + 1
        while term.held():
            try:
                seen = await self._until_changed(term.fence.key, start_revision)
                term.end("the leader key was " + ("deleted" if isinstance(seen, Missing) else "replaced"))
            except StoreError:
                await backoff.pause()
                start_revision = await self._recheck(term, start_revision)

    async def _until_changed(self, key: str, start_revision: int) -> GetResult:
        async with self._store.watch(key, start_revision=start_revision) as items:
            async for item in items:
                if isinstance(item, Batch) and (seen := _last_seen(item, key)) is not None:
                    return seen
        raise WatchEnded(f"the watch on {key!r} ended by itself; reading again")

    async def _recheck(self, term: LeaseTerm, start_revision: int) -> int:
        try:
            seen = await self._store.get(term.fence.key)
        except StoreError:
            return start_revision
        if isinstance(seen, Missing) or seen.entry.mod_revision != term.revision:
            term.end("the leader key was " + ("deleted" if isinstance(seen, Missing) else "replaced"))
        return seen.revision + 1

    async def delete_key(self, term: LeaseTerm) -> None:
        """Delete the leader key of a term that has ended. If that fails, the next campaign deletes it."""
        backoff = Backoff(f"{self._presence.name}/{term.group}")
        while backoff.tries < RESIGN_TRIES:
            try:
                await self._store.transact([term.fence], [Delete(term.fence.key)])
                return
            except StoreError as error:
                log.warning("leader_key_deletion_failed", group=term.group, term=term.revision, error=str(error))
                await backoff.pause()

    def forget(self, term: LeaseTerm) -> None:
        """Remove a term that has ended, and stop watching its leader key."""
        if self._terms.get(term.group) is term:
            del self._terms[term.group]
            guard = self._guards.pop(term.group)
            # The guard that ends its own term must not cancel itself.
            if guard is not asyncio.current_task():
                guard.cancel()


def _being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _last_seen(batch: Batch, key: str) -> GetResult | None:
    """Find the last state of this key in the batch; a watch also covers every key that has it as a prefix."""
    for event in reversed(batch.events):
        match event:
            case PutEvent(entry=entry) if entry.key == key:
                return Found(batch.revision, entry)
            case DeleteEvent(key=deleted, mod_revision=revision) if deleted == key:
                return Missing(revision)
    return None


async def open_elector(store: Store, keys: Keys, presence: Presence, clock: Clock) -> LeaseElector:
    """Open an elector and announce its instance. Waits while the store does not answer, until cancelled."""
    elector = LeaseElector(store, keys, presence, clock, incarnation=uuid4().hex)
    await elector.start()
    return elector
