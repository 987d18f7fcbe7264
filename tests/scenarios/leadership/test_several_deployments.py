"""Several upstream deployments on one etcd, all named `assigner-0`, taken over one by one: neither knows of the other.

Each is started with the environment that upstream had. The prefixes are those that upstream's users choose: anywhere,
or one per group below `/kafka-assigner/`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast
from uuid import uuid4

import anyio
import anyio.abc
import msgspec
import pytest

from assigner.api import OffsetCommit, WantedOffsets
from assigner.backend import Backend
from assigner.backend import load as load_backend
from assigner.backends.memory import MemoryBackend, MemoryState
from assigner.clock import LoopClock
from assigner.errors import FailedPrecondition, InvalidInput
from assigner.instance import Instance
from assigner.leader.history import read_history
from assigner.model.keys import DEFAULT_ROOT, Keys
from assigner.settings import Settings, load
from assigner.storage.groups import discover, make_known
from assigner.store import Store, read_all
from assigner.testing.waiting import eventually
from tests.support.cluster import ALLOWANCE, BOTH_STORES, EXPIRES, Cluster, tp
from tests.support.servers.etcd import RunningEtcd
from tests.support.stepped_consumer import SteppedConsumer

pytestmark = pytest.mark.virtual_time
PLACES = ["/{}-{}/", "/kafka-assigner/{}-{}/", "/kafka-assigner/team/{}-{}/"]
TTL = {"memory": 30.0, "etcd": EXPIRES}


class Site:
    """One store and what upstream's environment says of it."""

    def __init__(self, kind: str, backend: Backend, endpoints: str) -> None:
        self.ttl = TTL[kind]
        self.patience = 20.0 if kind == "memory" else 90.0
        self.allowance = 0.0 if kind == "memory" else ALLOWANCE
        self.backend = backend
        self.clock = LoopClock()
        self.tasks: anyio.abc.TaskGroup
        self._endpoints = endpoints
        self._consumers: dict[Instance, list[SteppedConsumer]] = {}

    def settings(self, prefix: str, **more: str) -> Settings:
        environment = {
            "ETCD_PREFIX": prefix,
            "ASSIGNER_NAME": "assigner-0",
            "CONSUMER_LEASE_TTL_SECS": f"{self.ttl:g}",
            "LEADER_LEASE_TTL_SECS": f"{self.ttl:g}",
            "REBALANCE_DEBOUNCE_INTERVAL_SECS": "0.1",
            **({"ETCD_ENDPOINTS": self._endpoints} if self._endpoints else {}),
            **more,
        }
        return load(environment=environment).settings

    @asynccontextmanager
    async def deployed(self, prefix: str, **more: str) -> AsyncIterator[Instance]:
        settings = self.settings(prefix, **more)
        async with (
            Instance(settings, clock=self.clock, backend=self.backend) as instance,
            anyio.create_task_group() as of,
        ):
            of.start_soon(instance.lead, f"{prefix}:1")
            await instance.wait_ready()
            try:
                yield instance
            finally:
                for consumer in self._consumers.pop(instance, ()):
                    consumer.crash()
                with anyio.CancelScope(shield=True):
                    await instance.stop_leading()
                of.cancel_scope.cancel()

    async def join(self, instance: Instance, name: str) -> SteppedConsumer:
        consumer = SteppedConsumer(cast(Cluster, self), name, group=instance.settings.default_group)
        await consumer.connect(instance)
        self._consumers.setdefault(instance, []).append(consumer)
        return consumer


@pytest.fixture(params=BOTH_STORES)
def site(request: pytest.FixtureRequest) -> Site:
    if request.param == "memory":
        site = Site("memory", MemoryBackend.shared(MemoryState(LoopClock())), "")
    else:
        etcd: RunningEtcd = request.getfixturevalue("etcd_server")
        site = Site("etcd", load_backend("etcd"), ",".join(f"http://{endpoint}" for endpoint in etcd.endpoints))
    return site


