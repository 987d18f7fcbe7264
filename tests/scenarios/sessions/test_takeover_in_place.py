"""What an upstream deployment leaves in the store is served as it is: same owners, same handoffs, nothing dropped.

The records are written here as upstream writes them, byte for byte: no session, no epoch, no step. Both layouts are
tried: one prefix per group, and upstream's groupless prefix, which is our root.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from assigner.core.group import GroupState
from assigner.model.records import Phase, Status
from assigner.store import Found
from tests.support.cluster import EXPIRES, Cluster, cluster_on, tp
from tests.support.scenario_fixtures import marked_arguments
from tests.support.stepped_consumer import SteppedConsumer

pytestmark = pytest.mark.virtual_time
STARTED = 1_700_000_000


@pytest.fixture(params=["memory-grouped", "memory-groupless", pytest.param("etcd-groupless", marks=pytest.mark.etcd)])
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    store, _, layout = request.param.partition("-")
    marked = marked_arguments(request.node.iter_markers())
    async with cluster_on(store, request, groupless=layout == "groupless", **marked) as cluster:
        yield cluster


class Upstream:
    """Upstream's hand on the store."""

    def __init__(self, cluster: Cluster) -> None:
        self._world = cluster
        self.prefix = cluster.group.prefix

    async def put(self, key: str, lease_ttl: float | None = None, **record: Any) -> None:
        store = self._world.store
        lease = (await store.grant(lease_ttl)).lease if lease_ttl else 0
        await store.put(self.prefix + key, json.dumps(record, separators=(",", ":")).encode(), lease=lease)

    async def topic(self, topic: str = "t", count: int = 8, **more: Any) -> None:
        await self.put(f"config/topics/{topic}", topic=topic, partition_count=count, **more)

    async def consumer(self, name: str, lease_ttl: float, **more: Any) -> None:
        record: dict[str, Any] = {
            "consumer_name": name,
            "status": "Ready",
            "registered_at": STARTED,
            "generation": "",
            **more,
        }
        await self.put(f"consumers/{name}", lease_ttl, **record)

    async def assignment(self, partition: int, owner: str, **more: Any) -> None:
        record: dict[str, Any] = {"topic": "t", "partition": partition, "owner": owner, "status": "Active", **more}
        await self.put(f"assignments/t/{partition}", **record)

    async def handoff(self, partition: int, old: str, new: str, phase: str, **more: Any) -> None:
        record: dict[str, Any] = {"topic": "t", "partition": partition, "old_owner": old, "new_owner": new}
        record |= {"phase": phase, "started_at": STARTED, **more}
        await self.put(f"handoffs/t/{partition}", **record)

    async def leader(self, lease_ttl: float) -> None:
        await self.put("assigner/leader", lease_ttl, holder="assigner-0", lease_id=7587848384)

    async def read(self, key: str) -> dict[str, Any]:
        found = await self._world.store.get(self.prefix + key)
        assert isinstance(found, Found)
        return dict(json.loads(found.entry.value))


@pytest.fixture
async def upstream(cluster: Cluster) -> Upstream:
    """Eight partitions, four each for a and b, nobody connected any more."""
    upstream = Upstream(cluster)
    await upstream.topic()
    for number in range(8):
        await upstream.assignment(number, "a" if number < 4 else "b")
    return upstream


async def come_back(cluster: Cluster, name: str, **how: Any) -> SteppedConsumer:
    """Connect the way upstream's client does: without a session, and without renewing it."""
    consumer = await cluster.join(name, session="", renews=False, **how)
    cluster.tasks.start_soon(_answer_pings, consumer)
    return consumer


async def _answer_pings(consumer: SteppedConsumer) -> None:
    while True:
        consumer.last_heard = consumer.cluster.clock.now()
        await anyio.sleep(consumer.cluster.ttl / 5)


def epochs(state: GroupState) -> set[int]:
    return {held.record.epoch for held in state.assignments.values()}


async def taken_over(cluster: Cluster, *names: str) -> GroupState:
    """Every partition is stamped with the session its owner has now."""

    def stamped(state: GroupState) -> bool:
        sessions = {name: state.consumers[name].record.session for name in names if name in state.consumers}
        return all(sessions.get(held.record.owner) == held.record.session for held in state.assignments.values())

    return await cluster.until(f"{names} are owners by session", stamped)


async def nothing_moved(cluster: Cluster) -> None:
    instance = next(iter(cluster.instances.values()))
    assert (await instance.operations.describe("g")).history == ()


