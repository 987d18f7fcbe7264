"""Serves the calls of routers: they register, renew, acknowledge freezes and leave. See `assigner.api.Routers`.

Every instance serves every router, because all that is known of a router is in the store. The rules are those of
`assigner.core.routers`; this module reads, writes and retries.

A router sends requests for as long as it may believe that freezes wait for it. So a renewal is answered only after the
lease was renewed and the registration was then found in the store: one that was deleted, by whomever, is not renewed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import anyio.abc

from assigner.aio.supervision import Supervisor
from assigner.api import RejectedAck, RouterRegistration
from assigner.clock import Clock
from assigner.core.group import GroupState
from assigner.core.routers import sessions
from assigner.core.routers.sessions import RouterTerms
from assigner.errors import (
    LeaseNotFound,
    NotRegistered,
    PermissionDenied,
    StoreError,
    StoreUnavailable,
    Superseded,
    UnknownGroup,
)
from assigner.logs import get_logger
from assigner.model.keys import Keys
from assigner.model.names import session_digest
from assigner.model.records import Router, Stored, encode, stored
from assigner.model.routes import FreezeAck
from assigner.observability.metrics import Metrics
from assigner.routers.acks import FreezeAcks
from assigner.routers.loads import RouterLoads
from assigner.routers.streams import RouterStreams, RoutingStream
from assigner.storage.batch_writer import BatchWriter
from assigner.storage.groups import GroupDirectory
from assigner.storage.mirror import GroupMirror, Mirrors
from assigner.store import Compare, Found, LeaseGone, Put, Store
from assigner.streams.leases import SessionLeases

TRIES = 8

log = get_logger("assigner.routers.registration")


class RouterService:
    def __init__(
        self,
        store: Store,
        keys: Keys,
        directory: GroupDirectory,
        mirrors: Mirrors,
        registry: RouterStreams,
        clock: Clock,
        metrics: Metrics,
        *,
        instance: str,
        ttl: float,
        loads_interval: float,
        supervisor: Supervisor | None = None,
    ) -> None:
        self._store = store
        self._directory = directory
        self._mirrors = mirrors
        self._registry = registry
        self._clock = clock
        self._metrics = metrics
        self._instance = instance
        self._supervisor = supervisor or Supervisor()
        self._leases = SessionLeases(store, ttl)
        self._writer = BatchWriter(store)
        self._acks = FreezeAcks(store, self._writer)
        self._loads = RouterLoads(store, keys, clock, registry, self._state_of, interval=loads_interval)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[RouterService]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._writer.run, self._supervisor, name="acks of routers")
            tasks.start_soon(self._supervisor.keep, "loads for routers", self._loads.run, name="loads for routers")
            yield self
            tasks.cancel_scope.cancel()

    @property
    def waiting_writes(self) -> int:
        return len(self._writer)

    def _state_of(self, group: str) -> GroupState | None:
        mirror = self._mirrors.get(group)
        return mirror.state if mirror else None

    # --- joining -------------------------------------------------------------------------------------------------

    async def register(self, registration: RouterRegistration) -> RoutingStream:
        sessions.check_registration(registration)
        self._registry.check_room()
        entered = await self._directory.enter(registration.group)
        async with AsyncExitStack() as resources:
            mirror = await resources.enter_async_context(self._mirrors.of(registration.group))
            sessions.check_room(mirror.state, registration.name)
            router = await self._enter(mirror, registration, entered)
            stream = self._registry.open(mirror, router, resources, wants_loads=registration.loads)
        if registration.loads:
            self._loads.ask(stream)
        return stream

    async def _enter(self, mirror: GroupMirror, registration: RouterRegistration, entered: Compare) -> Router:
        """Write the registration, resuming a session that is still alive, and wait until it is mirrored. `entered`: the
        precondition that the group is there and of the right kind."""
        name, session = registration.name, registration.session
        for attempt in range(TRIES):
            if attempt:
                # The write may have failed because the group was deleted meanwhile, or changed its kind.
                entered = await self._directory.enter(mirror.group, fresh=True)
            current = await self._look_up(mirror, name)
            sessions.check_may_register(current, registration)
            sessions.check_takeover(mirror.state, current, session)
            lease, ttl, granted = await self._leases.lease(sessions.lease_to_resume(current, session))
            terms = RouterTerms(
                registration=registration, instance=self._instance, ttl=ttl, now=int(self._clock.wall())
            )
            record = sessions.register(current, terms)
            put = Put(mirror.state.keys.router(name), current.encode(record) if current else encode(record), lease)
            displaced = sessions.displace(mirror.state.keys, current, session)
            try:
                revision = await self._leases.put(
                    put,
                    current.mod_revision if current else 0,
                    [entered],
                    displaced,
                    granted=granted,
                )
                if revision:
                    # The table that follows is at least as new: every freeze that did not wait for this router is in.
                    await mirror.wait_for(revision)
                    log.info(
                        "router_session_registered",
                        group=mirror.group,
                        router=name,
                        session=session_digest(session),
                        principal=registration.principal,
                        resumed=not granted,
                        takeover=bool(displaced),
                    )
                    return record
            except LeaseNotFound:
                # The lease of the session that is displaced has ended meanwhile, or our own.
                revision = 0
            except BaseException:
                if granted and current is None:
                    await self._leases.revoke(lease)
                raise
            if granted:
                await self._leases.revoke(lease)
        raise StoreUnavailable(f"router {name!r} is being registered by others too; try again")

    async def _look_up(self, mirror: GroupMirror, name: str) -> Stored[Router] | None:
        """Read a registration from the store. Raises `UnreadableRecord`: one that can't be read is not overwritten.

        Never from the mirror: routers are few, and what one may do must not depend on how far a mirror is."""
        result = await self._store.get(mirror.state.keys.router(name))
        return stored(Router, result.entry) if isinstance(result, Found) else None

    @asynccontextmanager
    async def _mirror(self, group: str, name: str, session: str) -> AsyncIterator[GroupMirror]:
        """Load the mirror of a router's group. Raises `NotRegistered` if there is no such group."""
        async with AsyncExitStack() as hold:
            try:
                mirror = await hold.enter_async_context(self._mirrors.of(group))
            except UnknownGroup:
                raise sessions.not_registered(group, name, session) from None
            yield mirror

    async def _authorized(self, mirror: GroupMirror, name: str, session: str, principal: str) -> Stored[Router]:
        return sessions.authorize(await self._look_up(mirror, name), mirror.group, name, session, principal)

    # --- staying -------------------------------------------------------------------------------------------------

    async def renew(self, group: str, name: str, session: str, *, principal: str = "") -> float:
        async with self._mirror(group, name, session) as mirror:
            router = await self._authorized(mirror, name, session, principal)
            renewed = await self._store.keep_alive(router.lease)
            if isinstance(renewed, LeaseGone):
                raise sessions.not_registered(group, name, session)
            # A lease may be alive whose key is gone; then no freeze waits for this router.
            await self._authorized(mirror, name, session, principal)
            return renewed.ttl

    async def cutover_ack(
        self, group: str, name: str, session: str, acks: Sequence[FreezeAck], *, principal: str = ""
    ) -> list[RejectedAck]:
        async with self._mirror(group, name, session) as mirror:

            async def look_up() -> Stored[Router]:
                return await self._authorized(mirror, name, session, principal)

            known = mirror.state.routers.get(name)
            if known is None or not sessions.may_act(known.record, session, principal):
                known = await look_up()
            rejected = await self._acks.write(mirror, known, look_up, acks, int(self._clock.wall()))
            for one in rejected:
                if isinstance(one.error, NotRegistered | Superseded | PermissionDenied | StoreError):
                    # Not about one partition: the caller may not ack at all, or the store takes nothing now. Then all
                    # are to be sent again; those that are on record already are not written again.
                    raise one.error
            self._metrics.freezes_acked(group, accepted=len(acks) - len(rejected), rejected=len(rejected))
            return rejected

    # --- leaving -------------------------------------------------------------------------------------------------

    async def deregister(self, group: str, name: str, session: str, *, principal: str = "") -> None:
        async with self._mirror(group, name, session) as mirror:
            router = await self._own_registration(mirror, name, session, principal)
            await self._store.revoke(router.lease)
            log.info("router_session_deregistered", group=group, router=name, session=session_digest(session))

    async def _own_registration(self, mirror: GroupMirror, name: str, session: str, principal: str) -> Stored[Router]:
        """The session's registration, also if it lost its name: freezes may still wait for it."""
        displaced = await self._store.get(mirror.state.keys.displaced_router(name, session))
        if isinstance(displaced, Found):
            router = stored(Router, displaced.entry)
            if sessions.may_act(router.record, session, principal):
                return router
        return await self._authorized(mirror, name, session, principal)