@pytest.mark.parametrize("place", PLACES)
async def test_two_deployments_of_one_name_do_not_disturb_each_other(site: Site, place: str) -> None:
    one, other = (place.format(name, uuid4().hex[:8]) for name in ("a", "b"))
    async with anyio.create_task_group() as site.tasks, site.deployed(one) as first:
        group = first.settings.default_group
        await first.operations.set_topic(group, "t", 4)
        consumer = await site.join(first, "c")
        await consumer.until("4 partitions", lambda it: len(it.owned) == 4)
        assert not await first.offsets.commit(group, "c", consumer.session, [OffsetCommit(tp(0), 1, 11)])
        before = dict(consumer.owned)
        async with site.deployed(other) as second:
            others = second.settings.default_group
            await second.operations.set_topic(others, "t", 2)
            its = await site.join(second, "c")
            await its.until("2 partitions", lambda it: len(it.owned) == 2)
            assert not await second.offsets.commit(others, "c", its.session, [OffsetCommit(tp(0), 1, 22)])
            await anyio.sleep(2 * site.ttl)
            for instance, offset in ((first, 11), (second, 22)):
                assert not instance.problems()
                assert not instance.failures()
                assert instance.leadership is not None
                assert list(instance.leadership.led) == [instance.settings.default_group]
                assert list(instance.leadership.instances) == ["assigner-0"]
                found = await instance.offsets.fetch(instance.settings.default_group, WantedOffsets((tp(0),)))
                assert [record.offset for _, record in found.offsets if record] == [offset]
            assert its.ended is None
        await anyio.sleep(2 * site.ttl)
        assert consumer.owned == before
        assert consumer.ended is None
        assert not first.problems()
        moves = await read_history(first.store, first.keys.history(group))
        assert len(moves) == 4, "its own moves and no other's"
        assert await _strays(first.store, one, other) == []
        site.tasks.cancel_scope.cancel()


async def _strays(store: Store, *prefixes: str) -> list[str]:
    """Keys of the two deployments that lie in neither's place."""
    names = [prefix.rstrip("/").rpartition("/")[2] for prefix in prefixes]
    page = await read_all(store, DEFAULT_ROOT)
    keys = [entry.key for entry in page.entries if not entry.key.startswith(prefixes)]
    return [key for key in keys if "~" in key and any(name in key for name in names)]


async def test_a_fleet_above_leaves_a_deployment_of_its_own_alone(site: Site) -> None:
    name = f"own-{uuid4().hex[:8]}"
    async with anyio.create_task_group() as site.tasks, site.deployed(f"{DEFAULT_ROOT}{name}/") as own:
        await own.operations.set_topic(name, "t", 2)
        above = Keys(DEFAULT_ROOT)
        with pytest.raises(FailedPrecondition, match=f"a deployment of its own.*{name}"):
            await make_known(own.store, above, name)
        assert name not in await discover(own.store, above)
        site.tasks.cancel_scope.cancel()


async def test_a_group_that_a_fleet_above_keeps_is_not_taken_out_of_it(site: Site) -> None:
    name = f"kept-{uuid4().hex[:8]}"
    prefix = f"{DEFAULT_ROOT}{name}/"
    async with anyio.create_task_group() as site.tasks:
        async with site.deployed(prefix, ASSIGNER_STORE_ROOT=DEFAULT_ROOT) as fleet:
            await fleet.operations.set_topic(name, "t", 2)
        settings = site.settings(prefix)
        async with Instance(settings, clock=site.clock, backend=site.backend) as instance:
            with pytest.raises(InvalidInput, match=f"store.root to '{DEFAULT_ROOT}'"):
                await instance.lead("own:1")
        async with site.deployed(prefix, ASSIGNER_STORE_ROOT=DEFAULT_ROOT, ASSIGNER_NAME="assigner-1") as again:
            leadership = again.leadership
            assert leadership is not None
            await eventually(lambda: name in leadership.led, within=60)
        site.tasks.cancel_scope.cancel()


async def test_two_places_of_one_group_name_under_one_root_are_refused(site: Site) -> None:
    root = f"/root-{uuid4().hex[:8]}/"
    async with anyio.create_task_group() as site.tasks:
        async with site.deployed("/one/", ASSIGNER_STORE_ROOT=root) as first:
            await first.operations.set_topic("default", "t", 2)
        settings = msgspec.structs.replace(site.settings("/two/", ASSIGNER_STORE_ROOT=root))
        async with Instance(settings, clock=site.clock, backend=site.backend) as second:
            with pytest.raises(InvalidInput, match="lives at '/one/'"):
                await make_known(second.store, second.keys, "default")
        site.tasks.cancel_scope.cancel()
