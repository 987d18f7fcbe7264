"""What upstream's gRPC service is tested for, scenario by scenario, over real streams: our client on the memory store,
and upstream's kind of client on etcd.

A consumer that crashes drops its stream without a word. Its session ends one TTL later, so the TTL is short here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest
from grpclib import GRPCError, Status
from grpclib.client import Channel

from assigner.core.group import GroupState
from assigner.model.records import Phase
from assigner.model.records import Status as ConsumerStatus
from assigner.proto.kafka_assigner import v1
from assigner.service import Service
from tests.support.clients.stream_clients import Clients, StreamConsumer, clients_of, until
from tests.support.cluster import BOTH_STORES, EXPIRES, Cluster, cluster_on

ALL = {("t", number) for number in range(8)}
CASES = [
    # Both ends of each connection are in this process and nothing else is: time may be virtual.
    pytest.param("memory", "ours", id="memory-ours", marks=pytest.mark.virtual_time(sockets="local")),
    pytest.param("etcd", "upstream", id="etcd-upstream", marks=pytest.mark.etcd),
]
both = pytest.mark.parametrize(("store", "kind"), CASES)


@pytest.fixture
async def cluster(store: str, request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    async with cluster_on(store, request, ttl=2.0, etcd_ttl=EXPIRES) as cluster:
        yield cluster


@pytest.fixture
async def service(cluster: Cluster) -> Service:
    await cluster.add_topic(partitions=8)
    return await cluster.start_service()


@pytest.fixture
async def clients(kind: str, service: Service) -> AsyncIterator[Clients]:
    async with clients_of(kind) as clients:
        yield clients


async def owns(consumer: StreamConsumer, count: int, within: float = 30.0) -> None:
    await until(f"{consumer.name} owns {count}", lambda: len(consumer.owned) == count, within)


@both
async def test_grpc_single_consumer_gets_assignments(cluster: Cluster, service: Service, clients: Clients) -> None:
    a = await clients.start(service.address, "a")
    await until("a owns all", lambda: a.owned == ALL)
    await cluster.until_counts(a=8)


@both
async def test_grpc_two_consumers_split_partitions(cluster: Cluster, service: Service, clients: Clients) -> None:
    a = await clients.start(service.address, "a")
    b = await clients.start(service.address, "b")
    await cluster.until_counts(a=4, b=4)
    await owns(a, 4)
    await owns(b, 4)
    assert a.owned | b.owned == ALL


@both
async def test_grpc_full_handoff_lifecycle(cluster: Cluster, service: Service, clients: Clients) -> None:
    a = await clients.start(service.address, "a")
    await owns(a, 8)
    b = await clients.start(service.address, "b")
    await cluster.until_counts(a=4, b=4)
    await owns(b, 4)
    assert set(b.warms) == set(a.releases) == b.owned
    assert a.owned == ALL - b.owned
    assert len(b.warms) == len(a.releases) == 4


@both
async def test_grpc_checkpoint_download_delay(cluster: Cluster, service: Service, clients: Clients) -> None:
    a = await clients.start(service.address, "a")
    await owns(a, 8)
    await clients.start(service.address, "b", warm_delay=1.0)
    state = await cluster.until("four handoffs", lambda state: len(state.handoffs) == 4)
    began = cluster.clock.now()
    while state.handoffs:
        assert {h.record.phase for h in state.handoffs.values()} <= {Phase.WARMING} or cluster.clock.now() - began > 0.8
        await anyio.sleep(0.05)
        state = await cluster.state()
    assert cluster.clock.now() - began > 0.8
    await cluster.until_counts(a=4, b=4)


@both
async def test_grpc_crash_during_warming(cluster: Cluster, service: Service, clients: Clients) -> None:
    a = await clients.start(service.address, "a")
    await owns(a, 8)
    b = await clients.start(service.address, "b", warm_delay=60.0)
    await until("b warms four", lambda: len(b.warms) == 4)
    await b.drop()
    await cluster.until_counts(a=8)
    await until("a owns all", lambda: a.owned == ALL)
    assert not a.releases


@both
async def test_grpc_consumer_crashes_mid_operation(cluster: Cluster, service: Service, clients: Clients) -> None:
    a = await clients.start(service.address, "a")
    b = await clients.start(service.address, "b")
    c = await clients.start(service.address, "c")
    await cluster.until("three share", lambda s: not s.handoffs and len(s.owned["c"]) in (2, 3))
    await c.drop()
    await cluster.until_counts(a=4, b=4)
    await until("a and b own all", lambda: len(a.owned) == len(b.owned) == 4 and a.owned | b.owned == ALL)


@both
async def test_grpc_rapid_reconnect(cluster: Cluster, service: Service, clients: Clients) -> None:
    a = await clients.start(service.address, "a")
    b = await clients.start(service.address, "b")
    before = await cluster.until_counts(a=4, b=4)
    await b.drop()
    again = await clients.start(service.address, "b")
    await until("b owns what it had", lambda: again.owned == {(tp.topic, tp.partition) for tp in before.owned["b"]})
    state = await cluster.until_counts(a=4, b=4)
    assert state.owned == before.owned
    # The first stream's session is over by now, and that has cost the second one nothing.
    await cluster.until("one session", lambda s: {a.record.session for a in s.assignments.values()} == _sessions(s))
    await a.drop()
    await until("b gets what comes next", lambda: again.owned == ALL)


def _sessions(state: GroupState) -> set[str]:
    return {consumer.record.session for consumer in state.consumers.values()}


@both
async def test_grpc_sequential_crashes_converge(cluster: Cluster, service: Service, clients: Clients) -> None:
    a = await clients.start(service.address, "a")
    b = await clients.start(service.address, "b")
    c = await clients.start(service.address, "c")
    await cluster.until("three share", lambda s: not s.handoffs and sorted(map(len, s.owned.values())) == [2, 3, 3])
    await c.drop()
    await cluster.until_counts(a=4, b=4)
    await b.drop()
    await cluster.until_counts(a=8)
    await until("a owns all", lambda: a.owned == ALL)


@both
async def test_grpc_deregister_transitions_to_draining_and_drains(
    cluster: Cluster, service: Service, clients: Clients
) -> None:
    a = await clients.start(service.address, "a")
    await owns(a, 8)
    b = await clients.start(service.address, "b", warm_delay=0.3)
    await cluster.until_counts(a=4, b=4)
    assert await a.leave() in ("WAIT_FOR_DRAIN", "")
    await cluster.until("a is draining", lambda s: s.consumers["a"].record.status is ConsumerStatus.DRAINING)
    await until("b owns all", lambda: b.owned == ALL)
    await until("a's stream is closed", lambda: a.ended_well)
    await cluster.until("a is gone", lambda s: "a" not in s.consumers and not s.handoffs)
    assert len(a.releases) == 8
    # Nobody is left to take over from the last one: it may go at once.
    assert await b.leave() in ("SHUTDOWN_NOW", "")


@pytest.mark.parametrize("store", BOTH_STORES)
async def test_grpc_deregister_unknown_consumer_returns_not_found(cluster: Cluster, service: Service) -> None:
    async with Channel("127.0.0.1", service.server.port) as channel:
        stub = v1.KafkaAssignerStub(channel)
        with pytest.raises(GRPCError) as refused:
            await stub.deregister(v1.DeregisterRequest(consumer_name="nobody"))
    assert refused.value.status is Status.NOT_FOUND


@pytest.mark.virtual_time(sockets="local")
@pytest.mark.parametrize("store", ["memory"])
async def test_a_consumer_that_only_answers_pings_stays_however_short_the_ttl(
    cluster: Cluster, service: Service
) -> None:
    async with Channel("127.0.0.1", service.server.port) as channel:
        stub = v1.KafkaAssignerStub(channel)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_listen, stub, "quiet")
            before = await cluster.until("registered", lambda state: "quiet" in state.consumers)
            await anyio.sleep(20 * cluster.ttl)
            after = await cluster.state()
            assert after.consumers["quiet"].create_revision == before.consumers["quiet"].create_revision
            tasks.cancel_scope.cancel()


async def _listen(stub: v1.KafkaAssignerStub, name: str) -> None:
    async for _ in stub.register(v1.RegisterRequest(consumer_name=name)):
        pass


@both
async def test_grpc_fast_scale_to_20(cluster: Cluster, clients: Clients) -> None:
    await cluster.add_topic(partitions=40)
    address = cluster.services["s1"].address
    first = await clients.start(address, "c00")
    await owns(first, 40)
    others = [await clients.start(address, f"c{number:02}") for number in range(1, 20)]
    await cluster.until_counts(within=60, **{f"c{number:02}": 2 for number in range(20)})
    for consumer in (first, *others):
        await owns(consumer, 2)
    assert len(set().union(*(c.owned for c in (first, *others)))) == 40


@both
async def test_grpc_fast_scale_down_20_to_4(cluster: Cluster, clients: Clients) -> None:
    await cluster.add_topic(partitions=40)
    address = cluster.services["s1"].address
    consumers = [await clients.start(address, f"c{number:02}") for number in range(20)]
    await cluster.until_counts(within=60, **{f"c{number:02}": 2 for number in range(20)})
    for consumer in consumers[4:]:
        await consumer.drop()
    await cluster.until_counts(within=60, c00=10, c01=10, c02=10, c03=10)
    for consumer in consumers[:4]:
        await owns(consumer, 10)
    assert len(set().union(*(c.owned for c in consumers[:4]))) == 40
