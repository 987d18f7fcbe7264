"""The library's routers with whole instances, over real gRPC, on memory and etcd: no request is lost on a move, and
none goes to an owner that is stale.

Consumers are stepped. A request is checked as it is sent: the owner it goes to holds the partition under that epoch.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from assigner.clock import LoopClock
from assigner.model.keys import TopicPartition
from assigner.model.records import FreezeOverdue, GroupOptions, HandoffMode, Step
from assigner.routing import Router, Target, Timing
from assigner.service import Service
from assigner.testing.waiting import eventually
from tests.support.cluster import EXPIRES, GROUP, Cluster, cluster_on
from tests.support.frozen_moves import until_step
from tests.support.stepped_consumer import SteppedConsumer

QUICK = Timing(call_timeout=5.0, keepalive=0.5, keepalive_timeout=5.0, first_pause=0.01, longest_pause=0.2)
PATIENCE = 90.0
STORES = [
    # Both ends of each connection are in this process and nothing else is: time may be virtual.
    pytest.param("memory", marks=pytest.mark.virtual_time(sockets="local")),
    pytest.param("etcd", marks=pytest.mark.etcd),
]
pytestmark = pytest.mark.parametrize("store", STORES)


@pytest.fixture
async def cluster(store: str, request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    marked = {key: value for mark in request.node.iter_markers("cluster") for key, value in mark.kwargs.items()}
    marked.setdefault("options", GroupOptions(debounce=0.1, freeze_timeout=60.0))
    async with cluster_on(store, request, **marked) as cluster:
        yield cluster


@asynccontextmanager
async def routing(cluster: Cluster, name: str = "r1", **options: Any) -> AsyncIterator[Router]:
    addresses = [service.address for service in cluster.services.values()]
    with anyio.fail_after(600):
        async with Router(addresses, GROUP, name, timing=QUICK, clock=LoopClock(), **options) as router:
            yield router


async def serving(cluster: Cluster, partitions: int = 2) -> tuple[Service, SteppedConsumer]:
    """A service, and a consumer that owns everything."""
    await cluster.add_topic(partitions=partitions)
    service = await cluster.start_service()
    a = await join(cluster, service, "a")
    await cluster.until_counts(a=partitions)
    return service, a


async def join(cluster: Cluster, service: Service, name: str, **how: Any) -> SteppedConsumer:
    return await cluster.join(name, service.instance, address=f"{name}.pods:80", **how)


class Request:
    """A request that is in flight until the test ends it."""

    def __init__(self, router: Router, tp: TopicPartition) -> None:
        self.target: Target | None = None
        self._end = asyncio.Event()
        self.task = asyncio.create_task(self._run(router, tp))

    async def _run(self, router: Router, tp: TopicPartition) -> None:
        async with router.route_partition(tp.topic, tp.partition) as target:
            self.target = target
            await self._end.wait()

    async def until_sent(self) -> Target:
        await eventually(lambda: self.target is not None or self.task.done(), within=PATIENCE, what="sent")
        if self.target is None:
            await self.task
        assert self.target is not None
        return self.target

    async def end(self) -> None:
        self._end.set()
        await self.task


class Traffic:
    """Requests to every partition, one after another, by several routers. Each takes a moment."""

    def __init__(self, cluster: Cluster, *routers: Router, partitions: int) -> None:
        self.sent: dict[TopicPartition, int] = {}
        self.stale: list[Target] = []
        self.wrong_order = 0
        self._cluster = cluster
        self._stopping = False
        self._lanes = [(router, TopicPartition("t", one)) for router in routers for one in range(partitions)]

    @asynccontextmanager
    async def flowing(self) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            for router, tp in self._lanes:
                tasks.start_soon(self._send, router, tp)
            yield
            self._stopping = True

    async def _send(self, router: Router, tp: TopicPartition) -> None:
        while not self._stopping:
            async with router.route_partition(tp.topic, tp.partition) as target:
                await anyio.sleep(0.02)
                self._check(tp, target)
                self.sent[tp] = self.sent.get(tp, 0) + 1
            await anyio.sleep(0.01)

    def _check(self, tp: TopicPartition, target: Target) -> None:
        """An owner that has released the partition, or never had it, would have refused the request."""
        for consumer in self._cluster.consumers.values():
            newer = consumer.owned.get(tp, 0) > target.epoch
            if newer and consumer.name != target.owner:
                self.stale.append(target)


# --- moves ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", list(HandoffMode), ids=lambda mode: mode.value)
async def test_routers_carry_requests_through_scaling_up_and_down_and_none_is_lost(
    cluster: Cluster, mode: HandoffMode
) -> None:
    await cluster.set_options(handoff_mode=mode)
    service, a = await serving(cluster, partitions=8)
    async with routing(cluster, "r1") as first, routing(cluster, "r2") as second:
        traffic = Traffic(cluster, first, second, partitions=8)
        async with traffic.flowing():
            await join(cluster, service, "b")
            await cluster.until_counts(a=4, b=4)
            await join(cluster, service, "c")
            await eventually(lambda: _owners(first) == {"a.pods:80", "b.pods:80", "c.pods:80"}, within=PATIENCE)
            await a.deregister()
            await eventually(lambda: _owners(first) == {"b.pods:80", "c.pods:80"}, within=PATIENCE)
            await eventually(lambda: dict(first.table) == dict(second.table), within=PATIENCE)
        assert traffic.stale == []
        assert len(traffic.sent) == 8
        for router in (first, second):
            found = router.statistics()
            assert (found.stashed, found.in_flight, found.overflowed, found.frozen) == (0, 0, 0, 0)
            assert found.acked > 0


def _owners(router: Router) -> set[str]:
    return {route.address for _, route in router.table}


async def test_the_table_is_what_is_stored_once_a_handoff_is_complete(cluster: Cluster) -> None:
    service, _ = await serving(cluster, partitions=4)
    async with routing(cluster) as router:
        before = router.table.generation
        await join(cluster, service, "b")
        state = await cluster.until_counts(a=2, b=2)
        stored = {tp: (held.record.owner, held.record.epoch) for tp, held in state.assignments.items()}

        def shown() -> dict[TopicPartition, tuple[str, int]]:
            return {tp: (route.owner, route.epoch) for tp, route in router.table}

        await eventually(lambda: shown() == stored, within=PATIENCE)
        assert router.table.generation > before


async def test_a_move_waits_for_the_request_in_flight_of_either_router(cluster: Cluster) -> None:
    service, _ = await serving(cluster)
    async with routing(cluster, "r1") as first, routing(cluster, "r2") as second:
        requests = [Request(second, TopicPartition("t", one)) for one in (0, 1)]
        for request in requests:
            await request.until_sent()
        b = await join(cluster, service, "b")
        await eventually(lambda: first.statistics().acked == 1, within=PATIENCE)
        await anyio.sleep(1.0)
        assert not b.owned
        (moving,) = [tp for tp, route in second.table if route.frozen]
        late = Request(first, moving)
        for request in requests:
            await request.end()
        assert (await late.until_sent()).owner == "b"
        await late.end()
        await cluster.until_counts(a=1, b=1)


async def test_a_router_that_joins_during_a_freeze_stashes_before_it_routes_and_the_move_waits_for_it(
    cluster: Cluster,
) -> None:
    service, _ = await serving(cluster)
    async with routing(cluster, "r1") as first:
        held = [Request(first, TopicPartition("t", one)) for one in (0, 1)]
        for request in held:
            await request.until_sent()
        await join(cluster, service, "b")
        await eventually(lambda: first.statistics().frozen == 1, within=PATIENCE)
        (moving,) = [tp for tp, route in first.table if route.frozen]
        async with routing(cluster, "r2") as second:
            late = Request(second, moving)
            await eventually(lambda: second.statistics().acked == 1, within=PATIENCE)
            assert late.target is None
            for request in held:
                await request.end()
            assert (await late.until_sent()).owner == "b"
            await late.end()


async def test_a_router_that_joins_while_the_new_owner_warms_up_routes_on_and_acks_nothing_yet(
    cluster: Cluster,
) -> None:
    service, _ = await serving(cluster)
    b = await join(cluster, service, "b", answers_warm=False)
    await b.until("asked to warm", lambda c: bool(c.to_warm))
    (moving,) = b.to_warm
    async with routing(cluster) as router:
        request = Request(router, moving)
        assert (await request.until_sent()).owner == "a"
        await request.end()
        assert router.statistics().acked == 0
        await b.ready(moving)
        await cluster.until_counts(a=1, b=1)
        assert router.statistics().acked == 1


# --- moves that go wrong -------------------------------------------------------------------------------------------


async def test_a_raw_deletion_is_inert_and_the_repaired_owner_resolves_the_stash(cluster: Cluster) -> None:
    service, _ = await serving(cluster)
    async with routing(cluster) as router:
        # Its request keeps the freeze from being acknowledged.
        requests = [Request(router, TopicPartition("t", one)) for one in (0, 1)]
        for request in requests:
            await request.until_sent()
        await join(cluster, service, "b")
        await eventually(lambda: router.statistics().frozen == 1, within=PATIENCE)
        (moving,) = [tp for tp, route in router.table if route.frozen]
        late = Request(router, moving)
        await cluster.store.delete(cluster.group.handoff(moving))
        target = await late.until_sent()
        assert target.epoch > (requests[0].target or target).epoch
        for request in [*requests, late]:
            await request.end()


@pytest.mark.cluster(options=GroupOptions(debounce=0.1, freeze_timeout=1.0))
async def test_a_request_that_hangs_lets_the_move_be_given_up_and_the_stash_goes_back_to_the_owner(
    cluster: Cluster,
) -> None:
    service, _ = await serving(cluster)
    async with routing(cluster) as router:
        stuck = [Request(router, TopicPartition("t", one)) for one in (0, 1)]
        for request in stuck:
            await request.until_sent()
        await join(cluster, service, "b")
        await eventually(lambda: router.statistics().frozen == 1, within=PATIENCE)
        (moving,) = [tp for tp, route in router.table if route.frozen]
        late = Request(router, moving)
        target = await late.until_sent()
        assert (target.owner, target.epoch) == ("a", (stuck[moving.partition].target or target).epoch + 1)
        assert router.statistics().acked == 0
        for request in [*stuck, late]:
            await request.end()


@pytest.mark.cluster(options=GroupOptions(debounce=0.1, freeze_timeout=1.0, freeze_overdue=FreezeOverdue.PROCEED))
async def test_where_a_freeze_proceeds_the_stash_goes_to_the_new_owner_beside_a_request_that_hangs(
    cluster: Cluster,
) -> None:
    service, _ = await serving(cluster)
    async with routing(cluster) as router:
        stuck = [Request(router, TopicPartition("t", one)) for one in (0, 1)]
        for request in stuck:
            await request.until_sent()
        await join(cluster, service, "b")
        await eventually(lambda: router.statistics().frozen == 1, within=PATIENCE)
        (moving,) = [tp for tp, route in router.table if route.frozen]
        late = Request(router, moving)
        assert (await late.until_sent()).owner == "b"
        for request in [*stuck, late]:
            await request.end()


async def test_a_drain_that_hangs_does_not_stall_the_moves_of_other_partitions(cluster: Cluster) -> None:
    service, _ = await serving(cluster, partitions=8)
    async with routing(cluster) as router:
        stuck = Request(router, TopicPartition("t", 7))
        await stuck.until_sent()
        b = await join(cluster, service, "b", answers_warm=True)
        await eventually(lambda: len(b.owned) == 3, within=PATIENCE)
        assert TopicPartition("t", 7) in {tp for tp, route in router.table if route.frozen}
        await stuck.end()
        await cluster.until_counts(a=4, b=4)


@pytest.mark.cluster(ttl=6.0)
async def test_acks_that_others_delete_are_asserted_again(cluster: Cluster) -> None:
    """The partition stays frozen for another router; meanwhile the first one's ack vanishes."""
    service, _ = await serving(cluster)
    async with routing(cluster, "r1") as first, routing(cluster, "r2") as second:
        held = [Request(second, TopicPartition("t", one)) for one in (0, 1)]
        for request in held:
            await request.until_sent()
        b = await join(cluster, service, "b")
        await eventually(lambda: first.statistics().acked == 1, within=PATIENCE)
        (moving,) = [tp for tp, route in first.table if route.frozen]
        await cluster.store.delete(cluster.group.ack(moving, "r1"))
        for request in held:
            await request.end()
        await eventually(lambda: moving in b.owned, within=PATIENCE)
        assert first.statistics().acked >= 2