async def test_consumers_that_rejoin_keep_what_they_had(cluster: Cluster, upstream: Upstream) -> None:
    before = await cluster.owners()
    await cluster.start_instance()
    a = await come_back(cluster, "a")
    b = await come_back(cluster, "b")
    state = await taken_over(cluster, "a", "b")
    assert await cluster.owners() == before
    assert epochs(state) == {1}
    await a.until("hears of its own", lambda c: c.owned == {tp(n): 1 for n in range(4)})
    await b.until("hears of its own", lambda c: c.owned == {tp(n): 1 for n in range(4, 8)})
    assert not any(c.warms or c.releases or c.unassigned for c in (*a.heard, *b.heard))
    await nothing_moved(cluster)


@pytest.mark.cluster(etcd_ttl=EXPIRES)
async def test_registrations_upstream_left_behind_are_taken_over(cluster: Cluster, upstream: Upstream) -> None:
    for name in ("a", "b"):
        await upstream.consumer(name, lease_ttl=max(5.0, cluster.ttl))
    before = await cluster.owners()
    await cluster.start_instance()
    a = await come_back(cluster, "a")
    b = await come_back(cluster, "b")
    await taken_over(cluster, "a", "b")
    # The leases of the old registrations run out meanwhile, which must not matter.
    await anyio.sleep(1.5 * cluster.ttl)
    assert await cluster.owners() == before
    assert (len(a.owned), len(b.owned)) == (4, 4)
    await nothing_moved(cluster)


@pytest.mark.cluster(etcd_ttl=2 * EXPIRES)
async def test_one_consumer_late_by_less_than_a_ttl_keeps_its_partitions(cluster: Cluster, upstream: Upstream) -> None:
    before = await cluster.owners()
    await cluster.start_instance()
    a = await come_back(cluster, "a")
    await a.until("hears of its own", lambda c: len(c.owned) == 4)
    # b is not there, and is not taken for dead yet: a plan made now leaves its partitions alone.
    await cluster.instances["i1"].operations.rebalance("g")
    await anyio.sleep(cluster.ttl / 2)
    assert await cluster.owners() == before
    await come_back(cluster, "b")
    await taken_over(cluster, "a", "b")
    assert await cluster.owners() == before
    await nothing_moved(cluster)


@pytest.mark.cluster(etcd_ttl=EXPIRES)
async def test_a_consumer_that_never_rejoins_loses_its_partitions(cluster: Cluster, upstream: Upstream) -> None:
    await cluster.start_instance()
    await come_back(cluster, "a")
    state = await cluster.until_counts(a=8, within=90)
    assert min(epochs(state)) >= 1


@pytest.mark.cluster(etcd_ttl=EXPIRES)
async def test_nothing_is_written_while_upstreams_leader_lives(cluster: Cluster, upstream: Upstream) -> None:
    await upstream.leader(lease_ttl=cluster.ttl)
    await cluster.put_consumer("c", lease_ttl=600)
    instance = await cluster.start_instance()
    before = await cluster.state()
    assert before.leader is not None
    assert before.leader.record.holder == "assigner-0"
    assert not instance.coordinators.active
    state = await cluster.until("ours leads", lambda s: bool(s.leader and s.leader.record.holder == "i1"), within=90)
    assert all(held.record.session == "" for held in state.assignments.values())
    # Neither a nor b came back within a TTL of the term.
    await cluster.until_counts(c=8, within=90)


async def test_a_missing_epoch_counts_as_the_floor(cluster: Cluster, upstream: Upstream) -> None:
    await upstream.put("plan", generation=7, epoch_floor=41)
    await cluster.start_instance()
    await come_back(cluster, "a")
    await come_back(cluster, "b")
    state = await taken_over(cluster, "a", "b")
    assert epochs(state) == {42}
    assert state.plan.generation == 7


async def test_a_handoff_that_was_warming_starts_again_with_the_same_ends(cluster: Cluster, upstream: Upstream) -> None:
    await upstream.assignment(4, "a")
    await upstream.handoff(4, "a", "b", "Warming")
    await cluster.start_instance()
    a = await come_back(cluster, "a")
    b = await come_back(cluster, "b", answers_warm=False)
    await b.until("asked to warm", lambda c: set(c.to_warm) == {tp(4)})
    state = await taken_over(cluster, "a", "b")
    assert state.handoffs[tp(4)].record.phase is Phase.WARMING
    assert state.handoffs[tp(4)].record.started_at >= STARTED
    await b.ready(tp(4))
    await cluster.until_counts(a=4, b=4)
    assert [release.tp for c in a.heard for release in c.releases] == [tp(4)]


