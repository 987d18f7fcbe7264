"""The consumers' side of the service: registering, staying alive, answering, leaving. See `assigner.api.Members`.

Works the same on every instance, because everything it knows of a consumer is in the store: a session that moves to
another instance, or calls one while its stream is at another, is recognised by name and session.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import anyio
import anyio.abc
import msgspec

from assigner.aio.supervision import Supervisor
from assigner.api import LoadReceipt, LoadReport, Registration, RejectedAck
from assigner.clock import Clock
from assigner.errors import (
    FailedPrecondition,
    NotRegistered,
    OutcomeUnknown,
    StoreError,
    StoreUnavailable,
    UnknownGroup,
)
from assigner.logs import get_logger
from assigner.members.acks import HandoffAcks
from assigner.members.callers import anybody, check_not_displaced, look_up, registered
from assigner.members.load_reports import LoadReports
from assigner.members.streams import ConsumerStream, StreamRegistry, evicted
from assigner.model.commands import Ack
from assigner.model.keys import Keys
from assigner.model.names import session_digest
from assigner.model.records import Consumer, Displaced, HandoffMode, Status, Stored, encode
from assigner.storage.batch_writer import BatchWriter
from assigner.storage.groups import GroupDirectory
from assigner.storage.mirror import GroupMirror, Mirrors
from assigner.store import (
    Absent,
    Committed,
    Compare,
    Exists,
    Found,
    LeaseGone,
    ModRevisionIs,
    Put,
    Renewed,
    Store,
)

TRIES = 8
PUT_TRIES = 3
"""Of one registration whose outcome the store does not tell."""
MOST_DISPLACED = 8
EnsureTopics = Callable[[str, Sequence[str]], Awaitable[None]]
"""(group, topics): make sure their partition counts are known, or raise."""

log = get_logger("assigner.members.registration")


class MemberService:
    def __init__(
        self,
        store: Store,
        keys: Keys,
        directory: GroupDirectory,
        mirrors: Mirrors,
        registry: StreamRegistry,
        clock: Clock,
        *,
        instance: str,
        ttl: float,
        ensure_topics: EnsureTopics,
        load_reports: LoadReports,
        supervisor: Supervisor | None = None,
    ) -> None:
        self._store = store
        self._keys = keys
        self._directory = directory
        self._mirrors = mirrors
        self._registry = registry
        self._clock = clock
        self._instance = instance
        self._ttl = ttl
        self._ensure_topics = ensure_topics
        self._load_reports = load_reports
        self._supervisor = supervisor or Supervisor()
        self._writer = BatchWriter(store)
        self._acks = HandoffAcks(store, self._writer)
        self._tasks: anyio.abc.TaskGroup | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[MemberService]:
        async with anyio.create_task_group() as self._tasks:
            self._tasks.start_soon(self._writer.run, self._supervisor, name="acks")
            self._tasks.start_soon(self._supervisor.keep, "load reports", self._load_reports.run, name="load reports")
            yield self
            self._tasks.cancel_scope.cancel()

    @property
    def waiting_writes(self) -> int:
        return len(self._writer)

    # --- joining -------------------------------------------------------------------------------------------------

    async def register(self, registration: Registration, heard: Callable[[], float]) -> ConsumerStream:
        self._registry.check_room()
        await self._directory.enter(registration.group)
        if registration.topics:
            await self._ensure_topics(registration.group, registration.topics)
        async with AsyncExitStack() as hold:
            mirror = await hold.enter_async_context(self._mirrors.of(registration.group))
            consumer = await self._enter(mirror, registration)
            seat = self._registry.take(mirror, registration.name, consumer.record.session, consumer.record.ttl, hold)
        assert seat.hold is not None
        seat.hold.push_async_callback(self._end_if_drained, seat, consumer.lease)
        if not registration.renews:
            assert self._tasks is not None
            self._tasks.start_soon(
                partial(
                    self._supervisor.keep,
                    "renewal by pings",
                    partial(self._renew_while_heard, seat, consumer.lease, heard),
                    may_end=True,
                    group=seat.group,
                    consumer=seat.name,
                ),
                name=f"renewal of {seat.group}/{seat.name}",
            )
        return seat

    async def _enter(self, mirror: GroupMirror, registration: Registration) -> Stored[Consumer]:
        """Write the registration, resuming a session that is still alive, and wait until it is mirrored."""
        session = registration.session or f"minted-{secrets.token_hex(8)}"
        key = mirror.state.keys.consumer(registration.name)
        for attempt in range(TRIES):
            if attempt:
                # It may have failed because the group was deleted meanwhile.
                await self._directory.enter(mirror.group, fresh=True)
            mode = await self._checked_mode(mirror, registration, fresh=attempt > 0)
            current = await look_up(self._store, mirror, registration.name, fresh=attempt > 0)
            check_not_displaced(current, session, mirror.group)
            _check_not_evicted(current, session)
            lease, ttl, granted = await self._lease(current, session)
            record = _record(registration, session, current, ttl, self._instance, self._clock.wall())
            compare: Compare = ModRevisionIs(key, current.mod_revision) if current else Absent(key)
            value = current.encode(record) if current else encode(record)
            try:
                compares = [compare, self._group_exists(mirror.group), *mode]
                revision = await self._put(compares, Put(key, value, lease), granted=granted)
                if revision:
                    await mirror.wait_for(revision)
                    log.info(
                        "consumer_registered",
                        group=mirror.group,
                        consumer=registration.name,
                        session=session_digest(session),
                        resumed=not granted,
                        takeover=bool(record.displaced),
                    )
                    return Stored(record, key, revision, 0, lease)
            except BaseException:
                # Of a takeover it may be there all the same, and with it all that is known of whom it displaced: ended,
                # it would leave the name to nobody. The client comes back to it, or it ends with its lease.
                if granted and current is None:
                    await self._take_back(lease)
                raise
            if granted:
                await self._take_back(lease)
        raise StoreUnavailable(f"consumer {registration.name!r} is being registered by others too; try again")

    async def _checked_mode(self, mirror: GroupMirror, registration: Registration, *, fresh: bool) -> list[Compare]:
        """Check that the group takes such clients. For those that an exclusive group would not take: what holds as
        long as it is not exclusive."""
        keeps_a_session = registration.renews and registration.session
        if fresh and not keeps_a_session:
            await mirror.resync()
        _check_mode(mirror, registration)
        if keeps_a_session:
            return []
        options, key = mirror.state.stored_options, mirror.state.keys.options
        return [ModRevisionIs(key, options.mod_revision) if options else Absent(key)]

    def _group_exists(self, group: str) -> Compare:
        """A group that is being deleted is no longer in the index: nobody may register in it behind its back."""
        return Exists(self._keys.group_index(group))

    async def _put(self, compares: Sequence[Compare], put: Put, *, granted: bool) -> int:
        """The revision of the registration; 0 if something else is there and this one can't come any more."""
        doubtful = False
        for _ in range(PUT_TRIES):
            try:
                result = await self._store.transact(compares, [put])
            except OutcomeUnknown:
                # Asked again as it is: whichever of the two comes first, the other is refused by its compare.
                doubtful = True
                continue
            if isinstance(result, Committed):
                return result.revision
            return await self._revision_if_ours(put, granted=granted) if doubtful else 0
        raise OutcomeUnknown(f"the store did not say whether {put.key} was registered; register again")

    async def _revision_if_ours(self, put: Put, *, granted: bool) -> int:
        """Of a registration that got through unheard. On a lease of its own it is ours whatever was marked in it since;
        on the one it had before, only byte for byte."""
        found = await self._store.get(put.key)
        if not isinstance(found, Found) or found.entry.lease != put.lease:
            return 0
        return found.entry.mod_revision if granted or found.entry.value == put.value else 0

    async def _take_back(self, lease: int) -> None:
        """Nobody has heard of this lease: end it, so that no ghost of a consumer is left behind."""
        with anyio.CancelScope(shield=True), anyio.move_on_after(2.0):
            try:
                await self._store.revoke(lease)
            except StoreError as error:
                log.info("lease_revocation_failed", lease=lease, error=str(error))

    async def _lease(self, current: Stored[Consumer] | None, session: str) -> tuple[int, float, bool]:
        """The lease to register under: the session's own if it still lives. (lease, ttl, freshly granted)"""
        if current and current.lease and current.record.session == session and not current.record.evicted:
            renewed = await self._store.keep_alive(current.lease)
            if isinstance(renewed, Renewed):
                return current.lease, renewed.ttl, False
        granted = await self._store.grant(self._ttl)
        return granted.lease, granted.ttl, True

    async def _renew_while_heard(self, seat: ConsumerStream, lease: int, heard: Callable[[], float]) -> None:
        """For clients that do not call Renew: their connection's signs of life renew the lease."""
        pause = seat.ttl / 3
        while self._registry.seat(seat.group, seat.name) is seat:
            await anyio.sleep(pause)
            if self._clock.now() - heard() > 2 * pause or self._registry.seat(seat.group, seat.name) is not seat:
                continue
            try:
                if isinstance(await self._store.keep_alive(lease), LeaseGone):
                    seat.end(NotRegistered(f"the lease of {seat.name!r} ended; register again"))
                    return
            except StoreError as error:
                log.info("lease_renewal_failed", group=seat.group, consumer=seat.name, error=str(error))

    async def _end_if_drained(self, seat: ConsumerStream, lease: int) -> None:
        """Everything was let go, by the consumer's own word: its session need not wait for its TTL."""
        if seat.is_drained:
            await self._take_back(lease)

    @asynccontextmanager
    async def _mirror(self, group: str, name: str) -> AsyncIterator[GroupMirror]:
        """The mirror of a consumer's group. Where there is no such group, there is no such consumer."""
        async with AsyncExitStack() as hold:
            try:
                mirror = await hold.enter_async_context(self._mirrors.of(group))
            except UnknownGroup:
                raise NotRegistered(
                    f"consumer {name!r} is not registered: there is no group {group!r}; register first"
                ) from None
            yield mirror

    # --- staying -------------------------------------------------------------------------------------------------

    async def renew(self, group: str, name: str, session: str) -> float:
        async with self._mirror(group, name) as mirror:
            consumer = await registered(self._store, mirror, name, session)
            if consumer.record.evicted:
                raise evicted(consumer.record)
            renewed = await self._store.keep_alive(consumer.lease)
            if isinstance(renewed, LeaseGone):
                raise NotRegistered(f"the lease of {name!r} ended; register again")
            return renewed.ttl

    async def ready(self, group: str, name: str, session: str, acks: Sequence[Ack]) -> list[RejectedAck]:
        async with self._mirror(group, name) as mirror:
            consumer = await registered(self._store, mirror, name, session)
            return await self._acks.ready(mirror, consumer, self._registry.seat(group, name), acks)

    async def released(self, group: str, name: str, session: str, acks: Sequence[Ack]) -> list[RejectedAck]:
        async with self._mirror(group, name) as mirror:
            consumer = await registered(self._store, mirror, name, session)
            return await self._acks.released(mirror, consumer, acks)

    async def report_load(self, group: str, name: str, session: str, report: LoadReport) -> LoadReceipt:
        async with self._mirror(group, name) as mirror:
            consumer = await registered(self._store, mirror, name, session)
            return self._load_reports.take(mirror.state, consumer.record, report, len(self._registry))

    # --- leaving -------------------------------------------------------------------------------------------------

    async def deregister(self, group: str, name: str, session: str, *, gates_closed: bool) -> bool:
        async with self._mirror(group, name) as mirror:
            if gates_closed and await self._end_displaced(mirror, name, session):
                return False
            for _ in range(TRIES):
                consumer = await registered(self._store, mirror, name, session)
                # Said before it goes, so that nobody waits for it to come back.
                if not await self._drain(mirror, consumer):
                    continue
                if not gates_closed:
                    return _has_to_wait(mirror, name)
                await self._store.revoke(consumer.lease)
                log.info("consumer_deregistered", group=group, consumer=name, session=session_digest(session))
                return False
        raise StoreUnavailable(f"consumer {name!r} is being changed by others too; try again")

    async def _end_displaced(self, mirror: GroupMirror, name: str, session: str) -> bool:
        """A session that lost its name to another one says that it has stopped: end its lease early."""
        current = mirror.state.consumers.get(name)
        if current is None or not session or current.record.session == session:
            return False
        for displaced in current.record.displaced:
            if displaced.session == session:
                await self._store.revoke(displaced.lease)
                digest = session_digest(session)
                log.info("displaced_session_ended", group=mirror.group, consumer=name, session=digest)
                return True
        return False

    async def _drain(self, mirror: GroupMirror, consumer: Stored[Consumer]) -> bool:
        """Mark it as draining; whether that went in (or was so already)."""
        if consumer.record.status is Status.DRAINING:
            return True
        draining = msgspec.structs.replace(consumer.record, status=Status.DRAINING)
        result = await self._store.transact(
            [ModRevisionIs(consumer.key, consumer.mod_revision)],
            [Put(consumer.key, consumer.encode(draining), consumer.lease)],
        )
        if isinstance(result, Committed):
            log.info("consumer_drain_started", group=mirror.group, consumer=consumer.record.consumer_name)
            await mirror.wait_for(result.revision)
            return True
        return False

    async def drain(self, group: str, name: str) -> GroupMirror:
        """An operator's wish: the same as the consumer's own."""
        async with self._mirrors.of(group) as mirror:
            for _ in range(TRIES):
                if await self._drain(mirror, await anybody(self._store, mirror, name)):
                    return mirror
        raise StoreUnavailable(f"consumer {name!r} is being changed by others too; try again")


