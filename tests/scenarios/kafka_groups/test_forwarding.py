"""Gateways make the calls of classic members where their group is led, over gRPC, and follow when that changes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest

from assigner.client.channel import Dialer
from assigner.gateway.classic.connections import LeaderConnections
from assigner.gateway.classic.forwarding import PATIENCE, ForwardingGroups
from assigner.gateway.classic.leaders import Leaders
from assigner.instance import Instance
from assigner.model.kafka_groups import ClassicState, HeartbeatRequest, KafkaError, SyncRequest
from assigner.testing.waiting import eventually
from tests.scenarios.kafka_groups.conftest import QUICK
from tests.support.classic_members import ClassicMember
from tests.support.cluster import EXPIRES, Cluster

pytestmark = pytest.mark.cluster(ttl=EXPIRES)


class Gateway:
    """The part of a gateway that serves classic groups, beside an instance that leads none."""

    def __init__(self, cluster: Cluster, instance: Instance) -> None:
        self.instance = instance
        self.connections = LeaderConnections(Dialer(None, keepalive=1.0, keepalive_timeout=1.0))
        leaders = Leaders(instance.store, cluster.keys)
        self.groups = ForwardingGroups(instance.kafka_groups, leaders, self.connections, cluster.clock)


class Forwarded:
    """Two services that may lead, a gateway in front of them, and members that know nothing but the gateway."""

    def __init__(self, cluster: Cluster, gateway: Gateway) -> None:
        self.cluster = cluster
        self.gateway = gateway
        self.members: list[ClassicMember] = []

    async def join(self, *names: str, group: str = "g") -> list[ClassicMember]:
        joined = [ClassicMember(name, lambda: [self.gateway.groups], group=group) for name in names]
        self.members += joined
        for one in joined:
            one.start(self.cluster.tasks)
        await self.settled(group)
        return joined

    async def settled(self, group: str = "g") -> None:
        members = [one for one in self.members if one.group == group]

        def holds() -> bool:
            owned = sorted(number for one in members for number in one.owned)
            same = len({one.generation for one in members}) == 1
            return all(one.is_stable for one in members) and same and owned == list(range(6))

        await eventually(holds, within=60, what="one stable generation")

    def leader(self, group: str = "g") -> str:
        [name] = [
            name for name, one in self.cluster.services.items() if one.instance.kafka_groups.leads("", group)
        ] or [""]
        return name


@pytest.fixture
async def forwarded(wired_cluster: Cluster) -> AsyncIterator[Forwarded]:
    for name in ("s1", "s2"):
        await wired_cluster.start_service(name, gateway=QUICK)
    instance = await wired_cluster.start_instance("gateway", leads=False)
    gateway = Gateway(wired_cluster, instance)
    forwarded = Forwarded(wired_cluster, gateway)
    yield forwarded
    for one in forwarded.members:
        one.stop()
    await gateway.connections.close()


async def test_members_share_partitions_and_commit_through_a_gateway_that_leads_nothing(forwarded: Forwarded) -> None:
    a, b, _ = await forwarded.join("a", "b", "c")
    assert forwarded.leader() in ("s1", "s2")
    assert await a.commit({a.owned[0]: 7}) == {a.owned[0]: KafkaError.NONE}
    assert await b.fetch() == {a.owned[0]: 7}
    groups = forwarded.gateway.groups
    described = await groups.describe("", "g")
    assert (described.state, len(described.members)) == (ClassicState.STABLE, 3)
    assert await groups.delete("", "g") is KafkaError.NON_EMPTY_GROUP
    assert (await groups.describe("", "nobody")).error is KafkaError.GROUP_ID_NOT_FOUND


async def test_members_do_not_notice_that_their_group_is_handed_over(forwarded: Forwarded) -> None:
    a, b = await forwarded.join("a", "b")
    before, first = (a.rebalances, b.rebalances), forwarded.leader()
    await forwarded.cluster.stop_service(first)
    assert await a.commit({a.owned[0]: 3}) == {a.owned[0]: KafkaError.NONE}
    assert await b.heartbeat() is KafkaError.NONE
    assert forwarded.leader() not in ("", first)
    assert (a.rebalances, b.rebalances) == before
    assert a.errors == b.errors == []


async def test_who_waits_to_join_waits_on_at_the_next_leader(forwarded: Forwarded) -> None:
    [a] = await forwarded.join("a")
    # The rebalance waits for it, and it does not come.
    a.stop()
    forwarded.members.remove(a)
    waiting = ClassicMember("b", lambda: [forwarded.gateway.groups])
    forwarded.members.append(waiting)
    waiting.start(forwarded.cluster.tasks)
    first = forwarded.leader()
    held = forwarded.cluster.services[first].instance.kafka_groups
    await eventually(lambda: held.held == 1, within=30, what="it waits at the leader")
    await forwarded.cluster.stop_service(first)
    await forwarded.settled()


async def test_a_client_that_stops_waiting_is_not_waited_for_at_the_leader(forwarded: Forwarded) -> None:
    await forwarded.join("a")
    held = forwarded.cluster.services[forwarded.leader()].instance.kafka_groups
    waiting = ClassicMember("b", lambda: [forwarded.gateway.groups])
    # Its first call gives it an id; the second one waits.
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(waiting.run)
        await eventually(lambda: held.held == 1, within=30, what="it waits at the leader")
        tasks.cancel_scope.cancel()
    await eventually(lambda: held.held == 0, within=30, what="nobody waits at the leader")


async def test_while_nobody_leads_each_call_is_answered_as_its_client_takes_well(forwarded: Forwarded) -> None:
    a, b = await forwarded.join("a", "b")
    before = (a.rebalances, b.rebalances)
    a.stop()
    for name in ("s1", "s2"):
        await forwarded.cluster.stop_service(name)
    groups = forwarded.gateway.groups
    began = forwarded.cluster.clock.now()
    assert (await groups.commit("", a.commit_request({0: 1}))).partitions[0].error is (
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS
    )
    assert forwarded.cluster.clock.now() - began >= PATIENCE
    assert (await groups.join("", a.join_request())).error is KafkaError.COORDINATOR_NOT_AVAILABLE
    about = {"group": "g", "member_id": a.member_id, "generation": a.generation}
    assert (await groups.sync("", SyncRequest(**about))).error is KafkaError.REBALANCE_IN_PROGRESS  # type: ignore[arg-type]
    began = forwarded.cluster.clock.now()
    assert (await groups.heartbeat("", HeartbeatRequest(**about))).error is KafkaError.NONE  # type: ignore[arg-type]
    assert forwarded.cluster.clock.now() - began < PATIENCE / 2 + forwarded.cluster.allowance
    await forwarded.cluster.start_service("s3", gateway=QUICK)
    a.start(forwarded.cluster.tasks)
    await forwarded.settled()
    assert b.errors.count(KafkaError.COORDINATOR_NOT_AVAILABLE) == 0
    assert b.rebalances <= before[1] + 1


async def test_many_groups_are_each_called_at_their_own_leader(forwarded: Forwarded) -> None:
    for number in range(6):
        await forwarded.join(f"m{number}", group=f"g{number}")
    leaders = {forwarded.leader(f"g{number}") for number in range(6)}
    assert leaders == {"s1", "s2"}