async def test_a_handoff_that_was_ready_is_warmed_again_by_the_process_that_rejoins(
    cluster: Cluster, upstream: Upstream
) -> None:
    await upstream.assignment(4, "a")
    await upstream.handoff(4, "a", "b", "Ready")
    await cluster.start_instance()
    await come_back(cluster, "a")
    b = await come_back(cluster, "b")
    await cluster.until_counts(a=4, b=4)
    # The process that was ready is another one: its state is gone.
    assert [warm.tp for c in b.heard for warm in c.warms] == [tp(4)]


async def test_a_handoff_that_was_ready_flips_for_a_target_still_there(cluster: Cluster, upstream: Upstream) -> None:
    for name in ("a", "b"):
        await upstream.consumer(name, lease_ttl=600)
    await upstream.assignment(4, "a")
    await upstream.handoff(4, "a", "b", "Ready")
    await cluster.start_instance()
    state = await cluster.until("flipped", lambda s: tp(4) in s.owned["b"])
    assert state.handoffs[tp(4)].record.phase is Phase.COMPLETE
    assert state.assignments[tp(4)].record.epoch == 1


async def test_a_complete_handoff_ends_when_the_old_owner_rejoins_without_it(
    cluster: Cluster, upstream: Upstream
) -> None:
    await upstream.handoff(4, "a", "b", "Complete")
    await cluster.start_instance()
    a = await come_back(cluster, "a")
    b = await come_back(cluster, "b")
    await cluster.until_counts(a=4, b=4)
    await a.until("has the others", lambda c: set(c.owned) == {tp(0), tp(1), tp(2), tp(3)})
    await b.until("hears of it", lambda c: tp(4) in c.owned)
    await nothing_moved(cluster)


@pytest.mark.cluster(etcd_ttl=EXPIRES)
async def test_a_handoff_whose_target_never_rejoins_is_abandoned(cluster: Cluster, upstream: Upstream) -> None:
    await upstream.handoff(3, "a", "c", "Warming")
    await cluster.start_instance()
    await come_back(cluster, "a")
    await come_back(cluster, "b")
    began = cluster.clock.now()
    await cluster.until_counts(a=4, b=4, within=90)
    # Once the doubt is over, and not whenever somebody looks again by chance.
    assert cluster.clock.now() - began < cluster.ttl + 5 + cluster.allowance


async def test_fields_of_others_survive_every_rewrite(cluster: Cluster, upstream: Upstream) -> None:
    await upstream.topic(retention_hours=72)
    await upstream.consumer("a", lease_ttl=600, zone={"row": 3})
    for number in range(8):
        await upstream.assignment(number, "a" if number < 5 else "b", note=f"n{number}")
    await upstream.handoff(4, "a", "b", "Warming", ticket=[1, 2])
    instance = await cluster.start_instance()
    a = await come_back(cluster, "a", answers_release=False)
    b = await come_back(cluster, "b", answers_warm=False)
    await taken_over(cluster, "a", "b")
    await b.until("asked to warm", lambda c: tp(4) in c.to_warm)
    assert (await upstream.read("handoffs/t/4"))["ticket"] == [1, 2]
    await b.ready(tp(4))
    await a.until("asked to release", lambda c: tp(4) in c.to_release)
    handoff = await upstream.read("handoffs/t/4")
    assert (handoff["ticket"], handoff["phase"]) == ([1, 2], "Complete")
    await a.release(tp(4))
    await cluster.until_counts(a=4, b=4)

    await instance.operations.set_topic("g", "t", 9)
    await instance.operations.drain("g", "a")
    await cluster.until("a is draining", lambda s: s.consumers["a"].record.status is Status.DRAINING)
    assert (await upstream.read("consumers/a"))["zone"] == {"row": 3}
    assert (await upstream.read("config/topics/t"))["retention_hours"] == 72
    for number in range(8):
        assert (await upstream.read(f"assignments/t/{number}"))["note"] == f"n{number}"


async def test_upstreams_fields_keep_their_form(cluster: Cluster, upstream: Upstream) -> None:
    await upstream.consumer("a", lease_ttl=600, controller={"kind": "Deployment", "name": "dedup"})
    instance = await cluster.start_instance()
    await instance.operations.drain("g", "a")
    consumer = await upstream.read("consumers/a")
    assert consumer["status"] == "Draining"
    assert consumer["controller"] == {"kind": "Deployment", "name": "dedup"}
    assert (consumer["registered_at"], consumer["generation"]) == (STARTED, "")
    await come_back(cluster, "b", answers_warm=False)
    await cluster.until("a handoff", lambda s: bool(s.handoffs))
    handoff = await upstream.read("handoffs/t/0")
    assert (handoff["old_owner"], handoff["new_owner"], handoff["phase"]) == ("a", "b", "Warming")
    assert (await upstream.read("assignments/t/4"))["status"] == "Active"