# --- leases and instances ------------------------------------------------------------------------------------------


@pytest.mark.cluster(ttl=6.0, etcd_ttl=EXPIRES)
async def test_a_router_whose_lease_is_revoked_rejoins_with_a_fresh_one_and_routes_again(cluster: Cluster) -> None:
    await serving(cluster)
    async with routing(cluster) as router:
        state = await cluster.state()
        lease = state.routers["r1"].lease
        await cluster.store.revoke(lease)
        await eventually(lambda: router.statistics().lapses >= 1, within=PATIENCE)
        request = Request(router, TopicPartition("t", 0))
        assert (await request.until_sent()).owner == "a"
        await request.end()
        state = await cluster.until("registered again", lambda s: "r1" in s.routers)
        assert state.routers["r1"].lease != lease
        assert state.routers["r1"].record.session == router.session


@pytest.mark.cluster(ttl=6.0, etcd_ttl=EXPIRES)
async def test_a_router_that_is_stopped_is_left_behind_and_sends_nothing_to_the_stale_owner(cluster: Cluster) -> None:
    """Its clock jumps past the lease, which the service ends; then the move goes on without it."""
    service, _ = await serving(cluster)

    class StoppedClock(LoopClock):
        stopped = 0.0

        def now(self) -> float:
            return super().now() + self.stopped

    clock = StoppedClock()
    addresses = [service.address]
    async with Router(addresses, GROUP, "r1", timing=QUICK, clock=clock) as router:
        requests = [Request(router, TopicPartition("t", one)) for one in (0, 1)]
        for request in requests:
            assert (await request.until_sent()).owner == "a"
            await request.end()
        # From here on the router is as if stopped: no request goes out until it has been told of all that went on.
        clock.stopped += 60.0
        await cluster.store.revoke((await cluster.state()).routers["r1"].lease)
        late = [Request(router, TopicPartition("t", one)) for one in (0, 1)]
        await join(cluster, service, "b")
        targets = [await one.until_sent() for one in late]
        for target in targets:
            stored = await cluster.assignment(TopicPartition("t", target.partition))
            assert stored is not None
            assert target.epoch == stored.epoch or target.owner == stored.owner
        for request in late:
            await request.end()
        await cluster.until_counts(a=1, b=1)


