"""Serves the calls of consumers: they register, renew, ack and leave. See `assigner.api.Membership`.

Every instance serves every consumer, because all that is known of a consumer is in the store: a session that moves to
another instance, or calls one while its stream is at another, is recognised by name and session. The rules are those
of `assigner.core.sessions`; this module reads, writes and retries.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import anyio
import anyio.abc

from assigner.aio.supervision import Supervisor
from assigner.api import LoadReceipt, LoadReport, Registration, RejectedAck
from assigner.clock import Clock
from assigner.core import sessions
from assigner.core.sessions import RegistrationTerms
from assigner.errors import NotRegistered, StoreError, StoreUnavailable, UnknownGroup
from assigner.logs import get_logger
from assigner.members.acks import HandoffAcks
from assigner.members.callers import authorized, check_principal, look_up, registered
from assigner.members.load_reports import LoadReports
from assigner.members.streams import ConsumerStream, ConsumerStreams
from assigner.model.commands import Ack
from assigner.model.names import session_digest
from assigner.model.records import Consumer, Stored, encode
from assigner.storage.batch_writer import BatchWriter
from assigner.storage.groups import GroupDirectory
from assigner.storage.mirror import GroupMirror, Mirrors
from assigner.storage.update import Updated, update
from assigner.store import Compare, LeaseGone, Put, Store, unchanged
from assigner.streams.leases import SessionLeases

TRIES = 8
EnsureTopics = Callable[[str, Sequence[str]], Awaitable[None]]
"""(group, topics): make sure their partition counts are known, or raise."""

log = get_logger("assigner.members.registration")


class MemberService:
    def __init__(
        self,
        store: Store,
        directory: GroupDirectory,
        mirrors: Mirrors,
        registry: ConsumerStreams,
        clock: Clock,
        *,
        instance: str,
        ttl: float,
        ensure_topics: EnsureTopics,
        load_reports: LoadReports,
        supervisor: Supervisor | None = None,
    ) -> None:
        self._store = store
        self._directory = directory
        self._mirrors = mirrors
        self._registry = registry
        self._clock = clock
        self._instance = instance
        self._leases = SessionLeases(store, ttl)
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
        sessions.check_release_timeout(registration)
        entered = await self._directory.enter(registration.group)
        if registration.topics:
            await self._ensure_topics(registration.group, registration.topics)
        async with AsyncExitStack() as resources:
            mirror = await resources.enter_async_context(self._mirrors.of(registration.group))
            consumer = await self._enter(mirror, registration, entered)
            # A drained consumer has handed everything over: its session need not live until its TTL.
            end_session = partial(self._leases.revoke, consumer.lease)
            stream = self._registry.open(mirror, consumer.record, resources, end_session)
        if not registration.renews:
            self._start_renewing(stream, consumer.lease, heard)
        return stream

    async def _enter(self, mirror: GroupMirror, registration: Registration, entered: Compare) -> Stored[Consumer]:
        """Write the registration, resuming a session that is still alive, and wait until it is mirrored. `entered`: the
        precondition that the group is there and of the right kind."""
        session = registration.session or f"minted-{secrets.token_hex(8)}"
        key = mirror.state.keys.consumer(registration.name)
        for attempt in range(TRIES):
            fresh = attempt > 0
            if fresh:
                # The write may have failed because the group was deleted meanwhile, or changed its kind.
                entered = await self._directory.enter(mirror.group, fresh=True)
            fences = [entered, *await self._mode_fences(mirror, registration, fresh=fresh)]
            current = await look_up(self._store, mirror, registration.name, fresh=fresh)
            if not fresh and current and _may_be_denied(current, session, registration):
                # The mirror may lag, and to be denied ends a client that starts.
                current = await look_up(self._store, mirror, registration.name, fresh=True)
            sessions.check_may_register(current, session, mirror.group, registration.principal)
            sessions.check_not_held(current, session, registration)
            lease, ttl, granted = await self._leases.lease(sessions.lease_to_resume(current, session))
            terms = RegistrationTerms(
                registration=registration,
                session=session,
                instance=self._instance,
                ttl=ttl,
                now=int(self._clock.wall()),
            )
            record = sessions.register(current, terms)
            put = Put(key, current.encode(record) if current else encode(record), lease)
            try:
                revision = await self._leases.put(put, current.mod_revision if current else 0, fences, granted=granted)
                if revision:
                    await mirror.wait_for(revision)
                    log.info(
                        "consumer_registered",
                        group=mirror.group,
                        consumer=registration.name,
                        session=session_digest(session),
                        principal=registration.principal,
                        resumed=not granted,
                        takeover=bool(record.displaced),
                    )
                    left_behind = sessions.left_behind(current, record)
                    if left_behind:
                        await self._leases.revoke(left_behind)
                    return Stored(record, key, revision, 0, lease)
            except BaseException:
                # A takeover may have been written all the same. It holds all that is known of the sessions it
                # displaced, so it must not be ended: the client resumes it, or it ends with its lease.
                if granted and current is None:
                    await self._leases.revoke(lease)
                raise
            if granted:
                await self._leases.revoke(lease)
        raise StoreUnavailable(f"consumer {registration.name!r} is being registered by others too; try again")

    async def _mode_fences(self, mirror: GroupMirror, registration: Registration, *, fresh: bool) -> list[Compare]:
        """Check that the group's handoff mode admits the client. The fence keeps the group from becoming exclusive
        while a client registers that an exclusive group would not admit."""
        keeps_a_session = sessions.keeps_a_session(registration)
        if fresh and not keeps_a_session:
            await mirror.resync()
        sessions.check_mode(mirror.state.options, registration)
        if keeps_a_session:
            return []
        options = mirror.state.stored_options
        return [unchanged(mirror.state.keys.options, options.mod_revision if options else 0)]

    def _start_renewing(self, stream: ConsumerStream, lease: int, heard: Callable[[], float]) -> None:
        assert self._tasks is not None
        self._tasks.start_soon(
            partial(
                self._supervisor.keep,
                "renewal by pings",
                partial(self._renew_while_heard, stream, lease, heard),
                may_end=True,
                group=stream.group,
                consumer=stream.name,
            ),
            name=f"renewal of {stream.group}/{stream.name}",
        )

    async def _renew_while_heard(self, stream: ConsumerStream, lease: int, heard: Callable[[], float]) -> None:
        """Renew the lease of a client that does not call Renew, as long as its connection answers pings."""
        pause = stream.ttl / 3
        while self._is_open(stream):
            await anyio.sleep(pause)
            if self._clock.now() - heard() > 2 * pause or not self._is_open(stream):
                continue
            try:
                if isinstance(await self._store.keep_alive(lease), LeaseGone):
                    stream.end(NotRegistered(f"the lease of {stream.name!r} ended; register again"))
                    return
            except StoreError as error:
                log.info("lease_renewal_failed", group=stream.group, consumer=stream.name, error=str(error))

    def _is_open(self, stream: ConsumerStream) -> bool:
        return self._registry.stream(stream.group, stream.name) is stream

    @asynccontextmanager
    async def _mirror(self, group: str, name: str) -> AsyncIterator[GroupMirror]:
        """Load the mirror of a consumer's group. Raises `NotRegistered` if there is no such group."""
        async with AsyncExitStack() as hold:
            try:
                mirror = await hold.enter_async_context(self._mirrors.of(group))
            except UnknownGroup:
                raise NotRegistered(
                    f"consumer {name!r} is not registered: there is no group {group!r}; register first"
                ) from None
            yield mirror

    # --- staying -------------------------------------------------------------------------------------------------

    async def renew(self, group: str, name: str, session: str, *, principal: str = "") -> float:
        async with self._mirror(group, name) as mirror:
            consumer = await authorized(self._store, mirror, name, session, principal)
            if consumer.record.evicted:
                raise sessions.evicted(consumer.record)
            renewed = await self._store.keep_alive(consumer.lease)
            if isinstance(renewed, LeaseGone):
                raise NotRegistered(f"the lease of {name!r} ended; register again")
            return renewed.ttl

    async def ready(
        self, group: str, name: str, session: str, acks: Sequence[Ack], *, principal: str = ""
    ) -> list[RejectedAck]:
        async with self._mirror(group, name) as mirror:
            consumer = await authorized(self._store, mirror, name, session, principal)
            return await self._acks.ready(mirror, consumer, self._registry.stream(group, name), acks)

    async def released(
        self, group: str, name: str, session: str, acks: Sequence[Ack], *, principal: str = ""
    ) -> list[RejectedAck]:
        async with self._mirror(group, name) as mirror:
            consumer = await authorized(self._store, mirror, name, session, principal)
            return await self._acks.released(mirror, consumer, acks)

    async def report_load(
        self, group: str, name: str, session: str, report: LoadReport, *, principal: str = ""
    ) -> LoadReceipt:
        async with self._mirror(group, name) as mirror:
            consumer = await authorized(self._store, mirror, name, session, principal)
            return self._load_reports.take(mirror.state, consumer.record, report, len(self._registry))

    # --- leaving -------------------------------------------------------------------------------------------------

    async def deregister(self, group: str, name: str, session: str, *, gates_closed: bool, principal: str = "") -> bool:
        async with self._mirror(group, name) as mirror:
            await check_principal(self._store, mirror, name, principal)
            if gates_closed and await self._end_displaced(mirror, name, session):
                return False

            def check(current: Stored[Consumer] | None) -> Stored[Consumer]:
                return sessions.authorize(current, group, name, session, principal)

            # Draining goes first, so that the leader does not wait for the session to come back.
            consumer = await self._drain(mirror, await authorized(self._store, mirror, name, session, principal), check)
            if not gates_closed:
                return sessions.has_to_wait(mirror.state, name)
            await self._store.revoke(consumer.lease)
            log.info("consumer_deregistered", group=group, consumer=name, session=session_digest(session))
            return False

    async def step_out(self, group: str, name: str, session: str, *, principal: str = "") -> None:
        async with self._mirror(group, name) as mirror:

            def change(current: Stored[Consumer] | None) -> Consumer:
                return sessions.step_out(sessions.authorize(current, group, name, session, principal).record)

            consumer = await authorized(self._store, mirror, name, session, principal)
            what = f"consumer {name!r}"
            result = await update(self._store, consumer.key, Consumer, change, what=what, known=consumer)
            if isinstance(result, Updated):
                log.info("consumer_stepped_out", group=group, consumer=name, session=session_digest(session))
                await mirror.wait_for(result.revision)

    async def _end_displaced(self, mirror: GroupMirror, name: str, session: str) -> bool:
        """End the lease of a displaced session early, because it reports that it stopped; whether it was displaced."""
        lease = sessions.displaced_lease(mirror.state.consumers.get(name), session)
        if not lease:
            return False
        await self._store.revoke(lease)
        log.info("displaced_session_ended", group=mirror.group, consumer=name, session=session_digest(session))
        return True

    async def drain(self, group: str, name: str) -> int:
        """Drain a consumer on behalf of an operator. Returns how many partitions it still has to hand over."""
        async with self._mirrors.of(group) as mirror:

            def check(current: Stored[Consumer] | None) -> Stored[Consumer]:
                return sessions.check_registered(current, group, name)

            await self._drain(mirror, await registered(self._store, mirror, name), check)
            return len(mirror.state.to_hand_over(name))

    async def _drain(
        self,
        mirror: GroupMirror,
        consumer: Stored[Consumer],
        check: Callable[[Stored[Consumer] | None], Stored[Consumer]],
    ) -> Stored[Consumer]:
        """Mark the registration as draining, if it is not yet, and wait until that is mirrored.

        Returns the registration that was marked. `check` says whether the one that a conflict found may be marked."""
        marked = consumer

        def change(current: Stored[Consumer] | None) -> Consumer:
            nonlocal marked
            marked = check(current)
            return sessions.drain(marked.record)

        name = consumer.record.consumer_name
        result = await update(self._store, consumer.key, Consumer, change, what=f"consumer {name!r}", known=consumer)
        if isinstance(result, Updated):
            log.info("consumer_drain_started", group=mirror.group, consumer=name)
            await mirror.wait_for(result.revision)
        return marked


def _may_be_denied(current: Stored[Consumer], session: str, registration: Registration) -> bool:
    held = not registration.takeover and current.record.session != session
    return held or not sessions.may_use(current.record, registration.principal)
