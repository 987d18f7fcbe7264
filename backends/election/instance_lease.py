"""Keeps an instance's lease: granted, renewed, trusted for two thirds of its TTL, and replaced when it is lost.

The instance's presence and all its leader keys are attached to the lease. `Hold` decides by the clock, at each call,
whether the lease may still be trusted: no task has to run for it to become false. `InstanceLease` grants, renews and
replaces it.

Not promised: that the lease has ended in the store when it is no longer trusted here. That takes up to another third of
the TTL, so that this instance stops first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import anyio
import msgspec

from assigner.aio.backoff import Backoff
from assigner.aio.supervision import Supervisor
from assigner.aio.wakeup import Wakeup
from assigner.backend import Presence
from assigner.clock import Clock
from assigner.errors import (
    AssignerError,
    FailedPrecondition,
    LeaseNotFound,
    StoreError,
    StoreRefused,
    Superseded,
    UnreadableRecord,
    WatchEnded,
)
from assigner.logs import get_logger
from assigner.model.defaults import SAFE_SHARE
from assigner.model.keys import Keys
from assigner.model.records import InstanceRecord, decode, encode
from assigner.store import (
    NO_LEASE,
    Absent,
    Batch,
    Committed,
    Compare,
    DeleteEvent,
    Entry,
    Found,
    LeaseGone,
    ModRevisionIs,
    Put,
    PutEvent,
    Renewed,
    Store,
)

RENEW = 1 / 3
"""Fraction of the TTL between two renewals."""
ATTEMPT = 1 / 6
"""Fraction of the TTL that one renewal may take before another is sent."""
RETRY = 1 / 15
"""Fraction of the TTL between a failed renewal and the next."""
CLOSE_WITHIN = 5.0
_TICK = 0.001
"""Shortest wait: a remainder too small to advance the clock must not become a busy loop."""

log = get_logger("assigner.election")


class Hold:
    """A granted lease, and the time until which its holder may trust it."""

    def __init__(self, lease: int, ttl: float, sent: float, clock: Clock) -> None:
        self.lease = lease
        self.ttl = ttl
        self.lost = anyio.Event()
        self.reason: str | None = None
        self._clock = clock
        self._deadline = sent + SAFE_SHARE * ttl
        self._on_loss: dict[Callable[[str], None], None] = {}

    def held(self) -> bool:
        if self.reason is None and self._clock.now() >= self._deadline:
            self.lose(f"no renewal of the instance's lease was confirmed for {SAFE_SHARE * self.ttl:.1f} s")
        return self.reason is None

    def left(self) -> float:
        """Seconds until the lease is lost unless it is renewed."""
        return max(_TICK, self._deadline - self._clock.now())

    def renewed(self, sent: float, ttl: float) -> None:
        # A renewal that is confirmed after the deadline does not restore a lost lease.
        if self.held():
            self._deadline = max(self._deadline, sent + SAFE_SHARE * ttl)

    def lose(self, reason: str) -> None:
        if self.reason is not None:
            return
        self.reason = reason
        for notify in tuple(self._on_loss):
            notify(reason)
        self._on_loss.clear()
        self.lost.set()

    def on_loss(self, notify: Callable[[str], None]) -> None:
        self._on_loss[notify] = None

    def forget(self, notify: Callable[[str], None]) -> None:
        self._on_loss.pop(notify, None)


class LeaseStatistics(msgspec.Struct, frozen=True, kw_only=True):
    held: bool
    granted: int
    renewals: int
    failed_renewals: int


class InstanceLease:
    def __init__(self, store: Store, keys: Keys, presence: Presence, clock: Clock, incarnation: str) -> None:
        self._store = store
        self._key = keys.instance(presence.name)
        self._presence = presence
        self._clock = clock
        self._incarnation = incarnation
        self._started_at = int(clock.wall())
        self._draining = False
        self._announced = False
        """Whether this process has ever written its presence."""
        self._hold: Hold | None = None
        self._newest_lease = NO_LEASE
        self._error: AssignerError | None = None
        self._changed = Wakeup()
        self._on_end: list[Callable[[], None]] = []
        self._work: asyncio.Task[None] | None = None
        self.supervisor = Supervisor()
        self._granted = self._renewals = self._failed_renewals = 0

    # --- what the elector asks -------------------------------------------------------------------------------

    @property
    def hold(self) -> Hold | None:
        """Return the present lease, if there is one that may be trusted."""
        return self._hold if self._hold is not None and self._hold.held() else None

    async def wait_held(self) -> Hold:
        """Wait for a lease that may be trusted. Raises the error that ended the instance."""
        while True:
            if self._error is not None:
                raise self._error
            if (hold := self.hold) is not None:
                return hold
            await self._changed.next()

    @property
    def error(self) -> AssignerError | None:
        """The error that ended the instance; None: it has not ended."""
        return self._error

    def on_end(self, notify: Callable[[], None]) -> None:
        self._on_end.append(notify)

    async def start(self) -> None:
        """Announce the instance, with retries until the store answers. Raises if the store rejects its user."""
        self._work = asyncio.create_task(self._run(), name=f"lease of {self._presence.name}")
        try:
            await self.wait_held()
        except BaseException:
            self._work.cancel()
            raise

    async def drain(self) -> None:
        self._draining = True
        await self._announce(await self.wait_held())

    async def close(self) -> None:
        """Revoke the lease, and with it the presence and every leader key. If the store hangs, they end with the
        TTL."""
        if isinstance(self._error, FailedPrecondition):
            return
        self._end(FailedPrecondition(f"instance {self._presence.name!r} is closed; open another elector"))
        with anyio.move_on_after(CLOSE_WITHIN, shield=True):
            if self._work is not None:
                self._work.cancel()
                await asyncio.wait([self._work])
            if self._newest_lease != NO_LEASE:
                await self._revoke(self._newest_lease, tries=3)

    def statistics(self) -> LeaseStatistics:
        return LeaseStatistics(
            held=self.hold is not None,
            granted=self._granted,
            renewals=self._renewals,
            failed_renewals=self._failed_renewals,
        )

    # --- one lease after the other ---------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            await self.supervisor.keep(
                "instance lease",
                self._run_leases,
                may_end=True,
                final=(AssignerError,),
                instance=self._presence.name,
            )
        except AssignerError as error:
            self._end(error)

    async def _run_leases(self) -> None:
        try:
            while self._error is None:
                await self._use_lease(await self._grant())
        finally:
            # After a failure the state of the lease is unknown, so it counts as lost, and the next run grants a new
            # one.
            if self._hold is not None:
                self._hold.lose("the work on the instance's lease ended")

    async def _use_lease(self, hold: Hold) -> None:
        async with anyio.create_task_group() as tasks:
            present = partial(self._keep_presence, hold)
            tasks.start_soon(
                partial(self.supervisor.keep, "presence", present, may_end=True, instance=self._presence.name),
                name=f"presence of {self._presence.name}",
            )
            await self._renew(hold)
            tasks.cancel_scope.cancel()
        log.warning("instance_lease_lost", instance=self._presence.name, reason=hold.reason)
        # Leader keys still attached to it would keep groups without a leader until the TTL ends.
        with anyio.move_on_after(hold.ttl * RENEW):
            await self._revoke(hold.lease)

    async def _grant(self) -> Hold:
        backoff = Backoff(self._presence.name)
        while True:
            sent = self._clock.now()
            try:
                granted = await self._store.grant(self._presence.ttl)
            except StoreError as error:
                if isinstance(error, StoreRefused) and not self._announced:
                    raise
                log.warning(
                    "instance_lease_grant_failed",
                    instance=self._presence.name,
                    error=str(error),
                    tries=backoff.tries + 1,
                )
                await backoff.pause()
            else:
                self._granted += 1
                self._newest_lease = granted.lease
                return Hold(granted.lease, granted.ttl, sent, self._clock)

    async def _renew(self, hold: Hold) -> None:
        """Renew the lease until it is lost."""
        pause = hold.ttl * RENEW
        while True:
            with anyio.move_on_after(min(pause, hold.left())):
                await hold.lost.wait()
            if not hold.held():
                return
            renewed = await self._renew_once(hold)
            self._failed_renewals += not renewed
            pause = hold.ttl * (RENEW if renewed else RETRY)

    async def _renew_once(self, hold: Hold) -> bool:
        sent = self._clock.now()
        with anyio.move_on_after(min(hold.ttl * ATTEMPT, hold.left())):
            try:
                match await self._store.keep_alive(hold.lease):
                    case Renewed(ttl=ttl):
                        self._renewals += 1
                        hold.renewed(sent, ttl)
                        return True
                    case LeaseGone():
                        hold.lose("the instance's lease is gone")
                        return True
            except StoreError as error:
                log.debug("instance_lease_renewal_failed", instance=self._presence.name, error=str(error))
        return False

    async def _revoke(self, lease: int, tries: int = 1) -> None:
        backoff = Backoff(self._presence.name)
        while backoff.tries < tries:
            try:
                await self._store.revoke(lease)
                return
            except StoreError:
                await backoff.pause()

    def _end(self, error: AssignerError) -> None:
        if self._error is None:
            self._error = error
        if self._hold is not None:
            self._hold.lose(str(error))
        for notify in self._on_end:
            notify()
        self._notify()

    def _notify(self) -> None:
        self._changed.notify()

    # --- presence --------------------------------------------------------------------------------------------

    async def _keep_presence(self, hold: Hold) -> None:
        """Write the instance's presence, and write it again when it is deleted. Ends the instance if another process
        took its name."""
        backoff = Backoff(self._presence.name)
        while hold.held():
            try:
                revision = await self._announce(hold)
                self._hold = hold
                self._notify()
                await self._until_absent(revision + 1)
                backoff.reset()
            except Superseded as error:
                hold.lose(str(error))
                self._end(error)
            except LeaseNotFound:
                hold.lose("the instance's lease is gone")
            except StoreError as error:
                log.info("presence_write_failed", instance=self._presence.name, error=str(error))
                await backoff.pause()

    async def _announce(self, hold: Hold) -> int:
        """Write the presence key under this lease, unless it is current, and return its revision.

        A starting process takes its name over from an earlier one: most likely itself before a restart, whose lease has
        not expired yet. A running process that finds its name taken over stops.
        """
        record = self._record()
        while True:
            seen = await self._store.get(self._key)
            if isinstance(seen, Found):
                before = self._check_not_superseded(seen.entry)
                if before == record and seen.entry.lease == hold.lease:
                    return seen.revision
                compare: Compare = ModRevisionIs(self._key, seen.entry.mod_revision)
            else:
                before, compare = None, Absent(self._key)
            put = Put(self._key, encode(record), hold.lease)
            result = await self._store.transact([compare], [put])
            if isinstance(result, Committed):
                self._announced = True
                if isinstance(seen, Found) and before is not None:
                    await self._end_predecessor(before, seen.entry.lease, hold)
                return result.revision

    def _record(self) -> InstanceRecord:
        return InstanceRecord(
            name=self._presence.name,
            address=self._presence.address,
            started_at=self._started_at,
            draining=self._draining,
            incarnation=self._incarnation,
        )

    def _check_not_superseded(self, entry: Entry) -> InstanceRecord | None:
        try:
            instance, _ = decode(InstanceRecord, entry.value)
        except UnreadableRecord:
            return None
        if self._announced and instance.incarnation != self._incarnation:
            raise Superseded(
                f"instance name {self._presence.name!r} was taken over by the process at {instance.address!r}; "
                "give every instance a name of its own"
            )
        return instance

    async def _end_predecessor(self, before: InstanceRecord, lease: int, hold: Hold) -> None:
        """Revoke the lease of the process whose name we took over, so that its groups are free at once, not a TTL
        later. If it still runs, its fences fail."""
        if before.incarnation == self._incarnation or lease in (NO_LEASE, hold.lease):
            return
        log.warning("instance_name_taken_over", instance=before.name, address=before.address)
        await self._revoke(lease)

    async def _until_absent(self, start_revision: int) -> None:
        async with self._store.watch(self._key, start_revision=start_revision) as items:
            async for item in items:
                for event in item.events if isinstance(item, Batch) else ():
                    match event:
                        case PutEvent(entry=entry) if entry.key == self._key:
                            self._check_not_superseded(entry)
                        case DeleteEvent(key=key) if key == self._key:
                            return
        raise WatchEnded(f"the watch on {self._key!r} ended by itself; watching anew")