async def test_any_instance_serves_a_router_and_a_reconnect_changes_nothing(cluster: Cluster) -> None:
    service, _ = await serving(cluster)
    other = await cluster.start_service("s2")
    async with routing(cluster) as router:
        served_by = router.statistics().address
        table = dict(router.table)
        traffic = Traffic(cluster, router, partitions=2)
        async with traffic.flowing():
            leaving, staying = ("s1", other) if served_by == service.address else ("s2", service)
            if leaving == "s1":
                cluster.consumers["a"].crash()
                await cluster.consumers["a"].connect(other.instance)
            await cluster.stop_service(leaving)
            await eventually(lambda: router.statistics().address == staying.address, within=PATIENCE)
            assert dict(router.table) == table
            await join(cluster, staying, "b")
            await cluster.until_counts(a=1, b=1)
        assert traffic.stale == []
        found = router.statistics()
        assert (found.lapses, found.registrations) == (0, 2)
        assert found.acked == 1


@pytest.mark.cluster(ttl=6.0, etcd_ttl=EXPIRES)
async def test_a_router_that_dies_between_drain_and_ack_is_waited_for_no_longer_than_its_lease(
    cluster: Cluster,
) -> None:
    service, _ = await serving(cluster)
    dying = Router([service.address], GROUP, "r2", timing=QUICK, clock=LoopClock())
    await dying.__aenter__()
    async with routing(cluster, "r1") as router:
        held = [Request(dying, TopicPartition("t", one)) for one in (0, 1)]
        for request in held:
            await request.until_sent()
        await join(cluster, service, "b")
        await eventually(lambda: router.statistics().frozen == 1, within=PATIENCE)
        (moving,) = [tp for tp, route in router.table if route.frozen]
        await until_step(cluster, moving, Step.FREEZING)
        late = Request(router, moving)
        assert dying._task is not None
        dying._task.cancel()
        assert (await late.until_sent()).owner == "b"
        await late.end()
        for request in held:
            await request.end()
