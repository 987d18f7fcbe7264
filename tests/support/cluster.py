"""A small cluster to act scenarios in: one store, any number of service instances, consumers that can be stepped.

The same scenario runs on both stores. In memory nothing touches a socket, so on a virtual-time loop
(`@pytest.mark.virtual_time`) an hour costs nothing; on a real etcd the same loop keeps real time. Consumers are
`SteppedConsumer`s.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Self, TypeVar

import anyio
import anyio.abc
import msgspec
import pytest

from assigner.backend import Backend, Presence, StoreSettings
from assigner.backend import load as load_backend
from assigner.backends.memory import MemoryBackend, MemoryState
from assigner.clock import Clock, LoopClock
from assigner.core.group import GroupState
from assigner.election import LeaderElector
from assigner.instance import Instance
from assigner.leader.leadership import LeadershipSettings
from assigner.model.keys import Keys, TopicPartition
from assigner.model.records import (
    Assignment,
    Consumer,
    GroupOptions,
    Handoff,
    Plan,
    Stored,
    TopicConfig,
    decode,
    encode,
)
from assigner.server import ServerSettings
from assigner.service import Service
from assigner.settings import HttpSettings, InstanceSection, Settings, StoreSection
from assigner.storage.update import update
from assigner.store import Batch, Event, Found, Limits, PutEvent, Store, read_all
from assigner.testing.faults import FaultyStore
from assigner.testing.waiting import eventually
from tests.support.servers.etcd import RunningEtcd
from tests.support.stepped_consumer import SteppedConsumer
from tests.support.stepped_router import SteppedRouter

R = TypeVar("R", bound=msgspec.Struct)
GROUP = "g"
BOTH_STORES = ["memory", pytest.param("etcd", marks=pytest.mark.etcd)]
"""For `@pytest.fixture(params=BOTH_STORES)`."""


def tp(partition: int, topic: str = "t") -> TopicPartition:
    return TopicPartition(topic, partition)


class Cluster:
    def __init__(
        self,
        backend: Backend,
        store_settings: StoreSection,
        *,
        ttl: float,
        options: GroupOptions,
        clock: Clock | None = None,
        groupless: bool = False,
    ) -> None:
        """`groupless`: the group's keys lie right under the root, as upstream's do."""
        self.backend = backend
        self.ttl = ttl
        self.options = options
        self.clock = clock or LoopClock()
        self.allowance = 0.0 if isinstance(backend, MemoryBackend) else ALLOWANCE
        """Seconds to add to a bound. On etcd time is real, and the machine may be busy with other things."""
        self.patience = 20.0 if isinstance(backend, MemoryBackend) else 90.0
        """How long a condition is waited for."""
        self.a_while = ttl / 3 if isinstance(backend, MemoryBackend) else 1.0
        """How long to look whether nothing happens: less than what is left of a lease."""
        self._default_prefix = store_settings.root if groupless else ""
        self.keys = Keys(store_settings.root, default_group=GROUP, default_prefix=self._default_prefix)
        self.group = self.keys.group(GROUP)
        self.instances: dict[str, Instance] = {}
        self.faults: dict[str, FaultyStore] = {}
        """Of the instances that were started faulty: their way to the store."""
        self.services: dict[str, Service] = {}
        self.consumers: dict[str, SteppedConsumer] = {}
        self._store_settings = store_settings
        self.tasks: anyio.abc.TaskGroup
        self._alive, self._over = anyio.Event(), anyio.Event()
        self._scopes: dict[str, anyio.CancelScope] = {}
        self._crashed: list[FaultyStore] = []

    async def __aenter__(self) -> Self:
        self.store: Store = await self.backend.open(self._store_settings, self.clock)
        self.began = (await self.store.get(self.keys.root)).revision
        """The store's revision before anything happened here."""
        # A fixture is left by another task than it was entered by, which a task group does not allow: it gets its own.
        self._life = asyncio.create_task(self._live())
        await self._alive.wait()
        return self

    async def _live(self) -> None:
        async with anyio.create_task_group() as self.tasks:
            self._alive.set()
            await self._over.wait()
            for store in self._crashed:
                # Nobody looks any more: what a crashed instance still waits for need not last to its deadline.
                store.thaw()
            for name in list(self.instances):
                await self.stop_instance(name)
            for name in list(self.services):
                await self.stop_service(name)
            self.tasks.cancel_scope.cancel()

    async def __aexit__(self, *_: object) -> None:
        self._over.set()
        await self._life
        await self.store.close()

    # --- instances -----------------------------------------------------------------------------------------------

    async def start_instance(
        self, name: str = "i1", *, wrap: Callable[[Store], Store] | None = None, leads: bool = True, **settings: Any
    ) -> Instance:
        """Start a service instance and wait until it is ready. `settings`: fields of `Settings` to change. `wrap`:
        what to put around its store, such as a `FaultyStore`. `leads`: whether it takes part in elections."""
        backend = _Wrapping(self.backend, wrap) if wrap else self.backend
        wanted = self._settings(name, **settings)
        instance = Instance(wanted, clock=self.clock, backend=backend, leadership=LeadershipSettings())
        await self.tasks.start(self._run_instance, name, instance, leads)
        if leads:
            await instance.wait_ready()
        return instance

    async def start_faulty(self, name: str = "i1", **how: Any) -> FaultyStore:
        """Start an instance whose way to the store can be disturbed."""

        def wrap(store: Store) -> Store:
            self.faults[name] = FaultyStore(store)
            return self.faults[name]

        await self.start_instance(name, wrap=wrap, **how)
        return self.faults[name]

    def _settings(self, name: str, **changes: Any) -> Settings:
        usual = Settings(
            instance=InstanceSection(name=name),
            store=self._store_settings,
            consumer_ttl=self.ttl,
            leader_ttl=self.ttl,
            group=self.options,
            default_group=GROUP,
            default_prefix=self._default_prefix,
        )
        return msgspec.structs.replace(usual, **changes)

    async def _run_instance(
        self,
        name: str,
        instance: Instance,
        leads: bool,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        with anyio.CancelScope() as scope:
            async with instance:
                self._scopes[name] = scope
                self.instances[name] = instance
                task_status.started()
                if leads:
                    await instance.lead(f"{name}:1")
                await anyio.sleep_forever()

    async def start_service(
        self, name: str = "s1", *, wrap: Callable[[Store], Store] | None = None, **settings: Any
    ) -> Service:
        """Start an instance with its doors open, gRPC and HTTP, each on a port of its own, and wait until it is
        ready. A client that names no group belongs to `GROUP`. `wrap`: what to put around its store."""
        ports = {"grpc": ServerSettings(port=0), "http": HttpSettings(port=0)}
        backend = _Wrapping(self.backend, wrap) if wrap else self.backend
        service = Service(self._settings(name, **{**ports, **settings}), clock=self.clock, backend=backend)
        await self.tasks.start(self._run_service, name, service)
        await service.wait_ready()
        return service

    async def _run_service(
        self, name: str, service: Service, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        async with service:
            self.services[name] = service
            task_status.started()
            await service.run_until_stopped()
        del self.services[name]

    async def stop_service(self, name: str = "s1") -> None:
        """In order, as on SIGTERM."""
        self.services[name].stop()
        await eventually(lambda: name not in self.services, within=30, what=f"{name} has stopped")

    async def stop_instance(self, name: str) -> None:
        """In order, as on SIGTERM."""
        instance = self.instances.pop(name)
        await instance.stop_leading()
        self._scopes.pop(name).cancel()

    def crash_instance(self, name: str) -> None:
        """The process is gone: whatever it still tries does not reach the store. It must have been started faulty."""
        store = self.faults.pop(name)
        store.freeze()
        self._crashed.append(store)
        del self.instances[name]
        self._scopes.pop(name).cancel()

    # --- records -------------------------------------------------------------------------------------------------

    async def add_topic(self, topic: str = "t", partitions: int = 8, **fields: Any) -> None:
        config = TopicConfig(topic=topic, partition_count=partitions, **fields)
        await self.store.put(self.group.topic(topic), encode(config))
        await self._index()

    async def _index(self) -> None:
        from assigner.storage.groups import make_known

        await make_known(self.store, self.keys, GROUP)

    async def set_options(self, **changes: Any) -> None:
        """Write the options, and keep how often an operator asked for a rebalance: that count never goes back."""
        self.options = msgspec.structs.replace(self.options, **changes)

        def changed(stored: Stored[GroupOptions] | None) -> GroupOptions:
            asked = stored.record.rebalance_requests if stored else 0
            return msgspec.structs.replace(self.options, rebalance_requests=asked)

        await update(self.store, self.group.options, GroupOptions, changed)

    async def put_consumer(self, name: str, *, lease_ttl: float | None = None, **fields: Any) -> int:
        """Write a registration the way upstream's server does: no session, no one behind it. Returns its lease."""
        lease = (await self.store.grant(lease_ttl or self.ttl)).lease
        record = Consumer(consumer_name=name, **fields)
        await self.store.put(self.group.consumer(name), encode(record), lease=lease)
        await self._index()
        return lease

    async def state(self) -> GroupState:
        """The group as it is stored now, by a fresh read."""
        page = await read_all(self.store, self.group.prefix)
        state = GroupState(self.group, self.options)
        for event in state.replace(page.entries):
            state.apply(event)
        state.revision = page.revision
        return state

    async def assignment(self, partition: TopicPartition) -> Assignment | None:
        return await self._record(Assignment, self.group.assignment(partition))

    async def handoff(self, partition: TopicPartition) -> Handoff | None:
        return await self._record(Handoff, self.group.handoff(partition))

    async def plan(self) -> Plan:
        return await self._record(Plan, self.group.plan) or Plan()

    async def _record(self, kind: type[R], key: str) -> R | None:
        result = await self.store.get(key)
        return decode(kind, result.entry.value)[0] if isinstance(result, Found) else None

    async def history(self, since: int = 0) -> list[Event]:
        """Everything that happened in the group since a revision, in order, as the store tells it."""
        end = self.keys.root + "~end-of-history"
        await self.store.put(end, b"")
        events: list[Event] = []
        async with self.store.watch(self.keys.root, start_revision=(since or self.began) + 1) as items:
            async for item in items:
                events += item.events if isinstance(item, Batch) else ()
                if any(isinstance(event, PutEvent) and event.entry.key == end for event in events):
                    break
        await self.store.delete(end)
        return [event for event in events if _key(event).startswith(self.group.prefix)]

    async def owners(self) -> dict[TopicPartition, str]:
        return {tp: held.record.owner for tp, held in (await self.state()).assignments.items()}

    async def standbys(self) -> dict[TopicPartition, tuple[str, ...]]:
        return {tp: record.record.holders for tp, record in (await self.state()).standbys.items()}

    async def counts(self) -> dict[str, int]:
        """Partitions per owner."""
        counts: dict[str, int] = {}
        for owner in (await self.owners()).values():
            counts[owner] = counts.get(owner, 0) + 1
        return counts

    async def until(self, what: str, holds: Callable[[GroupState], bool], within: float | None = None) -> GroupState:
        """Wait until the stored state is so, and return it. `within`: seconds, `patience` unless given, and
        `allowance` besides."""
        found: list[GroupState] = []

        async def check() -> bool:
            found[:] = [await self.state()]
            return holds(found[0])

        await eventually(check, within=(within or self.patience) + self.allowance, every=0.05, what=what)
        return found[0]

    async def until_counts(self, within: float | None = None, **counts: int) -> GroupState:
        """Wait until exactly these consumers own so many partitions and nothing is in flight.

        On a store that keeps real time, consumers may be sent it later than it is stored: they get some time for that,
        so that a test may go by what they own."""

        def holds(state: GroupState) -> bool:
            owned = {name: len(tps) for name, tps in state.owned.items() if tps}
            return owned == {name: count for name, count in counts.items() if count} and not state.handoffs

        state = await self.until(f"ownership {counts} and no handoffs", holds, within)
        following = [one for name in counts if (one := self.consumers.get(name)) and one.is_following]

        def are_sent() -> bool:
            return not any(state.owned.get(one.name, set()) - one.owned.keys() for one in following if one.is_following)

        with suppress(AssertionError):
            await eventually(are_sent, within=self.allowance / 3)
        return state

    async def until_quiet(self) -> int:
        """Wait until the leader has nothing left to do and nobody has written for a while, and return the revision."""
        within = self.patience + self.allowance
        coordinators = [one for instance in self.instances.values() for one in instance.coordinators.active.values()]
        await eventually(lambda: all(one.core.settled for one in coordinators), within=within, what="settled")
        revisions: list[int] = []

        async def is_quiet() -> bool:
            revisions.append((await self.store.get(self.keys.root)).revision)
            return len(revisions) > 5 and len(set(revisions[-6:])) == 1

        await eventually(is_quiet, within=within, every=0.3, what="quiet")
        return revisions[-1]

    # --- consumers -----------------------------------------------------------------------------------------------

    async def join(self, name: str, instance: Instance | None = None, **how: Any) -> SteppedConsumer:
        """Register a consumer and run it. See `SteppedConsumer` for `how`."""
        instance = instance or next(iter(self.instances.values()))
        consumer = SteppedConsumer(self, name, **how)
        self.consumers[name] = consumer
        await consumer.connect(instance)
        return consumer

    async def route(self, name: str, instance: Instance | None = None, **how: Any) -> SteppedRouter:
        """Register a router and run it. See `SteppedRouter` for `how`."""
        router = SteppedRouter(self, name, **how)
        await router.connect(instance or next(iter(self.instances.values())))
        return router


class _Wrapping:
    """A backend whose stores are wrapped."""

    def __init__(self, inner: Backend, wrap: Callable[[Store], Store]) -> None:
        self._inner = inner
        self._wrap = wrap

    async def open(self, settings: StoreSettings, clock: Clock) -> Store:
        return self._wrap(await self._inner.open(settings, clock))

    async def elector(self, store: Store, keys: Keys, presence: Presence, clock: Clock) -> LeaderElector:
        return await self._inner.elector(store, keys, presence, clock)


def _key(event: Event) -> str:
    return event.entry.key if isinstance(event, PutEvent) else event.key


QUICK = GroupOptions(debounce=0.1)
TTL = 30.0
"""Of a session on the memory store, unless the test says otherwise."""
ETCD_TTL = 60.0
"""On etcd, where time is real: no process of a busy machine goes without a turn for so long."""
EXPIRES = 3.0
"""The TTL on etcd, by `@pytest.mark.cluster(etcd_ttl=EXPIRES)`, of tests in which a lease has to expire."""
ALLOWANCE = 15.0
"""What a busy machine may add to a time on etcd: less than what is left of a lease of `ETCD_TTL`."""


@asynccontextmanager
async def cluster_on(
    kind: str,
    request: pytest.FixtureRequest | None = None,
    *,
    ttl: float | None = None,
    etcd_ttl: float | None = None,
    options: GroupOptions = QUICK,
    groupless: bool = False,
    limits: Limits | None = None,
) -> AsyncIterator[Cluster]:
    """Open a cluster without instances on the store of that kind. `ttl`: on either store, unless `etcd_ttl` is given.
    `limits`: of a transaction on the memory store."""
    if kind == "memory":
        backend: Backend = MemoryBackend.shared(MemoryState(LoopClock(), limits=limits))
        settings = StoreSection(root="/test/")
    else:
        assert request is not None
        etcd: RunningEtcd = request.getfixturevalue("etcd_server")
        root: str = request.getfixturevalue("etcd_prefix")
        backend = load_backend("etcd")
        settings = StoreSection(backend="etcd", root=root, endpoints=tuple(etcd.endpoints))
    ttl = (ttl or TTL) if kind == "memory" else (etcd_ttl or ttl or ETCD_TTL)
    async with Cluster(backend, settings, ttl=ttl, options=options, groupless=groupless) as cluster:
        yield cluster