def _check_mode(mirror: GroupMirror, registration: Registration) -> None:
    keeps_a_session = registration.renews and registration.session
    if mirror.state.options.handoff_mode is HandoffMode.EXCLUSIVE and not keeps_a_session:
        raise FailedPrecondition(
            f"group {mirror.group!r} hands partitions over exclusively, which needs clients that renew their session; "
            "use a client that names one and calls Renew, or set the group's handoff_mode to overlap"
        )


def _check_not_evicted(current: Stored[Consumer] | None, session: str) -> None:
    """An evicted session stays evicted, or what it holds on to would never be free."""
    if current and current.record.session == session and current.record.evicted:
        raise evicted(current.record)


def _has_to_wait(mirror: GroupMirror, name: str) -> bool:
    """Whether there is something to hand over and somebody to take it."""
    others = (
        other.record.status is Status.READY and not other.record.evicted
        for other_name, other in mirror.state.consumers.items()
        if other_name != name
    )
    return bool(mirror.state.to_hand_over(name)) and any(others)


def _record(
    registration: Registration,
    session: str,
    current: Stored[Consumer] | None,
    ttl: float,
    instance: str,
    wall: float,
) -> Consumer:
    resumed = current is not None and current.record.session == session
    draining = resumed and current is not None and current.record.status is Status.DRAINING
    return Consumer(
        consumer_name=registration.name,
        status=Status.DRAINING if draining else Status.READY,
        registered_at=current.record.registered_at if resumed and current else int(wall),
        generation=registration.generation,
        session=session,
        capacity=registration.capacity,
        rack=registration.rack,
        topics=tuple(sorted(set(registration.topics))),
        address=registration.address,
        instance=instance,
        ttl=ttl,
        renews=registration.renews,
        minted=not registration.session,
        displaced=_displaced(current, session),
    )


def _displaced(current: Stored[Consumer] | None, session: str) -> tuple[Displaced, ...]:
    """Sessions whose lease may outlive their registration; the leader waits for its end before it gives theirs
    away exclusively."""
    if current is None:
        return ()
    before = current.record.displaced
    if current.record.session != session and current.lease:
        before = (*before, Displaced(current.record.session, current.lease))
    return tuple(d for d in before if d.session != session)[-MOST_DISPLACED:]
