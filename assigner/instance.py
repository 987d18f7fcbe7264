"""Runs one instance without gRPC and HTTP: store, mirrors, membership, operations and leadership on one event loop.

`Service` adds gRPC and HTTP; tests and simulations use it as it is. It waits for a store that can't be reached at the
start. At shutdown it resigns from its groups before anything else, so that another instance takes over at once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

import anyio
import anyio.abc
import anyio.to_thread

from assigner.admin.deletion import GroupDeletion
from assigner.admin.loads import LoadOperations
from assigner.admin.operations import Operations
from assigner.aio.backoff import Backoff
from assigner.aio.shutdown import background, shielded
from assigner.aio.supervision import Supervisor
from assigner.backend import Backend, Presence
from assigner.backend import load as load_backend
from assigner.clock import Clock, SystemClock
from assigner.core.kafka_groups.classic.actions import Limits as ClassicLimits
from assigner.core.offset_commits import CommitQuota
from assigner.election import LeaderElector, Term
from assigner.errors import AssignerError, InvalidInput, StoreError, StoreUnavailable
from assigner.kafka_groups.assignor import ServerAssignor
from assigner.kafka_groups.service import ClassicGroupService
from assigner.leader.coordinator import CoordinatorSettings
from assigner.leader.leadership import Leadership, LeadershipSettings
from assigner.leader.summaries import SummaryWriter
from assigner.leader.terms import Coordinators
from assigner.logs import get_logger
from assigner.members.load_reports import LoadReports
from assigner.members.registration import MemberService
from assigner.members.streams import ConsumerStreams
from assigner.observability.event_log import EventLog
from assigner.observability.instance_metrics import InstanceSnapshot
from assigner.observability.metrics import GroupSnapshot, Metrics, snapshot
from assigner.offsets.commit import OffsetService
from assigner.offsets.reset import OffsetReset
from assigner.routers.registration import RouterService
from assigner.routers.streams import RouterStreams
from assigner.settings import Settings
from assigner.storage.groups import GroupDirectory, check_not_shared, discover
from assigner.storage.health import StoreContact, StoreHealth
from assigner.storage.incarnation import Incarnation
from assigner.storage.kinds import CLASSIC
from assigner.storage.mirror import Mirrors
from assigner.store import Store
from assigner.strategy.registry import prepare
from assigner.topics import KafkaSource, TopicQuota
from assigner.topics.catalog import GroupTopics

R = TypeVar("R")
_CLOSE_WITHIN = 10.0

log = get_logger("assigner.instance")


class Instance:
    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock | None = None,
        backend: Backend | None = None,
        leadership: LeadershipSettings | None = None,
    ) -> None:
        self.settings = settings
        self.name = settings.instance.name
        self.clock: Clock = clock or SystemClock()
        self.keys = settings.keys()
        self.metrics = Metrics(max_groups=settings.metrics.max_groups, per_consumer=settings.metrics.per_consumer)
        self.supervisor = Supervisor()
        self.leadership: Leadership | None = None
        self.lead_classic: Callable[[Term], Awaitable[None]] = _no_members
        """A leader's work for a group of classic Kafka members, until it is cancelled. All its writes must have the
        term's fence as a precondition: that one fails, too, once the group has changed its kind."""
        self.draining = False
        self.health: StoreHealth | None = None
        self._backend = backend or load_backend(settings.store.backend)
        self._leadership_settings = leadership or LeadershipSettings(
            spread=settings.spread, stop_within=min(LeadershipSettings().stop_within, settings.shutdown_timeout)
        )
        self._elector: LeaderElector | None = None
        self._announced = anyio.Event()
        self._contact: StoreContact | None = None
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await self._open(stack)
            self._stack = stack.pop_all()
        return self

    async def _open(self, stack: AsyncExitStack) -> None:
        settings = self.settings
        # Finding and importing a strategy takes a while: not on the loop, and not when the first consumer waits.
        await anyio.to_thread.run_sync(prepare, settings.group.strategy)
        self.events = await self._open_event_log(stack)
        self.store = await self._open_store(stack)
        tasks = await stack.enter_async_context(background())
        assert self.health is not None
        tasks.start_soon(self.supervisor.keep, "store health", self.health.run, name="store health")
        self.incarnation = Incarnation(self.store, self.keys, self.clock)
        self.directory = await stack.enter_async_context(self._directory().running())
        self.mirrors = await stack.enter_async_context(self._mirrors().running())
        self.registry = ConsumerStreams(max_streams=settings.grpc.max_streams)
        self.topics = self._group_topics()
        stack.push_async_callback(shielded, self.topics.close, _CLOSE_WITHIN)
        self.load_reports = LoadReports(self.store, self.keys, self.clock, self.metrics, settings.loads)
        self.members = await stack.enter_async_context(self._membership().running())
        self.router_streams = RouterStreams(max_streams=settings.grpc.max_streams)
        self.routers = await stack.enter_async_context(self._router_service().running())
        loads = LoadOperations(self.store, self.keys, self.mirrors, self.clock)
        offsets = OffsetService(
            self.store,
            self.keys,
            self.mirrors,
            self.clock,
            self.metrics,
            supervisor=self.supervisor,
            quota=CommitQuota(settings.quotas.commit_rate, settings.quotas.metadata_bytes),
        )
        self.offsets = await stack.enter_async_context(offsets.running())
        setting = OffsetReset(self.store, self.keys, self.clock)
        deletion = GroupDeletion(self.store, self.keys, self.directory, settings.group)
        self.operations = Operations(
            self.store,
            self.keys,
            self.directory,
            self.mirrors,
            self.members,
            self.topics.set,
            loads,
            setting,
            deletion,
            self.topics.ensure,
        )
        self.kafka_groups = self._classic_groups(deletion)
        self.lead_classic = self.kafka_groups.run_term
        wanted = CoordinatorSettings(
            consumer_ttl=settings.consumer_ttl, reconcile_interval=settings.reconcile_interval, loads=settings.loads
        )
        self.coordinators = Coordinators(
            self.store, self.keys, self.mirrors, self.clock, self.metrics, wanted, self.events
        )
        self.summaries = SummaryWriter(self.store, self.keys, self.coordinators.leading)
        self._watch_depths()
        self.metrics.snapshots = self.snapshots
        self.metrics.instance = self.snapshot

    def _group_topics(self) -> GroupTopics:
        quotas, kafka = self.settings.quotas, self.settings.kafka_in_force()
        source = None
        if kafka.bootstrap_servers:
            source = KafkaSource(
                kafka.bootstrap_servers,
                kafka.properties,
                timeout=kafka.metadata_timeout,
                properties_file=kafka.properties_file,
            )
        quota = TopicQuota(
            self.store,
            self.keys,
            topics=quotas.topics,
            partitions=quotas.partitions,
            topic_partitions=quotas.topic_partitions,
            refused=self.metrics.refused,
        )
        return GroupTopics(
            self.store,
            self.keys,
            self.metrics,
            quota,
            counts=self.settings.topics,
            kafka=source,
            refresh_interval=kafka.refresh_interval,
        )

    async def _open_event_log(self, stack: AsyncExitStack) -> EventLog | None:
        wanted = self.settings.events
        if not wanted.directory:
            return None
        events = EventLog(wanted, self.name, self.metrics)
        try:
            await anyio.to_thread.run_sync(events.open)
        except OSError as error:
            raise InvalidInput(
                f"events.directory {wanted.directory!r} can't be written: {error}; "
                "give a directory this process may write to, or leave it empty to log no ownership events"
            ) from error

        async def close() -> None:
            await anyio.to_thread.run_sync(events.close)

        stack.push_async_callback(shielded, close, _CLOSE_WITHIN)
        self.metrics.watch_depth("events", lambda: events.waiting)
        return events

    async def _open_store(self, stack: AsyncExitStack) -> Store:
        store = await self._connect()
        stack.push_async_callback(shielded, store.close, _CLOSE_WITHIN)
        self.health = StoreHealth(store, self.keys, self.name)
        if hasattr(store, "observe"):
            store.observe = self.health.observing(self.metrics.observe)
        return store

    async def _connect(self) -> Store:
        """Connect to the store, with retries without end: a restart of the process would not help."""
        backoff = Backoff(self.name)
        while True:
            try:
                return await self._backend.open(self.settings.store, self.clock)
            except StoreUnavailable as error:
                log.warning("store_connection_failed", error=str(error), tries=backoff.tries + 1)
                await backoff.pause()

    def _directory(self) -> GroupDirectory:
        return GroupDirectory(
            self.store,
            self.keys,
            most=self.settings.quotas.groups,
            refused=self.metrics.refused,
            supervisor=self.supervisor,
        )

    def _mirrors(self) -> Mirrors:
        return Mirrors(
            self.store,
            self.keys,
            self.settings.group,
            check=self.directory.check,
            refused=self.metrics.refused,
            supervisor=self.supervisor,
        )

    def _membership(self) -> MemberService:
        return MemberService(
            self.store,
            self.directory,
            self.mirrors,
            self.registry,
            self.clock,
            instance=self.name,
            ttl=self.settings.consumer_ttl,
            ensure_topics=self.topics.ensure,
            load_reports=self.load_reports,
            supervisor=self.supervisor,
        )

    def _router_service(self) -> RouterService:
        return RouterService(
            self.store,
            self.keys,
            self.directory,
            self.mirrors,
            self.router_streams,
            self.clock,
            self.metrics,
            instance=self.name,
            ttl=self.settings.consumer_ttl,
            loads_interval=self.settings.loads.interval,
            supervisor=self.supervisor,
        )

    def _classic_groups(self, deletion: GroupDeletion) -> ClassicGroupService:
        gateway = self.settings.gateway

        async def delete(group: str) -> None:
            more = True
            while more:
                _, more = await deletion.delete_group(group, force=True)

        return ClassicGroupService(
            self.store,
            self.keys,
            self.directory,
            self.mirrors,
            self.offsets,
            self.clock,
            self.metrics,
            limits=ClassicLimits(
                initial_delay=round(gateway.initial_rebalance_delay * 1000),
                min_session_timeout=round(gateway.min_session_timeout * 1000),
                max_session_timeout=round(gateway.max_session_timeout * 1000),
                max_members=gateway.max_group_size,
            ),
            retention=gateway.offsets_retention,
            delete=delete,
            assignor=ServerAssignor(self.store, self.keys, self.settings.group, self.topics.ensure),
        )

    # --- leading -------------------------------------------------------------------------------------------------

    async def lead(self, address: str) -> None:
        """Announce the instance under `address` and lead its groups, until drained.

        Raises `Superseded` when another process took over the instance's name, `StoreReplaced` when the store's data
        was replaced."""
        presence = Presence(self.name, address, self.settings.leader_ttl)
        elector = await self._reach_store(presence)
        self.leadership = Leadership(
            self.store,
            self.keys,
            elector,
            presence,
            self.clock,
            self._run_term,
            self._leadership_settings,
            self.supervisor,
        )
        self._elector = elector
        self._announced.set()
        log.info("instance_ready", instance=presence.name, address=presence.address)
        await self._lead_until_replaced(self.leadership)

    async def _lead_until_replaced(self, leadership: Leadership) -> None:
        ended: list[AssignerError] = []

        async def watch_store() -> None:
            ended.append(await self.incarnation.replaced())
            tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            watching = partial(self.supervisor.keep, "store's life", watch_store, may_end=True)
            tasks.start_soon(watching, name="store's life")
            write_summaries = partial(self.summaries.run, lambda: leadership.led)
            tasks.start_soon(self.supervisor.keep, "summaries", write_summaries, name="summaries")
            try:
                await leadership.run()
            except AssignerError as error:
                # Raised after the group, which would wrap it.
                ended.append(error)
            tasks.cancel_scope.cancel()
        if ended:
            raise ended[0]

    async def _reach_store(self, presence: Presence) -> LeaderElector:
        async def prepare() -> LeaderElector:
            await self._prepare_store()
            await discover(self.store, self.keys)
            await self.topics.apply_settings()
            return await self._backend.elector(self.store, self.keys, presence, self.clock)

        return await self._persistently(prepare)

    async def _prepare_store(self) -> None:
        await self.incarnation.id()
        await check_not_shared(self.store, self.keys)

    async def _persistently(self, work: Callable[[], Awaitable[R]]) -> R:
        backoff = Backoff(self.name)
        while True:
            try:
                return await work()
            except StoreError as error:
                log.warning("store_preparation_failed", error=str(error), tries=backoff.tries + 1)
                await backoff.pause()

    async def _run_term(self, term: Term, kind: str) -> None:
        """Do a leader's work for a group of this kind: coordinate consumers, or `lead_classic` for Kafka's classic
        members. The topics of both follow Kafka."""
        async with anyio.create_task_group() as tasks:
            if self.topics.follows_kafka:
                refresh = partial(self.topics.refresh, term, self.mirrors)
                tasks.start_soon(
                    partial(self.supervisor.keep, "topic refresh", refresh, group=term.group),
                    name=f"topics of {term.group}",
                )
            if kind == CLASSIC:
                await self._lead_classic(term)
            else:
                # Also if the group is classic by now: then it has no consumers, and there is nothing to do.
                await self.coordinators.run_term(term)
            tasks.cancel_scope.cancel()

    async def _lead_classic(self, term: Term) -> None:
        # The index is mirrored, and may show a kind of before. What the store says holds as long as the term does: a
        # change of kind ends it.
        if await self.directory.kind(term.group) == CLASSIC:
            await self.lead_classic(term)
        else:
            await anyio.sleep_forever()

    # --- serving without leading -----------------------------------------------------------------------------------

    async def attach(self) -> None:
        """Use the store without leading any group, or being announced as one that could, until drained.

        Raises `StoreReplaced` when the store's data was replaced."""
        await self._persistently(self._prepare_store)
        self._contact = StoreContact(self.store, self.keys, self.settings.leader_ttl / 3)
        self._announced.set()
        log.info("instance_attached", instance=self.name)
        replaced: list[AssignerError] = []
        async with anyio.create_task_group() as tasks:
            keep = partial(self.supervisor.keep, "store contact", self._contact.run)
            tasks.start_soon(keep, name="store contact")
            replaced.append(await self.incarnation.replaced())
            tasks.cancel_scope.cancel()
        # Raised after the group, which would wrap it.
        raise replaced[0]

    async def wait_ready(self) -> None:
        """Return once the store was reached and the settings' topics are written."""
        await self._announced.wait()

    # --- status -------------------------------------------------------------------------------------------------

    def warnings(self) -> list[str]:
        """Problems despite which this instance is still useful, for `/readyz`."""
        return [self.health.trouble] if self.health and self.health.trouble else []

    def problems(self) -> list[str]:
        """The reasons why this instance should get no traffic now."""
        if self.draining:
            return ["shutting down"]
        if self._contact is not None:
            return [] if self._contact.answers else ["the store does not answer"]
        if self._elector is None:
            return ["the store has not been reached yet"]
        if not self._elector.healthy():
            return ["the store does not renew this instance's lease"]
        return []

    def failures(self) -> list[str]:
        """The failures that only a restart of the process can cure, for `/livez`."""
        failed = self.supervisor.problems()
        if hasattr(self, "store"):
            failed += self.store.problems()
        if self._elector is not None:
            failed += self._elector.problems()
        return failed

    def snapshot(self) -> InstanceSnapshot:
        led = self.leadership.statistics() if self.leadership else None
        restarts = Counter(self.supervisor.restarts)
        for supervised in (self.store, self._elector):
            restarts.update(supervised.restarts() if supervised else {})
        return InstanceSnapshot(
            store_read_only=bool(self.warnings()),
            tasks=len(asyncio.all_tasks()),
            instances=led.instances if led else 0,
            groups=led.groups if led else 0,
            led=led.led if led else 0,
            misplaced=led.misplaced if led else 0,
            terms_won=led.terms_won if led else 0,
            terms_lost=led.terms_lost if led else 0,
            term_failures=led.crashes if led else 0,
            handovers=led.handovers if led else 0,
            restarts=restarts,
        )

    def snapshots(self) -> list[GroupSnapshot]:
        self.metrics.streams(len(self.registry))
        self.metrics.router_streams(len(self.router_streams))
        # The partitions of a classic group are its members' own matter: here they would count as unowned.
        mirrors = (one for one in self.mirrors.groups() if self.directory.mirrored_kind(one.group) != CLASSIC)
        return [snapshot(mirror.state, mirror.group in self.coordinators.leading) for mirror in mirrors]

    def _watch_depths(self) -> None:
        active = self.coordinators.active
        self.metrics.watch_depth("outboxes", lambda: self.registry.backlog + self.router_streams.backlog)
        self.metrics.watch_depth("loads", lambda: len(self.load_reports))
        self.metrics.watch_depth("acks", lambda: self.members.waiting_writes + self.routers.waiting_writes)
        self.metrics.watch_depth("offsets", lambda: self.offsets.waiting)
        self.metrics.watch_depth("kafka_requests", lambda: self.kafka_groups.held)
        self.metrics.watch_depth("writes", lambda: sum(c.statistics()["writing"] for c in active.values()))
        self.metrics.watch_depth("moves", lambda: sum(c.statistics()["queued_moves"] for c in active.values()))

    # --- shutdown ----------------------------------------------------------------------------------------------

    async def stop_leading(self) -> None:
        """Resign from every group, and campaign for none any more."""
        self.draining = True
        if self.leadership:
            await self.leadership.stop()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await shielded(self.stop_leading, self.settings.shutdown_timeout)
        if self._elector:
            await shielded(self._elector.close, self.settings.shutdown_timeout)
        await self._stack.aclose()


async def _no_members(_: Term) -> None:
    """Lead a group whose members no part of this instance serves."""
    await anyio.sleep_forever()
