"""One instance of the service, put together: store, mirrors, membership, coordinators, gRPC and HTTP on one loop.

It comes up in stages and says so: probes answer first, then consumers are served, then groups are led once the store
can be reached. A store that is away at the start is waited for. It goes down the other way round: groups are given up
first, so that another instance takes over at once, then streams end with a status, then everything is closed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import Self

import anyio
import anyio.abc
import structlog

from assigner.administration import Operations
from assigner.backend import Backend, Presence
from assigner.backend import load as load_backend
from assigner.backoff import Backoff
from assigner.clock import Clock, SystemClock
from assigner.coordinator import Coordinators, CoordinatorSettings
from assigner.election import LeaderElector, Term
from assigner.errors import AssignerError, StoreError
from assigner.group_snapshot import snapshot
from assigner.group_topics import GroupTopics
from assigner.groups import discover
from assigner.leadership import Leadership, LeadershipSettings
from assigner.membership import Membership
from assigner.metrics import GroupSnapshot, Metrics
from assigner.mirror import Mirrors
from assigner.registry import Registry
from assigner.server import GrpcServer
from assigner.settings import Settings
from assigner.store import Store
from assigner.web import Liveness, WebServer

_CLOSE_WITHIN = 10.0

log = structlog.get_logger("assigner.service")


class Service:
    """`async with Service(settings) as service: await service.run_until_stopped()`"""

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock | None = None,
        backend: Backend | None = None,
        leadership: LeadershipSettings | None = None,
    ) -> None:
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self.keys = settings.keys()
        self._backend = backend or load_backend(settings.store.backend)
        self._leadership_settings = leadership
        self._stop = anyio.Event()
        self._stack = AsyncExitStack()
        self._tasks: anyio.abc.TaskGroup | None = None
        self._elector: LeaderElector | None = None
        self._failure: AssignerError | None = None
        self._announced = anyio.Event()
        self.draining = False
        self.leadership: Leadership | None = None

    # --- coming up -----------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await self._open(stack)
            self._stack = stack.pop_all()
        return self

    async def _open(self, stack: AsyncExitStack) -> None:
        settings = self.settings
        self.metrics = Metrics(
            self._snapshots, max_groups=settings.metrics.max_groups, per_consumer=settings.metrics.per_consumer
        )
        self.liveness = Liveness(self.clock, stall=settings.http.stall)
        self.store = await self._open_store(stack)
        self.mirrors = await stack.enter_async_context(Mirrors(self.store, self.keys, settings.group).running())
        self.registry = Registry(self.mirrors, max_seats=settings.grpc.max_streams)
        self.topics = GroupTopics(self.store, self.keys, settings, self.clock)
        self.members = await stack.enter_async_context(self._membership().running())
        self.operations = Operations(self.store, self.keys, self.mirrors, self.members, self.topics.set)
        self.coordinators = self._make_coordinators()
        await self._listen(stack)
        self._watch_depths()
        self._tasks = await stack.enter_async_context(_background())
        self._tasks.start_soon(self._lead)

    async def _open_store(self, stack: AsyncExitStack) -> Store:
        store = await self._backend.open(self.settings.store, self.clock)
        stack.push_async_callback(_in_peace, store.close, _CLOSE_WITHIN)
        if hasattr(store, "observe"):
            store.observe = self.metrics.observe
        return store

    def _membership(self) -> Membership:
        return Membership(
            self.store,
            self.keys,
            self.mirrors,
            self.registry,
            self.clock,
            instance=self.settings.instance.name,
            ttl=self.settings.consumer_ttl,
            ensure_topics=self.topics.ensure,
        )

    def _make_coordinators(self) -> Coordinators:
        wanted = CoordinatorSettings(
            consumer_ttl=self.settings.consumer_ttl, reconcile_interval=self.settings.reconcile_interval
        )
        return Coordinators(self.store, self.keys, self.mirrors, self.clock, self.metrics, wanted)

    async def _listen(self, stack: AsyncExitStack) -> None:
        settings = self.settings
        self.web = WebServer(settings.http, self.problems, self.liveness, self.metrics, self.clock)
        await self.web.start()
        stack.push_async_callback(_in_peace, self.web.close, _CLOSE_WITHIN)
        self.server = GrpcServer(
            settings.grpc,
            self.members,
            self.operations,
            default_group=settings.default_group,
            clock=self.clock,
            ready=lambda: not self.problems(),
            check_group=self.keys.check_group,
        )
        await self.server.start()
        stack.push_async_callback(_in_peace, self.server.close, _CLOSE_WITHIN)

    async def wait_ready(self) -> None:
        """Return once the store was reached and the settings' topics are written."""
        await self._announced.wait()

    @property
    def address(self) -> str:
        return self.settings.advertised_address(self.server.port)

    # --- leading -------------------------------------------------------------------------------------------------

    async def _lead(self) -> None:
        with self.liveness.essential("leadership"):
            try:
                await self._announce()
                assert self.leadership is not None
                await self.leadership.run()
            except AssignerError as error:
                # Another process took this instance's name: it can't lead, and serving on would only confuse.
                log.error("stopping", error=str(error))
                self._failure = error
                self.stop()

    async def _announce(self) -> None:
        """Make this instance known and ready to campaign, however long the store takes to come."""
        presence = Presence(self.settings.instance.name, self.address, self.settings.leader_ttl)
        elector = await self._reach_store(presence)
        self.leadership = Leadership(
            self.store, self.keys, elector, presence, self.clock, self._run_term, self._leadership_settings
        )
        self._elector = elector
        self._announced.set()
        log.info("instance ready", instance=presence.name, address=presence.address)

    async def _reach_store(self, presence: Presence) -> LeaderElector:
        backoff = Backoff(presence.name)
        while True:
            try:
                await discover(self.store, self.keys)
                await self.topics.apply_settings()
                return await self._backend.elector(self.store, self.keys, presence, self.clock)
            except StoreError as error:
                log.warning("store not ready", error=str(error), tries=backoff.tries + 1)
                await backoff.pause()

    async def _run_term(self, term: Term) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.topics.refresh, term, self.mirrors)
            await self.coordinators.run_term(term)
            tasks.cancel_scope.cancel()

    # --- telling -------------------------------------------------------------------------------------------------

    def problems(self) -> list[str]:
        """Why this instance should get no traffic now."""
        if self.draining:
            return ["shutting down"]
        if self._elector is None:
            return ["the store has not been reached yet"]
        if not self._elector.healthy():
            return ["the store does not renew this instance's lease"]
        return []

    def _snapshots(self) -> Iterable[GroupSnapshot]:
        served = self.server.statistics()
        self.metrics.streams(len(self.registry))
        self.metrics.connections(served.connections)
        return [snapshot(mirror.state, mirror.group in self.coordinators.at_work) for mirror in self.mirrors.groups()]

    def _watch_depths(self) -> None:
        coordinators = self.coordinators.at_work
        self.metrics.watch_depth("outboxes", lambda: self.registry.backlog)
        self.metrics.watch_depth("answers", lambda: self.members.waiting_writes)
        self.metrics.watch_depth("writes", lambda: sum(c.statistics()["writing"] for c in coordinators.values()))
        self.metrics.watch_depth("moves", lambda: sum(c.statistics()["queued_moves"] for c in coordinators.values()))

    # --- going down ----------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Ask the service to go down; `run_until_stopped` returns."""
        self._stop.set()

    async def run_until_stopped(self) -> None:
        """Serve until `stop` is called, then drain. Raises what made serving pointless."""
        await self._stop.wait()
        await self.drain()
        if self._failure:
            raise self._failure

    async def drain(self) -> None:
        """Give the groups up, then the streams."""
        if self.draining:
            return
        self.draining = True
        if self.leadership:
            await self.leadership.stop()
        await self.server.drain(self.settings.shutdown_timeout)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await _in_peace(self.drain, self.settings.shutdown_timeout)
        if self._elector:
            await _in_peace(self._elector.close, self.settings.shutdown_timeout)
        await self._stack.aclose()
        log.info("stopped", instance=self.settings.instance.name)


@asynccontextmanager
async def _background() -> AsyncIterator[anyio.abc.TaskGroup]:
    async with anyio.create_task_group() as tasks:
        yield tasks
        tasks.cancel_scope.cancel()


async def _in_peace(work: Callable[[], Awaitable[None]], within: float) -> None:
    """Leaving in order, also when the service is being cancelled; but not for ever."""
    with anyio.move_on_after(within, shield=True):
        await work()
